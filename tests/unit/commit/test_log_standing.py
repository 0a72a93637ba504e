"""Whose commit log is it: what a takeover does, for every combination of facts."""

from __future__ import annotations

import itertools
import json

import pytest

from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.log_access import read_to_end
from kafka_eos_sink.commit.log_records import barrier_record
from kafka_eos_sink.commit.log_standing import Standing, UnknownId
from kafka_eos_sink.commit.log_view import LogView
from kafka_eos_sink.commit.take_over import TakeOver, taking_over
from kafka_eos_sink.errors import WriteRefusedError
from tests.model import simulated_cluster as kafka
from tests.model.scripted_cluster import ScriptedCluster
from tests.runs import run_of

OWN, NEW, OTHER, LOST, UNKNOWN, UNCLAIMED = Standing
BEGIN, RESOLVE, REFUSE, ABORT = UnknownId
WITHOUT_RECORD = {
    # first look     yes                              no
    # open           no             yes               no                    yes
    # used           no    yes      no     yes        no         yes        no         yes
    BEGIN: (NEW, LOST, OTHER, OTHER, OWN, OWN, OWN, OWN),
    RESOLVE: (UNCLAIMED, UNCLAIMED, OTHER, OTHER, UNCLAIMED, UNCLAIMED, UNCLAIMED, UNCLAIMED),
    REFUSE: (UNKNOWN, UNKNOWN, OTHER, OTHER, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN),
    ABORT: (NEW, NEW, UNCLAIMED, UNCLAIMED, NEW, NEW, UNCLAIMED, UNCLAIMED),
}
"""What a log without a record of the write id is to it."""
REFUSED = {OTHER: "NOT_THIS_COMMIT_LOG", LOST: "COMMIT_LOG_LOST", UNKNOWN: "UNKNOWN_WRITE_ID"}


def is_open(cluster: ScriptedCluster) -> bool:
    found = cluster.perform(steps.DescribeTransactions(("w.0.0",)))["w.0.0"]
    return found is not None and found.is_open


@pytest.mark.parametrize("unknown_id", list(UnknownId))
@pytest.mark.parametrize("version", [2, 0])
def test_takeover_does_what_the_standing_of_the_log_says(unknown_id: UnknownId, version: int) -> None:
    facts = itertools.product((True, False), (False, True), (False, True))
    for has_record, ((is_first_look, has_open, was_used), standing) in itertools.product(
        (False, True), zip(facts, WITHOUT_RECORD[unknown_id], strict=True)
    ):
        cluster = ScriptedCluster(version=version)
        if was_used:
            cluster.perform(steps.InitProducerId("w.driver", 60_000))
        if has_open:
            cluster.open("w.0.0")
        cluster.perform(steps.Append((barrier_record("w" if has_record else "another", "old", cluster.log_id),)))
        view = LogView("w")
        if not is_first_look:
            cluster.run(read_to_end(view))
        seen = len(cluster.kafka.logs[0])
        request = TakeOver(run=run_of("n", version=version), view=view, unknown_id=unknown_id)
        where = f"record {has_record}, first look {is_first_look}, open {has_open}, used {was_used}"
        if (refused := None if has_record else REFUSED.get(standing)) is not None:
            with pytest.raises(WriteRefusedError) as raised:
                cluster.run(taking_over(request))
            assert raised.value.code == refused, where
            assert len(cluster.kafka.logs[0]) == seen, f"{where}: a refused takeover writes nothing"
            assert is_open(cluster) is has_open, f"{where}: and ends nothing"
            continue
        cluster.run(taking_over(request))
        own = [
            json.loads(each.value)["log"] == str(cluster.log_id)
            for each in cluster.kafka.logs[0][seen:]
            if isinstance(each, kafka.Data)
        ]
        if has_record:
            assert own == [True], where
        else:
            assert own == {OWN: [True], NEW: [True, True], UNCLAIMED: [False]}[standing], where
        assert not is_open(cluster), f"{where}: what was open is aborted"
