"""A plan travels from planner to tasks and driver, which may run another version of the sink."""

from __future__ import annotations

import pickle
from dataclasses import fields

from kafka_eos_sink.commit.values import Plan, cluster_of
from kafka_eos_sink.protocol.identity import ProducerIdentity

PLAN = Plan(
    write_id="w",
    nonce="n",
    driver=ProducerIdentity(transactional_id="w.driver", producer_id=1, producer_epoch=0, transaction_version=2),
    started_ms=1,
    transaction_timeout_ms=2,
    log_offset=3,
    decisions=(),
    cluster_id="c",
)


def test_plan_keeps_its_cluster_when_pickled() -> None:
    assert cluster_of(pickle.loads(pickle.dumps(PLAN))) == "c"
    assert cluster_of(None) is None


def test_plan_of_an_earlier_version_has_no_cluster() -> None:
    """Its pickle holds the values of the earlier fields, in their order."""
    assert fields(Plan)[-1].name == "cluster_id"
    old = Plan.__new__(Plan)
    old.__setstate__([getattr(PLAN, each.name) for each in fields(Plan)[:-1]])  # type: ignore[attr-defined]
    found = pickle.loads(pickle.dumps(PLAN))
    assert (old.write_id, old.attempts_ended) == (found.write_id, found.attempts_ended)
    assert cluster_of(old) is None
