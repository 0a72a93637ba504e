"""Idle connections that something on the way has dropped: no FIN, no RST, and no packet arrives any more."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from dead_writes import varied
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.runtime import session
from kafka_testing import unique_topic, wait_until

from .bench import Bench, of_process, write_tasks

REQUEST_TIMEOUT_MS = 2_000
PATIENT_MS = 60_000
"""A request timeout that no test waits for."""
IDLE_MS = 100


def write(bench: Bench, settings: session.WriteSettings, between: Callable[[], None]) -> None:
    """A whole write, with `between` before each phase."""
    between()
    plan = session.plan(of_process(settings, "planner"))
    between()
    messages = write_tasks(settings, plan)
    between()
    session.commit(of_process(settings, "committer"), plan, messages)
    bench.assert_exactly_once(settings.batch.topic or "")
    bench.assert_nothing_open(settings.batch.topic or "")


def test_write_over_silently_dropped_connections_succeeds(bench: Bench) -> None:
    settings = bench.write_settings(bench.topic(), client={"request_timeout_ms": REQUEST_TIMEOUT_MS})
    write(bench, settings, lambda: None)
    clock = bench._client.clock
    began = clock()
    write(bench, another_write(bench, settings), bench.proxy.drop_silently)
    # Each process has kept its connections. What it sends there is lost, which only a timeout shows.
    assert clock() - began >= 3 * REQUEST_TIMEOUT_MS


def another_write(bench: Bench, settings: session.WriteSettings) -> session.WriteSettings:
    """Another write of the same processes."""
    return varied(settings, topic=bench.topic(), write_id=unique_topic("app"))


def test_kept_connection_above_the_idle_limit_is_not_used(bench: Bench) -> None:
    options = {"request_timeout_ms": PATIENT_MS, "connections_max_idle_ms": IDLE_MS}
    settings = bench.write_settings(bench.topic(), client=options)
    write(bench, settings, lambda: None)
    clock = bench._client.clock

    def idle() -> None:
        bench.proxy.drop_silently()
        since = clock()
        wait_until(lambda: clock() - since > IDLE_MS, "the idle limit")

    began = clock()
    write(bench, another_write(bench, settings), idle)
    assert clock() - began < PATIENT_MS


def test_connections_send_keep_alives_every_minute(bench_of: Callable[[int], Bench]) -> None:
    with NetworkClient(bench_of(2).client_config()) as client:
        client.any_node(client.clock() + PATIENT_MS)
        (transport,) = [node._transport for node in client._nodes.values() if node._transport is not None]
        sock: Any = transport._socket
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, "TCP_KEEPIDLE", 0) or socket.TCP_KEEPALIVE) == 60
