"""What a cluster is asked before anything is written to it, and what its answers mean for a write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.metadata import TopicMetadata, topic_metadata
from kafka_eos_sink.commit.commit_log import LOG_PARTITIONS
from kafka_eos_sink.commit.take_over import DRIVER_TRANSACTION_TIMEOUT_MS
from kafka_eos_sink.commit.transactional_id import DEFAULT_PREFIX, driver_transactional_id
from kafka_eos_sink.errors import AuthorizationError, KafkaEosError
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.messages import ApiVersionsRequest, DescribeClusterRequest, MetadataRequest
from kafka_eos_sink.runtime.session import DEFAULT_TRANSACTION_TIMEOUT_MS
from kafka_eos_sink.runtime.topics import MAX_REPLICATION_FACTOR

__all__ = ["Finding", "Verdict", "check_cluster", "release_of", "topic_findings"]

_NEVER_MS = 2**31 - 1
_ANSWER_MS = 10_000
_UNKNOWN_OPERATIONS = -(2**31)

# Feature level of metadata.version -> the release that brought it (Kafka's MetadataVersion). A broker supports the newest of its
# own release, and patch releases bring none: 4.3.0 and 4.3.1 look the same from here.
_RELEASES = {
    7: "3.3",
    8: "3.4",
    **dict.fromkeys(range(9, 12), "3.5"),
    **dict.fromkeys(range(12, 15), "3.6"),
    **dict.fromkeys(range(15, 20), "3.7"),
    20: "3.8",
    21: "3.9",
    **dict.fromkeys(range(22, 26), "4.0"),
    **dict.fromkeys(range(26, 28), "4.1"),
    **dict.fromkeys(range(28, 30), "4.2"),
    30: "4.3",
    **dict.fromkeys(range(31, 34), "4.4"),
}


class Operation(IntEnum):
    """Bits of the authorized operations that brokers report (org.apache.kafka.common.acl.AclOperation)."""

    READ = 3
    WRITE = 4
    CREATE = 5
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9


class Verdict(Enum):
    WORKS = "ok"
    WARNING = "warning"
    FAILS = "fails"
    UNKNOWN = "not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line: what was looked at, how it is, and what that means where it is not as it should be.

    ``about`` is the topic that it belongs to, empty for the cluster.
    """

    about: str = ""
    what: str
    found: str
    verdict: Verdict
    meaning: str = ""


_Add = Callable[..., None]


def release_of(metadata_version: int) -> str | None:
    """The Kafka release line whose brokers support metadata.version up to this level, None for none that is known."""
    return _RELEASES.get(metadata_version)


def check_cluster(admin: Admin, *, topic: str | None, commit_log_topic: str, timeout_ms: int) -> list[Finding]:
    """Ask everything that a write depends on. Raises only where no broker can be reached at all."""
    deadline = admin.client.clock() + timeout_ms
    admin.client.any_node(deadline)
    admin.client.wait_for_metadata(deadline)
    found = list(_brokers(admin, deadline))
    found += _transactions(admin, deadline)
    cluster = _cluster_operations(admin, deadline)
    if topic is not None:
        found += _topic(admin, topic, "topic", cluster, deadline)
    if topic == commit_log_topic:
        meaning = "it must hold nothing but the sink's own records; take another topic"
        found.append(
            Finding(
                about=f"topic {topic}", what="topic", found="the commit log", verdict=Verdict.FAILS, meaning=meaning
            )
        )
    found += _topic(admin, commit_log_topic, "commit log", cluster, deadline)
    found.append(_transactional_ids(admin, deadline))
    found.append(_repair(cluster))
    return found


def _brokers(admin: Admin, deadline: int) -> Iterator[Finding]:
    client = admin.client
    brokers = [broker for node_id, broker in sorted(client.metadata.brokers.items()) if node_id >= 0]
    names = f"{len(brokers)} broker{'s' if len(brokers) != 1 else ''}"
    yield Finding(what="connection", found=f"{names}, cluster {client.metadata.cluster_id}", verdict=Verdict.WORKS)
    releases: set[str | None] = set()
    for broker in brokers:
        what = f"broker {broker.node_id}"
        request = ApiVersionsRequest(client_software_name="kafka-eos", client_software_version="check")
        try:
            answer = client.call(broker.node_id, request, deadline_ms=min(deadline, client.clock() + _ANSWER_MS))
        except KafkaEosError as failure:
            yield Finding(
                what=what,
                found=f"{broker.host}:{broker.port} is not reached from here",
                verdict=Verdict.FAILS,
                meaning=f"check its advertised listener; {failure.message}",
            )
            continue
        level = next((each.max_version for each in answer.supported_features if each.name == "metadata.version"), 0)
        release = release_of(level)
        releases.add(release)
        name = f"Kafka {release}" if release else f"Kafka of an unknown release (metadata.version {level})"
        yield Finding(what=what, found=f"{broker.host}:{broker.port}, {name}", verdict=Verdict.WORKS)
    yield _left_out_markers(releases)


def _left_out_markers(releases: set[str | None]) -> Finding:
    what = "KAFKA-20734"
    if "4.3" in releases:
        return Finding(
            what=what,
            found="Kafka 4.3, patch level not visible",
            verdict=Verdict.WARNING,
            meaning="4.3.0 and 4.3.1 can leave out a marker where a partition has no leader; the sink notices and fails loudly, "
            "`kafka-eos repair` writes it",
        )
    if None in releases or not releases:
        return Finding(
            what=what,
            found="release not known",
            verdict=Verdict.UNKNOWN,
            meaning="4.3.0 and 4.3.1 can leave out a marker",
        )
    return Finding(what=what, found="not in this release", verdict=Verdict.WORKS)


def _transactions(admin: Admin, deadline: int) -> Iterator[Finding]:
    version = admin.transaction_version(deadline)
    yield Finding(
        what="transaction.version",
        found=str(version),
        verdict=Verdict.WORKS,
        meaning=""
        if version >= 2
        else "works; 2 also refuses delayed requests of earlier transactions (KIP-890): kafka-features.sh upgrade --feature "
        "transaction.version=2",
    )
    name = "transaction.max.timeout.ms"
    try:
        value = admin.describe_configs("broker", None, (name,), deadline).get(name)
    except AuthorizationError:
        value = None
    if value is None:
        yield Finding(
            what=name,
            found="may not be read",
            verdict=Verdict.UNKNOWN,
            meaning="the sink tries 900000 and steps down; grant DescribeConfigs on the cluster to have it known",
        )
        return
    maximum = int(value)
    if maximum < DRIVER_TRANSACTION_TIMEOUT_MS:
        verdict, meaning = (
            Verdict.FAILS,
            f"the driver's own transaction asks for {DRIVER_TRANSACTION_TIMEOUT_MS}: raise it",
        )
    elif maximum < DEFAULT_TRANSACTION_TIMEOUT_MS:
        verdict, meaning = Verdict.WARNING, "a batch must be decided, and a dead driver be back, within this time"
    elif maximum == _NEVER_MS:
        verdict, meaning = (
            Verdict.WORKS,
            "kafka.transaction.timeout.ms=2147483647 can be asked for: no part can be lost",
        )
    else:
        verdict, meaning = Verdict.WORKS, ""
    yield Finding(what=name, found=value, verdict=verdict, meaning=meaning)


def _cluster_operations(admin: Admin, deadline: int) -> int:
    client = admin.client
    try:
        answer = client.call(
            client.any_node(deadline),
            DescribeClusterRequest(include_cluster_authorized_operations=True),
            deadline_ms=deadline,
        )
    except KafkaEosError:
        return _UNKNOWN_OPERATIONS
    return _UNKNOWN_OPERATIONS if answer.error_code else answer.cluster_authorized_operations


def _allows(operations: int, operation: Operation) -> bool | None:
    """None where the broker did not say."""
    return None if operations == _UNKNOWN_OPERATIONS else bool(operations & (1 << operation))


def _topic(admin: Admin, name: str, role: str, cluster: int, deadline: int) -> list[Finding]:
    client = admin.client
    request = MetadataRequest(
        topics=(MetadataRequest.Topic(name=name),),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
    )
    (answer,) = client.call(client.any_node(deadline), request, deadline_ms=deadline).topics
    about = f"{role} {name}"
    if answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        if role == "topic":
            return [
                Finding(
                    about=about,
                    what="topic",
                    found="does not exist",
                    verdict=Verdict.FAILS,
                    meaning="create it, or grant Describe on it",
                )
            ]
        return [_to_be_created(about, len(client.metadata.brokers), cluster)]
    if answer.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return [
            Finding(
                about=about,
                what="topic",
                found="may not be described",
                verdict=Verdict.FAILS,
                meaning="grant Describe and Write on it",
            )
        ]
    if answer.error_code:
        return [Finding(about=about, what="topic", found=ErrorCode.of(answer.error_code).name, verdict=Verdict.FAILS)]
    try:
        configs = admin.describe_configs("topic", name, None, deadline)
    except AuthorizationError:
        configs = {}
    rights = answer.topic_authorized_operations
    return topic_findings(about, topic_metadata(answer), configs, rights, is_commit_log=role != "topic")


def _to_be_created(about: str, brokers: int, cluster: int) -> Finding:
    factor = min(MAX_REPLICATION_FACTOR, brokers)
    found = (
        f"does not exist yet, the first write creates it with {LOG_PARTITIONS} partitions, replication factor {factor}"
    )
    allowed = _allows(cluster, Operation.CREATE)
    if allowed is False:
        # The right can also be granted on the topic's name, which cannot be seen from here.
        return Finding(
            about=about,
            what="topic",
            found=found,
            verdict=Verdict.UNKNOWN,
            meaning="Create on the cluster is not granted: the write works only with Create on this topic, or if somebody creates it",
        )
    return Finding(
        about=about, what="topic", found=found, verdict=Verdict.UNKNOWN if allowed is None else Verdict.WORKS
    )


def topic_findings(
    about: str, topic: TopicMetadata, configs: Mapping[str, str], rights: int, *, is_commit_log: bool
) -> list[Finding]:
    """What a topic's partitions, settings (empty: may not be read) and rights mean for a write."""
    found: list[Finding] = []

    def add(part: str, value: str, verdict: Verdict, meaning: str = "") -> None:
        found.append(Finding(about=about, what=part, found=value, verdict=verdict, meaning=meaning))

    if topic.internal:
        add("topic", "internal to Kafka", Verdict.FAILS, "it must not be written to; take another topic")
    leaderless = [partition.index for partition in topic.partitions if partition.leader < 0]
    if leaderless:
        add("partitions", f"{leaderless} have no leader", Verdict.FAILS, "bring their brokers back")
    elif is_commit_log and len(topic.partitions) < LOG_PARTITIONS:
        add("partitions", str(len(topic.partitions)), Verdict.FAILS, f"the commit log needs {LOG_PARTITIONS}")
    else:
        add("partitions", f"{len(topic.partitions)}, all with a leader", Verdict.WORKS)

    factor = min((len(partition.replicas) for partition in topic.partitions), default=0)
    if factor >= 3:
        add("replication factor", str(factor), Verdict.WORKS)
    else:
        add(
            "replication factor",
            str(factor),
            Verdict.WARNING,
            "one lost broker can lose committed rows: 3 for production",
        )

    if not configs:
        add("settings", "may not be read", Verdict.UNKNOWN, "grant DescribeConfigs on it to have them known")
    else:
        _add_settings(add, topic, configs, factor, is_commit_log)
    _add_rights(add, rights, is_commit_log)
    return found


def _add_settings(
    add: _Add, topic: TopicMetadata, configs: Mapping[str, str], factor: int, is_commit_log: bool
) -> None:
    insync = int(configs.get("min.insync.replicas", "1"))
    below = [partition.index for partition in topic.partitions if len(partition.isr) < insync]
    if factor < insync:
        add(
            "min.insync.replicas",
            str(insync),
            Verdict.FAILS,
            f"more than the {factor} replicas: nothing can be written",
        )
    elif below:
        meaning = "they take no acks=all write until a replica is back in sync"
        add("min.insync.replicas", f"{insync}; partitions {below} have fewer in sync", Verdict.FAILS, meaning)
    elif insync < 2:
        add(
            "min.insync.replicas",
            str(insync),
            Verdict.WARNING,
            "an acknowledged row may be on one broker only: 2 for production",
        )
    else:
        add("min.insync.replicas", str(insync), Verdict.WORKS)
    unclean = configs.get("unclean.leader.election.enable", "false")
    if unclean == "true":
        meaning = "an unclean election can lose markers and decisions: set it to false"
        add("unclean.leader.election.enable", unclean, Verdict.WARNING, meaning)
    else:
        add("unclean.leader.election.enable", unclean, Verdict.WORKS)
    policy = configs.get("cleanup.policy", "")
    if is_commit_log and policy != "compact":
        add("cleanup.policy", policy, Verdict.FAILS, "anything but compact can lose decisions; the sink refuses it")
    elif is_commit_log:
        add("cleanup.policy", policy, Verdict.WORKS)


def _add_rights(add: _Add, rights: int, is_commit_log: bool) -> None:
    needed = (Operation.WRITE, Operation.DESCRIBE, *((Operation.READ,) if is_commit_log else ()))
    if rights == _UNKNOWN_OPERATIONS:
        add("rights", "the broker does not say", Verdict.UNKNOWN)
        return
    missing = [operation.name.title() for operation in needed if not _allows(rights, operation)]
    if missing:
        add("rights", f"{' and '.join(missing)} missing", Verdict.FAILS, f"grant {' and '.join(missing)} on the topic")
    elif not _allows(rights, Operation.READ):
        meaning = "works; without Read it cannot be proven that readers see the rows"
        add("rights", "Write and Describe, no Read", Verdict.WARNING, meaning)
    else:
        add("rights", "Read, Write and Describe", Verdict.WORKS)


def _transactional_ids(admin: Admin, deadline: int) -> Finding:
    """Whether ids under the default prefix may be described; Write on them cannot be seen without using one."""
    what = f"transactional ids {DEFAULT_PREFIX}..."
    try:
        admin.describe_transactions((driver_transactional_id(f"{DEFAULT_PREFIX}/check"),), deadline)
    except AuthorizationError:
        return Finding(
            what=what,
            found="may not be described",
            verdict=Verdict.WARNING,
            meaning="grant Describe and Write on the ids that begin with transactional.id.prefix, which may be another",
        )
    return Finding(what=what, found="may be described", verdict=Verdict.WORKS)


def _repair(cluster: int) -> Finding:
    what = "rights of kafka-eos repair"
    allowed = [_allows(cluster, operation) for operation in (Operation.ALTER, Operation.CLUSTER_ACTION)]
    if any(allowed):
        return Finding(what=what, found="Alter or ClusterAction on the cluster", verdict=Verdict.WORKS)
    if None in allowed:
        return Finding(what=what, found="the broker does not say", verdict=Verdict.UNKNOWN)
    return Finding(
        what=what, found="none", verdict=Verdict.WORKS, meaning="only an administrator needs Alter on the cluster"
    )
