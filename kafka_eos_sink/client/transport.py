"""Sockets and TLS: the only module that knows them. Non-blocking, with buffers handed to the kernel as they are."""

from __future__ import annotations

import contextlib
import errno
import http.client
import os
import selectors
import socket
import ssl
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

from kafka_eos_sink.client.config import ClientConfig
from kafka_eos_sink.client.security import TlsConfig
from kafka_eos_sink.errors import ConfigurationError

_MAX_BUFFERS_PER_CALL = 512  # below IOV_MAX (1,024 on Linux and macOS)
_RECEIVE_BYTES = 256 * 1024
# A TLS record holds at most this. OpenSSL takes one record at a time from the kernel, so a read of this size leaves
# nothing behind in OpenSSL, where no poller would see it.
_TLS_RECEIVE_BYTES = 16 * 1024
_TLS_SEND_BYTES = 64 * 1024
_MAX_HTTP_BODY_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Address:
    """One resolved address to connect to: the socket family and what `connect` takes."""

    family: int
    sockaddr: Any

    def __str__(self) -> str:
        host, port = self.sockaddr[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def resolve(host: str, port: int) -> tuple[Address, ...]:
    """All addresses of a host, in the resolver's order. Raises OSError where the name is not known.

    This blocks, as it does in the Java client; it happens once per round of connection attempts.
    """
    # A broker may say any text to be the name of another, and any number to be its port.
    if not 0 < port < 65_536:
        raise OSError(f"{port} is no port")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except ValueError as error:
        raise OSError(f"{host!r} is no host name: {error}") from None
    return tuple(dict.fromkeys(Address(family, sockaddr) for family, _, _, _, sockaddr in found))


def canonical_names(host: str, port: int) -> tuple[str, ...]:
    """The canonical name of each address of a host (`resolve_canonical_bootstrap_servers_only`); OSError if unknown."""
    return tuple(dict.fromkeys(socket.getfqdn(address.sockaddr[0]) for address in resolve(host, port)))


class Transport:
    """One non-blocking TCP connection; the connection attempt begins with the object.

    `wants_write` says whether something waits to be written. All methods raise OSError when the connection broke.
    """

    def __init__(self, address: Address, config: ClientConfig) -> None:
        self.address = address
        self.connected = False
        self._output: deque[memoryview] = deque()
        self._socket = socket.socket(address.family, socket.SOCK_STREAM)
        try:
            self._socket.setblocking(False)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            # Before connect: the receive buffer decides the window scale of the handshake.
            if config.send_buffer_bytes != -1:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, config.send_buffer_bytes)
            if config.receive_buffer_bytes != -1:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, config.receive_buffer_bytes)
            code = self._socket.connect_ex(address.sockaddr)
            if code not in (0, errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EAGAIN):
                raise OSError(code, os.strerror(code))
        except BaseException:
            self._socket.close()
            raise

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def wants_write(self) -> bool:
        """Whether to wake when the socket is writable: still connecting, or something waits to be written."""
        return not self.connected or bool(self._output)

    def continue_connect(self, writable: bool) -> bool:
        """Something happened while connecting; True once bytes can be exchanged, OSError with the reason why never."""
        if writable:
            self._finish_tcp_connect()
            self.connected = True
        return self.connected

    def _finish_tcp_connect(self) -> None:
        code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        # A TCP connection to a free port of the own host can meet itself; such a peer echoes what is sent to it.
        if self._socket.getsockname() == self._socket.getpeername():
            raise OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))

    def write(self, buffers: Iterable[bytes | memoryview]) -> None:
        """Queue buffers and write as much as the kernel takes now. Buffers must not change until they are written."""
        for buffer in buffers:
            view = memoryview(buffer)
            if view.nbytes:
                self._output.append(view if view.format == "B" and view.ndim == 1 else view.cast("B"))
        self.flush()

    def flush(self) -> None:
        """Write what waits, as far as the kernel takes it."""
        if not self.connected:
            return
        output = self._output
        while output:
            try:
                sent = self._socket.sendmsg(list(islice(output, _MAX_BUFFERS_PER_CALL)))
            except (BlockingIOError, InterruptedError):
                return
            while output and sent >= len(output[0]):
                sent -= len(output.popleft())
            if sent:
                output[0] = output[0][sent:]

    def read(self) -> bytes | None:
        """The bytes that have arrived, None where there are none. Raises OSError where the peer has closed."""
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return None
        if not data:
            raise _closed_by_broker()
        return data

    def close(self) -> None:
        self._output.clear()
        self._socket.close()


def _closed_by_broker(when: str = "") -> OSError:
    return ConnectionResetError(errno.ECONNRESET, f"closed by the broker{when}")


class TlsError(OSError):
    """TLS could not be agreed upon, or one side does not trust the other: another attempt meets the same."""


class TlsContext:
    """What all TLS connections of a client are made with.

    Raises ConfigurationError TLS_SETTINGS where certificates, key or cipher suites are of no use.
    """

    def __init__(self, config: TlsConfig) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        context.minimum_version = _VERSIONS[config.minimum_version]
        context.maximum_version = _VERSIONS[config.maximum_version]
        context.check_hostname = config.verify_host_name
        _trust(context, config.trusted_certificates)
        if config.cipher_suites:
            for names in (*config.cipher_suites, ":".join(config.cipher_suites)):
                try:
                    context.set_ciphers(names)  # of several unknown names OpenSSL passes over all but the last
                except ssl.SSLError:
                    raise ConfigurationError("TLS_SETTINGS", f"ssl.cipher.suites: OpenSSL has no {names}") from None
        if config.certificate_chain is not None and config.private_key is not None:
            _identify(context, config)
        self._context = context

    def wrap(self, connected: socket.socket, host: str) -> ssl.SSLSocket:
        """TLS over a connected socket, to a peer that must prove to be `host`; the handshake has yet to be done."""
        try:
            return self._context.wrap_socket(
                connected, server_hostname=host, do_handshake_on_connect=False, suppress_ragged_eofs=False
            )
        except ValueError as error:
            raise TlsError(f"{host!r} is no host name that a certificate can hold: {error}") from None


_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


def _trust(context: ssl.SSLContext, certificates: str | None) -> None:
    if certificates is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        return
    try:
        context.load_verify_locations(cadata=certificates)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigurationError("TLS_SETTINGS", f"the trusted certificates cannot be read: {_reason(error)}") from None
    # As in Java, whatever stands in the trust store is trusted, an intermediate or a single broker's certificate too.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN


def _identify(context: ssl.SSLContext, config: TlsConfig) -> None:
    assert config.private_key is not None
    password = "" if config.private_key_password is None else config.private_key_password.reveal()
    pem = f"{config.private_key.reveal()}\n{config.certificate_chain}\n"
    try:
        with _as_file(pem) as path:
            # A password must be given in any case: without one OpenSSL asks the terminal.
            context.load_cert_chain(path, password=password)
    except (ssl.SSLError, ValueError) as error:
        reason = _reason(error)
        if "MISMATCH" in reason:
            reason = "the private key is not the one of the first certificate"
        raise ConfigurationError(
            "TLS_SETTINGS",
            f"the client's certificate and private key cannot be used: {reason}; ssl.key.password must be the key's",
        ) from None


@contextlib.contextmanager
def _as_file(text: str) -> Iterator[str]:
    """A file that holds `text` and that nobody else can read: OpenSSL takes private keys from files only.

    In memory on Linux; elsewhere on disk for a moment.
    """
    if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
        descriptor = os.memfd_create("kafka-eos-key")
        try:
            os.write(descriptor, text.encode())
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(text)
        file.flush()
        yield file.name


def _reason(error: Exception) -> str:
    """OpenSSL's own word for what is wrong, without the place in its source."""
    return getattr(error, "reason", None) or str(error)


class TlsTransport(Transport):
    """TLS over TCP: connected means that the handshake is done and the broker has proven to be `host`.

    Where TLS itself fails, TlsError is raised; a connection that is merely closed is an OSError as without TLS.
    """

    def __init__(self, address: Address, config: ClientConfig, tls: TlsContext, host: str) -> None:
        super().__init__(address, config)
        self._tls = tls
        self._host = host
        self._secured: ssl.SSLSocket | None = None
        self._handshake_wants_write = True
        self._unsent = b""

    @property
    def wants_write(self) -> bool:
        if not self.connected:
            return self._handshake_wants_write
        return bool(self._unsent or self._output)

    def continue_connect(self, writable: bool) -> bool:
        if self._secured is None:
            if not writable:
                return False
            self._finish_tcp_connect()
            self._secured = self._socket = self._tls.wrap(self._socket, self._host)
        try:
            self._secured.do_handshake()
        except ssl.SSLWantReadError:
            self._handshake_wants_write = False
        except ssl.SSLWantWriteError:
            self._handshake_wants_write = True
        except ssl.SSLError as error:
            raise _tls_error(error, " during the TLS handshake") from None
        else:
            self.connected = True
        return self.connected

    def flush(self) -> None:
        if not self.connected or self._secured is None:
            return
        while self._unsent or self._output:
            if not self._unsent:
                self._unsent = self._next_bytes()
            try:
                # What OpenSSL could not send it must be given again, as it was.
                self._unsent = self._unsent[self._secured.send(self._unsent) :]
            except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
                return
            except ssl.SSLError as error:
                raise _tls_error(error) from None

    def _next_bytes(self) -> bytes:
        """The beginning of what waits, joined: a TLS record per small buffer would be slow for both sides."""
        parts: list[memoryview] = []
        size = 0
        while self._output and size < _TLS_SEND_BYTES:
            view = self._output.popleft()
            room = _TLS_SEND_BYTES - size
            if len(view) > room:
                self._output.appendleft(view[room:])
                view = view[:room]
            parts.append(view)
            size += len(view)
        return b"".join(parts)

    def read(self) -> bytes | None:
        assert self._secured is not None
        try:
            data = self._secured.recv(_TLS_RECEIVE_BYTES)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        except ssl.SSLError as error:
            raise _tls_error(error) from None
        if not data:
            raise _closed_by_broker()
        return data

    def close(self) -> None:
        if self.connected and self._secured is not None:
            # Tells the broker that this is the end and no cut; whether it hears it does not matter.
            with contextlib.suppress(OSError, ValueError):
                self._secured.unwrap()
        self._unsent = b""
        super().close()


_NOT_TLS = ("WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")
_ASKS_FOR_CERTIFICATE = ("CERTIFICATE_REQUIRED", "BAD_CERTIFICATE", "UNKNOWN_CA", "CERTIFICATE_", "HANDSHAKE_FAILURE")


def _tls_error(error: ssl.SSLError, when: str = "") -> OSError:
    """`error` in words for those who configure: whose certificate is not trusted, and by whom."""
    if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)):
        return _closed_by_broker(when)
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsError(
            f"its certificate is not trusted: {error.verify_message.rstrip('.')}; its issuer must be in "
            "ssl.truststore.* (or ssl.ca.location), and the certificate must name the host that is connected to"
        )
    reason = error.reason or str(error)
    if reason in _NOT_TLS:
        return TlsError(f"the listener does not speak TLS ({reason}); check security.protocol and the port")
    if "ALERT" in reason:
        hint = "it may ask for a certificate that it trusts (ssl.keystore.*), or for other TLS versions or ciphers"
        asks = any(word in reason for word in _ASKS_FOR_CERTIFICATE)
        return TlsError(f"it refused TLS ({reason})" + (f"; {hint}" if asks else ""))
    return TlsError(f"TLS failed ({reason})")


def https_post(
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    tls: TlsConfig,
    *,
    connect_timeout_ms: int,
    read_timeout_ms: int,
) -> tuple[int, bytes]:
    """Status and body of the answer to a POST; redirects are not followed and no proxy is used. Blocks.

    The server's certificate must be signed by an authority of the system or by one of `tls`; the client shows none.
    Raises TlsError, and OSError for anything else that stands between us and an answer.
    """
    context = ssl.create_default_context()
    if tls.trusted_certificates is not None:
        _trust(context, tls.trusted_certificates)
    parts = urlsplit(url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    connection = http.client.HTTPSConnection(
        parts.hostname or "", parts.port, timeout=connect_timeout_ms / 1000, context=context
    )
    give_up_at = time.monotonic() + (connect_timeout_ms + read_timeout_ms) / 1000
    try:
        connection.connect()
        connection.sock.settimeout(read_timeout_ms / 1000)
        connection.request("POST", target, body, dict(headers))
        response = connection.getresponse()
        answer = bytearray()
        while chunk := response.read1(16_384):
            answer += chunk
            if len(answer) > _MAX_HTTP_BODY_BYTES or time.monotonic() > give_up_at:
                raise OSError(f"its answer is too long or too slow ({len(answer)} bytes so far)")
        return response.status, bytes(answer)
    except ssl.SSLError as error:
        raise _tls_error(error) from None
    except http.client.HTTPException as error:
        raise OSError(f"its answer is no HTTP: {type(error).__name__}") from None
    finally:
        connection.close()


class Poller:
    """Waits for transports; each is registered under the node id it belongs to."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._registered: dict[int, tuple[Transport, int]] = {}

    def register(self, node_id: int, transport: Transport) -> None:
        events = selectors.EVENT_READ | selectors.EVENT_WRITE
        self._selector.register(transport, events, node_id)
        self._registered[node_id] = transport, events

    def unregister(self, node_id: int) -> None:
        """Forget the node's transport; to be called before it is closed."""
        transport, _events = self._registered.pop(node_id)
        self._selector.unregister(transport)

    def poll(self, timeout_ms: int) -> list[tuple[int, bool, bool]]:
        """(node id, readable, writable) of each node that is either, after at most `timeout_ms`."""
        for node_id, (transport, events) in self._registered.items():
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if transport.wants_write else 0)
            if wanted != events:
                self._selector.modify(transport, wanted, node_id)
                self._registered[node_id] = transport, wanted
        if not self._registered and timeout_ms <= 0:
            return []
        return [
            (key.data, bool(events & selectors.EVENT_READ), bool(events & selectors.EVENT_WRITE))
            for key, events in self._selector.select(max(0, timeout_ms) / 1000)
        ]

    def close(self) -> None:
        self._selector.close()
