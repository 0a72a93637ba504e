"""Changing the feature `transaction.version` of a running cluster, as its administrator does when all nodes are new enough."""

from __future__ import annotations

import kafka.admin

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.config import ClientConfig, parse_bootstrap_servers
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_testing import PATIENCE_S, wait_until

FEATURE = "transaction.version"


def transaction_version(cluster: EmbeddedKafka) -> int:
    """What the cluster says to a client that has just connected."""
    config = ClientConfig(bootstrap_servers=parse_bootstrap_servers(cluster.bootstrap_servers))
    with NetworkClient(config) as client:
        return Admin(client).transaction_version(client.clock() + int(PATIENCE_S * 1_000))


def set_transaction_version(cluster: EmbeddedKafka, version: int) -> None:
    """Raises or lowers it; returns once the cluster says so."""
    current = transaction_version(cluster)
    if current == version:
        return
    types = kafka.admin.UpdateFeatureType
    admin = kafka.admin.KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers.split(","))
    try:
        answer = admin.update_features(
            {FEATURE: (types.UPGRADE if version > current else types.SAFE_DOWNGRADE, version)}
        )
        assert answer == {FEATURE: "OK"}, answer
    finally:
        admin.close()
    wait_until(lambda: transaction_version(cluster) == version, f"{FEATURE} to be {version}")
