"""What `kafka-eos recover` finds on a simulated cluster."""

from __future__ import annotations

from kafka_eos_sink.commit.missing_markers import Finding, gather, judge
from kafka_eos_sink.protocol.messages import ProducerState
from tests.runs import WRITE, run_of

from . import performer
from . import simulated_cluster as kafka
from .scripted_cluster import ScriptedCluster
from .simulated_cluster import LOG, Cluster

DATA = 1
WHERE = {LOG: WRITE.commit_log, DATA: ("t", 0)}


def findings(cluster: Cluster, version: int) -> tuple[Finding, ...]:
    """What `kafka-eos recover` finds; the cluster itself, which gets a barrier by it, is not kept."""
    examined = ScriptedCluster(version=version)
    examined.kafka = cluster
    evidence = examined.run(gather(run_of(version=version)))
    return judge(evidence, {WHERE[partition]: _held(examined.kafka, partition) for partition in WHERE})


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
