"""Which requests the facts of a transaction in doubt take, and which they do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.evidence import of_doubtful
from kafka_eos_sink.commit.log_records import barrier_key, part_record
from kafka_eos_sink.commit.log_view import LoggedDecision
from kafka_eos_sink.commit.outcome import Coordinator, Facts, Part, Shown
from kafka_eos_sink.commit.steps import POLL_MS, Marker, MarkerType, ReadRecord, TransactionDescription, Unseen
from kafka_eos_sink.commit.values import PreparedTransaction
from kafka_eos_sink.errors import DecisionPendingError
from tests.unit.commit.scripted_world import DRIVER, PART, PREPARED, World
from tests.unit.commit.test_settle import decided

BARRIER = 90
RANGES = tuple(replace(PART, partition=each) for each in range(3))


def prepared(number: int) -> PreparedTransaction:
    """Transaction of one Spark partition, with rows in the data partition of the same number."""
    identity = replace(PREPARED.identity, transactional_id=f"w.{number}.0", producer_id=10 + number)
    return replace(
        PREPARED, partition=number, identity=identity, part_offset=10 + number, offsets=(RANGES[number],), rows=10
    )


ALL = tuple(prepared(number) for number in range(3))


def described(state: str, number: int = 0, later: int = 0) -> TransactionDescription:
    identity = ALL[number].identity
    return TransactionDescription(
        state=state,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch + later,
        timeout_ms=900_000,
        start_time_ms=-1,
        partitions=frozenset(),
    )


def world_of(ends: dict[int, MarkerType], **own: Callable[[Any], Any]) -> World:
    """A commit log with the part records of all three transactions, and the markers of those in ``ends``."""
    world = World(
        **{
            "DescribeTransactions": lambda step: dict.fromkeys(step.transactional_ids),
            "Append": lambda _: BARRIER,
            "LogPolicy": lambda _: "compact",
            "AbortedTransactions": lambda step: dict.fromkeys(step.ranges, ()),
            **own,
        }
    )
    for number, each in enumerate(ALL):
        part = part_record("w", "batch", number, 0, 0)
        identity = each.identity
        world.log.append(
            ReadRecord(
                offset=each.part_offset,
                producer_id=identity.producer_id,
                producer_epoch=identity.producer_epoch,
                transactional=True,
                key=part.key,
                value=part.value,
            )
        )
    for number, kind in ends.items():
        identity = ALL[number].identity
        world.log.append(
            Marker(
                offset=50 + number,
                producer_id=identity.producer_id,
                producer_epoch=identity.producer_epoch + 1,
                type=kind,
            )
        )
    world.log.append(
        ReadRecord(
            offset=BARRIER, producer_id=-1, producer_epoch=-1, transactional=False, key=barrier_key("w"), value=b"{}"
        )
    )
    return world


def gathered(world: World, deadline: int = 10_000) -> list[Facts]:
    logged = LoggedDecision(replace(decided(), driver=DRIVER, transactions=ALL), 20, world.log_id)
    facts: list[Facts] = world.run(of_doubtful(logged, ALL, "barrier", deadline))
    return facts


def sent(world: World, kind: type[Any]) -> list[Any]:
    return [step for step in world.steps if isinstance(step, kind)]


def test_data_topics_are_not_read_if_the_log_proves_all_commits() -> None:
    world = world_of(dict.fromkeys(range(3), MarkerType.COMMIT))
    facts = gathered(world)
    assert [(each.part, each.ranges) for each in facts] == [(Part.OWN, ())] * 3
    names = [type(step) for step in world.steps if not isinstance(step, steps.Now)]
    assert names == [steps.DescribeTransactions, steps.Append, steps.ReadLog, steps.LogPolicy]


def test_only_ranges_of_transactions_without_a_commit_are_read() -> None:
    world = world_of({0: MarkerType.COMMIT, 1: MarkerType.ABORT})
    facts = gathered(world)
    assert [each.ranges for each in facts] == [(), (Shown.COMMITTED,), (Shown.COMMITTED,)]
    (read,) = sent(world, steps.AbortedTransactions)
    assert read.ranges == RANGES[1:]
    assert read.producer_ids == (11, 12)
    assert not sent(world, steps.AreCommitted)
    assert not sent(world, steps.DescribeProducers)


def test_commit_at_the_coordinator_takes_no_read_of_the_topic() -> None:
    """Only the marker in the commit log is missing."""
    world = world_of(
        dict.fromkeys((1, 2), MarkerType.COMMIT),
        DescribeTransactions=lambda step: (
            dict.fromkeys(step.transactional_ids) | {"w.0.0": described("CompleteCommit", later=1)}
        ),
    )
    facts = gathered(world)
    assert facts[0].coordinator is Coordinator.COMMITTED
    assert not sent(world, steps.AbortedTransactions)


@pytest.mark.parametrize(
    ("ends", "asked", "shown"),
    [
        ((True, False), (), (Shown.COMMITTED, Shown.ABORTED)),
        ((True, None), (("t", 2),), (Shown.COMMITTED, Shown.OPEN)),
        ((None, None), (("t", 1), ("t", 2)), (Shown.UNSHOWN, Shown.OPEN)),
    ],
)
def test_producers_are_described_only_of_ranges_without_end(
    ends: tuple[bool | None, ...], asked: tuple[tuple[str, int], ...], shown: tuple[Shown, ...]
) -> None:
    """The markers behind blocked readers count first. A leader holds only the last transaction open."""
    world = world_of(
        {0: MarkerType.COMMIT},
        AbortedTransactions=lambda step: dict.fromkeys(step.ranges, Unseen.BLOCKED),
        AreCommitted=lambda _: ends,
        DescribeProducers=lambda step: {
            where: {10 + where[1]: (0, PART.first_offset if where[1] == 2 else -1)} for where in step.partitions
        },
    )
    facts = gathered(world)
    assert tuple(each.ranges for each in facts[1:]) == tuple((each,) for each in shown)
    assert [step.partitions for step in sent(world, steps.DescribeProducers)] == ([asked] if asked else [])


def test_range_that_is_gone_takes_no_further_request() -> None:
    world = world_of({}, AbortedTransactions=lambda step: dict.fromkeys(step.ranges, Unseen.GONE))
    assert [each.ranges for each in gathered(world)] == [(Shown.GONE,)] * 3
    assert not sent(world, steps.AreCommitted)
    assert not sent(world, steps.DescribeProducers)


def test_committed_range_ends_the_search_of_its_transaction() -> None:
    """One COMMIT proves the commit as a whole, so no leader is asked for the other range."""
    both = replace(ALL[0], offsets=RANGES[:2])
    world = world_of(
        {},
        AbortedTransactions=lambda _: {RANGES[0]: (), RANGES[1]: Unseen.BLOCKED},
        AreCommitted=lambda _: (None,),
    )
    logged = LoggedDecision(replace(decided(), driver=DRIVER, transactions=(both,)), 20, world.log_id)
    (facts,) = world.run(of_doubtful(logged, [both], "barrier", 10_000))
    assert facts.ranges == (Shown.COMMITTED, Shown.UNSHOWN)
    assert not sent(world, steps.DescribeProducers)


def test_only_ending_coordinators_are_described_again() -> None:
    """What the others reported stays a fact: a later transaction of the id cannot change it."""
    reports = iter(
        [
            {"w.0.0": described("CompleteAbort", later=1), "w.1.0": described("PrepareAbort", 1, 1), "w.2.0": None},
            {"w.1.0": described("PrepareAbort", 1, 1)},
            {"w.1.0": described("CompleteAbort", 1, 1)},
        ]
    )
    world = world_of({}, DescribeTransactions=lambda _: next(reports))
    facts = gathered(world)
    asked = [step.transactional_ids for step in sent(world, steps.DescribeTransactions)]
    assert asked == [("w.0.0", "w.1.0", "w.2.0"), ("w.1.0",), ("w.1.0",)]
    assert [each.coordinator for each in facts] == [Coordinator.ABORTED, Coordinator.ABORTED, Coordinator.UNKNOWN]
    assert world.now == 1_000 + 2 * POLL_MS


def test_log_is_not_read_while_a_coordinator_writes_markers() -> None:
    world = world_of({}, DescribeTransactions=lambda _: {"w.0.0": described("PrepareCommit", later=1)})
    with pytest.raises(DecisionPendingError, match=r"DECIDED_NOT_FINISHED\].*has not finished w\.0\.0 in time"):
        gathered(world, deadline=2_000)
    assert not sent(world, steps.Append)
    assert not sent(world, steps.ReadLog)
