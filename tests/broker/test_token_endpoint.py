"""Tokens from an HTTPS endpoint, from a function, and unsecured: requests, lifetimes and errors."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qs

import pytest

from certificates import Authority
from kafka_eos_sink.client.oauth import REFRESH_AT, Tokens
from kafka_eos_sink.client.security import ClientCredentials, Secret, TlsConfig, TokenProvider
from kafka_eos_sink.errors import AuthenticationError

SECRET = "hunter2/+&="
BASIC = base64.b64encode(f"the client:{SECRET}".encode())


@pytest.fixture(autouse=True)
def no_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process keeps tokens by address, and an endpoint may get the port of an earlier test's."""
    monkeypatch.setattr("kafka_eos_sink.client.oauth._tokens", {})
    for name in ("https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)


class QuietServer(ThreadingHTTPServer):
    def handle_error(self, *_: Any) -> None:
        """A client that goes away in the handshake is part of these tests."""


class Endpoint:
    """An https server that answers every POST with `answer` and keeps what it was asked."""

    def __init__(self, authority: Authority, host: str = "localhost") -> None:
        self.answer: tuple[int, dict[str, str], bytes] = (200, {}, b"")
        self.asked: list[tuple[str, dict[str, str], dict[str, list[str]]]] = []
        self.trickles, self.given_up = False, threading.Event()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                endpoint.asked.append((self.path, dict(self.headers), parse_qs(body)))
                if endpoint.trickles:
                    self.trickle()
                    return
                status, headers, content = endpoint.answer
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def trickle(self) -> None:
                """Headers without an end, slowly enough to need far longer than any timeout."""
                try:
                    self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Header: ")
                    while not endpoint.given_up.wait(0.05):
                        self.wfile.write(b"x")
                except OSError:
                    endpoint.given_up.set()

            def log_message(self, *_: Any) -> None:
                return

        self.server = QuietServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(authority.issue(host).file)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.url = f"https://localhost:{self.server.server_port}/oauth/token?tenant=1"

    def says(self, status: int = 200, **fields: Any) -> None:
        self.answer = status, {"Content-Type": "application/json"}, json.dumps(fields).encode()


class Proxy:
    """An http proxy that opens tunnels (CONNECT), or refuses them; it keeps what it was asked and what went through."""

    def __init__(self, refusal: str | None = None) -> None:
        self.asked: list[tuple[str, str | None]] = []
        self.passed = bytearray()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            def do_CONNECT(self) -> None:
                proxy.asked.append((self.path, self.headers["Proxy-Authorization"]))
                if refusal is not None:
                    self.wfile.write(f"HTTP/1.1 {refusal}\r\n\r\n".encode())
                    return
                host, _, port = self.path.rpartition(":")
                with socket.create_connection((host, int(port))) as there:
                    self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                    back = threading.Thread(target=self._pass, args=(there, self.connection))
                    back.start()
                    self._pass(self.connection, there)
                    back.join()

            def _pass(self, source: socket.socket, target: socket.socket) -> None:
                with suppress(OSError):  # either side may end first
                    while received := source.recv(65_536):
                        proxy.passed += received
                        target.sendall(received)
                    target.shutdown(socket.SHUT_WR)

            def log_message(self, *_: Any) -> None:
                return

        self.server = QuietServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_port}"


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


S = TypeVar("S", Endpoint, Proxy)


@contextmanager
def running(server: S) -> Iterator[S]:
    thread = threading.Thread(target=server.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.server.shutdown()
        thread.join()
        server.server.server_close()


@pytest.fixture
def endpoint(authority: Authority) -> Iterator[Endpoint]:
    with running(Endpoint(authority)) as started:
        yield started


def tokens(endpoint: Endpoint, authority: Authority, clock: Callable[[], float] | None = None, **others: Any) -> Tokens:
    source = ClientCredentials(
        token_endpoint_url=endpoint.url, client_id="the client", client_secret=Secret(SECRET), **others
    )
    return Tokens(source, TlsConfig(trusted_certificates=authority.pem), clock or Clock())


@pytest.mark.parametrize(
    ("url_encoded", "pair"),
    [(False, f"the client:{SECRET}"), (True, "the+client:hunter2%2F%2B%26%3D")],
)
def test_token_request_uses_client_credentials_grant(
    endpoint: Endpoint, authority: Authority, url_encoded: bool, pair: str
) -> None:
    endpoint.says(access_token="abc.def", expires_in=100, token_type="Bearer")
    assert tokens(endpoint, authority, scope="a b", url_encoded=url_encoded).current() == Secret("abc.def")
    ((path, headers, form),) = endpoint.asked
    assert path == "/oauth/token?tenant=1"
    assert base64.b64decode(headers["Authorization"].removeprefix("Basic ")).decode() == pair
    assert form == {"grant_type": ["client_credentials"], "scope": ["a b"]}


def test_token_is_shared_until_its_refresh_time(endpoint: Endpoint, authority: Authority) -> None:
    clock = Clock()
    endpoint.says(access_token="first", expires_in=100)
    one, other = tokens(endpoint, authority, clock), tokens(endpoint, authority, clock)
    assert one.current() == other.current() == Secret("first")
    endpoint.says(access_token="second", expires_in=100)
    clock.now += 100 * REFRESH_AT - 1
    assert one.current() == Secret("first")
    clock.now += 1
    assert other.current() == one.current() == Secret("second")
    assert len(endpoint.asked) == 2
    endpoint.says(access_token="third", expires_in=100)
    one.forget()
    assert other.current() == Secret("third")


@pytest.mark.parametrize(
    ("status", "headers", "body", "reason"),
    [
        (400, {}, b'{"error":"invalid_client","error_description":"no hunter2/+&= here"}', "invalid_client no \\[hidden\\]"),
        (401, {}, b'{"error":"invalid_client","error_description":"Basic %s fails"}' % BASIC, "client Basic \\[hidden\\] fails"),
        (401, {}, b"", "status 401: no further detail"),
        (302, {"Location": "https://evil.example/"}, b"", "redirects are not followed"),
        (307, {"Location": "/elsewhere"}, b"", "redirects are not followed"),
        (200, {}, b"<html>", "returned no access_token"),
        (200, {}, b"[1]", "returned no access_token"),
        (200, {}, b'{"access_token": 7}', "returned no access_token"),
        (200, {}, b'{"access_token": "a\\u0001auth=Bearer b"}', "no valid bearer token"),
        (200, {}, b'{"access_token": ""}', "no valid bearer token"),
    ],
)  # fmt: skip
def test_response_without_token_fails_without_retry(
    endpoint: Endpoint, authority: Authority, status: int, headers: dict[str, str], body: bytes, reason: str
) -> None:
    endpoint.answer = status, headers, body
    with pytest.raises(AuthenticationError, match=reason) as error:
        tokens(endpoint, authority).current()
    assert error.value.code == "TOKEN_UNAVAILABLE"
    assert SECRET not in str(error.value)
    assert BASIC.decode() not in str(error.value)
    assert len(endpoint.asked) == 1


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_temporary_endpoint_failure_is_retriable(endpoint: Endpoint, authority: Authority, status: int) -> None:
    endpoint.says(status)
    source = tokens(endpoint, authority)
    with pytest.raises(OSError, match=f"returned status {status}"):
        source.current()
    endpoint.says(access_token="abc", expires_in=10)
    assert source.current() == Secret("abc")


def test_endless_response_is_cut_off(endpoint: Endpoint, authority: Authority) -> None:
    endpoint.answer = 200, {}, b" " * 10_000_000
    with pytest.raises(OSError, match="longer than 262144 bytes"):
        tokens(endpoint, authority).current()


def test_response_that_never_ends_its_headers_is_cut_off(endpoint: Endpoint, authority: Authority) -> None:
    endpoint.trickles = True
    began = time.monotonic()
    with pytest.raises(OSError, match="no complete response within 1 s"):
        tokens(endpoint, authority, connect_timeout_ms=500, read_timeout_ms=500).current()
    assert time.monotonic() - began < 60
    assert endpoint.given_up.wait(60)  # the client has closed the connection, too


@pytest.mark.parametrize("lifetime", ["1" + "0" * 400, "1e400", "1e18", "Infinity"])
def test_lifetime_of_a_token_is_at_most_a_day(endpoint: Endpoint, authority: Authority, lifetime: str) -> None:
    clock = Clock()
    endpoint.answer = 200, {}, b'{"access_token": "abc", "expires_in": %s}' % lifetime.encode()
    source = tokens(endpoint, authority, clock)
    assert source.current() == source.current() == Secret("abc")
    assert len(endpoint.asked) == 1
    clock.now += 86_400 * REFRESH_AT
    source.current()
    assert len(endpoint.asked) == 2


@pytest.mark.parametrize("lifetime", ["NaN", "-1", "-1e400"])
def test_token_without_a_lifetime_is_used_once(endpoint: Endpoint, authority: Authority, lifetime: str) -> None:
    endpoint.answer = 200, {}, b'{"access_token": "abc", "expires_in": %s}' % lifetime.encode()
    source = tokens(endpoint, authority)
    assert source.current() == source.current()
    assert len(endpoint.asked) == 2


def test_endpoint_with_untrusted_certificate_gets_no_secret(authority: Authority, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other")
    refusals = {
        "certificate is not trusted.*add its issuer": Endpoint(other),
        "certificate is not valid for 'localhost'": Endpoint(authority, host="elsewhere.example"),
    }
    for reason, endpoint in refusals.items():
        with running(endpoint), pytest.raises(AuthenticationError, match=reason) as error:
            tokens(endpoint, authority).current()
        assert error.value.code == "TOKEN_UNAVAILABLE"
        assert endpoint.asked == []


@pytest.mark.parametrize(("login", "shown"), [("", None), ("user:p%40ss@", "user:p@ss")])
def test_token_request_goes_through_the_proxy_encrypted(
    endpoint: Endpoint, authority: Authority, monkeypatch: pytest.MonkeyPatch, login: str, shown: str | None
) -> None:
    endpoint.says(access_token="abc.def", expires_in=100)
    with running(Proxy()) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://{login}{proxy.address}")
        assert tokens(endpoint, authority).current() == Secret("abc.def")
    ((target, credentials),) = proxy.asked
    assert target == f"localhost:{endpoint.server.server_port}"
    assert (credentials and base64.b64decode(credentials.removeprefix("Basic ")).decode()) == shown
    ((path, headers, _),) = endpoint.asked
    assert path == "/oauth/token?tenant=1"
    assert "Proxy-Authorization" not in headers
    assert len(proxy.passed) > 1_000
    assert b"abc.def" not in proxy.passed
    assert b"Authorization" not in proxy.passed


@pytest.mark.parametrize("exceptions", ["localhost", "example.com, localhost", "*"])
def test_proxy_is_not_used_for_hosts_of_no_proxy(
    endpoint: Endpoint, authority: Authority, monkeypatch: pytest.MonkeyPatch, exceptions: str
) -> None:
    endpoint.says(access_token="abc", expires_in=100)
    with running(Proxy()) as proxy:
        monkeypatch.setenv("https_proxy", proxy.address)
        monkeypatch.setenv("no_proxy", exceptions)
        assert tokens(endpoint, authority).current() == Secret("abc")
    assert proxy.asked == []


def test_proxy_rejection_is_shown_and_retriable(
    endpoint: Endpoint, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(Proxy(refusal="403 Not \x1b[31mfrom here")) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://user:{SECRET.replace('/', '%2F')}@{proxy.address}")
        with pytest.raises(OSError, match=r"Tunnel connection failed: 403 Not \ufffd\[31mfrom here") as error:
            tokens(endpoint, authority).current()
    assert SECRET not in str(error.value)
    assert endpoint.asked == []


@pytest.mark.parametrize(
    "proxy", ["https://user:hunter2@proxy.example", "socks5://hunter2", "http://hunter2:port", "http://"]
)
def test_unusable_proxy_is_not_bypassed(
    endpoint: Endpoint, authority: Authority, monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    with pytest.raises(AuthenticationError, match="HTTPS_PROXY must be like http://host:port") as error:
        tokens(endpoint, authority).current()
    assert error.value.code == "TOKEN_UNAVAILABLE"
    assert "hunter2" not in str(error.value)
    assert endpoint.asked == []


def provided(provide: Callable[[], object]) -> Tokens:
    return Tokens(TokenProvider(name="a:b", provide=provide), TlsConfig(), Clock())


def test_provider_returns_token_and_expiry() -> None:
    given = iter([("one", 1_000_100), ("two", 1_000_200.5)])
    source = provided(lambda: next(given))
    assert [source.current().reveal() for _ in range(3)] == ["one"] * 3
    source.forget()
    assert source.current().reveal() == "two"


@pytest.mark.parametrize(
    "given", [None, "abc", ("abc",), ("abc", "soon"), (b"abc", 1), ("abc", True), ("abc", float("nan")), ("a\n", 1)]
)
def test_error_names_provider_with_wrong_result(given: object) -> None:
    with pytest.raises(AuthenticationError, match=r"a:b must return \(token|no valid bearer token") as error:
        provided(lambda: given).current()
    assert "abc" not in str(error.value)


@pytest.mark.parametrize(
    "expiry", [100_000_000_000, 1_800_000_000_000.0, float("inf"), 10**400], ids=["least", "usual", "infinite", "huge"]
)
def test_expiry_in_milliseconds_is_refused(expiry: float) -> None:
    with pytest.raises(AuthenticationError, match=r"a:b returned an expiry in milliseconds.*divide by 1000") as error:
        provided(lambda: ("abc", expiry)).current()
    assert error.value.code == "TOKEN_UNAVAILABLE"


def test_error_shows_only_the_type_of_a_providers_exception() -> None:
    def refused() -> None:
        raise OSError(f"401 for https://idp/token?client_secret={SECRET}")

    with pytest.raises(
        AuthenticationError, match=r"a:b raised OSError \(kafka-eos explain TOKEN_UNAVAILABLE\)$"
    ) as caught:
        provided(refused).current()
    assert SECRET not in "".join(traceback.format_exception(caught.value))
