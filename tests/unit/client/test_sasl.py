"""SASL mechanisms as dialogues: the exchanges of the RFCs, and servers that are broken or hostile."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_eos_sink.client.sasl import MAX_ITERATIONS, LoginDeferred, Messages, authenticate, oauthbearer, scram
from kafka_eos_sink.client.security import (
    PasswordCredentials,
    SaslConfig,
    Secret,
    TokenCredentials,
    UnsecuredToken,
)
from kafka_eos_sink.errors import AuthenticationError
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

ILLEGAL_SASL_STATE = 34
SASL_AUTHENTICATION_FAILED = 58

RFC_USER = PasswordCredentials(username="user", password=Secret("pencil"))
ALICE = PasswordCredentials(username="alice", password=Secret("correct horse"))
TOKENS = TokenCredentials(source=UnsecuredToken(principal="alice"))


def ends(messages: Messages, last: bytes) -> bool:
    try:
        messages.send(last)
    except StopIteration:
        return True
    return False


@pytest.mark.parametrize(
    ("hash_name", "client_nonce", "server_first", "client_final", "server_final"),
    [
        pytest.param(
            "sha1",
            "fyko+d2lbbFgONRv9qkxdawL",
            "r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096",
            "c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
            "v=rmF9pqV8S7suAoZWja4dJRkFsKQ=",
            id="RFC 5802, section 5",
        ),
        pytest.param(
            "sha256",
            "rOprNGfwEbeRWgbNEkqO",
            "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
            "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
            "p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
            "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
            id="RFC 7677, section 3",
        ),
    ],
)
def test_scram_matches_exchanges_of_rfcs(
    hash_name: str, client_nonce: str, server_first: str, client_final: str, server_final: str
) -> None:
    messages = scram(hash_name, RFC_USER, client_nonce)
    assert next(messages) == f"n,,n=user,r={client_nonce}".encode()
    assert messages.send(server_first.encode()) == client_final.encode()
    assert ends(messages, server_final.encode())


class ScramServer:
    """The server's side by RFC 5802, from its formulas: StoredKey and ServerKey, never the password again."""

    def __init__(self, hash_name: str, password: str, *, iterations: int = 4_096) -> None:
        self.hash_name, self.iterations, self.salt = hash_name, iterations, b"some salt"
        salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), self.salt, iterations)
        self.stored_key = hashlib.new(hash_name, hmac.digest(salted, b"Client Key", hash_name)).digest()
        self.server_key = hmac.digest(salted, b"Server Key", hash_name)
        self.first_bare = self.first = ""

    def answer_first(self, message: bytes) -> bytes:
        self.first_bare = message.decode().removeprefix("n,,")
        nonce = self.first_bare.rpartition("r=")[2].partition(",")[0]
        salt = base64.b64encode(self.salt).decode()
        self.first = f"r={nonce}server-part,s={salt},i={self.iterations}"
        return self.first.encode()

    def answer_final(self, message: bytes) -> bytes:
        without_proof, _, proof = message.decode().rpartition(",p=")
        signed = ",".join((self.first_bare, self.first, without_proof)).encode()
        signature = hmac.digest(self.stored_key, signed, self.hash_name)
        key = bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True))
        if hashlib.new(self.hash_name, key).digest() != self.stored_key:
            return b"e=invalid-proof"
        return b"v=" + base64.b64encode(hmac.digest(self.server_key, signed, self.hash_name))


@pytest.mark.parametrize("hash_name", ["sha256", "sha512"])
def test_scram_succeeds_with_server_that_knows_password(hash_name: str) -> None:
    server, messages = ScramServer(hash_name, "correct horse"), scram(hash_name, ALICE)
    final = messages.send(server.answer_first(next(messages)))
    assert ends(messages, server.answer_final(final))


def test_names_are_escaped_and_nonces_are_fresh() -> None:
    awkward = PasswordCredentials(username="a=b,ü", password=Secret("p"))
    first, second = (next(scram("sha256", awkward)).decode() for _ in range(2))
    assert first.startswith("n,,n=a=3Db=2Cü,r=")
    assert first != second
    assert re.fullmatch(r"n,,n=[^,]+,r=[\x21-\x2b\x2d-\x7e]{20,}", first)


@pytest.mark.parametrize("hash_name", ["sha256", "sha512"])
def test_delegation_token_is_named_in_the_signed_message(hash_name: str) -> None:
    """The extension of Kafka's ScramExtensions; mutation: it is sent, but missing in what both sides sign."""
    token = PasswordCredentials(username="id", password=Secret("hmac"), is_delegation_token=True)
    server, messages = ScramServer(hash_name, "hmac"), scram(hash_name, token)
    first = next(messages)
    assert re.fullmatch(rb"n,,n=id,r=[^,]+,tokenauth=true", first)
    assert ends(messages, server.answer_final(messages.send(server.answer_first(first))))


def test_scram_rejects_server_without_password() -> None:
    """It may take any proof; what it signs gives it away."""
    server, messages = ScramServer("sha256", "another password"), scram("sha256", ALICE)
    final = messages.send(server.answer_first(next(messages)))
    forged = hmac.digest(server.server_key, b"whatever", "sha256")
    assert server.answer_final(final) == b"e=invalid-proof"
    with pytest.raises(AuthenticationError, match="signature is wrong") as refused:
        messages.send(b"v=" + base64.b64encode(forged))
    assert refused.value.code == "SASL_SERVER_UNTRUSTED"


def test_server_error_is_shown_without_password() -> None:
    messages = scram("sha256", ALICE)
    messages.send(ScramServer("sha256", "other").answer_first(next(messages)))
    with pytest.raises(AuthenticationError, match=r"e is wrong: \[hidden\]") as refused:
        messages.send(b"e=e is wrong: correct horse\x1b[31m")
    assert refused.value.code == "SASL_AUTHENTICATION_FAILED"
    assert "correct horse" not in str(refused.value)
    assert "\x1b" not in str(refused.value)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"r=nonceX,s=c2FsdA==,i=4095", "4095 iterations"),
        (b"r=nonceX,s=c2FsdA==,i=1", "1 iterations"),
        (b"r=nonceX,s=c2FsdA==,i=%d" % (MAX_ITERATIONS + 1), "1000001 iterations"),
        (b"r=nonceX,s=c2FsdA==,i=9999999999", "iterations"),
        (b"r=nonceX,s=c2FsdA==,i=99999999999999999999", "malformed"),
        (b"r=nonceX,s=c2FsdA==,i=0", "malformed"),
        (b"r=nonceX,s=c2FsdA==,i=-4096", "malformed"),
        (b"r=nonceX,s=c2FsdA==,i=4096.0", "malformed"),
        (b"r=nonce,s=c2FsdA==,i=4096", "nonce"),
        (b"r=nonc,s=c2FsdA==,i=4096", "nonce"),
        (b"r=Nonce-other,s=c2FsdA==,i=4096", "nonce"),
        (b"r=X-nonce,s=c2FsdA==,i=4096", "nonce"),
        (b"r=nonceX,s=c2FsdA,i=4096", "base 64"),
        (b"r=nonceX,s=,i=4096", "malformed"),
        (b"r=nonceX,s=****,i=4096", "malformed"),
        (b"s=c2FsdA==,r=nonceX,i=4096", "malformed"),
        (b"m=must,r=nonceX,s=c2FsdA==,i=4096", "malformed"),
        (b"r=nonce X,s=c2FsdA==,i=4096", "malformed"),
        (b"r=nonceX,s=c2FsdA==", "malformed"),
        (b"e=other-error", "malformed"),
        (b"", "malformed"),
        (b"\xff\xfe", "UTF-8"),
        (b"\0" * 60_000, "malformed"),
    ],
)
def test_invalid_first_server_message_is_rejected(answer: bytes, reason: str) -> None:
    messages = scram("sha256", ALICE, "nonce")
    next(messages)
    with pytest.raises(AuthenticationError, match=reason) as refused:
        messages.send(answer)
    assert refused.value.code == "SASL_SERVER_UNTRUSTED"


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_any_server_message_raises_only_authentication_error(first: bytes, final: bytes) -> None:
    messages = scram("sha256", ALICE, "nonce")
    next(messages)
    with pytest.raises(AuthenticationError):
        messages.send(first)
    messages = scram("sha256", ALICE, "nonce")
    messages.send(ScramServer("sha256", "correct horse").answer_first(next(messages)))
    with pytest.raises(AuthenticationError):
        messages.send(final)


def test_oauthbearer_sends_token_with_extensions() -> None:
    credentials = TokenCredentials(source=TOKENS.source, extensions=(("logicalCluster", "lkc-1"),))
    messages = oauthbearer(Secret("abc.def."), credentials)
    assert next(messages) == b"n,,\x01auth=Bearer abc.def.\x01logicalCluster=lkc-1\x01\x01"
    assert ends(messages, b"")


# the whole dialogue in Kafka's requests


def sasl(mechanism: Any, credentials: Any = ALICE) -> SaslConfig:
    return SaslConfig(mechanism=mechanism, credentials=credentials)


def taken(mechanism: str) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=0, mechanisms=(mechanism,))


def answer(auth_bytes: bytes = b"", **fields: Any) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(
        **{"error_code": 0, "error_message": None, "auth_bytes": auth_bytes, "session_lifetime_ms": 0, **fields}
    )


def test_handshake_names_mechanism_and_lifetime_is_returned() -> None:
    server, dialogue = ScramServer("sha512", "correct horse"), authenticate(sasl("SCRAM-SHA-512"))
    assert next(dialogue) == SaslHandshakeRequest(mechanism="SCRAM-SHA-512")
    first = dialogue.send(taken("SCRAM-SHA-512"))
    assert isinstance(first, SaslAuthenticateRequest)
    final = dialogue.send(answer(server.answer_first(first.auth_bytes)))
    assert isinstance(final, SaslAuthenticateRequest)
    with pytest.raises(StopIteration) as end:
        dialogue.send(answer(server.answer_final(final.auth_bytes), session_lifetime_ms=60_000))
    assert end.value.value == 60_000


@pytest.mark.parametrize("code", [ErrorCode.UNSUPPORTED_SASL_MECHANISM, ErrorCode.ILLEGAL_SASL_STATE])
def test_rejected_handshake_has_kafkas_code(code: ErrorCode) -> None:
    dialogue = authenticate(sasl("PLAIN"))
    next(dialogue)
    with pytest.raises(AuthenticationError) as refused:
        dialogue.send(SaslHandshakeResponse(error_code=code, mechanisms=("GSSAPI\x1b",)))
    assert refused.value.code == code.name
    assert "\x1b" not in str(refused.value)


@pytest.mark.parametrize("code", [SASL_AUTHENTICATION_FAILED, ILLEGAL_SASL_STATE, -1, 12_345])
def test_rejection_shows_message_of_broker_and_no_secret(code: int) -> None:
    dialogue = authenticate(sasl("PLAIN"))
    next(dialogue)
    dialogue.send(taken("PLAIN"))
    said = "Authentication failed: alice may not come in with correct horse" + "!" * 5_000
    with pytest.raises(AuthenticationError, match="may not come in with \\[hidden\\]!!!") as refused:
        dialogue.send(answer(error_code=code, error_message=said))
    assert refused.value.code in ("SASL_AUTHENTICATION_FAILED", "ILLEGAL_SASL_STATE")
    assert "correct horse" not in str(refused.value)
    assert len(str(refused.value)) < 1_000


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (SASL_AUTHENTICATION_FAILED, "[74909301-1b7d]: Too many connects"),
        (SASL_AUTHENTICATION_FAILED, "Too many requests, correct horse"),
        (SASL_AUTHENTICATION_FAILED, "THROTTLED"),
        (SASL_AUTHENTICATION_FAILED, "Rate exceeded"),
        (ErrorCode.THROTTLING_QUOTA_EXCEEDED, None),
        (ErrorCode.REQUEST_TIMED_OUT, None),
    ],
)
def test_login_rejected_for_now_is_retriable_and_keeps_the_token(code: int, message: str | None) -> None:
    refusals: list[str] = []
    token = Secret("correct horse")
    dialogue = authenticate(sasl("OAUTHBEARER", TOKENS), lambda: token, lambda: refusals.append("refused"))
    next(dialogue)
    dialogue.send(taken("OAUTHBEARER"))
    with pytest.raises(LoginDeferred, match=r"rejected the login for now: .*limit the rate of logins") as deferred:
        dialogue.send(answer(error_code=code, error_message=message))
    assert refusals == []
    assert "correct horse" not in str(deferred.value)
    assert "check" not in str(deferred.value)


def test_rejected_token_is_not_used_again() -> None:
    refusals: list[str] = []
    dialogue = authenticate(sasl("OAUTHBEARER", TOKENS), lambda: Secret("abc"), lambda: refusals.append("refused"))
    next(dialogue)
    dialogue.send(taken("OAUTHBEARER"))
    assert dialogue.send(answer(b"{}")) == SaslAuthenticateRequest(auth_bytes=b"\x01")
    with pytest.raises(AuthenticationError):
        dialogue.send(answer(error_code=SASL_AUTHENTICATION_FAILED, error_message="no"))
    assert refusals == ["refused"]
