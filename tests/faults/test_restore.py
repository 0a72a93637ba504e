"""Lost rows are copied from the log while requests and answers are lost, late or refused: all of them once, or none of them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dead_writes import abort_by_hand, die_at, varied
from kafka_eos_sink.errors import DecisionPendingError, KafkaEosError
from kafka_eos_sink.protocol import messages as m
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.runtime import session
from kafka_eos_sink.runtime.failpoints import VARIABLE
from kafka_testing import wait_until

from .bench import TASKS, Bench, of_process, write_tasks, write_whole
from .fault_proxy import Action, Answer, Change, Delay, DeliverLate, OpenGate, RandomFaults, Rule
from .test_lost_responses import IDENTICAL, LOSSES, MENU, MORE_LOSSES, of_data, of_driver, of_slot, pieces, seen

Stage = tuple[Any, Callable[[Any], bool], int]
"""API, which requests, and the number of the first that counts."""


def of_rows(request: m.FetchRequest) -> bool:
    """Of the aborted records; the proofs fetch read_committed."""
    return request.isolation_level == 0 and request.topics[0].topic.startswith("faulty-")


def of_copy(request: Any) -> bool:
    return not of_driver(request)


def of_part(request: m.ProduceRequest) -> bool:
    return bool(request.transactional_id) and not of_driver(request) and not of_data(request)


def of_second_decision(request: m.ProduceRequest) -> bool:
    return of_driver(request) and b"~1" in (request.topic_data[0].partition_data[0].records or b"")


STAGES: dict[str, Stage] = {
    "DescribeTransactions-of-a-slot": (m.DescribeTransactionsRequest, of_slot, 1),
    "InitProducerId-of-a-copy": (m.InitProducerIdRequest, of_copy, 1),
    "Fetch-of-rows": (m.FetchRequest, of_rows, 1),
    "AddPartitionsToTxn-of-a-copy": (
        m.AddPartitionsToTxnRequest,
        lambda request: not request.v3_and_below_transactional_id.endswith(".driver"),
        1,
    ),
    "Produce-of-rows": (m.ProduceRequest, of_data, 1),
    "Produce-of-a-part": (m.ProduceRequest, of_part, 1),
    "DescribeProducers": (m.DescribeProducersRequest, lambda _: True, 1),
    "Produce-of-the-second-decision": (m.ProduceRequest, of_driver, 1),
    "EndTxn-of-the-second-decision": (m.EndTxnRequest, of_driver, 1),
    "EndTxn-of-what-is-lost": (m.EndTxnRequest, of_copy, 1),
    "EndTxn-of-a-copy": (m.EndTxnRequest, of_copy, TASKS + 1),
}
CHANGES = ("InitProducerId-of-a-copy", "Produce-of-rows", "EndTxn-of-the-second-decision", "EndTxn-of-a-copy")


def lost(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, point: str = "commit.decided", **settings: Any
) -> session.WriteSettings:
    """A write whose driver died behind its decision, and whose transactions were aborted but for those that it had committed."""
    given = bench.write_settings(bench.topic(), **settings)
    plan = session.plan(of_process(given, "planner"))
    messages = write_tasks(given, plan)
    die_at(point, of_process(given, "committer"), plan, messages, monkeypatch)
    abort_by_hand(given, messages[1:] if point == "commit.between_ends" else messages)
    return given


@pytest.mark.parametrize(
    ("stage", "version", "loss"),
    [
        pytest.param(stage, version, loss, id=f"{stage}-v{version}-{loss}")
        for stage in STAGES
        for version in ((0,) if stage.startswith("AddPartitions") else (2, 0))
        for loss in (*LOSSES, *(MORE_LOSSES if stage in CHANGES else ()))
    ],
)
def test_restore_survives_a_lost_message_at_any_stage(
    bench_of: Callable[[int], Bench], monkeypatch: pytest.MonkeyPatch, stage: str, version: int, loss: Action
) -> None:
    api, where, nth = STAGES[stage]
    bench = bench_of(version)
    given = lost(bench, monkeypatch, client={"request_timeout_ms": 400})
    topic = given.batch.topic or ""
    bench.proxy.inject(Rule(api, loss, nth=nth, where=where))
    session.plan(of_process(given, "second-planner"))
    assert not bench.proxy.unfired
    bench.assert_exactly_once(topic)
    bench.assert_nothing_open(topic)
    if api in IDENTICAL and not isinstance(loss, Delay):
        first, *later = seen(bench, api, where)[nth - 1 :]
        again = {(each.version, piece) for each in later for piece in pieces(each)}
        assert {(first.version, piece) for piece in pieces(first)} <= again


@pytest.mark.parametrize("version", [0, 2])
def test_late_end_of_the_first_decision_cuts_no_other(
    bench_of: Callable[[int], Bench], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: int
) -> None:
    """A decision in several Produce requests. Below version 2 the decision of the copies would have the epoch of the late EndTxn."""
    monkeypatch.setattr("kafka_eos_sink.commit.log_records.MAX_RECORD_BYTES", 200)
    monkeypatch.setattr("kafka_eos_sink.runtime.driver_requests.MAX_BATCH_BYTES", 200)
    bench = bench_of(version)
    given = bench.write_settings(bench.topic(), client={"request_timeout_ms": 400})
    plan = session.plan(of_process(given, "planner"))
    messages = write_tasks(given, plan)
    bench.proxy.inject(
        Rule(m.EndTxnRequest, DeliverLate("late"), where=of_driver),
        Rule(m.ProduceRequest, OpenGate("late"), where=of_second_decision),
    )
    held = tmp_path / "decided"
    monkeypatch.setenv(VARIABLE, f"commit.decided=wait:{held}")
    with ThreadPoolExecutor(1) as driver:
        committing = driver.submit(session.commit, of_process(given, "committer"), plan, messages)
        wait_until(lambda: held.exists() or committing.done(), "the decision")
        assert not committing.done(), committing.exception()
        abort_by_hand(given, messages)
        held.unlink()
        failure = committing.exception(60)
    if version < 2:
        assert isinstance(failure, DecisionPendingError)
        assert "only a new run can continue" in failure.message
        session.plan(of_process(given, "second-planner"))
    else:
        assert failure is None
    assert not bench.proxy.unfired
    bench.assert_exactly_once(given.batch.topic or "")
    bench.assert_nothing_open(given.batch.topic or "")


def damaged(answer: m.FetchResponse) -> m.FetchResponse:
    """With a flipped bit in the last record, which the CRC shows."""
    (topic,) = answer.responses
    (partition,) = topic.partitions
    records = bytearray(partition.records or b"")
    records[-1] ^= 1
    return replace(answer, responses=(replace(topic, partitions=(replace(partition, records=bytes(records)),)),))


@pytest.mark.parametrize(
    ("action", "says"),
    [
        (
            Answer(ErrorCode.OFFSET_OUT_OF_RANGE),
            r"LOST_PARTS\].*-1 \[\d+\.\.\d+\]: .*does not hold these offsets any more",
        ),
        (Answer(ErrorCode.TOPIC_AUTHORIZATION_FAILED), r"DECIDED_NOT_FINISHED\].*could not be copied.*Read"),
        (Change(damaged), r"LOST_PARTS\].*-1 \[\d+\.\.\d+\]: .*is damaged: its CRC-32C is"),
    ],
    ids=["gone", "forbidden", "damaged"],
)
def test_unreadable_rows_are_an_error_until_they_can_be_read(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, action: Action, says: str
) -> None:
    given = lost(bench, monkeypatch, "commit.between_ends")
    topic = given.batch.topic or ""
    # The second range of the transaction: by then the first one is copied.
    bench.proxy.inject(
        Rule(m.FetchRequest, action, count=None, where=lambda request: of_rows(request) and partition_of(request) == 1)
    )
    with pytest.raises(DecisionPendingError, match=says):
        session.plan(of_process(given, "second-planner"))
    assert not bench.proxy.unfired
    bench.assert_exactly_once(topic, 10)  # the first task's, which are committed
    bench.assert_nothing_open(topic)
    bench.proxy.inject()
    session.plan(of_process(given, "third-planner"))
    bench.assert_exactly_once(topic)
    bench.assert_nothing_open(topic)


def partition_of(request: m.FetchRequest) -> int:
    return request.topics[0].partitions[0].partition


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_restore_rerun_until_success_is_visible_exactly_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Any request may be lost, or answered by a code that asks for patience or for another driver."""
    given = lost(
        bench,
        monkeypatch,
        "commit.between_ends" if seed % 2 else "commit.decided",
        client={"request_timeout_ms": 400},
        delivery_timeout_ms=1_500,
        max_block_ms=3_000,
    )
    topic = given.batch.topic or ""
    bench.proxy.inject(random_faults=RandomFaults(seed=seed, rate=0.08, menu=MENU))
    for run in range(30):
        try:
            session.plan(of_process(given, f"planner-{run}"))
            break
        except KafkaEosError:
            continue
    else:
        raise AssertionError("no run succeeded")
    assert bench.proxy.faults, "this seed did nothing"
    bench.proxy.inject()
    bench.assert_exactly_once(topic)
    write_whole(varied(bench.write_settings(topic), write_id=given.write.id))  # the same version again: skipped
    bench.assert_exactly_once(topic)
    bench.assert_nothing_open(topic)
