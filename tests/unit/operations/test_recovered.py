"""`kafka-eos recover` says what is not known: rows that nobody has seen, transactions that may still be open."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kafka_eos_sink.cli.main import main
from kafka_eos_sink.client.config import ClientConfig
from kafka_eos_sink.commit.steps import (
    AbortedTransactions,
    Copied,
    Copy,
    CopyRecords,
    End,
    EndResult,
    Gone,
    Listed,
    LogRecord,
    Unseen,
)
from kafka_eos_sink.commit.values import Decision, DecisionStatus, OffsetRange, Plan, SettledDecision
from kafka_eos_sink.errors import BrokerUnavailableError, DecisionPendingError, FencedError
from kafka_eos_sink.operations import operator
from kafka_eos_sink.operations.hanging import Found, HeldOpen
from kafka_eos_sink.operations.operator import EndedTransaction, OperatorSettings, Recovered
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import ProducerIdentity, TopicPartition
from tests.model import simulated_cluster as kafka
from tests.model.scripted_cluster import ScriptedCluster, decided
from tests.runs import WRITE, run_of

DECISION = SettledDecision(
    decision=Decision(
        write_id="w",
        query_id="batch",
        version=3,
        nonce="n",
        driver=ProducerIdentity(transactional_id="w.driver", producer_id=1, producer_epoch=0, transaction_version=2),
        topic="orders",
        schema="value binary",
        offsets_hash=None,
        transactions=(),
    ),
    status=DecisionStatus.FINISHED,
)
TASK = ProducerIdentity(transactional_id="w.0.0", producer_id=10, producer_epoch=4, transaction_version=2)


def ended(answer: str | None, identity: ProducerIdentity = TASK, *, is_over: bool = True) -> EndedTransaction:
    return EndedTransaction(identity=identity, end="abort", answer=answer, is_over=is_over)


SETTINGS = OperatorSettings(
    write_id="w", commit_log_topic="log", client=ClientConfig(bootstrap_servers=(("localhost", 1),))
)
RECOVER = ("recover", "--bootstrap-servers", "localhost:1", "--write-id", "w")


def said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], done: Recovered, *more: str
) -> tuple[int, str, dict[str, Any]]:
    """The exit status, the table with its lines joined, and the JSON."""
    monkeypatch.setattr(operator, "recover", lambda *_, **__: done)
    command = [*RECOVER, "--yes", *more]
    status = main(command)
    shown = " ".join(capsys.readouterr().out.split())
    assert main([*command, "--json"]) == status
    return status, shown, json.loads(capsys.readouterr().out)


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")


@pytest.mark.parametrize(
    ("answer", "is_over", "result", "status"),
    [
        ("NONE", True, "done", 0),
        ("INVALID_TXN_STATE", True, "had ended before", 0),
        ("CONCURRENT_TRANSACTIONS", False, "not ended: CONCURRENT_TRANSACTIONS", 1),
        (None, False, "no response: may still be open", 1),
    ],
)
def test_transaction_that_may_be_open_comes_first_and_is_status_1(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: str | None,
    is_over: bool,
    result: str,
    status: int,
) -> None:
    many = (ended("NONE", replace(TASK, transactional_id=f"w.{task}.0")) for task in range(1, 30))
    last = ended(answer, is_over=is_over)
    done = Recovered(versions=(), ended=(*many, last) if not is_over else (last,))
    found, shown, fields = said(monkeypatch, capsys, done)
    assert (found, f"w.0.0 abort {result}" in shown) == (status, True), shown
    assert fields["ended"][-1]["is_over"] is is_over


Answer = tuple[int | None, ProducerIdentity, bool]
"""Error, identity, and whether it was to commit."""


def recovered(
    monkeypatch: pytest.MonkeyPatch, *answers: Answer, copied: Sequence[ProducerIdentity] = ()
) -> tuple[list[tuple[str | None, ProducerIdentity, bool]], Recovered]:
    """What `operator.recover` returns if its procedure sends these EndTxn."""
    plan = Plan(
        write=WRITE,
        nonce="n",
        driver=TASK,
        started_ms=0,
        transaction_timeout_ms=1,
        log_offset=0,
        decisions=(DECISION,),
    )
    ends = [(End(identity=identity, commit=commit), EndResult(error=error)) for error, identity, commit in answers]
    executor = SimpleNamespace(ended=ends, copied={*copied}, run=lambda _: plan)

    @contextmanager
    def connected(_: OperatorSettings) -> Iterator[Any]:
        yield SimpleNamespace(unlisted=""), executor, run_of()

    monkeypatch.setattr(operator, "connected_to_log", connected)
    done = operator.recover(SETTINGS)
    return [(each.answer, each.identity, each.is_over) for each in done.ended], done


def test_recover_matches_transactions_by_producer_id_and_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """One under the same id that was refused is not over because an older one of it was committed."""
    named, later = replace(TASK, transaction_version=0), replace(TASK, producer_epoch=6)
    shown, done = recovered(
        monkeypatch,
        (0, named, True),
        (ErrorCode.INVALID_TXN_STATE.value, TASK, False),  # was open at first, and is finished: no line of its own
        (ErrorCode.CONCURRENT_TRANSACTIONS.value, later, False),
    )
    assert shown == [("NONE", named, True), ("CONCURRENT_TRANSACTIONS", later, False)]
    assert done.versions[0].finished_now  # the log held no done record before
    assert not done.all_ended


def test_recovered_names_copies_and_omits_its_own_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, copy = DECISION.decision.driver, replace(TASK, transactional_id="w.0.1", producer_id=11)
    assert recovered(monkeypatch, (None, driver, True))[0] == [(None, driver, False)]
    lost = (ErrorCode.PRODUCER_FENCED.value, TASK, True)
    shown, done = recovered(monkeypatch, lost, (0, driver, True), (0, copy, True), copied=[copy])
    assert shown == [("PRODUCER_FENCED", TASK, True), ("NONE", copy, True)]
    assert [each.copies for each in done.ended] == [False, True]


def held_open(name: str, where: TopicPartition, producer_id: int, **changes: Any) -> HeldOpen:
    hangs = HeldOpen(
        transactional_id=name,
        topic=where[0],
        partition=where[1],
        start_offset=7,
        producer_id=producer_id,
        producer_epoch=4,
        coordinator_epoch=0,
        version=None,
        is_forgotten=False,
    )
    return replace(hangs, **changes)


def on_cluster(monkeypatch: pytest.MonkeyPatch, cluster: ScriptedCluster, hangs: Found) -> OperatorSettings:
    """The settings of commands that run on a scripted cluster."""

    @contextmanager
    def connected(_: OperatorSettings) -> Iterator[Any]:
        executor = SimpleNamespace(run=cluster.run, ended=[], copied=set())
        yield SimpleNamespace(unlisted=""), executor, run_of(version=cluster.kafka.version)

    monkeypatch.setattr(operator, "connected_to_log", connected)
    monkeypatch.setattr(operator, "find_hanging", lambda *_: hangs)
    return SETTINGS


def test_recovery_is_shown_although_its_search_for_attempts_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster, _ = decided()

    def fenced(*_: Any) -> Any:
        raise FencedError("FENCED", "a newer driver holds w.driver")

    monkeypatch.setattr(operator, "discard_attempts", fenced)
    done = operator.recover(on_cluster(monkeypatch, cluster, Found()))
    assert done.versions[0].finished_now
    assert not done.all_ended
    status, _, fields = said(monkeypatch, capsys, done)
    why = "attempts that may hang on partitions. [KAFKA_EOS.FENCED] a newer driver holds w.driver"
    assert (status, fields["hanging"]["not_checked"]) == (1, [why])
    assert main([*RECOVER, "--yes"]) == 1
    shown = capsys.readouterr()
    assert "finished just now" in shown.out
    assert "Not checked: attempts that may hang on partitions. [KAFKA_EOS.FENCED] a newer driver" in shown.err


@pytest.mark.parametrize("is_noted", [True, False])
def test_marker_is_written_only_after_the_decision_notes_what_nobody_saw(
    monkeypatch: pytest.MonkeyPatch, is_noted: bool
) -> None:
    """Otherwise retention removes the discarded rows, and the next run takes them for seen. Another partition has no leader here."""
    cluster = ScriptedCluster(partitions=3)
    plan = cluster.plan()
    logged = cluster.decide([cluster.attempt(plan, 0, into=(0, 1)), cluster.attempt(plan, 1, into=(2,))])
    hangs, other = logged.decision.transactions
    cluster.end_without_marker(hangs.identity, commit=True, partition=1)
    cluster.end(other.identity, commit=True)
    cluster.forget(hangs.identity.transactional_id)

    def no_leader(step: AbortedTransactions) -> Any:
        if any(part.partition == 2 for part in step.ranges):
            raise BrokerUnavailableError("REQUEST_DEADLINE", "t-2 has no leader")
        return cluster.perform(step)

    if not is_noted:
        cluster.own = {AbortedTransactions: no_leader}
    owner = hangs.identity.producer_id
    held = held_open(hangs.identity.transactional_id, ("t", 0), owner, start_offset=0, version=1, is_forgotten=True)
    settings = on_cluster(monkeypatch, cluster, Found(held=(held,)))
    written: list[HeldOpen] = []

    def write(admin: Any, each: Sequence[HeldOpen], timeout_ms: int) -> tuple[HeldOpen, ...]:
        written.extend(each)
        cluster.kafka = kafka.write_marker_by_hand(cluster.kafka, 1, owner, False)
        return tuple(each)

    monkeypatch.setattr(operator, "discard_forgotten", write)
    monkeypatch.setattr(operator, "discard_attempts", lambda *_: ((), Found()))
    if is_noted:
        assert operator.recover(settings, discard=True).versions[0].finished_now
        assert written == [held]
        return
    with pytest.raises(DecisionPendingError, match=r"DECIDED_NOT_FINISHED\].*t-2 has no leader"):
        operator.recover(settings, discard=True)
    assert written == []
    assert {entry.ended for entry in cluster.newest().transactions} == {None}


PART = OffsetRange(topic="orders", partition=0, first_offset=5, last_offset=9)


def copy_own(
    state: Any, sources: Sequence[ProducerIdentity], seen: Listed = (), start: int = 0, write_id: str = "w"
) -> tuple[Copied | Gone, ...]:
    """Ask for copies whose sources' coordinator is in `state`; none may happen.

    The last source's partition begins at offset `start`, and a Fetch of its range shows `seen`.
    """
    last = len(sources) - 1
    client = SimpleNamespace(clock=lambda: 0, config=ClientConfig(bootstrap_servers=(("localhost", 1),)))
    admin: Any = SimpleNamespace(
        client=client,
        describe_transactions=lambda ids, _: dict.fromkeys(ids, state),
        list_offsets=lambda partitions, *_, **__: {each: start if each[1] == last else 0 for each in partitions},
    )
    executor = operator._OperatorExecutor(admin, replace(WRITE, id=write_id), ProducerConfig())
    executor._copy = lambda _: pytest.fail("rows of another program were copied")
    executor._performers[AbortedTransactions] = lambda step: {
        part: seen if part.partition == last else () for part in step.ranges
    }
    copies = tuple(
        Copy(TASK, source, (replace(PART, partition=number),), LogRecord(b"", None))
        for number, source in enumerate(sources)
    )
    return executor._copy_own(CopyRecords(copies))


@pytest.mark.parametrize(("seen", "start"), [(Unseen.GONE, 0), ((), 6), ((), 10)], ids=["cleaned", "some", "all"])
def test_lost_records_of_an_expired_id_are_reported_as_gone(seen: Listed, start: int) -> None:
    """The write's own user cannot copy them either, so nobody is sent there."""
    other, gone = copy_own(None, [TASK, replace(TASK, transactional_id="w.1.0")], seen, start)
    assert isinstance(gone, Gone)
    assert gone.why == "orders-1 [5..9]: the partition does not hold these offsets any more"
    assert other == Gone("not copied, because either all lost rows are or none")


@pytest.mark.parametrize("foreign_at", [0, 1])
def test_one_id_named_twice_hides_no_foreign_producer(foreign_at: int) -> None:
    sources = [TASK, TASK]
    sources[foreign_at] = replace(TASK, producer_id=666)
    with pytest.raises(DecisionPendingError, match="producer id 666, whose aborted rows"):
        copy_own(SimpleNamespace(producer_id=TASK.producer_id), sources)
