"""The topics that a write needs: looked at before the first task is started."""

from __future__ import annotations

import logging
import uuid

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.commit.commit_log import LOG_PARTITIONS, TOPIC_CONFIGURATION
from kafka_eos_sink.errors import AuthorizationError, BrokerRefusedError, ConfigurationError, InvalidRowError
from kafka_eos_sink.logs import warn_once
from kafka_eos_sink.protocol.wire_types import ZERO_UUID

log = logging.getLogger("kafka_eos_sink")

MAX_REPLICATION_FACTOR = 3
TOPIC_POLL_MS = 100
TOPIC_ANSWER_MS = 2_000


def require_topic(admin: Admin, topic: str, deadline: int, max_block_ms: int) -> None:
    """Fail before a task is started where the topic of all rows is missing or Kafka's own; one just created may take a moment to show."""
    told = False
    while (found := admin.topic(topic, deadline)) is None:
        if not told:
            log.warning("topic %r does not exist: waiting up to %d ms for it (kafka.max.block.ms)", topic, max_block_ms)
            told = True
        # A question takes time of its own: none is asked that could only end at the deadline.
        if admin.client.clock() + TOPIC_POLL_MS >= deadline - min(TOPIC_ANSWER_MS, max_block_ms // 2):
            raise InvalidRowError(
                "UNKNOWN_TOPIC",
                f"topic {topic!r} did not appear in the cluster in {max_block_ms} ms (kafka.max.block.ms); create it, or correct "
                "the option topic, or grant Describe on it",
            )
        admin.client.wait(TOPIC_POLL_MS, deadline)
    if found.internal:
        raise ConfigurationError(
            "INTERNAL_TOPIC",
            f"topic {topic!r} is internal to Kafka and must not be written to; correct the option topic",
        )


def ensure_commit_log(admin: Admin, topic: str, data_topic: str | None, deadline: int) -> uuid.UUID:
    """Create the commit log where it is missing; refuse one that could lose a decision or that holds data. Returns its topic id.

    Raises `ConfigurationError` ``COMMIT_LOG_TOPIC`` with the command that mends it.
    """
    if topic == data_topic:
        raise ConfigurationError(
            "COMMIT_LOG_TOPIC",
            f"topic and commit.log.topic are both {topic!r}; the commit log needs a topic of its own",
        )
    by_hand = (
        f"kafka-topics.sh --bootstrap-server ... --create --topic {topic} --partitions {LOG_PARTITIONS} "
        + " ".join(f"--config {name}={value}" for name, value in TOPIC_CONFIGURATION.items())
    )
    found = admin.topic(topic, deadline)
    if found is None:
        # Until the first answer the metadata knows nothing but the bootstrap servers, which may be fewer or more than the brokers.
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
            return ZERO_UUID  # which one it got is in no answer of version 5 and 6; the next look shows it
        found = admin.topic(topic, deadline)
    partitions = 0 if found is None else len(found.partitions)
    if partitions < LOG_PARTITIONS:
        raise ConfigurationError(
            "COMMIT_LOG_TOPIC",
            f"the commit log topic {topic!r} has {partitions} partitions and needs {LOG_PARTITIONS}; take another "
            f"commit.log.topic or create it anew: {by_hand}",
        )
    if (
        found is not None
        and len(found.partitions[0].replicas) == 1
        and len(admin.client.metadata.brokers) >= MAX_REPLICATION_FACTOR
    ):
        warn_once(
            f"the commit log topic {topic!r} has a single replica: the loss of one disk loses its decisions, and with them the "
            "guarantee; raise its replication to 3 and min.insync.replicas to 2"
        )
    try:
        policy = admin.describe_configs("topic", topic, ("cleanup.policy",), deadline).get("cleanup.policy")
    except AuthorizationError:
        policy = "compact"
        warn_once(
            f"the cleanup.policy of the commit log topic {topic!r} may not be read (DescribeConfigs is missing): it must be compact "
            "alone, since any other loses decisions, and with it some lost transactions cannot be told from committed ones; grant "
            "DescribeConfigs on the topic"
        )
    if policy != "compact":
        raise ConfigurationError(
            "COMMIT_LOG_TOPIC",
            f"the commit log topic {topic!r} has cleanup.policy={policy}; anything but compact can lose decisions: "
            f"kafka-configs.sh --bootstrap-server ... --entity-type topics --entity-name {topic} --alter "
            "--add-config cleanup.policy=compact",
        )
    return ZERO_UUID if found is None else found.topic_id
