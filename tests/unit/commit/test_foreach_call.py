"""A version is skipped once per call of a `foreachBatch` function: a second write of the call is an error."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.admission import admit
from kafka_eos_sink.commit.commit_batch import commit
from kafka_eos_sink.commit.log_records import decision_records, done_record, parse_decision, parse_key, part_record
from kafka_eos_sink.commit.take_over import TakeOver, take_over
from kafka_eos_sink.commit.values import (
    BatchIdentity,
    Decision,
    DecisionStatus,
    Plan,
    SettledDecision,
    TaskOutcome,
)
from kafka_eos_sink.errors import BrokerUnavailableError, FencedError, WriteRefusedError
from kafka_eos_sink.protocol.identity import ProducerIdentity
from tests.unit.commit.scripted_world import BATCH, MESSAGE, REQUEST
from tests.unit.commit.test_restore import Cluster

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


def answers(world: Cluster, done: str) -> dict[str, Any]:
    def append(step: steps.Append) -> int:
        if any(json.loads(record.key)[0] == "done" for record in step.records):
            raise BrokerUnavailableError("REQUEST_DEADLINE", "Produce was not done in time")
        return Cluster.Append(world, step)

    def stable(step: steps.LastStableOffsets) -> dict[Any, int]:
        world.now += 5_000
        return dict.fromkeys(step.partitions, 105)

    if done == "done record fails":
        return {"Append": append}
    # Another program's transaction blocks readers, and nobody may see it: no done record.
    hidden = {
        "LastStableOffsets": stable,
        "DescribeProducers": lambda step: dict.fromkeys(step.partitions),
        "AbortedTransactions": lambda _: None,
    }
    return hidden if done == "no Read" else {}


@pytest.fixture(params=["done record", "done record fails", "no Read"])
def world(request: pytest.FixtureRequest) -> Cluster:
    """A cluster on which call 1 of a `foreachBatch` function has written version 1."""
    found = Cluster(partitions=1)
    found.log.clear()
    (named,) = found.named
    entry = replace(named, part_offset=found.append(part_record("w", "batch", 0, 1, 0), named.identity))
    found.open[entry.identity.transactional_id] = entry.identity
    found.first_offsets["t", 0] = {entry.identity.producer_id: (0, 100)}
    found.own = answers(found, request.param)
    found.run(commit(REQUEST, [replace(MESSAGE, prepared=entry, foreach_call="call 1")]))
    assert bool(found.records("done")) is (request.param == "done record")
    return found


def plan_of(world: Cluster, nonce: str) -> Plan:
    found: Plan = world.run(take_over(TakeOver(write_id="w", nonce=nonce, transaction_timeout_ms=900_000), 2))
    return found


def skips(world: Cluster, call: str) -> None:
    """The version is run again in another call, and its tasks skip it."""
    plan = plan_of(world, call)
    assert admit(plan, replace(BATCH, foreach_call=call))[0] is TaskOutcome.ALREADY_COMMITTED
    message = replace(MESSAGE, plan=plan, outcome=TaskOutcome.ALREADY_COMMITTED, prepared=None, foreach_call=call)
    assert world.run(commit(replace(REQUEST, plan=plan), [message])) is None


def test_second_write_of_a_call_is_refused_without_done_record(world: Cluster) -> None:
    with pytest.raises(WriteRefusedError, match=r"DIFFERENT_BATCH\].*own txnAppId"):
        admit(plan_of(world, "second"), replace(BATCH, foreach_call="call 1"))


def test_second_write_of_a_call_that_skipped_is_refused(world: Cluster) -> None:
    for call in ("call 2", "call 3"):
        skips(world, call)
        # An older driver's done record, appended late, hides that of the version.
        world.append(done_record(replace(DECISION, nonce="older"), 1), None)
        with pytest.raises(WriteRefusedError, match=r"DIFFERENT_BATCH\].*own txnAppId"):
            admit(plan_of(world, "second"), replace(BATCH, foreach_call=call))
    assert admit(plan_of(world, "third"), replace(BATCH, foreach_call="call 4"))[0] is TaskOutcome.ALREADY_COMMITTED
    assert len(world.newest().transactions) == 1
    assert (world.newest().nonce, world.newest().version) == ("mine", 1)


def test_skip_of_a_fenced_driver_fails(world: Cluster) -> None:
    plan = plan_of(world, "older")
    plan_of(world, "newer")
    skipped = replace(MESSAGE, plan=plan, outcome=TaskOutcome.ALREADY_COMMITTED, prepared=None, foreach_call="call 2")
    with pytest.raises(FencedError, match=r"FENCED\]"):
        world.run(commit(replace(REQUEST, plan=plan), [skipped]))
    assert world.newest().foreach_call == "call 1"


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
