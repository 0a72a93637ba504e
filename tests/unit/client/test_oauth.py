"""An exchange with a token endpoint that is cut off."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading

import pytest
import trustme

from kafka_eos_sink.client.oauth import _within


def test_send_during_the_cut_off_is_encrypted(monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    there, here = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("localhost").configure_cert(there)
    authority.configure_trust(here)
    raw_server, raw_client = socket.socketpair()
    accepted: list[ssl.SSLSocket] = []
    accept = threading.Thread(target=lambda: accepted.append(there.wrap_socket(raw_server, server_side=True)))
    accept.start()
    client = here.wrap_socket(raw_client, server_hostname="localhost")
    accept.join()
    shutdown = socket.socket.shutdown

    def send_first(sock: socket.socket, how: int) -> None:
        sock.sendall(b"client_secret=hunter2")
        shutdown(sock, how)

    monkeypatch.setattr(socket.socket, "shutdown", send_first)
    connection = http.client.HTTPSConnection("localhost")
    connection.sock = client
    cut_off = threading.Event()

    def exchange() -> tuple[int, bytes]:
        cut_off.wait(60)
        return 200, b""

    with pytest.raises(OSError, match="no complete response"):
        _within(0.01, exchange, connection)
    cut_off.set()
    server = accepted[0]
    received = b""
    while part := socket.socket.recv(server, 65_536):  # what went over the wire
        received += part
    client.close()
    server.close()
    assert received
    assert b"hunter2" not in received
