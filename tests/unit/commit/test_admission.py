"""What a task may do in the face of the newest decision (exactly-once.md 3, Task 1, and 5)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import pytest

from kafka_eos_sink.commit.admission import admit
from kafka_eos_sink.commit.values import BatchIdentity, Decision, DecisionStatus, Plan, SettledDecision, TaskOutcome
from kafka_eos_sink.errors import WriteRefusedError
from kafka_eos_sink.protocol.identity import ProducerIdentity
from tests.runs import WRITE

SKIP = TaskOutcome.ALREADY_COMMITTED
BATCH = BatchIdentity(query_id="q", version=5, topic="t", schema="value string", offsets_hash="h5", streaming=True)
DRIVER = ProducerIdentity(transactional_id="w.driver", producer_id=1, producer_epoch=0, transaction_version=2)


def decided(status: DecisionStatus = DecisionStatus.FINISHED, **changes: Any) -> SettledDecision:
    """The newest decision; ``changes`` are fields of it."""
    decision = Decision(
        write_id="w",
        query_id="q",
        version=5,
        nonce="n",
        driver=DRIVER,
        topic="t",
        schema="value string",
        offsets_hash="h5",
        transactions=(),
    )
    return SettledDecision(decision=replace(decision, **changes), status=status)


def plan(*decisions: SettledDecision) -> Plan:
    return Plan(
        write=WRITE,
        nonce="m",
        driver=DRIVER,
        started_ms=0,
        transaction_timeout_ms=900_000,
        log_offset=50,
        decisions=decisions,
    )


def test_the_next_version_is_written() -> None:
    assert admit(plan(decided(version=4)), BATCH) == (None, None)


def test_the_same_version_with_other_source_offsets_is_refused() -> None:
    with pytest.raises(WriteRefusedError, match=r"\[KAFKA_EOS.DIFFERENT_BATCH\].*resolve"):
        admit(plan(decided(offsets_hash="other")), BATCH)


def test_same_offsets_with_another_topic_are_skipped_and_warned() -> None:
    outcome, warning = admit(plan(decided(topic="old")), BATCH)
    assert outcome is SKIP
    assert warning is not None
    assert "'old'" in warning
    assert "a copy of that query's checkpoint" in warning


@pytest.mark.parametrize("change", [{"topic": "old"}, {"schema": "value binary"}])
def test_without_a_hash_another_topic_or_schema_is_refused(change: dict[str, str]) -> None:
    with pytest.raises(WriteRefusedError, match="DIFFERENT_BATCH"):
        admit(plan(decided(offsets_hash=None, **change)), replace(BATCH, offsets_hash=None))


def test_a_void_decision_is_compared_with_nothing() -> None:
    void = decided(DecisionStatus.VOID, offsets_hash="other", topic="old")
    assert admit(plan(void), BATCH) == (None, None)


def test_a_stream_version_above_a_void_one_is_refused() -> None:
    with pytest.raises(WriteRefusedError, match=r"EARLIER_VERSION_UNFINISHED\].*version 4"):
        admit(plan(decided(DecisionStatus.VOID, version=4)), BATCH)


def test_rolled_back_version_fails_skips_or_rewrites_by_option() -> None:
    newer = plan(decided(version=7))
    with pytest.raises(WriteRefusedError, match=r"CHECKPOINT_ROLLED_BACK.*onCheckpointRollback"):
        admit(newer, BATCH)
    outcome, warning = admit(newer, replace(BATCH, on_checkpoint_rollback="skip"))
    assert outcome is SKIP
    assert "without a check of its rows" in str(warning)
    outcome, warning = admit(newer, replace(BATCH, on_checkpoint_rollback="rewrite"))
    assert outcome is None
    assert "later runs write the versions above it again" in str(warning)


def test_stream_unknown_to_the_log_is_rejected_above_version_0() -> None:
    with pytest.raises(
        WriteRefusedError,
        match=r"COMMIT_LOG_LOST\] this run wrote nothing of batch 5: the commit log has no batch of query q under write id 'w'\. "
        r"This query wrote with another sink until now, the file metadata of its checkpoint was lost or replaced, or .*\. "
        r"After another sink, compare"
        r".*All rows of batch 4 and none of batch 5.*--version 4 --as committed .*; all of both.*--version 5 --as",
    ):
        admit(plan(), BATCH)


@pytest.mark.parametrize("resolution", [None, "committed"])
def test_stream_is_rejected_above_versions_missing_in_the_log(resolution: str | None) -> None:
    """An older log, or another one: what was decided since stands elsewhere, and may be this very batch."""
    for newest in (0, 3):
        older = plan(decided(version=newest, resolution=resolution))
        with pytest.raises(
            WriteRefusedError,
            match=rf"COMMIT_LOG_LOST\] this run wrote nothing of batch 5: .* ends at batch {newest} .*commit\.log\.topic.*compare the topic"
            r".*"
            r"kafka-eos resolve --bootstrap-servers ... --write-id w --version 4 --as committed --query-id q; all of both are there, ",
        ):
            admit(older, BATCH)


@pytest.mark.parametrize("rollback", ["skip", "rewrite"])
def test_rollback_option_does_not_accept_an_older_log(rollback: Literal["skip", "rewrite"]) -> None:
    with pytest.raises(WriteRefusedError, match="COMMIT_LOG_LOST"):
        admit(plan(decided(version=3)), replace(BATCH, on_checkpoint_rollback=rollback))


def test_the_newer_version_of_another_query_id_closes_no_gap() -> None:
    decisions = plan(decided(query_id="other", version=4), decided(version=3))
    with pytest.raises(WriteRefusedError, match=r"COMMIT_LOG_LOST\].*ends at batch 3"):
        admit(decisions, BATCH)


def test_version_resolved_as_committed_is_skipped_unchecked() -> None:
    resolved = decided(resolution="committed", offsets_hash="other", topic="old", schema="value binary")
    outcome, warning = admit(plan(resolved), BATCH)
    assert outcome is SKIP
    assert warning is not None
    assert "kafka-eos resolve" in warning
    assert admit(plan(resolved), replace(BATCH, version=6)) == (None, None)
