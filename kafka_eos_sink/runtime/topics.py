"""Checks the topics of a write before its tasks start; creates the commit log."""

from __future__ import annotations

import logging
import uuid

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.commit.commit_log import DEFAULT_TOPIC, LOG_PARTITIONS, TOPIC_CONFIGURATION
from kafka_eos_sink.errors import AuthorizationError, BrokerRefusedError, ConfigurationError, InvalidRowError
from kafka_eos_sink.logs import warn_once
from kafka_eos_sink.protocol.wire_types import ZERO_UUID

log = logging.getLogger(__name__)

MAX_REPLICATION_FACTOR = 3
TOPIC_POLL_MS = 100
TOPIC_RESPONSE_MS = 2_000
"""What one Metadata request may take."""


def require_topic(admin: Admin, topic: str, deadline: int, max_block_ms: int) -> None:
    """Require that the topic of all rows exists and is not Kafka's own.

    A topic that was just created may take a moment to appear.

    Args:
        deadline: Absolute ms of the client's clock.
        max_block_ms: ``kafka.max.block.ms``, for the messages.

    Raises:
        InvalidRowError: UNKNOWN_TOPIC.
        ConfigurationError: INTERNAL_TOPIC.
    """
    warned = False
    while (found := admin.topic(topic, deadline)) is None:
        if not warned:
            log.warning("topic %r does not exist: waiting up to %d ms for it (kafka.max.block.ms)", topic, max_block_ms)
            warned = True
        # A request that could only end at the deadline would hide the reason behind REQUEST_DEADLINE.
        if admin.client.clock() + TOPIC_POLL_MS >= deadline - min(TOPIC_RESPONSE_MS, max_block_ms // 2):
            raise InvalidRowError(
                "UNKNOWN_TOPIC",
                f"topic {topic!r} did not appear in the cluster in {max_block_ms} ms (kafka.max.block.ms); create it, or correct "
                "the option topic, or grant Describe on it",
            )
        admin.client.wait(TOPIC_POLL_MS, deadline)
    if found.is_internal:
        raise ConfigurationError(
            "INTERNAL_TOPIC",
            f"topic {topic!r} is internal to Kafka and must not be written to; correct the option topic",
        )


def ensure_commit_log(admin: Admin, topic: str, data_topic: str | None, deadline: int) -> uuid.UUID:
    """Create the commit log, or require that it cannot lose a decision.

    Args:
        data_topic: The topic of all rows, None if each row names its own.
        deadline: Absolute ms of the client's clock.

    Returns:
        The topic's id; zero if it was just created.

    Raises:
        ConfigurationError: COMMIT_LOG_TOPIC with the command that mends it.
    """
    if data_topic in (topic, DEFAULT_TOPIC):
        raise ConfigurationError(
            "COMMIT_LOG_TOPIC",
            f"topic {data_topic!r} is a commit log, which holds only the sink's own records; choose another topic, or set another "
            "commit.log.topic",
        )
    by_hand = (
        f"kafka-topics.sh --bootstrap-server ... --create --topic {topic} --partitions {LOG_PARTITIONS} "
        + " ".join(f"--config {name}={value}" for name, value in TOPIC_CONFIGURATION.items())
    )
    found = admin.topic(topic, deadline)
    if found is None:
        # Before the first response the metadata holds the bootstrap servers only. Their number says nothing about the brokers.
        admin.client.wait_for_metadata(deadline)
        replication = min(MAX_REPLICATION_FACTOR, len(admin.client.metadata.brokers))
        configuration = dict(TOPIC_CONFIGURATION)
        if replication > 1:
            configuration["min.insync.replicas"] = "2"
        try:
            created = admin.create_topic(topic, LOG_PARTITIONS, replication, configuration, deadline)
        except (AuthorizationError, BrokerRefusedError) as refused:
            raise ConfigurationError(
                "COMMIT_LOG_TOPIC",
                f"the commit log topic {topic!r} does not exist and cannot be created ({refused.message}); create it: {by_hand}",
            ) from None
        if created:
            # CreateTopics 5 and 6 do not return the id. The next check reads it.
            return ZERO_UUID
        found = admin.topic(topic, deadline)
    partitions = 0 if found is None else len(found.partitions)
    if partitions < LOG_PARTITIONS:
        raise ConfigurationError(
            "COMMIT_LOG_TOPIC",
            f"the commit log topic {topic!r} has {partitions} partitions and needs {LOG_PARTITIONS}; choose another "
            f"commit.log.topic, or delete the topic and create it again: {by_hand}",
        )
    if (
        found is not None
        and len(found.partitions[0].replica_nodes) == 1
        and len(admin.client.metadata.brokers) >= MAX_REPLICATION_FACTOR
    ):
        warn_once(
            f"the commit log topic {topic!r} has a single replica, so the loss of one disk loses its decisions and with them the "
            "guarantee; raise its replication to 3 and min.insync.replicas to 2"
        )
    _require_compacted(admin, topic, deadline)
    return ZERO_UUID if found is None else found.topic_id


def _require_compacted(admin: Admin, topic: str, deadline: int) -> None:
    try:
        policy = admin.describe_configs("topic", topic, ("cleanup.policy",), deadline).get("cleanup.policy")
    except AuthorizationError:
        policy = "compact"
        warn_once(
            f"the cleanup.policy of the commit log topic {topic!r} may not be read (missing right: DescribeConfigs). It must be "
            "compact alone, because any other policy loses decisions. Without the right, some lost transactions cannot be "
            "distinguished from committed ones. Grant DescribeConfigs on the topic"
        )
    if policy != "compact":
        raise ConfigurationError(
            "COMMIT_LOG_TOPIC",
            f"the commit log topic {topic!r} has cleanup.policy={policy}, which can lose decisions; change it: "
            f"kafka-configs.sh --bootstrap-server ... --entity-type topics --entity-name {topic} --alter "
            "--add-config cleanup.policy=compact",
        )
