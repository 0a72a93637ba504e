"""Checks the topics of a write before its tasks start; creates the commit log."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.metadata import TopicMetadata
from kafka_eos_sink.commit.log_records import LARGEST_BATCH_BYTES, MAX_RECORD_BYTES, TOPIC_CONFIGURATION
from kafka_eos_sink.commit.refusals import refused, text
from kafka_eos_sink.commit.transactional_id import BATCH_QUERY_ID
from kafka_eos_sink.commit.values import LOG_PARTITIONS
from kafka_eos_sink.errors import (
    AuthorizationError,
    BrokerRefusedError,
    ConfigurationError,
    InvalidRowError,
    TopicSettingsError,
    counted,
)
from kafka_eos_sink.logs import warn_once
from kafka_eos_sink.producer.dead_letters import ENOUGH_BYTES
from kafka_eos_sink.protocol.messages import AclOperation, CreateTopicsResponse
from kafka_eos_sink.runtime.requirements import broker_count, number
from kafka_eos_sink.runtime.write_settings import WriteSettings

log = logging.getLogger(__name__)

INSYNC, UNCLEAN = "min.insync.replicas", "unclean.leader.election.enable"
REPLICATION_FACTOR = 3
POLICY, MAX_BYTES = "cleanup.policy", "max.message.bytes"
COMPACTED = {POLICY: "compact"}
SAFE = {**COMPACTED, INSYNC: "2"}
CREATIONS: tuple[tuple[int, Mapping[str, str]], ...] = (
    (REPLICATION_FACTOR, TOPIC_CONFIGURATION | SAFE),
    (REPLICATION_FACTOR, SAFE),
    (-1, TOPIC_CONFIGURATION),
    (-1, COMPACTED),
)
"""Replication factor and settings of a new commit log, the safest first.

A cluster of one or two brokers rejects the first two, so its default applies (-1). Managed clusters reject most settings."""
FEW_TASKS_BYTES = 65_536
"""A decision of about 200 tasks. Below it, even small writes would fail after their work."""
TOPIC_POLL_MS = 100
TOPIC_RESPONSE_MS = 2_000
"""Time limit of one Metadata request in ms."""


def require_topics(settings: WriteSettings, admin: Admin) -> None:
    """Check the topics of a write; create its commit log."""
    deadline = admin.client.clock() + settings.producer.max_block_ms
    require_readable_topic(settings, admin)
    dead_letter_topic = settings.producer.dead_letter_topic
    if dead_letter_topic is not None:
        _require_read(admin.topic(dead_letter_topic, deadline))
        require_dead_letter_topic(admin, dead_letter_topic, settings.producer.max_request_size, deadline)
    is_new = ensure_commit_log(admin, settings.write.log_topic, deadline)
    if is_new and not (settings.write.is_random or settings.batch.streaming):
        # Nothing else shows that a job has moved here: a stream's later batches are refused, but a batch job may begin at any version.
        record = settings.write.command("resolve", f"--version N --as committed --query-id {BATCH_QUERY_ID}")
        warn_once(text("new_commit_log", write=settings.write, record=record))
    if settings.write.is_random:
        # The plan reads no log, but the commit will. A missing right must show before anything is decided.
        admin.fetch(settings.write.commit_log, 0, deadline, isolation="read_uncommitted", max_wait_ms=0, max_bytes=1)


def require_readable_topic(settings: WriteSettings, admin: Admin) -> None:
    """As `require_topic`, and require Read on the topic.

    Raises:
        AuthorizationError: TOPIC_AUTHORIZATION_FAILED.
    """
    _require_read(require_topic(settings, admin))


def _require_read(topic: TopicMetadata | None) -> None:
    if topic is not None and lacks_read(topic):
        raise refused("TOPIC_AUTHORIZATION_FAILED", topics=topic.name)


def lacks_read(topic: TopicMetadata) -> bool:
    """Whether the broker reports that the principal may not Read the topic."""
    # A broker shows a topic only to those who may Describe it. Without that bit it reports no rights, and the check before the decision
    # finds out.
    operations = topic.topic_authorized_operations
    return AclOperation.DESCRIBE.is_in(operations) and not AclOperation.READ.is_in(operations)


def require_topic(settings: WriteSettings, admin: Admin) -> TopicMetadata | None:
    """Return the topic of all rows; require that it exists and is not internal.

    A new topic may take a moment to appear. A dead letter topic changes nothing: under a misspelled option every row would end there.

    Raises:
        InvalidRowError: UNKNOWN_TOPIC.
        ConfigurationError: INTERNAL_TOPIC.
    """
    topic, max_block_ms = settings.batch.topic, settings.producer.max_block_ms
    if topic is None:
        return None
    deadline = admin.client.clock() + max_block_ms
    warned = False
    while (found := admin.topic(topic, deadline)) is None:
        if not warned:
            log.warning("topic %r does not exist: waiting up to %d ms for it (kafka.max.block.ms)", topic, max_block_ms)
            warned = True
        # A request that could only end at the deadline would report REQUEST_DEADLINE instead of the reason.
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
    return found


def require_dead_letter_topic(admin: Admin, topic: str, max_request_size: int, deadline: int) -> None:
    """Require that the dead letter topic's visible settings accept every letter.

    Raises:
        ConfigurationError: DEAD_LETTER_TOPIC with the command that fixes it.
    """
    try:
        configs = admin.describe_configs("topic", topic, (POLICY, MAX_BYTES), deadline)
    except (AuthorizationError, BrokerRefusedError) as error:
        must = f"It must exist, with {POLICY}=delete and {MAX_BYTES} of at least {ENOUGH_BYTES}"
        warn_once(f"the settings of the dead letter topic {topic!r} were not checked. {must}. {error.message}")
        return
    policy, limit = configs.get(POLICY, "delete"), number(configs, MAX_BYTES)
    wanted = {}
    if "compact" in policy:
        # Such a topic rejects letters without a key, and keeps only the newest letter of each key.
        wanted[POLICY] = "delete"
    if limit is not None and limit < ENOUGH_BYTES:
        wanted[MAX_BYTES] = str(max(ENOUGH_BYTES, max_request_size))
    if wanted:
        change = _alter_command(admin, topic, wanted)
        raise refused("DEAD_LETTER_TOPIC", topic=topic, has=f"{POLICY}={policy} and {MAX_BYTES}={limit}", change=change)
    if limit is not None and limit < max_request_size:
        change = _alter_command(admin, topic, {MAX_BYTES: str(max_request_size)})
        has = f"{MAX_BYTES}={limit}, less than kafka.max.request.size ({max_request_size})"
        warn_once(text("small_letters", topic=topic, has=has, change=change))


def ensure_commit_log(admin: Admin, topic: str, deadline: int) -> bool:
    """Create the commit log, or require that it cannot lose a decision.

    Args:
        deadline: Absolute ms of the client's clock.

    Returns:
        True if this call created it.

    Raises:
        ConfigurationError: COMMIT_LOG_TOPIC with the command that fixes it.
    """
    brokers = broker_count(admin, deadline)
    found = admin.topic(topic, deadline)
    if found is None:
        made = create_commit_log(admin, topic, brokers, deadline)
        if made is not None:
            _warn_if_weak(topic, made.replication_factor, brokers, created_configs(made))
            _require_room(admin, topic, created_configs(made))
            return True
        found = admin.topic(topic, deadline)
    partitions = 0 if found is None else len(found.partitions)
    if found is None or partitions < LOG_PARTITIONS:
        has, change = counted(partitions, "partition"), _create_command(admin, topic, brokers)
        raise refused("COMMIT_LOG_TOPIC.partitions", topic=topic, has=has, change=change)
    configs = _required_configs(admin, topic, deadline)
    _warn_if_weak(topic, found.replication_factor, brokers, configs)
    _require_room(admin, topic, configs)
    return False


def create_commit_log(
    admin: Admin, topic: str, brokers: int, deadline: int, *, validate_only: bool = False
) -> CreateTopicsResponse.Topic | None:
    """Create the commit log with the safest accepted settings; None if it exists.

    Raises:
        ConfigurationError: COMMIT_LOG_TOPIC with the command that creates it.
    """
    try:
        return create_first_accepted(admin, topic, LOG_PARTITIONS, CREATIONS, deadline, validate_only=validate_only)
    except (AuthorizationError, BrokerRefusedError) as rejected:
        # The command must not contain settings that the cluster has rejected.
        has_rejected = isinstance(rejected, TopicSettingsError) and brokers >= REPLICATION_FACTOR
        command = _create_command(admin, topic, 0 if has_rejected else brokers)
        raise refused("COMMIT_LOG_TOPIC.absent", topic=topic, why=rejected.message, change=command) from None


def create_first_accepted(
    admin: Admin,
    topic: str,
    partitions: int,
    creations: Sequence[tuple[int, Mapping[str, str]]],
    deadline: int,
    *,
    validate_only: bool = False,
) -> CreateTopicsResponse.Topic | None:
    """Call `Admin.create_topic` with the first of ``creations`` that is accepted."""
    for factor, configs in creations[:-1]:
        with suppress(TopicSettingsError):
            return admin.create_topic(topic, partitions, factor, configs, deadline, validate_only=validate_only)
    return admin.create_topic(topic, partitions, *creations[-1], deadline, validate_only=validate_only)


def _create_command(admin: Admin, topic: str, brokers: int) -> str:
    # With fewer brokers than default.replication.factor, Kafka creates a topic only with a smaller factor in the command.
    replicas = min(brokers, REPLICATION_FACTOR)
    safe = replicas == REPLICATION_FACTOR
    return (
        f"kafka-topics.sh --bootstrap-server {admin.client.config.bootstrap_servers_text} --create --topic {topic} "
        f"--partitions {LOG_PARTITIONS} "
        + (f"--replication-factor {replicas} " if replicas else "")
        + " ".join(f"--config {name}={value}" for name, value in (SAFE if safe else COMPACTED).items())
    )


def _alter_command(admin: Admin, topic: str, configs: Mapping[str, str]) -> str:
    return (
        f"kafka-configs.sh --bootstrap-server {admin.client.config.bootstrap_servers_text} --entity-type topics --entity-name {topic} "
        f"--alter --add-config {','.join(f'{name}={value}' for name, value in configs.items())}"
    )


def visible_configs(admin: Admin, topic: str, names: Sequence[str] | None, deadline: int) -> Mapping[str, str]:
    """Return a topic's settings by name, None for all; empty without DescribeConfigs."""
    try:
        return admin.describe_configs("topic", topic, names, deadline)
    except AuthorizationError:
        return {}


def cleanup_policy(admin: Admin, topic: str, deadline: int) -> str | None:
    """Return a topic's cleanup.policy, None without DescribeConfigs."""
    return visible_configs(admin, topic, (POLICY,), deadline).get(POLICY)


def created_configs(made: CreateTopicsResponse.Topic) -> Mapping[str, str]:
    """Return the settings of a new topic, empty without DescribeConfigs."""
    return {each.name: each.value for each in made.configs or () if each.value is not None}


def _required_configs(admin: Admin, topic: str, deadline: int) -> Mapping[str, str]:
    """Return the settings that keep decisions; require cleanup.policy=compact."""
    configs = visible_configs(admin, topic, (*SAFE, UNCLEAN, MAX_BYTES), deadline)
    policy = configs.get(POLICY)
    if policy is None:
        warn_once(text("unread_policy", topic=topic))
    elif policy != "compact":
        change = _alter_command(admin, topic, COMPACTED)
        raise refused("COMMIT_LOG_TOPIC.policy", topic=topic, has=policy, change=change)
    return configs


def small_decisions(configs: Mapping[str, str]) -> str:
    """Describe a max.message.bytes below the largest decision; empty if none."""
    limit = number(configs, MAX_BYTES)
    # A piece of a decision is a string in JSON, where quotes and backslashes take two bytes. Only odd ids make it twice as large.
    if limit is None or limit >= 2 * MAX_RECORD_BYTES:
        return ""
    return (
        f"{MAX_BYTES}={limit}: it rejects larger decisions. A decision grows with the tasks of a batch and the partitions that they "
        f"write to, up to {LARGEST_BATCH_BYTES} bytes per record"
    )


def _require_room(admin: Admin, topic: str, configs: Mapping[str, str]) -> None:
    """Require room for a small batch's decision; warn below a large one's.

    Raises:
        ConfigurationError: COMMIT_LOG_TOPIC with the command that fixes it.
    """
    if small := small_decisions(configs):
        change = _alter_command(admin, topic, {MAX_BYTES: str(LARGEST_BATCH_BYTES)})
        warning = f"the commit log topic {topic!r} has {small}; change it: {change}"
        if int(configs[MAX_BYTES]) < FEW_TASKS_BYTES:
            raise ConfigurationError("COMMIT_LOG_TOPIC", warning)
        warn_once(warning)


def weaknesses(replicas: int, brokers: int, configs: Mapping[str, str]) -> str:
    """Describe how a lost disk or broker could lose decisions; empty if none is known.

    A cluster of fewer than three brokers cannot do better with its replicas, and a single replica not with its settings.
    """
    found = []
    if 0 < replicas < REPLICATION_FACTOR <= brokers:
        found.append(f"only {replicas} of {brokers} brokers as replicas")
    if replicas > 1 and configs.get(INSYNC) == "1":
        found.append(f"{INSYNC}=1")
    if replicas > 1 and configs.get(UNCLEAN) == "true":
        found.append(f"{UNCLEAN}=true")
    return ", ".join(found)


def _warn_if_weak(topic: str, replicas: int, brokers: int, configs: Mapping[str, str]) -> None:
    if found := weaknesses(replicas, brokers, configs):
        warn_once(
            f"the commit log topic {topic!r} has {found}, so the loss of a broker can lose decisions, and with them the guarantee; "
            f"give it {REPLICATION_FACTOR} replicas, {INSYNC}=2 and {UNCLEAN}=false"
        )
