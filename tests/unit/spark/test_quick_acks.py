"""Which of a process's descriptors get TCP_QUICKACK, on real sockets. The kernel resets the option, so the tests record `setsockopt`.

The model has no sockets.
"""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest

from kafka_eos_sink.client.config import ClientConfig
from kafka_eos_sink.client.transport import Address, Transport
from kafka_eos_sink.runtime.at_least_once import RowsWritten
from kafka_eos_sink.spark import spark_boundary
from kafka_eos_sink.spark.quick_acks import VARIABLE, acknowledge_at_once

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="TCP_QUICKACK is Linux's")

QUICK = (socket.IPPROTO_TCP, getattr(socket, "TCP_QUICKACK", 0), 1)


def inode(descriptor: int) -> int:
    return os.fstat(descriptor).st_ino


def open_descriptors() -> dict[str, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # of this listing
            continue
    return found


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch) -> dict[int, tuple[Any, ...]]:
    """The inode of each changed socket, and the option."""
    found: dict[int, tuple[Any, ...]] = {}

    def record(self: socket.socket, *option: Any) -> None:
        found[inode(self.fileno())] = option
        super(socket.socket, self).setsockopt(*option)

    monkeypatch.setattr(socket.socket, "setsockopt", record)
    return found


def connect(stack: ExitStack, family: int = socket.AF_INET, host: str = "127.0.0.1") -> tuple[socket.socket, ...]:
    """A listener, the accepted socket, which stands for the worker's, and its peer."""
    listener = stack.enter_context(socket.socket(family))
    listener.bind((host, 0))
    listener.listen()
    peer = stack.enter_context(socket.socket(family))
    peer.connect(listener.getsockname())
    return listener, stack.enter_context(listener.accept()[0]), peer


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


@pytest.fixture
def worker(stack: ExitStack) -> socket.socket:
    return connect(stack)[1]


def test_only_blocking_loopback_connections_acknowledge_at_once(
    stack: ExitStack, changed: dict[int, tuple[Any, ...]], tmp_path: Path
) -> None:
    """Kills: no check of the mode (the client's connection), of the family, or of the peer (the listener)."""
    listener, accepted, peer = connect(stack)
    sixth = connect(stack, socket.AF_INET6, "::1")[1:] if socket.has_ipv6 else ()
    client = Transport(Address(socket.AF_INET, listener.getsockname()), ClientConfig(bootstrap_servers=()))
    stack.callback(client.close)
    unix = [stack.enter_context(each) for each in socket.socketpair()]
    datagrams = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    datagrams.connect(listener.getsockname())
    file = stack.enter_context((tmp_path / "file").open("w"))
    ours = {inode(each.fileno()) for each in (listener, accepted, peer, *sixth, client, *unix, datagrams, file)}
    before = open_descriptors()
    changed.clear()  # the client sets options of its own
    acknowledge_at_once()
    assert ours & set(changed) == {inode(each.fileno()) for each in (accepted, peer, *sixth)}
    assert set(changed.values()) == {QUICK}
    assert open_descriptors() == before
    assert accepted.getblocking()
    assert os.get_blocking(accepted.fileno())
    peer.sendall(b"rows")
    assert accepted.recv(4) == b"rows"


def test_duplicated_descriptors_of_spark_stay_open(worker: socket.socket, changed: dict[int, tuple[Any, ...]]) -> None:
    """Spark reads and writes duplicates as files. Kills: a socket object that owns the descriptor and closes it."""
    with os.fdopen(os.dup(worker.fileno()), "rb") as reads, os.fdopen(os.dup(worker.fileno()), "wb") as writes:
        acknowledge_at_once()
        assert changed[inode(worker.fileno())] == QUICK
        assert inode(reads.fileno()) == inode(writes.fileno()) == inode(worker.fileno())


def test_file_keeps_its_posix_lock(tmp_path: Path) -> None:
    """POSIX: any close of a file's descriptor ends the process's locks. Kills: duplicates of files, closed."""
    path = tmp_path / "locked"
    with path.open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        acknowledge_at_once()
        program = f"import fcntl; fcntl.lockf(open({str(path)!r}, 'w'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
        run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "BlockingIOError" in run.stderr


def test_default_timeout_leaves_sparks_descriptor_blocking(
    worker: socket.socket, changed: dict[int, tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new socket object takes the default timeout, and the descriptor's mode is shared. Kills: no check of it."""
    socket.setdefaulttimeout(5)
    try:
        acknowledge_at_once()
    finally:
        socket.setdefaulttimeout(None)
    assert os.get_blocking(worker.fileno())
    assert not changed


def test_kernel_that_refuses_the_option_fails_no_task(worker: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: an error of `setsockopt` reaches the task."""
    before = open_descriptors()

    def refuse(self: socket.socket, *option: Any) -> None:
        raise PermissionError("not allowed")

    monkeypatch.setattr(socket.socket, "setsockopt", refuse)
    acknowledge_at_once()
    assert open_descriptors() == before


@pytest.mark.parametrize(("value", "acknowledges"), [("off", False), (" OFF ", False), ("on", True), ("", True)])
def test_environment_variable_switches_it_off(
    worker: socket.socket,
    changed: dict[int, tuple[Any, ...]],
    monkeypatch: pytest.MonkeyPatch,
    value: str,
    acknowledges: bool,
) -> None:
    """Kills: the variable is ignored."""
    monkeypatch.setenv(VARIABLE, value)
    acknowledge_at_once()
    assert (inode(worker.fileno()) in changed) == acknowledges


def test_task_acknowledges_before_it_reads_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: the call is missing, or comes after the first rows, which wait for it."""
    events: list[str] = []

    class Columns:
        def to_rows(self, batches: Any) -> Any:
            events.append("rows")

    def write_rows(*_: Any) -> RowsWritten:
        events.append("write")
        return cast("RowsWritten", None)

    monkeypatch.setattr(spark_boundary, "acknowledge_at_once", lambda: events.append("acknowledge"))
    monkeypatch.setattr(spark_boundary.at_least_once, "write_rows", write_rows)
    nothing: Any = None
    spark_boundary.run_task(nothing, nothing, None, cast("Any", Columns()), iter(()))
    assert events == ["acknowledge", "rows", "write"]
