"""Errors name the reason that the client knows: the address, the setting, or what became of a topic, an id or a cluster."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from kafka_eos_sink.errors import KafkaEosError
from kafka_eos_sink.protocol import messages as m
from kafka_eos_sink.runtime import session

from .bench import Bench, of_process, write_tasks, write_whole
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


def of_cluster(name: str, client: str = "") -> Rule:
    """Metadata name another cluster, as behind an address that leads elsewhere."""
    changed = Change(lambda response: replace(response, cluster_id=name))
    return Rule(m.MetadataRequest, changed, count=None, client=client)


Messages = list[session.TaskMessage]


def do_commit(settings: session.WriteSettings, plan: session.Plan, messages: Messages) -> object:
    return session.commit(of_process(settings, "committer"), plan, messages)


def do_abort(settings: session.WriteSettings, plan: session.Plan, messages: Messages) -> object:
    return session.abort(of_process(settings, "aborter"), plan, messages)


def do_tasks(settings: session.WriteSettings, plan: session.Plan, _: Messages) -> object:
    return write_tasks(of_process(settings, "elsewhere"), plan)


@pytest.mark.parametrize("stage", [do_tasks, do_commit, do_abort])
def test_other_cluster_behind_the_address_is_named(
    bench: Bench, stage: Callable[[session.WriteSettings, session.Plan, Messages], object]
) -> None:
    topic = bench.topic()
    settings = bench.write_settings(topic)
    plan = session.plan(of_process(settings, "planner"))
    messages = write_tasks(settings, plan)
    bench.proxy.inject(of_cluster("elsewhere"))
    with pytest.raises(KafkaEosError) as raised:
        stage(settings, plan, messages)
    assert raised.value.code == "OTHER_CLUSTER"
    assert "belong to cluster 'elsewhere'" in raised.value.message
    assert f"the write began on cluster {plan.cluster_id!r}" in raised.value.message
    assert bench.proxy.bootstrap_servers in raised.value.message
    bench.proxy.inject()
    bench.assert_nothing_visible(topic)
    write_whole(settings)
    bench.assert_exactly_once(topic)
