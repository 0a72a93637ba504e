"""A version is skipped once per call of a `foreachBatch` function: a second write of the call is an error."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.admission import admit
from kafka_eos_sink.commit.log_records import decision_records, done_record, parse_decision, parse_key
from kafka_eos_sink.commit.values import (
    BatchIdentity,
    Decision,
    DecisionStatus,
    Plan,
    SettledDecision,
    TaskIdentity,
    TaskMessage,
    TaskOutcome,
)
from kafka_eos_sink.errors import BrokerUnavailableError, WriteRefusedError
from kafka_eos_sink.protocol.identity import ProducerIdentity
from tests.model.scripted_cluster import BATCH, ScriptedCluster, written
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


def fail_done(cluster: ScriptedCluster) -> None:
    def append(step: steps.Append) -> Any:
        if any(json.loads(record.key)[0] == "done" for record in step.records):
            raise BrokerUnavailableError("REQUEST_DEADLINE", "Produce was not done in time")
        return cluster.perform(step)

    cluster.own = {steps.Append: append}


@pytest.fixture(params=["done record", "done record fails"])
def cluster(request: pytest.FixtureRequest) -> ScriptedCluster:
    """A cluster on which call 1 of a `foreachBatch` function has written version 1."""
    found, messages = written(foreach_call="call 1")
    if request.param == "done record fails":
        fail_done(found)
    found.commit(messages, batch=replace(BATCH, foreach_call="call 1"))
    assert bool(found.records("done")) is (request.param == "done record")
    return found


def skipped(plan: Plan, call: str) -> TaskMessage:
    return TaskMessage(
        plan=plan,
        batch=replace(BATCH, foreach_call=call),
        task=TaskIdentity(partition=0, attempt_number=0, task_attempt_id=0),
        outcome=TaskOutcome.ALREADY_COMMITTED,
    )


def skips(cluster: ScriptedCluster, call: str) -> None:
    """The version is run again in another call, and its tasks skip it."""
    message = cluster.attempt(cluster.plan(call), batch=replace(BATCH, foreach_call=call))
    assert message == skipped(message.plan, call)
    assert cluster.commit([message]) is None


def test_second_write_of_a_call_is_refused_without_done_record(cluster: ScriptedCluster) -> None:
    with pytest.raises(WriteRefusedError, match=r"DIFFERENT_BATCH\].*first write in the function its txnAppId"):
        admit(cluster.plan("second"), replace(BATCH, foreach_call="call 1"))


def test_second_write_of_a_call_that_skipped_is_refused(cluster: ScriptedCluster) -> None:
    for call in ("call 2", "call 3"):
        skips(cluster, call)
        # An older driver's done record, appended late, hides that of the version.
        cluster.perform(steps.Append((done_record(replace(DECISION, nonce="older"), 1),)))
        with pytest.raises(WriteRefusedError, match=r"DIFFERENT_BATCH\].*first write in the function its txnAppId"):
            admit(cluster.plan("second"), replace(BATCH, foreach_call=call))
    assert admit(cluster.plan("third"), replace(BATCH, foreach_call="call 4"))[0] is TaskOutcome.ALREADY_COMMITTED
    assert len(cluster.newest().transactions) == 1
    assert (cluster.newest().nonce, cluster.newest().version) == ("mine", 1)


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
