"""A version is skipped once per call of a `foreachBatch` function: a second write of the call is an error."""

from __future__ import annotations

import json

import pytest

from kafka_eos_sink.commit.admission import admit
from kafka_eos_sink.commit.commit_log import done_record, skipped_record
from kafka_eos_sink.commit.prepared_transaction import (
    BatchIdentity,
    Decision,
    DecisionStatus,
    Plan,
    SettledDecision,
    TaskOutcome,
)
from kafka_eos_sink.errors import WriteRefusedError
from kafka_eos_sink.protocol.identity import ProducerIdentity

DRIVER = ProducerIdentity(transactional_id="w.driver", producer_id=1, producer_epoch=0, transaction_version=2)
DECISION = Decision(
    write_id="w",
    query_id="batch",
    version=3,
    nonce="n",
    driver=DRIVER,
    topic="t",
    schema="",
    offsets_hash=None,
    transactions=(),
)


def plan_after(call: str | None, status: DecisionStatus = DecisionStatus.FINISHED) -> Plan:
    newest = SettledDecision(
        query_id="batch",
        version=3,
        nonce="n",
        status=status,
        topic="t",
        schema="",
        offsets_hash=None,
        foreach_call=call,
    )
    return Plan(
        write_id="w",
        nonce="m",
        driver=DRIVER,
        started_ms=0,
        transaction_timeout_ms=1,
        log_offset=0,
        decisions=(newest,),
    )


def batch(call: str | None, version: int = 3) -> BatchIdentity:
    return BatchIdentity(query_id="batch", version=version, topic="t", schema="", offsets_hash=None, foreach_call=call)


def test_second_write_of_a_call_is_refused() -> None:
    with pytest.raises(WriteRefusedError, match=r"DIFFERENT_BATCH\].*version 3 .*own txnAppId"):
        admit(plan_after("app/1/4/3"), batch("app/1/4/3"))


@pytest.mark.parametrize(
    ("before", "now"), [("app/1/4/3", "app/1/9/3"), (None, "app/1/4/3"), ("app/1/4/3", None), (None, None)]
)
def test_rerun_in_another_call_is_skipped(before: str | None, now: str | None) -> None:
    assert admit(plan_after(before), batch(now))[0] is TaskOutcome.ALREADY_COMMITTED


def test_next_version_and_lost_rows_of_a_call_are_written() -> None:
    assert admit(plan_after("call"), batch("call", version=4)) == (None, None)
    assert admit(plan_after("call", DecisionStatus.VOID), batch("call")) == (None, None)


def test_skip_replaces_the_call_in_the_done_record() -> None:
    done = done_record(DECISION, 5, "first call")
    assert done.value is not None
    skipped = skipped_record("w", "batch", json.loads(done.value), "second call")
    assert skipped.key == done.key
    assert skipped.value is not None
    assert json.loads(skipped.value) == json.loads(done.value) | {"foreach_call": "second call"}
