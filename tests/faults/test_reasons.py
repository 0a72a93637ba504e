"""Errors name the reason that the client knows: the address, the setting, or what became of a topic, an id or a cluster."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import pytest

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.errors import BrokerUnavailableError, KafkaEosError
from kafka_eos_sink.protocol import messages as m
from kafka_eos_sink.runtime import session

from .bench import Bench, of_process, write_at_least_once, write_tasks
from .fault_proxy import Change, Rule

ELSEWHERE = 9


@contextmanager
def closed_port() -> Iterator[int]:
    """A port that nobody listens to, and that nobody else gets meanwhile."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def led_from(host: str, port: int, topic: str) -> Rule:
    """Metadata name another broker as the leader of the topic, at an address that the client cannot reach."""

    def moved(response: m.MetadataResponse) -> m.MetadataResponse:
        topics = tuple(
            replace(
                each,
                partitions=tuple(
                    replace(p, leader_id=ELSEWHERE, leader_epoch=p.leader_epoch + 1) for p in each.partitions
                ),
            )
            if each.name == topic
            else each
            for each in response.topics
        )
        brokers = (*response.brokers, m.Broker(node_id=ELSEWHERE, host=host, port=port))
        return replace(response, topics=topics, brokers=brokers)

    return Rule(m.MetadataRequest, Change(moved), count=None)


def hurried(settings: session.WriteSettings, **producer: Any) -> session.WriteSettings:
    return replace(settings, producer=replace(settings.producer, delivery_timeout_ms=1_500, **producer))


def test_delivery_timeout_names_address_of_unreachable_leader(bench_of: Callable[[int], Bench]) -> None:
    bench = bench_of(2)
    topic = bench.topic()
    settings = bench.write_settings(topic)
    plan = session.plan(of_process(settings, "planner"))
    with closed_port() as port:
        bench.proxy.inject(led_from("127.0.0.1", port, topic))
        with pytest.raises(KafkaEosError) as raised:
            write_tasks(hurried(settings), plan)
        assert raised.value.code == "DELIVERY_TIMEOUT"
        assert f"broker {ELSEWHERE} (127.0.0.1:{port})" in raised.value.message
        assert "Connection refused" in raised.value.message


@contextmanager
def full_port() -> Iterator[int]:
    """A port whose queue of connections is full: as behind a firewall, nothing responds to a new one."""
    with socket.socket() as server, ExitStack() as stack:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        yield server.getsockname()[1]


@contextmanager
def silent_port() -> Iterator[int]:
    """A port that accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize(
    ("port_of", "host", "expected"),
    [
        (closed_port, "leader.invalid", "cannot resolve the host name"),
        (full_port, "127.0.0.1", "within the setup timeout"),
        (silent_port, "127.0.0.1", "has not responded yet"),
    ],
    ids=["no such name", "dropped", "silent"],
)
def test_delivery_timeout_names_why_leader_is_unreachable(
    bench_of: Callable[[int], Bench], port_of: Callable[[], AbstractContextManager[int]], host: str, expected: str
) -> None:
    bench = bench_of(2)
    topic = bench.topic()
    client = {"socket_connection_setup_timeout_ms": 200, "socket_connection_setup_timeout_max_ms": 200}
    with port_of() as port:
        bench.proxy.inject(led_from(host, port, topic))
        with pytest.raises(KafkaEosError) as raised:
            write_at_least_once(hurried(bench.write_settings(topic, client=client)))
    assert raised.value.code == "DELIVERY_TIMEOUT"
    assert re.search(rf"broker {ELSEWHERE} \({host}:{port}\).*{expected}", raised.value.message)


def test_full_buffer_names_address_of_unreachable_leader(bench_of: Callable[[int], Bench]) -> None:
    bench = bench_of(2)
    topic = bench.topic()
    with closed_port() as port:
        bench.proxy.inject(led_from("127.0.0.1", port, topic))
        settings = bench.write_settings(topic, buffer_memory=100, max_block_ms=1_000)
        with pytest.raises(KafkaEosError) as raised:
            write_at_least_once(settings)
        assert raised.value.code == "BUFFER_EXHAUSTED"
        assert f"broker {ELSEWHERE} (127.0.0.1:{port})" in raised.value.message


def test_request_deadline_names_address_of_unreachable_leader(bench_of: Callable[[int], Bench]) -> None:
    bench = bench_of(2)
    topic = bench.topic()
    with closed_port() as port, NetworkClient(bench.client_config()) as client:
        bench.proxy.inject(led_from("127.0.0.1", port, topic))
        with pytest.raises(BrokerUnavailableError) as raised:
            Admin(client).list_offsets([(topic, 0)], client.clock() + 1_000)
        assert raised.value.code == "REQUEST_DEADLINE"
        assert f"broker {ELSEWHERE} (127.0.0.1:{port})" in raised.value.message
