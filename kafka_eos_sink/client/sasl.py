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

from kafka_eos_sink.client.connection import Dialogue
from kafka_eos_sink.client.security import PasswordCredentials, SaslConfig, Secret, TokenCredentials
from kafka_eos_sink.errors import AuthenticationError, peer_text
from kafka_eos_sink.protocol import messages as m
from kafka_eos_sink.protocol.error_codes import ErrorCode

MIN_ITERATIONS = 4_096
"""The minimum of RFC 7677 and of Kafka. Fewer make it too easy to guess the password from a recorded exchange."""
MAX_ITERATIONS = 1_000_000
"""Limits the work that a server can cause: about a second of CPU time."""

_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}

Messages = Generator[bytes, bytes, None]
"""A mechanism. It ends when the server has proven its identity, as far as the mechanism allows."""


def authenticate(
    config: SaslConfig,
    token: Callable[[], Secret] | None = None,
    token_rejected: Callable[[], None] = lambda: None,
) -> Dialogue:
    """Authenticate; return the session's lifetime in ms, 0 if it does not expire.

    Args:
        config: Mechanism and credentials.
        token: Returns the token of OAUTHBEARER; raises OSError for a temporary failure.
        token_rejected: Called when the broker rejects the credentials.

    Raises:
        AuthenticationError: UNSUPPORTED_SASL_MECHANISM, ILLEGAL_SASL_STATE, SASL_AUTHENTICATION_FAILED or
            SASL_SERVER_UNTRUSTED, with the broker's message and never with a secret.
    """
    handshake: m.SaslHandshakeResponse = yield m.SaslHandshakeRequest(mechanism=config.mechanism)
    if handshake.error_code:
        raise _refused_handshake(config.mechanism, handshake)
    if isinstance(config.credentials, PasswordCredentials):
        hidden = [config.credentials.password]
        password = config.credentials
        messages = plain(password) if config.mechanism == "PLAIN" else scram(_HASHES[config.mechanism], password)
    else:
        assert token is not None
        hidden = [token()]
        messages = oauthbearer(hidden[0], config.credentials)
    message = next(messages)
    # The number of rounds depends on the mechanism: PLAIN has one, SCRAM two, a rejected token one more.
    while True:
        response: m.SaslAuthenticateResponse = yield m.SaslAuthenticateRequest(auth_bytes=message)
        if response.error_code:
            # Other connections of this process must not use the cached token again.
            token_rejected()
            raise _refused(config.mechanism, response, hidden)
        try:
            message = messages.send(bytes(response.auth_bytes))
        except StopIteration:
            # The mechanism has verified the server's last message. Before, a zero error code proves nothing about the broker.
            return response.session_lifetime_ms


def _refused_handshake(mechanism: str, handshake: m.SaslHandshakeResponse) -> AuthenticationError:
    error = ErrorCode.of(handshake.error_code)
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


def _refused(mechanism: str, response: m.SaslAuthenticateResponse, hidden: Iterable[Secret]) -> AuthenticationError:
    error = ErrorCode.of(response.error_code)
    detail = without(hidden, response.error_message or error.message)
    named = "" if error is ErrorCode.SASL_AUTHENTICATION_FAILED else f" ({error.name})"
    given = "the token and its source" if mechanism == "OAUTHBEARER" else "user name and password"
    return AuthenticationError(
        "ILLEGAL_SASL_STATE" if error is ErrorCode.ILLEGAL_SASL_STATE else "SASL_AUTHENTICATION_FAILED",
        f"the broker rejected {mechanism}{named}: {detail.rstrip('.')}; check {given}, and sasl.mechanism",
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
        raise AuthenticationError(
            "SASL_AUTHENTICATION_FAILED",
            f"the broker rejected the token: {without([token], reason.decode(errors='replace'))}; check the token and "
            "its source",
        )


_SERVER_FIRST = re.compile(r"r=([\x21-\x2b\x2d-\x7e]+),s=([A-Za-z0-9+/]+=*),i=([1-9][0-9]{0,9})(?:,.*)?", re.DOTALL)
_SERVER_FINAL = re.compile(r"(v|e)=([^,]+)(?:,.*)?", re.DOTALL)


def scram(hash_name: str, credentials: PasswordCredentials, nonce: str | None = None) -> Messages:
    """SCRAM (RFC 5802, RFC 7677) without channel binding; a None ``nonce`` is random.

    Both sides prove that they know the password. The client rejects a server that does not.
    """
    # No SASLprep for user name and password: brokers salt passwords without it (Kafka's ScramFormatter).
    nonce = nonce or secrets.token_urlsafe(24)
    name = credentials.username.replace("=", "=3D").replace(",", "=2C")
    client_first = f"n={name},r={nonce}"
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
        raise AuthenticationError(
            "SASL_AUTHENTICATION_FAILED",
            f"the broker rejected SCRAM: {without([credentials.password], found[2])}; check user name and password",
        )
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
