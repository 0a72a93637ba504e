"""What abort ends if brokers list nothing, and what a sweep leaves alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.abort import abort, sweep
from kafka_eos_sink.commit.prepared_transaction import Plan, PreparedTransaction, TaskIdentity, TaskMessage, TaskOutcome
from kafka_eos_sink.commit.take_over import TakeOver
from kafka_eos_sink.protocol.identity import ProducerIdentity

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
        self.asked: list[steps.Step] = []
        self.ended: list[steps.End] = []
        self.log: list[steps.ReadRecord] = []
        self.append(b'["barrier","w"]')

    def append(self, key: bytes) -> int:
        offset = len(self.log)
        barrier = steps.ReadRecord(
            offset=offset,
            producer_id=-1,
            producer_epoch=-1,
            transactional=False,
            key=key,
            value=b'{"format":2,"nonce":"n"}',
        )
        self.log.append(barrier)
        return offset

    def run(self, procedure: steps.Procedure[Any]) -> Any:
        answer: Any = None
        while True:
            try:
                step = procedure.send(answer)
            except StopIteration as stop:
                return stop.value
            self.asked.append(step)
            answer = self.perform(step)

    def perform(self, step: steps.Step) -> Any:
        match step:
            case steps.ListOpenTransactions():
                return self.listed
            case steps.DescribeTransactions(transactional_ids=ids):
                return {name: described(*self.known[name]) for name in ids}
            case steps.InitProducerId():
                return DRIVER
            case steps.Append(records=(record,)):
                return self.append(record.key)
            case steps.ReadLog(offset=offset):
                end = len(self.log)
                return steps.LogChunk(
                    entries=tuple(self.log[offset:]), next_offset=end, log_start_offset=0, end_offset=end
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


def test_sweep_of_a_random_write_id_needs_no_driver() -> None:
    """Decision and tombstones bump the epoch of W.driver twice, and nobody else ever takes the id over."""
    write_id = "kafka-eos/01234567-89ab-cdef-0123-456789abcdef"
    planned = replace(DRIVER, transactional_id=f"{write_id}.driver")
    left = replace(TASK, transactional_id=f"{write_id}.0.3")
    cluster = Cluster(listed=(left.transactional_id,))
    cluster.known = {
        left.transactional_id: ("Ongoing", left),
        planned.transactional_id: ("CompleteCommit", replace(planned, producer_epoch=planned.producer_epoch + 2)),
    }
    assert cluster.run(sweep(replace(PLAN, write_id=write_id, driver=planned), None)) == 1
    assert cluster.ended == [steps.End(identity=left, commit=False)]
