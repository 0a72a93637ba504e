"""What a write needs of the brokers, for the plan and for ``kafka-eos check``."""

from __future__ import annotations

from collections.abc import Mapping

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.connection import BrokerVersions
from kafka_eos_sink.errors import AuthorizationError, ConfigurationError
from kafka_eos_sink.logs import warn_once
from kafka_eos_sink.protocol.messages import AddPartitionsToTxnRequest

MAX_TIMEOUT = "transaction.max.timeout.ms"
VERIFICATION = "transaction.partition.verification.enable"
VERIFYING_ADD_PARTITIONS = 4
"""First version of AddPartitionsToTxn by which a leader asks a coordinator; Kafka offers it from 3.6 on."""
UNVERIFIED = (
    "an aborted task attempt that is still running could append rows that belong to no transaction: read_committed consumers would "
    "block, or see rows twice"
)


def broker_settings(admin: Admin, deadline: int) -> Mapping[str, str]:
    """Return a broker's settings on transactions, without those that it does not show or does not have."""
    try:
        return admin.describe_configs("broker", None, (MAX_TIMEOUT, VERIFICATION), deadline)
    except AuthorizationError:
        return {}


def verifies_appends(settings: Mapping[str, str], versions: BrokerVersions) -> bool | None:
    """Whether leaders verify transactional appends below transaction version 2; None if the cluster does not show it.

    From version 2 on the epoch that ends a transaction fences its producer, so nothing else is needed.
    """
    if VERIFICATION in settings:
        return settings[VERIFICATION] == "true"
    # A managed cluster may hide its settings. Its versions still show the release.
    if versions.highest(AddPartitionsToTxnRequest) >= VERIFYING_ADD_PARTITIONS:
        return True
    return False if settings else None


def require_verified_appends(admin: Admin, settings: Mapping[str, str], deadline: int) -> None:
    """Require that a leader rejects records of a transaction that has ended.

    Raises:
        ConfigurationError: TRANSACTIONS_NOT_VERIFIED.
    """
    if admin.transaction_version(deadline) >= 2:
        return
    verifies = verifies_appends(settings, admin.client.versions(admin.client.any_node(deadline)))
    if verifies is None:
        warn_once(
            f"whether the brokers verify transactional appends is unknown: {VERIFICATION} may not be read, and their versions do not "
            f"show Kafka 3.6 or newer. If they do not, {UNVERIFIED}. Grant DescribeConfigs on the cluster, or upgrade the brokers"
        )
    if verifies is False:
        raise ConfigurationError(
            "TRANSACTIONS_NOT_VERIFIED",
            f"the brokers do not verify transactional appends, so {UNVERIFIED}; {way_to_verify(admin, settings)}",
        )


def way_to_verify(admin: Admin, settings: Mapping[str, str]) -> str:
    if VERIFICATION not in settings:
        return f"upgrade them to Kafka 3.6 or newer, which has {VERIFICATION}"
    return (
        f"switch it on: kafka-configs.sh --bootstrap-server {admin.client.config.bootstrap_servers_text} --entity-type brokers "
        f"--entity-default --alter --add-config {VERIFICATION}=true"
    )
