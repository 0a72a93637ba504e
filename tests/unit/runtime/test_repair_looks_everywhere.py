"""What an attempt holds open is found whatever the newest decision names: other Spark partitions, other partitions, or nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kafka_eos_sink.cli.main import main
from kafka_eos_sink.client.metadata import PartitionMetadata, TopicMetadata
from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.commit_log import decision_records, part_record
from kafka_eos_sink.commit.operator.missing_markers import Evidence, Finding, Part, Verdict, gather, judge
from kafka_eos_sink.commit.prepared_transaction import Decision, OffsetRange, PreparedTransaction
from kafka_eos_sink.commit.steps import Marker, MarkerType, ReadRecord, TransactionDescription
from kafka_eos_sink.errors import AuthorizationError, BrokerRefusedError, BrokerUnavailableError
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import ProducerIdentity, TransactionMarker
from kafka_eos_sink.protocol.messages import ProducerState
from kafka_eos_sink.runtime import operator
from kafka_eos_sink.runtime.operator import ProducerQueries, Repaired, _doubted

LOG = ("log", 0)
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

    def attempt(self, identity: ProducerIdentity, version: int, committed: bool) -> int:
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

    def written(self, version: int, where: tuple[str, int], **changes: Any) -> None:
        """A version of one Spark partition, committed."""
        topic, partition = where
        identity = replace(LOSER, transactional_id="w.0.0", producer_id=10, producer_epoch=version * 2)
        part_offset = self.attempt(identity, version, True)
        prepared = PreparedTransaction(
            partition=0,
            identity=identity,
            part_offset=part_offset,
            rows=10,
            offsets=(OffsetRange(topic=topic, partition=partition, first_offset=200, last_offset=209),),
        )
        self.decide(version, [prepared], **changes)

    def gathered(self, described: Mapping[str, TransactionDescription | None]) -> Evidence:
        procedure = gather("w", "repair", *LOG, 2)
        answer: Any = None
        while True:
            try:
                step = procedure.send(answer)
            except StopIteration as stop:
                evidence: Evidence = stop.value
                return evidence
            match step:
                case steps.ReadLog(offset=offset):
                    end = len(self.entries)
                    answer = steps.LogChunk(
                        entries=tuple(self.entries[offset:]), next_offset=end, log_start_offset=0, end_offset=end
                    )
                case steps.Append(records=records):
                    answer = self.add(records, None)
                case steps.DescribeTransactions(transactional_ids=ids):
                    answer = {each: described.get(each) for each in ids}
                case steps.LogPolicy():
                    answer = "compact"
                case _:
                    raise AssertionError(step)


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
def test_attempt_is_found_with_any_newest_decision(newest: str) -> None:
    log = Log()
    log.written(3, ("orders", 0))
    log.attempt(LOSER, 3, False)
    NEWEST[newest](log)
    evidence = log.gathered({"w.57.3": ended()})
    assert (evidence.topics, evidence.nowhere) == ({"orders"}, ())
    (found,) = judge(evidence, {("orders", 0): (HELD,), ("orders", 1): (), LOG: ()})
    assert (found.verdict, found.part.identity.transactional_id) == (Verdict.MISSING, "w.57.3")
    assert found.marker == TransactionMarker(
        topic="orders",
        partition=0,
        producer_id=20,
        producer_epoch=5,
        committed=False,
        coordinator_epoch=6,
        transaction_version=2,
    )


@pytest.mark.parametrize("newest", NEWEST)
@pytest.mark.parametrize(
    ("coordinator", "verdicts"),
    [
        (ended("Ongoing", 4), []),
        (ended("PrepareAbort"), []),
        (ended("CompleteCommit"), [Verdict.UNPROVEN]),
        (ended("Empty", 6), [Verdict.UNPROVEN]),
        (ended("CompleteAbort", 7), [Verdict.UNPROVEN]),
    ],
    ids=lambda each: f"{each.state} {each.producer_epoch}" if isinstance(each, TransactionDescription) else "",
)
def test_attempt_gets_no_marker_if_coordinator_proves_no_end(
    newest: str, coordinator: TransactionDescription, verdicts: list[Verdict]
) -> None:
    log = Log()
    log.attempt(LOSER, 3, False)
    NEWEST[newest](log)
    found = judge(log.gathered({"w.57.3": coordinator}), {("orders", 0): (HELD,)})
    assert [each.verdict for each in found] == verdicts


@pytest.mark.parametrize("newest", NEWEST)
def test_nor_where_the_log_holds_a_commit_of_it(newest: str) -> None:
    """Of an older decision that is not the newest any more."""
    log = Log()
    log.attempt(LOSER, 3, True)
    NEWEST[newest](log)
    (found,) = judge(log.gathered({"w.57.3": ended()}), {("orders", 0): (HELD,)})
    assert (found.verdict, found.marker) == (Verdict.UNPROVEN, None)


@pytest.mark.parametrize("decided", [True, False], ids=["an empty version", "none yet"])
def test_query_whose_decision_names_no_partition_is_reported(decided: bool) -> None:
    log = Log()
    log.attempt(LOSER, 3, False)
    if decided:
        log.decide(4, topic=None)
    evidence = log.gathered({"w.57.3": ended()})
    assert (evidence.topics, evidence.nowhere, evidence.knows_decisions) == (frozenset(), ("q",), decided)
    (found,) = judge(evidence, {LOG: (HELD,)})
    assert found.verdict is Verdict.MISSING, "on the commit log it can be seen all the same"


# asking the leaders


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
                error_code=0, partition_index=index, leader_id=1, replica_nodes=(), isr_nodes=(), offline_replicas=()
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
        queries = ProducerQueries(admin, 1)
        producers, unasked = queries.producers_on(partitions, topics)
        return set(producers), set(unasked), queries.unreadable


def test_exactly_the_partitions_of_named_topics_are_checked() -> None:
    producers, unasked, unreadable = Leaders().asked([("orders", 1), LOG, ("orders", 7)], {"orders", "gone"})
    assert producers == {("orders", 0), ("orders", 1), LOG}
    assert (unasked, unreadable) == (set(), set())


@pytest.mark.parametrize("right", ["Describe", "Read"])
@pytest.mark.parametrize("down", [(), ("payments",)], ids=["all lead", "one is away"])
def test_unreadable_topic_does_not_stop_checks_of_other_topics(right: str, down: Collection[str]) -> None:
    leaders = Leaders(**{"hidden" if right == "Describe" else "unreadable": ("secret",)}, down=down)
    where = [("secret", 0), ("orders", 0), ("payments", 0)]
    producers, unasked, unreadable = leaders.asked(where)
    assert producers == {("orders", 0)} | ({("payments", 0)} if not down else set())
    assert unreadable == {"secret"}
    assert unasked == set(where) - producers, (
        "what may not be looked at is as good as unasked for whoever would write an ABORT"
    )


# whether it has joined an older one


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (
            SimpleNamespace(error_code=ErrorCode.OFFSET_OUT_OF_RANGE.value, records=b"", log_start_offset=-1),
            "its first batch is gone",
        ),
        (SimpleNamespace(error_code=0, records=b"", log_start_offset=0), "it has joined an older open transaction"),
        (BrokerRefusedError("UNKNOWN_TOPIC", "gone"), "its leader does not show now"),
    ],
)
def test_attempt_with_unreadable_first_batch_gets_no_marker(answer: Any, why: str) -> None:
    def fetch(*_: Any, **__: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    log = Log()
    log.attempt(LOSER, 3, False)
    log.decide(4)
    evidence = log.gathered({"w.57.3": ended()})
    (one,) = judge(evidence, {("orders", 0): (HELD,)})
    assert one.verdict is Verdict.MISSING
    executor: Any = SimpleNamespace(
        admin=SimpleNamespace(fetch=fetch), client=SimpleNamespace(clock=lambda: 0), log_topic="log"
    )
    found = _doubted(executor, evidence, [one], one, {("orders", 0)}, ())
    assert (found.verdict, found.marker) == (Verdict.UNPROVEN, None)
    assert why in found.reason


# what is said


def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], **found: Any) -> tuple[int, str, str]:
    monkeypatch.setenv("COLUMNS", "400")
    done = Repaired(**{"findings": (), "written": False, "knows_decisions": True, **found})
    monkeypatch.setattr(operator, "repair", lambda *_, **__: done)
    status = main(["repair", "--bootstrap-servers", "localhost:1", "--write-id", "w"])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_unchecked_parts_are_not_reported_as_nothing_to_repair(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = said(monkeypatch, capsys, nowhere=("q",))
    assert (status, out) == (1, "")
    assert "Not checked: attempts of query id q. Its newest version names no partition" in err
    status, out, err = said(monkeypatch, capsys, unreadable=("secret",))
    assert (status, out) == (1, "")
    assert "Not checked: secret (missing Read permission)" in err
    assert said(monkeypatch, capsys) == (0, "Nothing to repair under w.\n", "")


def test_repair_reports_running_transactions(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    part = Part(query_id="q", version=3, identity=LOSER, where=("orders", 0), first_offset=0, last_offset=9)
    running = Finding(part=part, verdict=Verdict.RUNNING, reason="its coordinator says Ongoing")
    status, out, err = said(monkeypatch, capsys, findings=(running,))
    assert (status, err) == (0, "")
    assert "Nothing to repair" not in out
    assert "1 running transactions are open, or their coordinator is about to end them" in out
