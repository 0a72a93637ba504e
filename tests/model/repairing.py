"""What `kafka-eos repair` makes of a simulated cluster."""

from __future__ import annotations

from typing import Any

from kafka_eos_sink.commit.operator.missing_markers import Finding, gather, judge
from kafka_eos_sink.commit.steps import Procedure
from kafka_eos_sink.protocol.messages import ProducerState

from . import performer
from . import simulated_cluster as kafka
from .simulated_cluster import LOG, Cluster

DATA = 1
WHERE = {LOG: (performer.LOG_TOPIC, 0), DATA: ("t", 0)}


def findings(cluster: Cluster, version: int) -> tuple[Finding, ...]:
    """All of them; the cluster itself, which gets a barrier by it, is not kept."""
    procedure: Procedure[Any] = gather("w", "repair", WHERE[LOG])
    step = next(procedure)
    while True:
        requests = performer.requests_of(step, ())
        answers = []
        for request in requests:
            cluster, answer = performer.process(cluster, request)
            answers.append(answer)
        try:
            step = procedure.send(performer.answer_of(step, requests, tuple(answers), version))
        except StopIteration as stop:
            return judge(stop.value, {WHERE[partition]: _held(cluster, partition) for partition in WHERE})


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
