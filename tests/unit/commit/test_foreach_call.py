"""A version is skipped once per call of a `foreachBatch` function: a second write of the call is an error."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kafka_eos_sink.commit.admission import admit
from kafka_eos_sink.commit.log_records import decision_records, parse_decision, parse_key
from kafka_eos_sink.commit.values import (
    BatchIdentity,
    Decision,
    DecisionStatus,
    Plan,
    SettledDecision,
    TaskOutcome,
)
from kafka_eos_sink.errors import WriteRefusedError
from kafka_eos_sink.protocol.identity import ProducerIdentity
from tests.runs import WRITE

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
    newest = SettledDecision(decision=replace(DECISION, foreach_call=call), status=status)
    return Plan(
        write=WRITE,
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
    with pytest.raises(
        WriteRefusedError, match=r"DIFFERENT_BATCH\].*version 3 .*first write in the function its txnAppId"
    ):
        admit(plan_after("app/1/4/3"), batch("app/1/4/3"))


@pytest.mark.parametrize(
    ("before", "now"), [("app/1/4/3", "app/1/9/3"), (None, "app/1/4/3"), ("app/1/4/3", None), (None, None)]
)
def test_rerun_in_another_call_is_skipped(before: str | None, now: str | None) -> None:
    assert admit(plan_after(before), batch(now))[0] is TaskOutcome.ALREADY_COMMITTED


def test_decision_without_the_call_is_read_as_before() -> None:
    (record,) = decision_records(replace(DECISION, foreach_call="call"))
    assert record.value is not None
    fields = json.loads(record.value)
    body = json.loads(fields["body"])
    assert body.pop("foreach_call") == "call"
    key = parse_key(record.key)
    assert key is not None
    assert parse_decision(json.dumps(body), key, (DRIVER.producer_id, DRIVER.producer_epoch)) == DECISION
    del body["schema"]
    assert parse_decision(json.dumps(body), key, (DRIVER.producer_id, DRIVER.producer_epoch)) is None
