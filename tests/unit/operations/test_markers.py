"""Where `kafka-eos recover` looks for missing markers, and what it makes of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kafka_eos_sink.client.metadata import PartitionMetadata, TopicMetadata
from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.evidence import where_held
from kafka_eos_sink.commit.log_records import barrier_record, decision_records, part_record
from kafka_eos_sink.commit.missing_markers import Evidence, Verdict, gather, judge
from kafka_eos_sink.commit.outcome import Outcome, Shown, outcome_of
from kafka_eos_sink.commit.procedure import Step
from kafka_eos_sink.commit.steps import Marker, MarkerType, ReadRecord, TransactionDescription
from kafka_eos_sink.commit.values import Decision, OffsetRange, PreparedTransaction
from kafka_eos_sink.errors import AuthorizationError, BrokerUnavailableError
from kafka_eos_sink.operations.markers import producers_on
from kafka_eos_sink.protocol.identity import ProducerIdentity
from kafka_eos_sink.protocol.messages import ProducerState
from tests.runs import WRITE, drive, run_of

LOG = WRITE.commit_log
LOSER = ProducerIdentity(transactional_id="w.57.3", producer_id=20, producer_epoch=4, transaction_version=2)
DRIVER = ProducerIdentity(transactional_id="w.driver", producer_id=1, producer_epoch=0, transaction_version=2)
HELD = ProducerState(
    producer_id=20,
    producer_epoch=4,
    last_sequence=0,
    last_timestamp=0,
    coordinator_epoch=6,
    current_txn_start_offset=150,
)


class Log:
    """A commit log that grows by whole transactions."""

    def __init__(self) -> None:
        self.entries: list[ReadRecord | Marker] = []
        self.ends: dict[int, bool] = {}
        """How the transactions ended by data partition, if its readers are blocked by others; without an entry, nothing shows it."""
        self.has_leaders = True
        """Whether every data partition has a leader, without which the data topics cannot be read in time."""

    def add(self, records: Sequence[steps.LogRecord], by: ProducerIdentity | None, ends: bool | None = None) -> int:
        first = len(self.entries)
        for each in records:
            self.entries.append(
                ReadRecord(
                    offset=len(self.entries),
                    producer_id=-1 if by is None else by.producer_id,
                    producer_epoch=-1 if by is None else by.producer_epoch,
                    transactional=by is not None,
                    key=each.key,
                    value=each.value,
                )
            )
        if by is not None and ends is not None:
            kind = MarkerType.COMMIT if ends else MarkerType.ABORT
            self.entries.append(
                Marker(
                    offset=len(self.entries),
                    producer_id=by.producer_id,
                    producer_epoch=by.producer_epoch + 1,
                    type=kind,
                )
            )
        return first

    def attempt(self, identity: ProducerIdentity, version: int, committed: bool | None) -> int:
        _, partition, slot = identity.transactional_id.split(".")
        return self.add([part_record("w", "q", int(partition), version, int(slot))], identity, committed)

    def decide(self, version: int, named: Sequence[PreparedTransaction] = (), **changes: Any) -> None:
        driver = replace(DRIVER, producer_epoch=version * 2)
        decision = Decision(
            write_id="w",
            query_id="q",
            version=version,
            nonce=f"n{version}",
            driver=driver,
            topic="orders",
            schema="value binary",
            offsets_hash=None,
            transactions=tuple(named),
        )
        self.add(decision_records(replace(decision, **changes)), driver, True)

    def written(self, version: int, where: tuple[str, int], committed: bool | None = True) -> None:
        """A decided version of one Spark partition; ``committed`` None: without a marker."""
        topic, partition = where
        identity = replace(LOSER, transactional_id="w.0.0", producer_id=10, producer_epoch=version * 2)
        part_offset = self.attempt(identity, version, committed)
        prepared = PreparedTransaction(
            partition=0,
            identity=identity,
            part_offset=part_offset,
            rows=10,
            offsets=(OffsetRange(topic=topic, partition=partition, first_offset=200, last_offset=209),),
        )
        self.decide(version, [prepared])

    def gathered(self, described: Mapping[str, TransactionDescription | None]) -> Evidence:
        def answer(step: Step[Any]) -> Any:
            match step:
                case steps.ReadLog(offset=offset):
                    end = len(self.entries)
                    return steps.LogChunk(
                        entries=tuple(self.entries[offset:]), next_offset=end, log_start_offset=0, end_offset=end
                    )
                case steps.Append(records=records):
                    return self.add(records, None)
                case steps.DescribeTransactions(transactional_ids=ids):
                    return {each: described.get(each) for each in ids}
                case steps.LogPolicy():
                    return "compact"
                case steps.AbortedTransactions() if not self.has_leaders:
                    raise BrokerUnavailableError("REQUEST_DEADLINE", "orders-0 has no leader")
                case steps.AbortedTransactions(ranges=ranges):
                    return dict.fromkeys(ranges, steps.Unseen.BLOCKED)
                case steps.AreCommitted(written=written):
                    return tuple(self.ends.get(part.partition) for _, part in written)
            raise AssertionError(step)

        return drive(gather(run_of()), answer)


def ended(state: str = "CompleteAbort", epoch: int = 5, producer_id: int = 20) -> TransactionDescription:
    return TransactionDescription(
        state=state,
        producer_id=producer_id,
        producer_epoch=epoch,
        timeout_ms=900_000,
        start_time_ms=-1,
        partitions=frozenset(),
    )


NEWEST = {
    "of fewer Spark partitions": lambda log: log.written(4, ("orders", 0)),
    "on other partitions": lambda log: log.written(4, ("orders", 1)),
    "empty": lambda log: log.decide(4),
    "an operator's answer": lambda log: log.decide(3, resolution="committed"),
}


@pytest.mark.parametrize("newest", NEWEST)
def test_attempt_is_reported_with_any_newest_decision(newest: str) -> None:
    log = Log()
    log.written(3, ("orders", 0))
    log.attempt(LOSER, 3, False)
    NEWEST[newest](log)
    evidence = log.gathered({"w.57.3": ended()})
    assert evidence.topics == {"orders"}
    (found,) = judge(evidence, {("orders", 0): (HELD,), ("orders", 1): (), LOG: ()})
    assert (found.verdict, found.transactional_id, found.version) == (Verdict.UNPROVEN, "w.57.3", None)


@pytest.mark.parametrize(
    ("committed", "shown", "outcome"),
    [
        (True, None, Outcome.COMMITTED),
        (None, None, Outcome.OPEN),
        (None, True, Outcome.COMMITTED),
        (None, False, Outcome.ABORTED),
        (False, True, Outcome.COMMITTED),
        (False, None, Outcome.ABORTED),
    ],
)
def test_log_or_data_topics_prove_each_decided_transaction(
    committed: bool | None, shown: bool | None, outcome: Outcome
) -> None:
    log = Log()
    log.written(3, ("orders", 0), committed)
    log.ends = {} if shown is None else {0: shown}
    evidence = log.gathered({})
    ((entry, facts),) = evidence.decided
    assert facts.ranges == ({None: Shown.UNSHOWN, True: Shown.COMMITTED, False: Shown.ABORTED}[shown],)
    held_open = {("orders", 0): {10: (6, 200)}}
    assert outcome_of(where_held(entry, facts, held_open)) is outcome
    assert {part.where for part in evidence.parts} == {LOG, ("orders", 0)}
    assert sorted(evidence.described) == [f"w.0.{slot}" for slot in range(8)]


def test_no_commit_is_written_beside_a_range_aborted_by_hand() -> None:
    """Its coordinator has committed the transaction; its marker in the commit log is missing."""
    log = Log()
    log.written(3, ("orders", 0), None)
    log.ends = {0: False}
    evidence = log.gathered({"w.0.0": ended("CompleteCommit", 7, 10)})
    (found,) = judge(evidence, {LOG: (replace(HELD, producer_id=10, producer_epoch=6, current_txn_start_offset=0),)})
    assert found.verdict is Verdict.UNPROVEN


def committed_below_version_two(ranges: int) -> Log:
    log = Log()
    identity = replace(LOSER, transactional_id="w.0.0", transaction_version=1)
    record = part_record("w", "q", 0, 3, 0)
    part_offset = log.add([record], identity)
    marker = Marker(offset=len(log.entries), producer_id=20, producer_epoch=4, type=MarkerType.COMMIT)
    log.entries.append(marker)
    offsets = tuple(
        OffsetRange(topic="orders", partition=each, first_offset=150, last_offset=159) for each in range(ranges)
    )
    log.decide(
        3, [PreparedTransaction(partition=0, identity=identity, part_offset=part_offset, rows=20, offsets=offsets)]
    )
    return log


@pytest.mark.parametrize("ranges", [1, 2])
def test_below_version_two_no_half_is_committed_unseen(ranges: int) -> None:
    """The other range may be aborted, as in `test_no_marker_commits_half_of_a_part_discarded_later`."""
    log = committed_below_version_two(ranges)
    log.has_leaders = False
    evidence = log.gathered({"w.0.0": ended("CompleteCommit", 4)})
    (found,) = judge(evidence, {("orders", 0): (HELD,)})
    assert found.verdict is (Verdict.MISSING if ranges == 1 else Verdict.UNPROVEN)


@pytest.mark.parametrize(("other", "verdict"), [((), Verdict.UNPROVEN), ((HELD,), Verdict.MISSING)])
def test_below_version_two_a_late_leader_leaves_a_half_open(other: tuple[ProducerState, ...], verdict: Verdict) -> None:
    """The new leader of the other range returns no record up to its marker, and does not hold the transaction open."""
    evidence = committed_below_version_two(2).gathered({"w.0.0": ended("CompleteCommit", 4)})
    found = judge(evidence, {("orders", 0): (HELD,), ("orders", 1): other})
    assert {each.verdict for each in found} == {verdict}


@pytest.mark.parametrize("part", ["none", "the forger's own", "without a transaction"])
def test_no_marker_commits_a_transaction_of_another_program(part: str) -> None:
    """A forged decision names a producer of another program, with rows that it has committed and rows that it has not."""
    log = Log()
    victim = replace(LOSER, transactional_id="w.0.0")
    record = part_record("w", "q", 0, 3, 7)
    log.add([barrier_record("w", "plan")], None)
    offset = 7 if part == "none" else log.add([record], replace(victim, producer_id=666), True)
    if part == "without a transaction":
        # A leader accepts everybody's batches under any producer id, but not in its transactions.
        signed = ReadRecord(
            offset=log.add([], None),
            producer_id=victim.producer_id,
            producer_epoch=victim.producer_epoch,
            transactional=False,
            key=record.key,
            value=record.value,
        )
        log.entries.append(signed)
        offset = signed.offset
    ranges = tuple(
        OffsetRange(topic="payments", partition=index, first_offset=150, last_offset=159) for index in (0, 1)
    )
    named = PreparedTransaction(partition=0, identity=victim, part_offset=offset, rows=20, offsets=ranges)
    log.decide(3, [named])
    log.ends = {0: True}
    (found,) = judge(log.gathered({}), {("payments", 1): (HELD,)})
    assert (found.verdict, found.marker) == (Verdict.UNPROVEN, None)


def test_unknown_write_id_gets_no_barrier() -> None:
    log = Log()
    assert log.gathered({}) == Evidence()
    assert log.entries == []


def test_attempt_without_decision_is_described() -> None:
    log = Log()
    log.add([barrier_record("w", "plan")], None)
    log.attempt(LOSER, 3, False)
    evidence = log.gathered({"w.57.3": ended()})
    assert evidence.topics == frozenset()
    (found,) = judge(evidence, {LOG: (HELD,)})
    assert found.transactional_id == "w.57.3"


# the leaders


class Leaders:
    """Topics of two partitions; `unreadable` ones may be described and not read, `hidden` ones not even described."""

    def __init__(
        self, unreadable: Collection[str] = (), hidden: Collection[str] = (), down: Collection[str] = ()
    ) -> None:
        self.unreadable, self.hidden, self.down = unreadable, hidden, down

    def topic(self, name: str, deadline_ms: int) -> TopicMetadata | None:
        if name in self.hidden:
            raise AuthorizationError("TOPIC_AUTHORIZATION_FAILED", name)
        if name == "gone":
            return None
        partitions = tuple(
            PartitionMetadata(
                error_code=0,
                partition_index=index,
                leader_id=2 if name in self.down else 1,
                replica_nodes=(),
                isr_nodes=(),
                offline_replicas=(),
            )
            for index in (0, 1)
        )
        return TopicMetadata(error_code=0, name=name, partitions=partitions)

    def describe_producers(self, partitions: Sequence[tuple[str, int]], deadline_ms: int) -> dict[Any, Any]:
        if any(topic in self.down for topic, _ in partitions):
            raise BrokerUnavailableError("REQUEST_DEADLINE", "no answer")
        if any(topic in self.unreadable for topic, _ in partitions):
            raise AuthorizationError("TOPIC_AUTHORIZATION_FAILED", "one of them")
        return dict.fromkeys(partitions, ())

    def asked(self, partitions: Collection[tuple[str, int]], topics: Collection[str] = ()) -> Any:
        admin: Any = SimpleNamespace(
            client=SimpleNamespace(clock=lambda: 0), topic=self.topic, describe_producers=self.describe_producers
        )
        producers, no_response, unreadable = producers_on(admin, partitions, topics, 1)
        return set(producers), set(no_response), unreadable


def test_exactly_the_partitions_of_named_topics_are_checked() -> None:
    producers, no_response, unreadable = Leaders().asked([("orders", 1), ("log", 0), ("orders", 7)], {"orders", "gone"})
    assert producers == {("orders", 0), ("orders", 1), ("log", 0)}
    assert (no_response, unreadable) == (set(), set())


@pytest.mark.parametrize("right", ["Describe", "Read"])
@pytest.mark.parametrize("down", [(), ("payments",)], ids=["all lead", "one is away"])
def test_unreadable_topic_does_not_stop_checks_of_other_topics(right: str, down: Collection[str]) -> None:
    leaders = Leaders(**{"hidden" if right == "Describe" else "unreadable": ("secret",)}, down=down)
    producers, no_response, unreadable = leaders.asked([("secret", 0), ("orders", 0), ("payments", 0)])
    assert unreadable == {"secret"}
    assert no_response == {(topic, 0) for topic in down}
    assert producers == {("orders", 0), ("payments", 0)} - no_response
