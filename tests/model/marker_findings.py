"""What an operator's commands make of a simulated cluster."""

from __future__ import annotations

from typing import Any, TypeVar

from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.missing_markers import Finding, gather, judge
from kafka_eos_sink.commit.procedure import Procedure
from kafka_eos_sink.protocol.messages import ProducerState
from tests.runs import WRITE, run_of

from . import performer
from . import simulated_cluster as kafka
from .simulated_cluster import LOG, Cluster

T = TypeVar("T")
DATA = 1
WHERE = {LOG: WRITE.commit_log, DATA: ("t", 0)}


def findings(cluster: Cluster, version: int) -> tuple[Finding, ...]:
    """What `kafka-eos recover` finds; the cluster itself, which gets a barrier by it, is not kept."""
    cluster, evidence = perform(cluster, gather(run_of(version=version)), version)
    return judge(evidence, {WHERE[partition]: _held(cluster, partition) for partition in WHERE})


def perform(
    cluster: Cluster, procedure: Procedure[T], version: int, without: tuple[str, int] | None = None
) -> tuple[Cluster, T]:
    """The cluster after a procedure, and its result. A second passes with each look at the clock.

    ``without``: an id and a partition that gets none of its markers (KAFKA-20734).
    """
    answer: Any = None
    now = 0
    while True:
        try:
            step = procedure.send(answer)
        except StopIteration as stop:
            return cluster, stop.value
        answer = None
        if isinstance(step, (steps.Now, steps.WallClock)):
            answer = now = now + 1_000
        elif not isinstance(step, (steps.Wait, steps.Warn, steps.Reached)):
            requests = performer.requests_of(step, ())
            answers = []
            for request in requests:
                cluster, processed = performer.process(cluster, request)
                answers.append(processed)
                while ending := [(name, found.missing[0]) for name, found in cluster.transactions if found.missing]:
                    cluster = kafka.write_marker(cluster, *ending[0], skipped=ending[0] == without)
            answer = performer.answer_of(step, requests, tuple(answers), version)


def _held(cluster: Cluster, partition: int) -> list[ProducerState]:
    """What the partition's leader says of the transactions that it holds open."""
    last = {producer_id: epoch for producer_id, (epoch, _) in performer.producers(cluster, partition)}
    return [
        ProducerState(
            producer_id=producer_id,
            producer_epoch=last[producer_id],
            last_sequence=0,
            last_timestamp=0,
            coordinator_epoch=0,
            current_txn_start_offset=first,
        )
        for producer_id, (first, _) in kafka.open_transactions(cluster, partition).items()
    ]
