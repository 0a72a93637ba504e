"""Tokens for OAUTHBEARER: where they come from, and how long one is used.

A token is shared by all clients of a process with the same credentials, as Java's LoginManager shares its logins: a
worker of Spark runs many tasks, and each has clients of its own.
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn
from urllib.parse import quote_plus, urlencode

from kafka_eos_sink.client.sasl import without
from kafka_eos_sink.client.security import ClientCredentials, Secret, TlsConfig, TokenProvider, TokenSource
from kafka_eos_sink.client.transport import TlsError, https_post
from kafka_eos_sink.errors import AuthenticationError

REFRESH_AT = 0.8
"""The part of its life after which a token is replaced, as in Java (sasl.login.refresh.window.factor)."""
UNSECURED_LIFETIME_S = 3_600

_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_MAY_PASS = (408, 429)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Token:
    secret: Secret
    refresh_at: float


_tokens: dict[tuple[TokenSource, TlsConfig], _Token] = {}


class Tokens:
    """The tokens of one source; `tls` says whom the endpoint's certificate must be signed by, besides the system's.

    Times are those of the wall clock, as expiries are.
    """

    def __init__(self, source: TokenSource, tls: TlsConfig, clock: Callable[[], float] = time.time) -> None:
        self._source = source
        self._tls = tls
        self._clock = clock

    def current(self) -> Secret:
        """A token with enough of its life left.

        Raises AuthenticationError TOKEN_UNAVAILABLE; OSError where another try may do better.
        """
        now = self._clock()
        token = _tokens.get((self._source, self._tls))
        if token is None or now >= token.refresh_at:
            text, expires_at = self._fetch(now)
            if _TOKEN.fullmatch(text) is None:
                _fail("what came is no bearer token (RFC 6750)")
            token = _Token(secret=Secret(text), refresh_at=now + REFRESH_AT * (expires_at - now))
            _tokens[self._source, self._tls] = token
        return token.secret

    def forget(self) -> None:
        """The current token was refused: whoever tries again gets a new one."""
        _tokens.pop((self._source, self._tls), None)

    def _fetch(self, now: float) -> tuple[str, float]:
        source = self._source
        if isinstance(source, ClientCredentials):
            return _from_endpoint(source, self._tls, now)
        if isinstance(source, TokenProvider):
            return _from_provider(source)
        return _unsecured(source.principal, now), now + UNSECURED_LIFETIME_S


def _from_provider(source: TokenProvider) -> tuple[str, float]:
    try:
        given = source.provide()
    except Exception as error:  # the user's function
        _fail(f"{source.name} raised {type(error).__name__}: {error}")
    if (
        not isinstance(given, tuple)
        or len(given) != 2
        or not isinstance(given[0], str)
        or isinstance(given[1], bool)
        or not isinstance(given[1], (int, float))
    ):
        _fail(f"{source.name} must return (token, seconds since 1970 when it expires)")
    return given[0], float(given[1])


def _from_endpoint(source: ClientCredentials, tls: TlsConfig, now: float) -> tuple[str, float]:
    user, password = source.client_id, source.client_secret.reveal()
    if source.url_encoded:
        user, password = quote_plus(user), quote_plus(password)
    form = {"grant_type": "client_credentials"} | ({} if source.scope is None else {"scope": source.scope})
    where = f"token endpoint {source.token_endpoint_url}"
    try:
        status, body = https_post(
            source.token_endpoint_url,
            urlencode(form).encode(),
            {
                "Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode(),
                "Accept": "application/json",
                "Content-Type": "application/x-www-form-urlencoded",
            },
            tls,
            connect_timeout_ms=source.connect_timeout_ms,
            read_timeout_ms=source.read_timeout_ms,
        )
    except TlsError as error:
        _fail(f"{where}: {error}")
    except OSError as error:
        raise OSError(f"{where}: {error}") from None
    if status in _MAY_PASS or status >= 500:
        raise OSError(f"{where} answered with status {status}")
    answer = _json_object(body)
    if status != 200:
        why = " ".join(str(answer[name]) for name in ("error", "error_description") if name in answer)
        redirected = "; redirects are not followed" if 300 <= status < 400 else ""
        said = without([source.client_secret], f"{why}") if why else "nothing more"
        _fail(f"{where} answered with status {status}: {said}{redirected}")
    token, lifetime_s = answer.get("access_token"), answer.get("expires_in", 0)
    if not isinstance(token, str):
        _fail(f"{where} answered without an access_token")
    # Without expires_in nothing is known of its life: it is used once.
    known = isinstance(lifetime_s, (int, float)) and not isinstance(lifetime_s, bool)
    return token, now + (max(0.0, float(lifetime_s)) if known else 0.0)


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _unsecured(principal: str, now: float) -> str:
    """A JWT without a signature, as Java's client makes it of unsecuredLoginStringClaim_sub."""
    claims = {"sub": principal, "iat": int(now), "exp": int(now) + UNSECURED_LIFETIME_S}
    parts = (base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in ({"alg": "none"}, claims))
    return b".".join((*parts, b"")).decode()


def _fail(reason: str) -> NoReturn:
    raise AuthenticationError("TOKEN_UNAVAILABLE", f"no token for OAUTHBEARER: {reason}") from None
