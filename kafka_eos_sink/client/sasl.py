"""SASL mechanisms without I/O.

Each is a generator that yields the client's messages and receives the server's. ``authenticate`` wraps one into SaslHandshake and
SaslAuthenticate (KIP-43, KIP-152). A connection runs it before it is ready, and again before the session expires (KIP-368).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Generator, Iterable

from kafka_eos_sink.client import kerberos
from kafka_eos_sink.client.connection import Dialogue
from kafka_eos_sink.client.security import (
    KerberosCredentials,
    PasswordCredentials,
    SaslConfig,
    Secret,
    TokenCredentials,
)
from kafka_eos_sink.errors import AuthenticationError, peer_text
from kafka_eos_sink.protocol import messages as m
from kafka_eos_sink.protocol.error_codes import ErrorCode

MIN_ITERATIONS = 4_096
"""The minimum of RFC 7677 and of Kafka. Fewer make it too easy to guess the password from a recorded exchange."""
MAX_ITERATIONS = 1_000_000
"""Limits the work that a server can cause: about a second of CPU time."""

_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}

_FOR_NOW = re.compile(
    r"too many (connect|requests)|throttl|rate[ -]?limit|rate exceeded|server (is )?busy|no-resources", re.I
)
"""Texts of services that limit logins ("Too many connects" is MSK's), and SCRAM's code (RFC 5802, 7). Kafka has no error code for it."""

Messages = Generator[bytes, bytes, None]
"""A mechanism. It ends when the server has proven its identity, as far as the mechanism allows."""


class LoginDeferred(OSError):
    """The broker rejected a login for the moment. A later login can succeed."""


def authenticate(
    config: SaslConfig,
    token: Callable[[], Secret] | None = None,
    rejected: Callable[[], None] = lambda: None,
    host: str = "",
) -> Dialogue:
    """Authenticate; return the session's lifetime in ms, 0 if it does not expire.

    Args:
        config: Mechanism and credentials.
        token: Returns the token of OAUTHBEARER; raises OSError for a temporary failure.
        rejected: Called when the broker rejects the credentials.
        host: The broker's host, for which Kerberos issues a ticket.

    Raises:
        LoginDeferred: The broker rejected the login for the moment, such as above its limit of logins per second.
        AuthenticationError: UNSUPPORTED_SASL_MECHANISM, ILLEGAL_SASL_STATE, SASL_AUTHENTICATION_FAILED or
            SASL_SERVER_UNTRUSTED, with the broker's message and never with a secret; KERBEROS_TICKET_UNAVAILABLE.
    """
    handshake: m.SaslHandshakeResponse = yield m.SaslHandshakeRequest(mechanism=config.mechanism)
    if handshake.error_code:
        raise _refused_handshake(config.mechanism, handshake)
    if isinstance(config.credentials, PasswordCredentials):
        hidden = [config.credentials.password]
        password = config.credentials
        messages = plain(password) if config.mechanism == "PLAIN" else scram(_HASHES[config.mechanism], password)
    elif isinstance(config.credentials, KerberosCredentials):
        hidden = []
        messages = kerberos.gssapi(config.credentials, host)
    else:
        assert token is not None
        hidden = [token()]
        messages = oauthbearer(hidden[0], config.credentials)
    message = next(messages)
    # The number of rounds depends on the mechanism: PLAIN has one, SCRAM two, a rejected token one more.
    while True:
        response: m.SaslAuthenticateResponse = yield m.SaslAuthenticateRequest(auth_bytes=message)
        if response.error_code:
            error = _refused(config.mechanism, response, hidden)
            if isinstance(error, AuthenticationError):
                # Other connections of this process must not use the cached token or ticket again.
                rejected()
            raise error
        try:
            message = messages.send(bytes(response.auth_bytes))
        except StopIteration:
            # The mechanism has verified the server's last message. Before, a zero error code proves nothing about the broker.
            return response.session_lifetime_ms


def _refused_handshake(mechanism: str, handshake: m.SaslHandshakeResponse) -> Exception:
    error = ErrorCode.of(handshake.error_code)
    if error.retriable:
        return _deferred(error.name)
    if error is ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        offered = ", ".join(peer_text(name) for name in handshake.mechanisms) or "none"
        return AuthenticationError(
            "UNSUPPORTED_SASL_MECHANISM",
            f"the listener does not support sasl.mechanism={mechanism}; it offers {offered}",
        )
    return AuthenticationError(
        "ILLEGAL_SASL_STATE",
        f"SaslHandshake failed with {error.name}: the listener does not use SASL, or does not expect it now; check "
        "security.protocol and the port",
    )


_GIVEN = {
    "OAUTHBEARER": "the token and its source",
    # A broker gives one reason for all of these.
    "GSSAPI": "the clocks of this machine and the broker, the broker's keytab",
}


def _refused(mechanism: str, response: m.SaslAuthenticateResponse, hidden: Iterable[Secret]) -> Exception:
    error = ErrorCode.of(response.error_code)
    detail = without(hidden, response.error_message or error.message)
    named = "" if error is ErrorCode.SASL_AUTHENTICATION_FAILED else f" ({error.name})"
    if error.retriable:
        return _deferred(f"{detail.rstrip('.')}{named}")
    given = _GIVEN.get(mechanism, "user name and password")
    code = "ILLEGAL_SASL_STATE" if error is ErrorCode.ILLEGAL_SASL_STATE else "SASL_AUTHENTICATION_FAILED"
    return _rejected(f"{mechanism}{named}", detail.rstrip("."), f"{given}, and sasl.mechanism", code)


def _rejected(what: str, detail: str, check: str, code: str = "SASL_AUTHENTICATION_FAILED") -> Exception:
    """Return the error for a login that the broker rejected; ``detail`` is its text."""
    if _FOR_NOW.search(detail):
        return _deferred(detail)
    return AuthenticationError(code, f"the broker rejected {what}: {detail}; check {check}")


def _deferred(detail: str) -> LoginDeferred:
    return LoginDeferred(
        f"the broker rejected the login for now: {detail}. A service may limit the rate of logins: run fewer tasks at once, or "
        "raise kafka.reconnect.backoff.max.ms"
    )


def without(hidden: Iterable[Secret], text: str) -> str:
    """Return a peer's text, short and printable, without secrets that it may echo."""
    for secret in hidden:
        # Replacing an empty text would insert the placeholder between all characters.
        if secret.reveal():
            text = text.replace(secret.reveal(), repr(secret))
    return peer_text(text)


# mechanisms


def plain(credentials: PasswordCredentials) -> Messages:
    """PLAIN (RFC 4616) sends the password in clear text: encrypt the connection."""
    yield b"\0".join((b"", credentials.username.encode(), credentials.password.reveal().encode()))


def oauthbearer(token: Secret, credentials: TokenCredentials) -> Messages:
    """OAUTHBEARER (RFC 7628), with extensions (KIP-342)."""
    pairs = (("auth", f"Bearer {token.reveal()}"), *credentials.extensions)
    reason = yield ("n,,\x01" + "".join(f"{name}={value}\x01" for name, value in pairs) + "\x01").encode()
    if reason:
        # A reason is a rejection. The server fails SaslAuthenticate only after this empty message (RFC 7628, 3.2.3).
        yield b"\x01"
        detail = without([token], reason.decode(errors="replace"))
        raise _rejected("the token", detail, "the token and its source")


_SERVER_FIRST = re.compile(r"r=([\x21-\x2b\x2d-\x7e]+),s=([A-Za-z0-9+/]+=*),i=([1-9][0-9]{0,9})(?:,.*)?", re.DOTALL)
_SERVER_FINAL = re.compile(r"(v|e)=([^,]+)(?:,.*)?", re.DOTALL)


def scram(hash_name: str, credentials: PasswordCredentials, nonce: str | None = None) -> Messages:
    """SCRAM (RFC 5802, RFC 7677) without channel binding; a None ``nonce`` is random.

    Both sides prove that they know the password. The client rejects a server that does not. The extension ``tokenauth`` names a delegation
    token to the broker, as Java's ``ScramLoginModule`` does.
    """
    # No SASLprep for user name and password: brokers salt passwords without it (Kafka's ScramFormatter).
    nonce = nonce or secrets.token_urlsafe(24)
    name = credentials.username.replace("=", "=3D").replace(",", "=2C")
    client_first = f"n={name},r={nonce}" + (",tokenauth=true" if credentials.is_delegation_token else "")
    server_first = _text((yield f"n,,{client_first}".encode()))
    server_nonce, salt, iterations = _read_server_first(server_first, nonce)
    without_proof = f"c=biws,r={server_nonce}"
    signed = f"{client_first},{server_first},{without_proof}".encode()
    salted = hashlib.pbkdf2_hmac(hash_name, credentials.password.reveal().encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    client_signature = hmac.digest(hashlib.new(hash_name, client_key).digest(), signed, hash_name)
    proof = bytes(left ^ right for left, right in zip(client_key, client_signature, strict=True))
    server_final = _text((yield f"{without_proof},p={base64.b64encode(proof).decode()}".encode()))
    found = _SERVER_FINAL.fullmatch(server_final)
    if found is None:
        raise _untrusted("its final message is malformed")
    if found[1] == "e":
        raise _rejected("SCRAM", without([credentials.password], found[2]), "user name and password")
    # Only a server that holds a key derived from this password can make this signature (RFC 5802, 3).
    expected = hmac.digest(hmac.digest(salted, b"Server Key", hash_name), signed, hash_name)
    if not hmac.compare_digest(_base64(found[2]), expected):
        raise _untrusted("its signature is wrong, so it does not know this password")


def _read_server_first(message: str, nonce: str) -> tuple[str, bytes, int]:
    """Return combined nonce, salt and iterations; reject mandatory extensions (m=)."""
    found = _SERVER_FIRST.fullmatch(message)
    if found is None:
        raise _untrusted("its first message is malformed")
    both, salt, iterations = found[1], _base64(found[2]), int(found[3])
    # Another client nonce shows a replayed exchange. A nonce without the server's part is not random (RFC 5802, 5.1).
    if not hmac.compare_digest(both[: len(nonce)].encode(), nonce.encode()) or len(both) == len(nonce):
        raise _untrusted("its nonce does not extend this client's nonce")
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise _untrusted(f"it requires {iterations} iterations; {MIN_ITERATIONS} to {MAX_ITERATIONS} are accepted")
    return both, salt, iterations


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise _untrusted("a message is not UTF-8") from None


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise _untrusted("a message contains invalid base 64") from None


def _untrusted(reason: str) -> AuthenticationError:
    return AuthenticationError(
        "SASL_SERVER_UNTRUSTED", f"the broker failed its part of SCRAM: {reason}; check kafka.bootstrap.servers"
    )
