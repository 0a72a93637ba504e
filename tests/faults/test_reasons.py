"""Errors name the reason that the client knows: the address, the setting, or what became of a topic, an id or a cluster."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import confluent_kafka
import pytest

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.errors import BrokerUnavailableError, KafkaEosError
from kafka_eos_sink.protocol import messages as m
from kafka_eos_sink.runtime import session
from kafka_testing import PATIENCE_S, unique_topic

from .bench import PARTITIONS, Bench, of_process, write_at_least_once, write_tasks, write_whole
from .fault_proxy import Change, LoseResponse, Rule

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
        (silent_port, "127.0.0.1", "(has not responded yet|no response within the request timeout)"),
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


def test_cluster_that_changes_while_the_client_runs_is_named(bench_of: Callable[[int], Bench]) -> None:
    bench = bench_of(2)
    with NetworkClient(bench.client_config()) as client:
        client.any_node(client.clock() + 20_000)
        assert client.wait_for_metadata(client.clock() + 20_000)
        known = client.metadata
        client.expect_cluster(known.cluster_id)
        bench.proxy.inject(of_cluster("elsewhere"))
        for _ in range(2):  # the second refresh compares, too
            with pytest.raises(KafkaEosError, match=r"OTHER_CLUSTER\].*'elsewhere'"):
                client.wait_for_metadata(client.clock() + 20_000)
            assert client.metadata is known
        bench.proxy.inject()
        assert client.wait_for_metadata(client.clock() + 20_000)
        client.expect_cluster(None)
        bench.proxy.inject(of_cluster("elsewhere"))
        assert client.wait_for_metadata(client.clock() + 20_000)
        assert client.metadata.cluster_id == "elsewhere"


def test_decided_batch_stays_decided_when_cluster_changes(bench_of: Callable[[int], Bench]) -> None:
    """The client refreshes metadata while it waits for the decision's EndTxn: the outcome is unknown, and the text says why."""
    bench = bench_of(2)
    topic = bench.topic()
    settings = bench.write_settings(topic)
    plan = session.plan(of_process(settings, "planner"))
    messages = write_tasks(settings, plan)

    def is_decided(_request: m.MetadataRequest) -> bool:
        return any(seen.api is m.EndTxnRequest for seen in bench.proxy.requests)

    bench.proxy.inject(Rule(m.EndTxnRequest, LoseResponse()), replace(of_cluster("elsewhere"), where=is_decided))
    with pytest.raises(KafkaEosError) as raised:
        session.commit(of_process(settings, "committer"), plan, messages)
    assert raised.value.code == "DECISION_UNKNOWN"
    assert "OTHER_CLUSTER" in raised.value.message
    bench.proxy.inject()
    write_whole(settings)
    bench.assert_exactly_once(topic)


@pytest.mark.parametrize("whose", ["another producer", "another write of this sink"])
def test_message_names_transaction_that_blocks_readers(
    bench_of: Callable[[int], Bench], whose: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench = bench_of(2)
    topic = bench.topic()
    name = unique_topic("theirs")
    theirs = confluent_kafka.Producer({"bootstrap.servers": bench.kafka.bootstrap_servers, "transactional.id": name})
    running: list[session.TaskMessage] = []
    if whose == "another producer":
        theirs.init_transactions(PATIENCE_S)
        theirs.begin_transaction()
        for partition in range(PARTITIONS):
            theirs.produce(topic, b"-1", partition=partition)
        theirs.flush(PATIENCE_S)
    else:
        other = bench.write_settings(topic)
        other_plan = session.plan(other)
        running = write_tasks(other, other_plan)
        assert running[0].prepared is not None
        name = running[0].prepared.identity.transactional_id
    write_whole(bench.write_settings(topic))
    warned = [each.message for each in caplog.records if "blocks read_committed readers" in each.message]
    assert len(warned) == 1
    assert f"it is the one of {name!r}, of {whose}, open for " in warned[0]
    assert "no coordinator lists it" not in warned[0]
    if running:
        session.commit(other, other_plan, running)
    else:
        theirs.abort_transaction(PATIENCE_S)
    bench.assert_nothing_open(topic)
