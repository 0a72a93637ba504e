"""Idle connections that something on the way has dropped: no FIN, no RST, and no packet arrives any more."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest

from dead_writes import varied
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.protocol import messages as m
from kafka_eos_sink.runtime import session
from kafka_testing import unique_topic, wait_until

from .bench import Bench, numbered, of_process, write_at_least_once, write_tasks
from .test_lost_responses import IDS, end, seen, started

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


@pytest.mark.feature("connections")
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


@pytest.mark.parametrize("transactional_id", IDS, ids=IDS.get)
def test_producer_resends_over_new_connections(bench: Bench, transactional_id: str | None) -> None:
    topic = bench.topic()
    with started(bench, transactional_id, {"request_timeout_ms": REQUEST_TIMEOUT_MS}) as producer:
        for first in range(0, 30, 10):
            producer.write(numbered(topic, first, 10))
            producer.flush()
            bench.proxy.drop_silently()
        end(producer)
    assert len({each.connection for each in seen(bench, m.ProduceRequest)}) == 3
    bench.assert_exactly_once(topic, 30)
    bench.assert_nothing_open(topic)


def test_at_least_once_succeeds_over_dropped_connections(bench: Bench) -> None:
    topic = bench.topic()
    settings = bench.write_settings(topic, client={"request_timeout_ms": REQUEST_TIMEOUT_MS})
    write_at_least_once(settings)
    bench.proxy.drop_silently()
    again = another_write(bench, settings)
    write_at_least_once(again)
    bench.assert_exactly_once(again.batch.topic or "")


@pytest.mark.parametrize("transactional_id", IDS, ids=IDS.get)
def test_connection_above_the_idle_limit_is_not_used(bench: Bench, transactional_id: str | None) -> None:
    """Spark computed rows meanwhile, and nobody pumped: the client notices the limit when it sends."""
    topic = bench.topic()
    options = {"request_timeout_ms": PATIENT_MS, "connections_max_idle_ms": IDLE_MS}
    with started(bench, transactional_id, options) as producer:
        client = producer._client
        began = client.clock()
        for first in range(0, 30, 10):
            producer.write(numbered(topic, first, 10))
            producer.flush()
            bench.proxy.drop_silently()
            last = max(node.last_active_at for node in client._nodes.values())
            wait_until(lambda last=last: client.clock() - last > IDLE_MS, "the idle limit")
        end(producer)
        assert client.clock() - began < PATIENT_MS
    bench.assert_exactly_once(topic, 30)
    bench.assert_nothing_open(topic)


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
