"""Why a cluster has no transaction coordinator, or no group coordinator.

A coordinator is the leader of a partition of an internal topic, which Kafka creates at its first use. Until Kafka can create the topic,
FindCoordinator returns COORDINATOR_NOT_AVAILABLE; a coordinator that cannot replicate its records returns the same code
(``TransactionStateManager.appendTransactionToLog``). The code alone does not show which setting is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from kafka_eos_sink.client.metadata import TopicMetadata
from kafka_eos_sink.client.topics_admin import TopicsAdmin
from kafka_eos_sink.errors import AuthorizationError, counted

INSYNC = "min.insync.replicas"
_FIRST_LEVEL_OF_4 = 22
"""The first ``metadata.version`` of Kafka 4.0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorTopic:
    """An internal topic, and the brokers' settings for its creation.

    factor   how many replicas it gets
    in_sync  its ``min.insync.replicas``
    """

    name: str
    factor: str
    in_sync: str


TRANSACTIONS = CoordinatorTopic(
    name="__transaction_state",
    factor="transaction.state.log.replication.factor",
    in_sync="transaction.state.log.min.isr",
)
# Kafka has no other setting for the in-sync replicas of this topic.
GROUPS = CoordinatorTopic(name="__consumer_offsets", factor="offsets.topic.replication.factor", in_sync=INSYNC)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorState:
    """What a cluster shows of a coordinator's topic.

    found    the topic in a few words
    problem  why it serves no request; empty if it does, as far as the cluster shows
    way_out  what an administrator does; without a problem, what Kafka does
    is_sure  False if a missing right hides what would prove the problem
    heals    brokers that start again end the problem
    """

    found: str
    problem: str = ""
    way_out: str = ""
    is_sure: bool = True
    heals: bool = False

    @property
    def text(self) -> str:
        """The problem with its way out, for a message; empty without a problem."""
        return self.problem and f"{'' if self.is_sure else 'perhaps '}{self.problem}: {self.way_out}"


def required_in_sync(admin: TopicsAdmin, in_sync: int, replicas: int) -> int:
    """Return how many replicas must be in sync for a write to succeed.

    From Kafka 4.0 on, never more than the partition has (``Partition.effectiveMinIsr``). Before, such a topic rejects every write.
    """
    level = admin.client.finalized_features().get("metadata.version", 0)
    return min(in_sync, replicas) if level >= _FIRST_LEVEL_OF_4 else in_sync


def coordinator_state(admin: TopicsAdmin, topic: CoordinatorTopic, deadline_ms: int) -> CoordinatorState:
    """Find out whether a coordinator's topic exists, or can be created.

    Raises:
        BrokerUnavailableError: No response before the deadline.
    """
    # Fresh, because brokers may join or leave while the caller waits for them.
    admin.client.wait_for_metadata(deadline_ms)
    brokers = sum(node_id >= 0 for node_id in admin.client.metadata.brokers)
    found, is_hidden = None, False
    try:
        found = admin.topic(topic.name, deadline_ms)
    except AuthorizationError:
        is_hidden = True
    if found is not None:
        configs: Mapping[str, str] = {}
        with suppress(AuthorizationError):
            configs = admin.describe_configs("topic", topic.name, (INSYNC,), deadline_ms)
        return _of_existing(admin, topic, found, _number(configs, INSYNC))
    settings: Mapping[str, str] = {}
    with suppress(AuthorizationError):
        settings = admin.describe_configs("broker", None, (topic.factor, topic.in_sync), deadline_ms)
    return _of_missing(admin, topic, brokers, settings, is_hidden=is_hidden)


def _of_missing(
    admin: TopicsAdmin, topic: CoordinatorTopic, brokers: int, settings: Mapping[str, str], *, is_hidden: bool
) -> CoordinatorState:
    factor, in_sync = _number(settings, topic.factor), _number(settings, topic.in_sync)
    shown = "missing Describe permission" if is_hidden else "does not exist yet"
    if factor is None:
        return CoordinatorState(
            found=shown,
            problem=f"Kafka cannot create {topic.name}: {topic.factor} is 3 by default, and the cluster has "
            + counted(brokers, "broker"),
            way_out=f"start as many brokers, or set {_settings(topic, brokers, None)}. To see the setting, grant DescribeConfigs on the "
            "cluster",
            is_sure=False,
        )
    if factor > brokers:
        return CoordinatorState(
            found=shown,
            problem=f"Kafka cannot create {topic.name}: {topic.factor}={factor}, and the cluster has {counted(brokers, 'broker')}",
            way_out=f"start as many brokers, or set {_settings(topic, brokers, in_sync)}",
            is_sure=not is_hidden,
        )
    if in_sync is not None and required_in_sync(admin, in_sync, factor) > factor:
        return CoordinatorState(
            found=shown,
            problem=f"no record of {topic.name} can be written: {topic.in_sync}={in_sync} is more than {topic.factor}={factor}",
            way_out=f"set {topic.in_sync}={max(1, factor - 1)}{_WHERE}",
            is_sure=not is_hidden,
        )
    if is_hidden:
        return CoordinatorState(found=shown, way_out="grant Describe on the topic to see its replicas", is_sure=False)
    return CoordinatorState(found=shown, way_out=f"Kafka creates it with {counted(factor, 'replica')}")


_WHERE = " in the properties of every broker, and restart them"


def _settings(topic: CoordinatorTopic, brokers: int, in_sync: int | None) -> str:
    """Return the settings with which this number of brokers can create the topic."""
    # The default of transaction.state.log.min.isr is 2: one replica alone would accept no record.
    too_many = in_sync > brokers if in_sync is not None else topic.in_sync != INSYNC
    also = f" and {topic.in_sync}={max(1, brokers - 1)}" if too_many else ""
    return f"{topic.factor}={brokers}{also}{_WHERE}"


def _of_existing(
    admin: TopicsAdmin, topic: CoordinatorTopic, found: TopicMetadata, in_sync: int | None
) -> CoordinatorState:
    partitions, replicas = found.partitions, found.replication_factor
    shown = f"replication factor {replicas}"
    leaderless = sum(each.leader_id < 0 for each in partitions)
    # Without the right to see the setting, each replica that is not in sync may be one too many.
    least = replicas if in_sync is None else required_in_sync(admin, in_sync, replicas)
    behind = sum(len(each.isr_nodes) < least for each in partitions)
    if leaderless:
        return CoordinatorState(
            found=shown,
            problem=f"{leaderless} of {counted(len(partitions), 'partition')} of {topic.name} have no leader",
            way_out="start the brokers that are down",
            heals=True,
        )
    if replicas < least:
        return CoordinatorState(
            found=shown,
            problem=f"{topic.name} has {counted(replicas, 'replica')}, and its {INSYNC} is {in_sync}",
            way_out=f"lower it: kafka-configs.sh --bootstrap-server {admin.client.config.bootstrap_servers_text} --entity-type topics "
            f"--entity-name {topic.name} --alter --add-config {INSYNC}={max(1, replicas - 1)}",
        )
    if behind:
        shown_least = INSYNC if in_sync is None else f"{INSYNC}={in_sync}"
        return CoordinatorState(
            found=shown,
            problem=f"{behind} of {counted(len(partitions), 'partition')} of {topic.name} have fewer replicas in sync than {shown_least}",
            way_out="start the brokers that are down",
            is_sure=in_sync is not None,
            heals=True,
        )
    return CoordinatorState(found=shown)


def _number(settings: Mapping[str, str], name: str) -> int | None:
    value = settings.get(name, "")
    return int(value) if value.isdecimal() and len(value) <= 9 else None
