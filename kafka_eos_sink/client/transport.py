"""Sockets: the only module that knows them. Non-blocking, with buffers handed to the kernel as they are."""

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

_MAX_BUFFERS_PER_CALL = 512  # below IOV_MAX (1,024 on Linux and macOS)
_RECEIVE_BYTES = 256 * 1024


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
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(Address(family, sockaddr) for family, _, _, _, sockaddr in found))


def canonical_names(host: str, port: int) -> tuple[str, ...]:
    """The canonical name of each address of a host (`resolve_canonical_bootstrap_servers_only`); OSError if unknown."""
    return tuple(dict.fromkeys(socket.getfqdn(address.sockaddr[0]) for address in resolve(host, port)))


class Transport:
    """One non-blocking TCP connection; the connection attempt begins with the object.

    `pending_bytes` says whether something waits to be written. All methods raise OSError when the connection broke.
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

    def finish_connect(self) -> None:
        """The socket became writable for the first time: connected, or OSError with the reason why not."""
        code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        # A TCP connection to a free port of the own host can meet itself; such a peer echoes what is sent to it.
        if self._socket.getsockname() == self._socket.getpeername():
            raise OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        self.connected = True

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
            raise ConnectionResetError(errno.ECONNRESET, "closed by the broker")
        return data

    def close(self) -> None:
        self._output.clear()
        self._socket.close()


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
