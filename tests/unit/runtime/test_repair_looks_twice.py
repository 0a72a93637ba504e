"""Before repair writes an ABORT below version 2, it looks whether the transaction's rows can be seen where it is not open."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.log_view import Outcome
from kafka_eos_sink.commit.operator.missing_markers import Evidence, Finding, Part, Verdict, judge
from kafka_eos_sink.commit.prepared_transaction import OffsetRange
from kafka_eos_sink.errors import BrokerUnavailableError
from kafka_eos_sink.protocol.identity import ProducerIdentity
from kafka_eos_sink.protocol.messages import ProducerState
from kafka_eos_sink.runtime.operator import _doubted

HELD, ELSEWHERE = ("orders", 0), ("orders", 1)


@dataclass
class Readers:
    """What an executor answers to the look at data partitions; `asked` are the ranges it was asked for."""

    answer: Any
    log_topic: str = "log"
    asked: list[OffsetRange] = field(default_factory=list)

    def run(self, procedure: Any) -> Any:
        try:
            step = next(procedure)
            assert isinstance(step, steps.AbortedTransactions)
            self.asked += step.ranges
            if isinstance(self.answer, Exception):
                procedure.throw(self.answer)
            procedure.send(None if self.answer is None else dict.fromkeys(step.ranges, self.answer))
        except StopIteration as stop:
            return stop.value
        raise AssertionError("one look is enough")


def finding(readers: Readers, version: int, *, unasked: bool = False, gone: bool = False) -> Finding:
    identity = ProducerIdentity(transactional_id="w.0.0", producer_id=10, producer_epoch=4, transaction_version=version)
    parts = tuple(
        Part(query_id="q", version=3, identity=identity, where=where, first_offset=0, last_offset=9)
        for where in (HELD, ELSEWHERE)
    )
    evidence = Evidence(
        write_id="w",
        parts=parts,
        described={},
        witnesses={identity: Outcome.ABORTED},
        transaction_version=version,
    )
    open_there = ProducerState(
        producer_id=10,
        producer_epoch=4,
        last_sequence=0,
        last_timestamp=0,
        coordinator_epoch=0,
        current_txn_start_offset=0,
    )
    producers = {HELD: (open_there,), ELSEWHERE: ()}
    judged = judge(evidence, producers)
    (one,) = judged
    assert one.verdict is Verdict.MISSING
    asked = {HELD} if unasked or gone else set(producers)
    executor: Any = SimpleNamespace(run=readers.run, where=(readers.log_topic, 0))
    return _doubted(executor, evidence, judged, one, asked, {ELSEWHERE} if unasked else set())


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ((), "readers see its rows on orders-1"),
        (steps.Unseen.HELD, "nobody can tell now"),
        (None, "nobody can tell now"),
        (BrokerUnavailableError("REQUEST_DEADLINE", "no leader"), "nobody can tell now"),
    ],
    ids=["visible", "held", "no Read", "no leader"],
)
def test_abort_is_not_written_if_rows_may_be_visible_elsewhere(answer: Any, why: str) -> None:
    found = finding(Readers(answer), 0)
    assert (found.verdict, found.marker) == (Verdict.UNPROVEN, None)
    assert why in found.reason


@pytest.mark.parametrize("answer", [((10, 0),), steps.Unseen.GONE], ids=["listed as aborted", "gone"])
def test_abort_is_written_if_rows_are_aborted_elsewhere(answer: Any) -> None:
    readers = Readers(answer)
    found = finding(readers, 0)
    assert found.verdict is Verdict.MISSING
    assert [(each.topic, each.partition) for each in readers.asked] == [ELSEWHERE]


def test_from_version_2_on_its_own_marker_needs_no_look() -> None:
    readers = Readers(())
    assert finding(readers, 2).verdict is Verdict.MISSING
    assert readers.asked == []


def test_unchecked_partition_is_skipped_and_deleted_one_is_empty() -> None:
    readers = Readers(())
    assert "nobody can tell now" in finding(readers, 0, unasked=True).reason
    assert finding(readers, 0, gone=True).verdict is Verdict.MISSING
    assert readers.asked == []
