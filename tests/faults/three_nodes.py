"""What tests of three nodes share: who leads and coordinates, and waiting until the cluster is as a test wants it."""

from __future__ import annotations

import confluent_kafka.admin

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.runtime import session
from kafka_testing import find_coordinators, wait_until

NODES = (1, 2, 3)
PATIENCE_S = 60.0
QUICK_ELECTIONS = {
    # How long a killed node is believed alive is most of what a test waits for.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "250",
    "controller.quorum.election.timeout.ms": "500",
    "controller.quorum.fetch.timeout.ms": "1000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}


def confluent_admin(three: EmbeddedKafka) -> confluent_kafka.admin.AdminClient:
    return confluent_kafka.admin.AdminClient({"bootstrap.servers": three.bootstrap_servers})


def make_whole(three: EmbeddedKafka) -> None:
    """Three nodes that hold everything, whatever became of the test before."""
    for node in NODES:
        three.start_node(node)
    admin = confluent_admin(three)

    def complete() -> bool:
        topics = admin.list_topics(timeout=PATIENCE_S).topics.values()
        partitions = [partition for topic in topics for partition in topic.partitions.values()]
        return all(len(each.isrs) == len(each.replicas) and each.leader in NODES for each in partitions)

    wait_until(complete, "all replicas of every partition")


def leader(three: EmbeddedKafka, topic: str, partition: int) -> int:
    """-1 where there is none."""
    return int(confluent_admin(three).list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions[partition].leader)


def leaderless_everywhere(three: EmbeddedKafka, topic: str, partition: int) -> bool:
    """Whether all brokers that run know that a partition has no leader: each decides about markers by what it knows itself."""
    for node in three.pids:
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": three.bootstrap_servers.split(",")[node - 1]})
        if admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions[partition].leader >= 0:
            return False
    return True


def coordinator(settings: session.WriteSettings, transactional_id: str) -> int:
    with NetworkClient(settings.client) as client:
        found = find_coordinators(Admin(client), [transactional_id], client.clock() + int(PATIENCE_S * 1_000))
        return found[transactional_id]
