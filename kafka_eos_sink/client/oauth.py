"""Tokens for OAUTHBEARER: where they come from, and when a new one is fetched.

All clients of a process with the same credentials share a token, as with Java's LoginManager. A Spark worker runs many
tasks with its own client each, and the token endpoint should see one client.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn
from urllib.parse import SplitResult, quote_plus, unquote, urlencode, urlsplit

from kafka_eos_sink.client import kerberos, sasl
from kafka_eos_sink.client.connection import Dialogue
from kafka_eos_sink.client.security import (
    ClientCredentials,
    KerberosCredentials,
    Secret,
    SecurityConfig,
    TlsConfig,
    TokenCredentials,
    TokenProvider,
    TokenSource,
)
from kafka_eos_sink.client.tls import TlsError, certificate_name, tls_error, trust
from kafka_eos_sink.errors import AuthenticationError

REFRESH_AT = 0.8
"""The fraction of its lifetime after which a token is replaced (Java's ``sasl.login.refresh.window.factor``)."""
UNSECURED_LIFETIME_S = 3_600
MILLISECONDS_FROM = 100_000_000_000
"""An expiry from here on is milliseconds since 1970: as seconds it would lie after the year 5000."""
LONGEST_LIFETIME_S = 86_400.0
"""A token that claims to live longer is fetched again as if it lived this long."""

_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_TEMPORARY_STATUS = (408, 429)
_MAX_BODY_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class _Token:
    secret: Secret
    refresh_at: float


_tokens: dict[tuple[TokenSource, TlsConfig], _Token] = {}


class Tokens:
    """The tokens of one source.

    Args:
        tls: Authorities to trust for the endpoint, besides the operating system's.
        clock: Wall clock seconds, because the expiry of a token is wall clock time.
    """

    def __init__(self, source: TokenSource, tls: TlsConfig, clock: Callable[[], float] = time.time) -> None:
        self._source = source
        self._tls = tls
        self._clock = clock

    def current(self) -> Secret:
        """Return a token with enough lifetime left.

        Raises:
            AuthenticationError: TOKEN_UNAVAILABLE, if the source is misconfigured or rejects the client.
            OSError: A temporary failure; a retry may succeed.
        """
        now = self._clock()
        token = _tokens.get((self._source, self._tls))
        if token is None or now >= token.refresh_at:
            text, expires_at = self._fetch(now)
            # The token becomes part of a SASL message, and control characters would end its field there.
            if _TOKEN.fullmatch(text) is None:
                _fail("the source returned no valid bearer token (RFC 6750)")
            token = _Token(secret=Secret(text), refresh_at=now + REFRESH_AT * (expires_at - now))
            _tokens[self._source, self._tls] = token
        return token.secret

    def forget(self) -> None:
        """Drop the token that the broker rejected; the next attempt fetches a new one."""
        _tokens.pop((self._source, self._tls), None)

    def _fetch(self, now: float) -> tuple[str, float]:
        source = self._source
        if isinstance(source, ClientCredentials):
            return _from_endpoint(source, self._tls, now)
        if isinstance(source, TokenProvider):
            return _from_provider(source, now)
        return _unsecured(source.principal, now), now + UNSECURED_LIFETIME_S


def _bounded(value: float, low: float, high: float) -> float:
    """Return `value` within the bounds; NaN counts as `low`."""
    # Compare before float(): JSON and Python allow integers that no float can hold.
    return float(min(value, high)) if value > low else low


def _from_provider(source: TokenProvider, now: float) -> tuple[str, float]:
    # A user's function may raise anything and return anything, whatever its annotations promise.
    try:
        given = source.provide()
    except AuthenticationError:
        raise
    except Exception as error:
        # The type only: the errors of HTTP clients show addresses and bodies, which hold secrets.
        _fail(f"{source.name} raised {type(error).__name__}")
    if (
        not isinstance(given, tuple)
        or len(given) != 2
        or not isinstance(given[0], str)
        or isinstance(given[1], bool)
        or not isinstance(given[1], (int, float))
        or given[1] != given[1]  # not a number
    ):
        _fail(f"{source.name} must return (token, expiry in seconds since 1970)")
    # With such an expiry a token would never be replaced, and the connection would fail when the token ends.
    if given[1] >= MILLISECONDS_FROM:
        _fail(
            f"{source.name} returned an expiry in milliseconds; it must return (token, expiry in seconds since 1970): divide by 1000"
        )
    return given[0], _bounded(given[1], now, now + LONGEST_LIFETIME_S)


def _from_endpoint(source: ClientCredentials, tls: TlsConfig, now: float) -> tuple[str, float]:
    # RFC 6749 (2.3.1) requires the encoding. Java's client encodes only with that option.
    user, password = source.client_id, source.client_secret.reveal()
    if source.url_encoded:
        user, password = quote_plus(user), quote_plus(password)
    basic = base64.b64encode(f"{user}:{password}".encode()).decode()
    form = {"grant_type": "client_credentials"} | ({} if source.scope is None else {"scope": source.scope})
    # Host and port alone: path and query may hold a key of the endpoint.
    where = f"token endpoint https://{urlsplit(source.token_endpoint_url).netloc}"
    try:
        status, body = _https_post(
            source,
            urlencode(form).encode(),
            {
                "Authorization": f"Basic {basic}",
                "Accept": "application/json",
                "Content-Type": "application/x-www-form-urlencoded",
            },
            tls,
        )
    except TlsError as error:
        _fail(f"{where}: {error}")
    except OSError as error:
        # Network errors and status 5xx are OSError: the node backs off, and its next attempt fetches again.
        # The text may be a proxy's.
        raise OSError(f"{where}: {sasl.without([], str(error))}") from None
    if status in _TEMPORARY_STATUS or status >= 500:
        raise OSError(f"{where} returned status {status}")
    response = _json_object(body)
    if status != 200:
        why = " ".join(str(response[name]) for name in ("error", "error_description") if name in response)
        redirected = "; redirects are not followed, so give the final address" if 300 <= status < 400 else ""
        # Some endpoints and gateways quote the header that they reject.
        hidden = [Secret(basic), Secret(password), source.client_secret]
        detail = sasl.without(hidden, why) if why else "no further detail"
        _fail(f"{where} returned status {status}: {detail}{redirected}")
    token, lifetime_s = response.get("access_token"), response.get("expires_in", 0)
    if not isinstance(token, str):
        _fail(f"{where} returned no access_token")
    # Without expires_in (optional in RFC 6749, 5.1) the lifetime is unknown, so the token is used only once.
    known = isinstance(lifetime_s, (int, float)) and not isinstance(lifetime_s, bool)
    return token, now + (_bounded(lifetime_s, 0.0, LONGEST_LIFETIME_S) if known else 0.0)


def _https_post(
    source: ClientCredentials, body: bytes, headers: Mapping[str, str], tls: TlsConfig
) -> tuple[int, bytes]:
    """Send a POST to the token endpoint and wait for status and body of the response.

    The client follows no redirect and sends no certificate. It trusts the operating system's authorities and
    ``tls``'s. A proxy (HTTPS_PROXY, NO_PROXY) sees the endpoint's host and port, and encrypted bytes. The exchange ends
    after the sum of the two timeouts.

    Raises:
        TlsError: The TLS handshake failed.
        OSError: No connection, no response in time, or a response that is not HTTP.
    """
    connect_s, read_s = source.connect_timeout_ms / 1000, source.read_timeout_ms / 1000
    context = ssl.create_default_context()
    if tls.trusted_certificates is not None:
        trust(context, tls.trusted_certificates)
    parts = urlsplit(source.token_endpoint_url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    connection = _https_connection(parts, connect_s, context)

    def exchange() -> tuple[int, bytes]:
        try:
            connection.connect()
            connection.sock.settimeout(read_s)
            connection.request("POST", target, body, dict(headers))
            response = connection.getresponse()
            received = response.read(_MAX_BODY_BYTES + 1)
            if len(received) > _MAX_BODY_BYTES:
                raise OSError(f"its response is longer than {_MAX_BODY_BYTES} bytes")
            return response.status, received
        except ssl.SSLError as error:
            raise tls_error(error) from None
        except http.client.HTTPException as error:
            raise OSError(f"its response is not HTTP: {type(error).__name__}") from None
        finally:
            connection.close()

    return _within(connect_s + read_s, exchange, connection)


def _within(
    limit_s: float, exchange: Callable[[], tuple[int, bytes]], connection: http.client.HTTPConnection
) -> tuple[int, bytes]:
    """Run the exchange with a limit on all of it: name look-up, TLS, headers and body."""
    # The socket's timeout restarts with every byte, so a slow sender would hold the client for ever.
    done: Future[tuple[int, bytes]] = Future()

    def run() -> None:
        try:
            done.set_result(exchange())
        except Exception as error:
            done.set_exception(error)

    threading.Thread(target=run, name="kafka-eos-token", daemon=True).start()
    try:
        return done.result(limit_s)
    except TimeoutError:
        if done.done():
            raise
        if (sock := connection.sock) is not None:
            with suppress(OSError):
                # Wakes the thread, which closes the connection. Not SSLSocket.shutdown: it first drops TLS, and sends in clear then.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
        raise OSError(f"no complete response within {limit_s:g} s") from None


class _HttpsConnection(http.client.HTTPSConnection):
    """HTTPS, also through a tunnel; the certificate must hold ``name``."""

    def __init__(self, host: str, port: int, name: str, timeout_s: float, context: ssl.SSLContext) -> None:
        super().__init__(host, port, timeout=timeout_s, context=context)
        self._name = name
        self._tls = context

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        self.sock = self._tls.wrap_socket(self.sock, server_hostname=self._name)


def _https_connection(endpoint: SplitResult, timeout_s: float, context: ssl.SSLContext) -> http.client.HTTPSConnection:
    """Return an unopened connection to the endpoint, through the environment's proxy."""
    host, port = endpoint.hostname or "", endpoint.port or http.client.HTTPS_PORT
    proxy = urllib.request.getproxies().get("https")
    if not proxy or urllib.request.proxy_bypass(f"{host}:{port}"):
        return _HttpsConnection(host, port, certificate_name(host), timeout_s, context)
    try:
        through = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        proxy_host, proxy_port = through.hostname, through.port or http.client.HTTP_PORT
    except ValueError:
        proxy_host = None
    # The value stays out of the message: it may hold a password.
    if not proxy_host or through.scheme != "http":
        _fail("the environment variable HTTPS_PROXY must be like http://host:port; no other kind of proxy is supported")
    headers = {}
    if through.username is not None:
        pair = f"{unquote(through.username)}:{unquote(through.password or '')}"
        headers["Proxy-Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
    connection = _HttpsConnection(proxy_host, proxy_port, certificate_name(host), timeout_s, context)
    # TLS begins inside the tunnel, and the certificate must name the endpoint, not the proxy.
    connection.set_tunnel(host, port, headers)
    return connection


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _unsecured(principal: str, now: float) -> str:
    """Return an unsigned JWT, as Java's ``unsecuredLoginStringClaim_sub`` makes it."""
    claims = {"sub": principal, "iat": int(now), "exp": int(now) + UNSECURED_LIFETIME_S}
    parts = (base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in ({"alg": "none"}, claims))
    return b".".join((*parts, b"")).decode()


def _fail(reason: str) -> NoReturn:
    raise AuthenticationError("TOKEN_UNAVAILABLE", f"no token for OAUTHBEARER: {reason}") from None


def authentication_for(security: SecurityConfig) -> Callable[[str], Dialogue] | None:
    """Return a function that starts the SASL dialogue with a host, None without SASL."""
    config = security.sasl
    if not security.uses_sasl or config is None:
        return None
    credentials = config.credentials
    if isinstance(credentials, TokenCredentials):
        tokens = Tokens(credentials.source, security.tls)
        return lambda _: sasl.authenticate(config, tokens.current, tokens.forget)
    if isinstance(credentials, KerberosCredentials):
        return lambda host: sasl.authenticate(
            config, rejected=lambda: kerberos.forget(credentials), host=certificate_name(host)
        )
    return lambda _: sasl.authenticate(config)
