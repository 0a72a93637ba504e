"""The proxy itself: what it does to a request is what its rule says, and only that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from kafka_eos_sink.client.config import ClientConfig, parse_bootstrap_servers
from kafka_eos_sink.client.connection import ANY_VERSION, LostResponse, RequestTimedOut
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.protocol import messages as m
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_testing import (
    assert_nothing_open,
    commit_as_driver,
    create_topic,
    read_committed,
    started_producer,
    unique_topic,
)

from .bench import Bench, numbered
from .fault_proxy import (
    Action,
    Answer,
    AnswerAfter,
    Change,
    Cut,
    Delay,
    FaultProxy,
    LoseRequest,
    LoseResponse,
    Rule,
    Throttle,
    Twice,
)

DEADLINE_MS, SILENCE_MS = 30_000, 1_000


@pytest.fixture
def bench(bench_of: Any) -> Bench:
    return bench_of(2)


@pytest.fixture
def client(bench: Bench) -> Iterator[NetworkClient]:
    with NetworkClient(bench.client_config()) as connected:
        connected.any_node(connected.clock() + DEADLINE_MS)
        yield connected


def ask(client: NetworkClient, request: Any, patience_ms: int = DEADLINE_MS) -> Any:
    """The answer, or how it was lost."""
    node = client.any_node(client.clock() + DEADLINE_MS)
    return client.call_all([(node, request, ANY_VERSION)], client.clock() + patience_ms)[0]


def describe(*transactional_ids: str) -> m.DescribeTransactionsRequest:
    return m.DescribeTransactionsRequest(transactional_ids=transactional_ids or ("nobody",))


def take_id(transactional_id: str) -> m.InitProducerIdRequest:
    return m.InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)


def epoch_of(client: NetworkClient, transactional_id: str) -> int:
    """How often the id was taken, less one; -1 where it never was."""
    (state,) = ask(client, describe(transactional_id)).transaction_states
    return -1 if state.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND else state.producer_epoch


@pytest.fixture
def taken(client: NetworkClient) -> str:
    """A transactional id at epoch 0."""
    transactional_id = unique_topic("taken")
    found = m.FindCoordinatorRequest(key_type=1, coordinator_keys=(transactional_id,))
    while ask(client, found).coordinators[0].error_code:
        client.wait(20, client.clock() + DEADLINE_MS)
    while ask(client, take_id(transactional_id)).error_code:
        client.wait(20, client.clock() + DEADLINE_MS)
    return transactional_id


@pytest.mark.parametrize(
    ("action", "lost", "done"),
    [
        (LoseRequest(), True, False),
        (LoseRequest(close=False), True, False),
        (Cut("request"), True, False),
        (LoseResponse(), True, True),
        (LoseResponse(close=False), True, True),
        (Cut("response"), True, True),
        (Answer(ErrorCode.NOT_COORDINATOR), False, False),
        (AnswerAfter(ErrorCode.NOT_COORDINATOR), False, True),
        (Delay(30), False, True),
        (Delay(30, "response"), False, True),
        (Throttle(5), False, True),
        (Change(lambda answer: replace(answer, producer_epoch=77)), False, True),
    ],
    ids=str,
)
def test_fault_rule_affects_exactly_one_request(
    bench: Bench, client: NetworkClient, taken: str, action: Action, lost: bool, done: bool
) -> None:
    bench.proxy.inject(Rule(m.InitProducerIdRequest, action, nth=2))
    assert ask(client, take_id(taken)).error_code == 0
    assert not bench.proxy.faults
    in_silence = getattr(action, "close", True) is False
    answer = ask(client, take_id(taken), SILENCE_MS if in_silence else DEADLINE_MS)
    assert isinstance(answer, LostResponse) == lost
    assert isinstance(answer, RequestTimedOut) == in_silence
    assert epoch_of(client, taken) == (2 if done else 1)
    if isinstance(action, Answer | AnswerAfter):
        assert answer.error_code == ErrorCode.NOT_COORDINATOR
    if isinstance(action, Change):
        assert answer.producer_epoch == 77
    if isinstance(action, Throttle):
        assert answer.throttle_time_ms == 5
    assert ask(client, take_id(taken)).error_code == 0
    assert epoch_of(client, taken) == (3 if done else 2)
    assert [(fault.occurrence, fault.action) for fault in bench.proxy.faults] == [(2, action)]
    assert not bench.proxy.unfired


def test_a_request_reaches_the_broker_twice(bench: Bench, client: NetworkClient, taken: str) -> None:
    bench.proxy.inject(Rule(m.InitProducerIdRequest, Twice("late")))
    assert ask(client, take_id(taken)).producer_epoch == 1
    assert epoch_of(client, taken) == 1
    bench.proxy.open_gate("late")
    bench.proxy.wait_until(lambda: not bench.proxy.late)
    assert epoch_of(client, taken) == 2


def test_proxy_covers_all_brokers_and_leader_hints() -> None:
    # None of them dies, and one that is held up is not to be taken for dead.
    patient = {"broker.session.timeout.ms": "60000"}
    with EmbeddedKafka(brokers=3, properties=patient) as cluster, FaultProxy(cluster.bootstrap_servers) as proxy:
        topic = create_topic(cluster.bootstrap_servers, partitions=3, replication_factor=3)

        def wrong_leaders(answer: m.MetadataResponse) -> m.MetadataResponse:
            """Each partition's leader is the next of its replicas, as a broker that lags behind might say."""
            return replace(
                answer,
                topics=tuple(
                    replace(
                        each,
                        partitions=tuple(
                            replace(
                                part,
                                leader_id=next(node for node in part.replica_nodes if node != part.leader_id),
                                leader_epoch=part.leader_epoch - 1,
                            )
                            for part in each.partitions
                        ),
                    )
                    for each in answer.topics
                ),
            )

        named = Rule(m.MetadataRequest, Change(wrong_leaders), count=None, where=lambda request: bool(request.topics))
        proxy.inject(named)
        config = ClientConfig(bootstrap_servers=parse_bootstrap_servers(proxy.bootstrap_servers))
        with NetworkClient(config) as client:
            producer = started_producer(client, unique_topic("tx"))
            rows = numbered(topic, 0, 30)
            producer.write(replace(rows, partition=None))
            producer.append_record(topic, 2, None, b"30")
            commit_as_driver(client, producer)
            brokers = client.metadata.brokers
            ports = {port for _, port in parse_bootstrap_servers(cluster.bootstrap_servers)}
            assert len(brokers) == 3
            assert not {broker.port for broker in brokers.values()} & ports
            node, deadline = client.any_node(client.clock() + DEADLINE_MS), client.clock() + DEADLINE_MS
            find = m.FindCoordinatorRequest(key_type=1, coordinator_keys=("somebody",))
            found = client.call(node, find, deadline_ms=deadline)
            assert not {each.port for each in found.coordinators} & ports
            # The only way to the true leaders was what the wrong ones said of them (KIP-951).
            assert len([seen for seen in proxy.requests if seen.api is m.ProduceRequest]) >= 2
        assert_nothing_open(cluster.bootstrap_servers, [topic])
        assert sorted(int(record.value or b"") for record in read_committed(cluster.bootstrap_servers, topic)) == list(
            range(31)
        )
