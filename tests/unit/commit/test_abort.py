"""What abort ends if brokers list nothing, and what a sweep leaves alone."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pytest

from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.abort import abort, sweep
from kafka_eos_sink.commit.log_records import decision_records
from kafka_eos_sink.commit.procedure import Procedure, Step
from kafka_eos_sink.commit.take_over import TakeOver
from kafka_eos_sink.commit.values import (
    Plan,
    PreparedTransaction,
    TaskIdentity,
    TaskMessage,
    TaskOutcome,
)
from kafka_eos_sink.errors import WriteRefusedError
from kafka_eos_sink.protocol.identity import ProducerIdentity
from tests.unit.commit.test_settle import decided

DRIVER = ProducerIdentity(transactional_id="w.driver", producer_id=1, producer_epoch=4, transaction_version=2)
TASK = ProducerIdentity(transactional_id="w.0.0", producer_id=2, producer_epoch=0, transaction_version=2)
PLAN = Plan(
    write_id="w", nonce="n", driver=DRIVER, started_ms=0, transaction_timeout_ms=900_000, log_offset=0, decisions=()
)
MESSAGE = TaskMessage(
    plan=PLAN,
    query_id="q",
    version=0,
    task=TaskIdentity(partition=0, attempt_number=0, task_attempt_id=0),
    outcome=TaskOutcome.PREPARED,
    prepared=PreparedTransaction(partition=0, identity=TASK, part_offset=1, rows=1, offsets=()),
)


class Cluster:
    """A commit log of barriers, a driver that nobody has fenced, and the transactions that brokers list."""

    def __init__(self, listed: tuple[str, ...]) -> None:
        self.listed = listed
        self.known = {DRIVER.transactional_id: ("Empty", DRIVER), TASK.transactional_id: ("Ongoing", TASK)}
        self.asked: list[Step[Any]] = []
        self.ended: list[steps.End] = []
        self.log: list[steps.ReadRecord | steps.Marker] = []
        self.log_id = uuid.uuid4()
        self.append(b'["barrier","w"]')

    def append(self, key: bytes, value: bytes | None = b'{"format":2,"nonce":"n"}') -> int:
        offset = len(self.log)
        barrier = steps.ReadRecord(
            offset=offset,
            producer_id=-1,
            producer_epoch=-1,
            transactional=False,
            key=key,
            value=value,
        )
        self.log.append(barrier)
        return offset

    def run(self, procedure: Procedure[Any]) -> Any:
        answer: Any = None
        while True:
            try:
                step = procedure.send(answer)
            except StopIteration as stop:
                return stop.value
            self.asked.append(step)
            answer = self.perform(step)

    def perform(self, step: Step[Any]) -> Any:
        match step:
            case steps.ListOpenTransactions():
                return self.listed
            case steps.DescribeTransactions(transactional_ids=ids):
                return {name: described(*self.known[name]) for name in ids}
            case steps.InitProducerId():
                return DRIVER
            case steps.Append(records=(record,)):
                return self.append(record.key, record.value)
            case steps.ReadLog(offset=offset):
                end = len(self.log)
                return steps.LogChunk(
                    entries=tuple(self.log[offset:]),
                    next_offset=max(offset, end),
                    log_start_offset=0,
                    end_offset=end,
                    topic_id=self.log_id,
                )
            case steps.EndTransactions(ends=ends):
                self.ended += ends
                return tuple(steps.EndResult(error=0) for _ in ends)
            case _:
                return 0


def described(state: str, identity: ProducerIdentity) -> steps.TransactionDescription:
    return steps.TransactionDescription(
        state=state,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        timeout_ms=1,
        start_time_ms=0,
        partitions=frozenset(),
    )


def request() -> TakeOver:
    return TakeOver(write_id="w", nonce="a", transaction_timeout_ms=900_000)


def test_abort_ends_handed_over_transactions_without_a_list() -> None:
    cluster = Cluster(listed=())
    cluster.run(abort(request(), PLAN, [MESSAGE], 2))
    assert cluster.ended == [steps.End(identity=TASK, commit=False)]


def test_abort_lists_once_and_does_not_wait() -> None:
    cluster = Cluster(listed=(TASK.transactional_id,))
    cluster.run(abort(request(), PLAN, [MESSAGE], 2))
    assert cluster.ended == [steps.End(identity=TASK, commit=False)]
    assert [type(step) for step in cluster.asked].count(steps.ListOpenTransactions) == 1
    assert not any(isinstance(step, steps.Wait) for step in cluster.asked)


def test_list_waits_only_seconds_for_a_write_that_the_log_knows() -> None:
    cluster = Cluster(listed=())
    cluster.run(abort(request(), PLAN, [MESSAGE], 2))
    (listing,) = (step for step in cluster.asked if isinstance(step, steps.ListOpenTransactions))
    assert listing.within_ms is not None
    assert listing.within_ms <= 5_000


def test_list_of_a_new_write_waits_for_all_brokers() -> None:
    """Another commit log may hold the decision of what a silent broker does not list."""
    cluster = Cluster(listed=())
    cluster.log.clear()
    cluster.run(abort(request(), PLAN, [MESSAGE], 2))
    (listing,) = (step for step in cluster.asked if isinstance(step, steps.ListOpenTransactions))
    assert listing.within_ms is None


@pytest.mark.parametrize("created_again", [True, False])
@pytest.mark.parametrize("kept", [0, 40], ids=["shorter", "longer"])
def test_abort_of_fenced_driver_notices_another_commit_log(created_again: bool, kept: int) -> None:
    """The deleted log may have decided what the tasks handed over."""
    cluster = Cluster(listed=())
    cluster.known["w.driver"] = ("Empty", replace(DRIVER, producer_epoch=9))
    plan = replace(PLAN, log_id=cluster.log_id, log_offset=20)
    for _ in range(kept):
        cluster.append(b'["barrier","other"]')
    if created_again:
        cluster.log_id = uuid.uuid4()
        with pytest.raises(WriteRefusedError, match=r"NOT_THIS_COMMIT_LOG\]"):
            cluster.run(abort(request(), plan, [MESSAGE], 2))
    else:
        assert cluster.run(abort(request(), plan, [MESSAGE], 2)) is None
    assert cluster.ended == ([] if created_again else [steps.End(identity=TASK, commit=False)])
    assert str(plan.log_id).encode() in (cluster.log[-1].value or b"")


RANDOM = "kafka-eos/01234567-89ab-cdef-0123-456789abcdef"


def behind_its_tombstones() -> tuple[Cluster, Plan, ProducerIdentity]:
    """Decision and tombstones bump the epoch of W.driver twice, and nobody else ever takes the id over."""
    planned = replace(DRIVER, transactional_id=f"{RANDOM}.driver")
    left = replace(TASK, transactional_id=f"{RANDOM}.0.3")
    cluster = Cluster(listed=(left.transactional_id,))
    cluster.append(f'["barrier","{RANDOM}"]'.encode())
    cluster.known = {
        left.transactional_id: ("Ongoing", left),
        planned.transactional_id: ("CompleteCommit", replace(planned, producer_epoch=planned.producer_epoch + 2)),
    }
    return cluster, replace(PLAN, write_id=RANDOM, driver=planned), left


def test_sweep_of_a_random_write_id_needs_no_driver() -> None:
    cluster, plan, left = behind_its_tombstones()
    assert cluster.run(sweep(plan, None)) == 1
    assert cluster.ended == [steps.End(identity=left, commit=False)]


def test_abort_of_a_random_write_id_needs_no_driver() -> None:
    cluster, plan, left = behind_its_tombstones()
    assert cluster.run(abort(replace(request(), write_id=RANDOM), plan, [], 2)) is not None
    assert cluster.ended == [steps.End(identity=left, commit=False)]


@pytest.mark.parametrize("again", [True, False], ids=["decided again by a newer driver", "decided by its own only"])
def test_abort_of_paused_driver_leaves_the_newer_one_alone(again: bool) -> None:
    """A newer driver decides the batch again under the same nonce, as for another `foreachBatch` call, or with copies."""
    cluster = Cluster(listed=())
    newer = replace(DRIVER, producer_epoch=DRIVER.producer_epoch + 2)
    by = (DRIVER, newer) if again else (DRIVER,)
    for driver in by:
        (record,) = decision_records(replace(decided(), driver=driver, transactions=()))
        for entry in (
            steps.ReadRecord(
                offset=len(cluster.log),
                producer_id=driver.producer_id,
                producer_epoch=driver.producer_epoch,
                transactional=True,
                key=record.key,
                value=record.value,
            ),
            steps.Marker(
                offset=len(cluster.log) + 1,
                producer_id=driver.producer_id,
                producer_epoch=driver.producer_epoch + 1,
                type=steps.MarkerType.COMMIT,
            ),
        ):
            cluster.log.append(entry)
    last = by[-1]
    cluster.known["w.driver"] = ("CompleteCommit", replace(last, producer_epoch=last.producer_epoch + 1))
    found = cluster.run(abort(request(), PLAN, [], 2))
    assert (found is None) == again
    assert any(isinstance(step, steps.InitProducerId) for step in cluster.asked) != again
