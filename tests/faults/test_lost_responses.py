"""Requests and answers that are lost, late or cut: the write succeeds all the same, and nothing is there twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dead_writes import varied
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.errors import KafkaEosError
from kafka_eos_sink.producer.producer import Producer
from kafka_eos_sink.protocol import messages as m
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.runtime import session
from kafka_testing import started_producer, unique_topic

from .bench import Bench, numbered, of_process, write_tasks, write_whole
from .fault_proxy import (
    Action,
    Answer,
    AnswerAfter,
    Cut,
    Delay,
    DeliverLate,
    LoseRequest,
    LoseResponse,
    RandomFaults,
    Rule,
    Seen,
)

DEADLINE_MS = 20_000


def seen(bench: Bench, api: Any, where: Callable[[Any], bool] = lambda _request: True) -> list[Seen]:
    return [each for each in bench.proxy.requests if each.api is api and where(each.request)]


def pieces(each: Seen) -> set[Any]:
    """What must come again as it was: the whole request, or each batch of a Produce, which may come with others the next time."""
    if each.api is not m.ProduceRequest:
        return {each.digest}
    return {
        (topic.name, partition.index, bytes(partition.records or b""))
        for topic in each.request.topic_data
        for partition in topic.partition_data
    }


def send_until(producer: Producer, happened: Callable[[], bool]) -> None:
    """Send what was written, and nobody waits for its acknowledgement as `flush` does."""
    producer._send_slab()
    producer._batcher.close_all()
    give_up_at = producer._client.clock() + DEADLINE_MS
    while not happened():
        assert producer._client.clock() < give_up_at, "not sent"
        producer._sender.run_once(10)


def of_data(request: Any) -> bool:
    return request.topic_data[0].name.startswith("faulty-")


def of_driver(request: Any) -> bool:
    return (request.transactional_id or "").endswith(".driver")


def of_slot(request: m.DescribeTransactionsRequest) -> bool:
    """Whether the id that an attempt wants is free."""
    (transactional_id, *others) = request.transactional_ids
    return not others and not transactional_id.endswith(".driver")


LOSSES: tuple[Action, ...] = (LoseRequest(close=False), LoseResponse(), Cut("response"))
MORE_LOSSES: tuple[Action, ...] = (
    LoseRequest(),
    LoseResponse(close=False),
    Cut("request"),
    Delay(60),
    Delay(60, "response"),
)
"""For what changes something in the cluster."""
ON_THE_WAY: dict[str, tuple[Any, Callable[[Any], bool], tuple[int, ...]]] = {
    "ApiVersions": (m.ApiVersionsRequest, lambda _: True, (2, 0)),
    "Metadata": (m.MetadataRequest, lambda request: bool(request.topics), (2, 0)),
    "DescribeConfigs": (m.DescribeConfigsRequest, lambda _: True, (2,)),
    "ListTransactions": (m.ListTransactionsRequest, lambda _: True, (2,)),
    "FindCoordinator": (m.FindCoordinatorRequest, lambda _: True, (2,)),
    "DescribeTransactions-of-a-slot": (m.DescribeTransactionsRequest, of_slot, (2,)),
    "DescribeTransactions-of-the-check": (
        m.DescribeTransactionsRequest,
        lambda request: 1 < len(request.transactional_ids) < 8,
        (2,),
    ),
    "DescribeTransactions-of-losing-attempts": (
        m.DescribeTransactionsRequest,
        lambda request: len(request.transactional_ids) > 8,
        (2,),
    ),
    "DescribeTransactions-of-the-driver": (
        m.DescribeTransactionsRequest,
        lambda request: request.transactional_ids[0].endswith(".driver"),
        (2,),
    ),
    "InitProducerId-of-the-driver": (m.InitProducerIdRequest, of_driver, (2, 0)),
    "InitProducerId-of-a-task": (m.InitProducerIdRequest, lambda request: not of_driver(request), (2, 0)),
    "AddPartitionsToTxn-of-a-task": (
        m.AddPartitionsToTxnRequest,
        lambda request: not request.v3_and_below_transactional_id.endswith(".driver"),
        (0,),
    ),
    "AddPartitionsToTxn-of-the-driver": (
        m.AddPartitionsToTxnRequest,
        lambda request: request.v3_and_below_transactional_id.endswith(".driver"),
        (0,),
    ),
    "Produce-of-rows": (m.ProduceRequest, of_data, (2, 0)),
    "Produce-of-the-decision": (m.ProduceRequest, of_driver, (2, 0)),
    "Produce-of-the-barrier": (m.ProduceRequest, lambda request: not request.transactional_id, (2,)),
    "EndTxn-of-the-decision": (m.EndTxnRequest, of_driver, (2, 0)),
    "EndTxn-of-a-task": (m.EndTxnRequest, lambda request: not of_driver(request), (2, 0)),
    "Fetch": (m.FetchRequest, lambda _: True, (2,)),
    "ListOffsets": (m.ListOffsetsRequest, lambda _: True, (2,)),
    "DescribeProducers": (m.DescribeProducersRequest, lambda _: True, (2,)),
}
IDENTICAL = (m.ProduceRequest, m.EndTxnRequest, m.AddPartitionsToTxnRequest)
"""What is repeated without knowing whether it was done must be the same, to the byte and in its version."""


CHANGES = ("InitProducerId-of-a-task", "Produce-of-rows", "EndTxn-of-the-decision", "EndTxn-of-a-task")


@pytest.mark.parametrize(
    ("stage", "version", "loss"),
    [
        pytest.param(stage, version, loss, id=f"{stage}-v{version}-{loss}")
        for stage, (_, _, versions) in ON_THE_WAY.items()
        for version in versions
        for loss in (*LOSSES, *(MORE_LOSSES if stage in CHANGES else ()))
    ],
)
def test_write_survives_a_lost_message_at_any_stage(
    bench_of: Callable[[int], Bench], stage: str, version: int, loss: Action
) -> None:
    api, where, _ = ON_THE_WAY[stage]
    bench = bench_of(version)
    topic = bench.topic()
    settings = bench.write_settings(topic, client={"request_timeout_ms": 400})
    bench.proxy.inject(Rule(api, loss, where=where))
    write_whole(settings)
    assert not bench.proxy.unfired
    bench.assert_exactly_once(topic)
    bench.assert_nothing_open(topic)
    if api in IDENTICAL and not isinstance(loss, Delay):
        first, *later = seen(bench, api, where)
        again = {(each.version, piece) for each in later for piece in pieces(each)}
        assert {(first.version, piece) for piece in pieces(first)} <= again


def test_batch_arriving_after_abort_opens_no_transaction(bench: Bench) -> None:
    """KAFKA-17754: a delayed Produce must not begin a transaction that nobody knows of."""
    topic, transactional_id = bench.topic(), unique_topic("late")
    with NetworkClient(bench.client_config(request_timeout_ms=300)) as client:
        producer = started_producer(client, transactional_id)
        producer.write(numbered(topic, 0, 10))
        producer.flush()
        bench.proxy.inject(Rule(m.ProduceRequest, DeliverLate("aborted")))
        producer.write(numbered(topic, 10, 10))
        send_until(producer, lambda: bool(bench.proxy.faults))
        assert producer.abort(client.clock() + DEADLINE_MS) is not None
        producer.close()
    bench.proxy.open_gate("aborted")
    bench.proxy.wait_until(lambda: not bench.proxy.late)
    bench.assert_nothing_visible(topic)
    bench.assert_nothing_open(topic)


@pytest.mark.parametrize("whose", ["task", "driver"])
def test_late_add_partitions_transaction_is_ended_by_next_batch(bench_of: Callable[[int], Bench], whose: str) -> None:
    """Below version 2, AddPartitionsToTxn of an ended transaction begins one of the same identity (docs/internals/kafka-behaviour.md)."""
    bench = bench_of(0)
    topic, again = bench.topic(), bench.topic()
    settings = bench.write_settings(topic, client={"request_timeout_ms": 400})
    api, where, _ = ON_THE_WAY[f"AddPartitionsToTxn-of-{'a' if whose == 'task' else 'the'}-{whose}"]
    bench.proxy.inject(Rule(api, DeliverLate("committed"), where=where))
    write_whole(settings)
    bench.assert_nothing_open(topic)
    (late, *_) = seen(bench, api, where)
    bench.proxy.open_gate("committed")
    bench.proxy.wait_until(lambda: not bench.proxy.late)
    assert bench.open_transactions() == {late.request.v3_and_below_transactional_id: "Ongoing"}
    bench.assert_exactly_once(topic)
    write_whole(varied(settings, topic=again, version=settings.batch.version + 1))
    bench.assert_nothing_open(again)
    bench.assert_exactly_once(topic)
    bench.assert_exactly_once(again)


# Spark's life cycle of a batch that fails: abort, and the same again


def run_and_abort(bench: Bench, settings: session.WriteSettings) -> KafkaEosError | None:
    """One run of a batch as Spark drives it; the error of the run, if there was one."""
    planner, committer = of_process(settings, "planner"), of_process(settings, "committer")
    messages: list[session.TaskMessage] = []
    plan = None
    try:
        plan = session.plan(planner)
        messages = write_tasks(settings, plan)
        session.commit(committer, plan, messages)
    except KafkaEosError as error:
        if plan is not None:
            try:
                session.abort(committer, plan, messages)
            except KafkaEosError:
                return error
        return error
    return None


@pytest.mark.parametrize(
    ("api", "where", "action", "visible", "hurry"),
    [
        (m.ProduceRequest, of_data, Answer(ErrorCode.INVALID_RECORD), False, {}),
        (m.ProduceRequest, of_driver, Answer(ErrorCode.INVALID_TXN_STATE), False, {}),
        # Nobody says what became of it, so the write waits for that as long as it may.
        (m.EndTxnRequest, of_driver, Answer(ErrorCode.PRODUCER_FENCED), False, {"delivery_timeout_ms": 4_000}),
        (m.EndTxnRequest, of_driver, AnswerAfter(ErrorCode.PRODUCER_FENCED), True, {}),
        (m.EndTxnRequest, lambda request: request.committed and not of_driver(request), Answer(-1), True, {}),
    ],
    ids=["a-task", "the-decision-record", "the-decision", "the-decision-made", "the-end-of-a-task"],
)
def test_abort_leaves_nothing_open_and_finishes_decided_write(
    bench: Bench, api: Any, where: Callable[[Any], bool], action: Action, visible: bool, hurry: dict[str, Any]
) -> None:
    topic = bench.topic()
    patient = bench.write_settings(topic)
    settings = replace(patient, producer=replace(patient.producer, **hurry))
    bench.proxy.inject(Rule(api, action, where=where))
    assert run_and_abort(bench, settings) is not None
    assert not bench.proxy.unfired
    bench.assert_nothing_open(topic)
    if visible:
        bench.assert_exactly_once(topic)
    else:
        bench.assert_nothing_visible(topic)
    bench.proxy.inject()
    assert run_and_abort(bench, patient) is None
    bench.assert_exactly_once(topic)
    bench.assert_nothing_open(topic)


ANYWHERE: tuple[Action, ...] = (LoseRequest(), LoseResponse(), Cut("response"), Cut("request"), Delay(5))
RETRIABLE = {
    m.FindCoordinatorRequest: (ErrorCode.COORDINATOR_NOT_AVAILABLE,),
    m.InitProducerIdRequest: (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_COORDINATOR, ErrorCode.PRODUCER_FENCED),
    m.AddPartitionsToTxnRequest: (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.INVALID_TXN_STATE),
    m.ProduceRequest: (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.INVALID_PRODUCER_EPOCH),
    m.EndTxnRequest: (ErrorCode.NOT_COORDINATOR, ErrorCode.INVALID_TXN_STATE, ErrorCode.PRODUCER_FENCED),
    m.DescribeTransactionsRequest: (ErrorCode.NOT_COORDINATOR,),
    m.FetchRequest: (ErrorCode.NOT_LEADER_OR_FOLLOWER,),
    m.ListOffsetsRequest: (ErrorCode.NOT_LEADER_OR_FOLLOWER,),
}
MENU = {
    api: (*ANYWHERE, *(Answer(code) for code in codes), *(AnswerAfter(code) for code in codes))
    for api, codes in RETRIABLE.items()
}
SEEDS = (1, 2, 3, 5, 6, 7, 8, 9)


@pytest.mark.parametrize("seed", SEEDS)
def test_batch_rerun_until_success_is_visible_exactly_once(bench: Bench, seed: int) -> None:
    topic = bench.topic()
    settings = bench.write_settings(
        topic, client={"request_timeout_ms": 400}, delivery_timeout_ms=1_500, max_block_ms=3_000
    )
    bench.proxy.inject(random_faults=RandomFaults(seed=seed, rate=0.08, menu=MENU))
    runs = 0
    while (failure := run_and_abort(bench, settings)) is not None:
        runs += 1
        assert runs < 30, failure
    assert bench.proxy.faults, "this seed did nothing"
    bench.proxy.inject()
    bench.assert_exactly_once(topic)
    patient = varied(bench.write_settings(topic), write_id=settings.write.id)
    assert run_and_abort(bench, patient) is None  # the same version again: skipped
    bench.assert_exactly_once(topic)
    bench.assert_nothing_open(topic)
