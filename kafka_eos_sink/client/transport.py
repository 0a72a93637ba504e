"""TCP: addresses of a host, a non-blocking connection, and a poller for many."""

from __future__ import annotations

import errno
import os
import selectors
import socket
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from kafka_eos_sink.client.config import ClientConfig

# Below IOV_MAX (1,024 on Linux and macOS): with more buffers sendmsg fails.
_MAX_BUFFERS_PER_CALL = 512
_RECEIVE_BYTES = 256 * 1024
_KEEP_ALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPALIVE": 60, "TCP_KEEPINTVL": 20, "TCP_KEEPCNT": 4}
"""Seconds to the first probe (macOS has another name for it) and between probes, and their number. The default of two hours is too long:
Azure drops a connection silently that is idle for 4 minutes, AWS after 350 seconds."""


@dataclass(frozen=True, slots=True)
class Address:
    """One resolved address: the socket family and the argument of ``socket.connect``."""

    family: int
    sockaddr: Any

    def __str__(self) -> str:
        host, port = self.sockaddr[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def resolve_host(host: str, port: int) -> tuple[Address, ...]:
    """Return all addresses of a host, in the resolver's order.

    The look-up blocks, as in the Java client. A node makes one per round of connection attempts.

    Raises:
        OSError: The resolver does not know the name, or name or port is malformed.
    """
    # Host and port may come from a Metadata response, and a broker can advertise any text and any int32.
    if not 0 < port < 65_536:
        raise OSError(f"{port} is no port: it must be between 1 and 65535")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except ValueError as error:
        raise OSError(f"{host!r} is no host name: {error}") from None
    return tuple(dict.fromkeys(Address(family, sockaddr) for family, _, _, _, sockaddr in found))


def canonical_names(host: str, port: int) -> tuple[str, ...]:
    """Return the canonical name of each address of a host; raises as ``resolve_host``."""
    return tuple(dict.fromkeys(socket.getfqdn(address.sockaddr[0]) for address in resolve_host(host, port)))


class Transport:
    """A non-blocking TCP connection, begun by the constructor; a break raises OSError."""

    def __init__(self, address: Address, config: ClientConfig) -> None:
        self.address = address
        self.connected = False
        self._output: deque[memoryview] = deque()
        self._socket = socket.socket(address.family, socket.SOCK_STREAM)
        try:
            self._socket.setblocking(False)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEP_ALIVE.items():
                if hasattr(socket, name):
                    self._socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
            # The sizes are set before connect: the receive buffer decides the window scale in the TCP handshake (RFC 7323).
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
        """Whether to poll for writability: while connecting or while output is queued."""
        return not self.connected or bool(self._output)

    def continue_connect(self, writable: bool) -> bool:
        """Continue to connect after an I/O event; return True once bytes can flow."""
        if writable:
            self._finish_tcp_connect()
            self.connected = True
        return self.connected

    def _finish_tcp_connect(self) -> None:
        code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        # TCP simultaneous open: a connection to a local port without a listener can connect to itself and echo its output.
        if self._socket.getsockname() == self._socket.getpeername():
            raise OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))

    def write(self, buffers: Iterable[bytes | memoryview]) -> None:
        """Queue buffers and begin to write; a buffer must not change until it is written."""
        for buffer in buffers:
            view = memoryview(buffer)
            if view.nbytes:
                self._output.append(view if view.format == "B" and view.ndim == 1 else view.cast("B"))
        self.flush()

    def flush(self) -> None:
        """Write as much queued output as the kernel accepts."""
        if not self.connected:
            return
        output = self._output
        while output:
            try:
                sent = self._socket.sendmsg(list(islice(output, _MAX_BUFFERS_PER_CALL)))
            except (BlockingIOError, InterruptedError):
                return
            # The kernel may stop in the middle of a buffer. Its rest stays first in the queue.
            while output and sent >= len(output[0]):
                sent -= len(output.popleft())
            if sent:
                output[0] = output[0][sent:]

    def read(self) -> bytes | None:
        """Return received bytes or None; raise OSError if the broker has closed."""
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return None
        if not data:
            # A broker that has closed its side of the stream reads no requests either.
            raise closed_by_broker()
        return data

    def close(self) -> None:
        self._output.clear()
        self._socket.close()


def closed_by_broker(when: str = "") -> OSError:
    """Return the error for a connection that the broker has closed."""
    return ConnectionResetError(errno.ECONNRESET, f"closed by the broker{when}")


class Poller:
    """Waits for transports, each registered under its node id."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._registered: dict[int, tuple[Transport, int]] = {}

    def register(self, node_id: int, transport: Transport) -> None:
        events = selectors.EVENT_READ | selectors.EVENT_WRITE
        self._selector.register(transport, events, node_id)
        self._registered[node_id] = transport, events

    def unregister(self, node_id: int) -> None:
        """Forget the node's transport; call this before a close ends its descriptor."""
        transport, _events = self._registered.pop(node_id)
        self._selector.unregister(transport)

    def poll(self, timeout_ms: int) -> list[tuple[int, bool, bool]]:
        """Wait at most ``timeout_ms``; return ready nodes: (node id, readable, writable)."""
        # Watch for writability only while output is queued: an idle socket is always writable, and the poll would spin.
        for node_id, (transport, events) in self._registered.items():
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if transport.wants_write else 0)
            if wanted != events:
                self._selector.modify(transport, wanted, node_id)
                self._registered[node_id] = transport, wanted
        # Without a socket `select` still waits: that is the pause of a caller who backs off.
        if not self._registered and timeout_ms <= 0:
            return []
        return [
            (key.data, bool(events & selectors.EVENT_READ), bool(events & selectors.EVENT_WRITE))
            for key, events in self._selector.select(max(0, timeout_ms) / 1000)
        ]

    def close(self) -> None:
        self._selector.close()
