"""The checks of ``kafka-eos check``: requests, and rules for their results.

Each check is a row: its name, what was found, and cases in order. The first case whose condition holds is the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.connection import BrokerVersions
from kafka_eos_sink.client.coordinator_topics import (
    GROUPS,
    TRANSACTIONS,
    CoordinatorTopic,
    coordinator_state,
    required_in_sync,
)
from kafka_eos_sink.client.metadata import TopicMetadata
from kafka_eos_sink.commit.refusals import text
from kafka_eos_sink.commit.transactional_id import DEFAULT_PREFIX, driver_transactional_id
from kafka_eos_sink.commit.transactions import DRIVER_TRANSACTION_TIMEOUT_MS
from kafka_eos_sink.commit.values import DEFAULT_TOPIC, LOG_PARTITIONS
from kafka_eos_sink.errors import (
    AuthorizationError,
    BrokerRefusedError,
    BrokerUnavailableError,
    ConfigurationError,
    KafkaEosError,
    ProtocolError,
    counted,
    peer_text,
)
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.protocol.messages import (
    UNKNOWN_AUTHORIZED_OPERATIONS,
    AclOperation,
    ApiVersionsRequest,
    MetadataRequest,
)
from kafka_eos_sink.runtime import requirements, topics
from kafka_eos_sink.runtime.batch_record import DEFAULT_HISTORY_TOPIC
from kafka_eos_sink.runtime.history_reading import WITHOUT_HISTORY
from kafka_eos_sink.runtime.write_settings import DEFAULT_TRANSACTION_TIMEOUT_MS

_BROKER_TIMEOUT_MS = 10_000
_CHECK_ID = driver_transactional_id(f"{DEFAULT_PREFIX}/check")

# First feature level of metadata.version -> its release (Kafka's MetadataVersion). A broker supports the newest level of its
# release. Patch releases add no level.
_RELEASES = {
    34: None, 31: "4.4", 30: "4.3", 28: "4.2", 26: "4.1", 22: "4.0", 21: "3.9", 20: "3.8", 15: "3.7", 12: "3.6", 9: "3.5",
    8: "3.4", 7: "3.3", 0: None,
}  # fmt: skip


class CheckResult(StrEnum):
    """The effect of a finding on a write."""

    WORKS = "ok"
    WARNING = "warning"
    FAILS = "fails"
    UNKNOWN = "not known"


_OK, _WARN, _FAILS, _UNKNOWN = CheckResult


@dataclass(frozen=True, slots=True)
class CheckLine:
    """One line of the report; ``about`` is the topic and is empty for the cluster."""

    about: str
    what: str
    found: str
    result: CheckResult = _OK
    meaning: str = ""


_Case = tuple[object, CheckResult, str]
"""A condition, the result, and the advice."""
_UNREAD = "grant DescribeConfigs on the cluster to check it"


def _rule(about: str, what: str, found: object, *cases: _Case) -> CheckLine:
    """Return the result of the first case that holds, else ok; None was not shown."""
    result, meaning = next((case[1:] for case in cases if case[0]), (_OK, ""))
    return CheckLine(about, what, "not shown" if found is None else str(found), result, meaning)


def check_cluster(
    admin: Admin,
    *,
    topic: str | None,
    commit_log_topic: str,
    history_topic: str = DEFAULT_HISTORY_TOPIC,
    timeout_ms: int,
) -> list[CheckLine]:
    """Check everything that a write depends on.

    Args:
        topic: None to check only the cluster and the sink's own topics.
        history_topic: Empty for none.

    Raises:
        BrokerUnavailableError: No broker can be reached. Every other problem is a finding.
    """
    deadline = admin.client.clock() + timeout_ms
    versions = admin.client.versions(admin.client.any_node(deadline))
    if requirements.missing_apis(versions, [MetadataRequest]):
        return [_offers("connection", admin.client.config.bootstrap_servers_text, versions)]
    admin.client.wait_for_metadata(deadline)
    found = [*_brokers(admin, deadline)]
    # The other checks send some of these requests.
    if requirements.missing_apis(versions, requirements.NEEDED):
        return found
    found += _transactions(admin, deadline)
    found += (coordinators := [_coordinator(admin, each, deadline) for each in (TRANSACTIONS, GROUPS)])
    if topic is not None:
        found += _topic(admin, f"topic {topic}", topic, deadline)
        if topic in (commit_log_topic, DEFAULT_TOPIC):
            meaning = "it must hold only records of the sink: choose another topic"
            found.append(CheckLine(f"topic {topic}", "topic", "the commit log", _FAILS, meaning))
    found += _topic(admin, f"commit log {commit_log_topic}", commit_log_topic, deadline, is_commit_log=True)
    found.append(_history(admin, history_topic, deadline))
    return [*found, _ids(admin, deadline, coordinators[0])]


def _brokers(admin: Admin, deadline: int) -> Iterator[CheckLine]:
    client = admin.client
    brokers = [broker for node_id, broker in sorted(client.metadata.brokers.items()) if node_id >= 0]
    yield CheckLine(
        "", "connection", f"{counted(len(brokers), 'broker')}, cluster {peer_text(str(client.metadata.cluster_id))}"
    )
    for broker in brokers:
        what, address = f"broker {broker.node_id}", f"{peer_text(broker.host)}:{broker.port}"
        request = ApiVersionsRequest(client_software_name="kafka-eos", client_software_version="check")
        # A limit per broker: one that does not respond must not use up the time of the others.
        limit = min(deadline, client.clock() + _BROKER_TIMEOUT_MS)
        try:
            response = client.call(broker.node_id, request, deadline_ms=limit)
        except KafkaEosError as failure:
            meaning = f"check its advertised listener; {failure}"
            yield CheckLine("", what, f"{address} cannot be reached from here", _FAILS, meaning)
            continue
        level = next((each.max_version for each in response.supported_features if each.name == "metadata.version"), 0)
        if level < 0:
            raise ProtocolError(f"{what} at {address} reports metadata.version {level}")
        release = next(release for first, release in _RELEASES.items() if level >= first)
        shown = f"{address}, Kafka {release or f'of an unknown release (metadata.version {level})'}"
        yield _offers(what, shown, BrokerVersions.from_response(response))


def _offers(what: str, found: str, versions: BrokerVersions) -> CheckLine:
    needed = requirements.missing_apis(versions, requirements.NEEDED)
    optional = requirements.missing_apis(versions, requirements.OPTIONAL)
    fails = needed, _FAILS, f"does not offer {needed}. {requirements.OTHER_SERVICES}"
    return _rule("", what, found, fails, (optional, _WARN, f"does not offer {optional}"))


def _transactions(admin: Admin, deadline: int) -> Iterator[CheckLine]:
    version = admin.transaction_version(deadline)
    yield _rule("", "transaction.version", version, (version < 2, _OK, text("upgrade_transactions")))
    settings = requirements.broker_settings(admin, deadline)
    if version >= 2:
        yield CheckLine("", "verified appends", "part of transaction.version 2")
    else:
        verifies = requirements.verifies_appends(admin, settings, deadline)
        shown = None if verifies is None else "yes" if verifies else requirements.no_sign_of_verification(settings)
        unread = verifies is None, _UNKNOWN, f"{_UNREAD}; without it, {requirements.UNVERIFIED}"
        fails = not verifies, _FAILS, f"{requirements.UNVERIFIED}; {requirements.way_to_verify(admin, settings)}"
        yield _rule("", "verified appends", shown, unread, fails)
    value = requirements.number(settings, requirements.MAX_TIMEOUT)
    limit, needs = value or 0, f"raise it: the driver's own transaction needs {DRIVER_TRANSACTION_TIMEOUT_MS}"
    yield _rule(
        "",
        requirements.MAX_TIMEOUT,
        value,
        (value is None, _UNKNOWN, f"the sink tries 900000 and then smaller values; {_UNREAD}"),
        (limit < DRIVER_TRANSACTION_TIMEOUT_MS, _FAILS, needs),
        (limit < DEFAULT_TRANSACTION_TIMEOUT_MS, _WARN, "a batch must be decided within this time"),
    )
    for name, problem in (
        (requirements.EXPIRATION, requirements.short_expiration(settings, DEFAULT_TRANSACTION_TIMEOUT_MS)),
        (requirements.REQUEST_BYTES, requirements.small_requests(settings, ProducerConfig().max_request_size)),
    ):
        yield _rule("", name, settings.get(name), (name not in settings, _UNKNOWN, _UNREAD), (problem, _WARN, problem))


def _coordinator(admin: Admin, topic: CoordinatorTopic, deadline: int) -> CheckLine:
    state = coordinator_state(admin, topic, deadline)
    problem = f"{'' if state.is_sure else 'perhaps '}{state.problem}" if state.problem else ""
    meaning = "; ".join(filter(None, (problem, state.way_out)))
    if topic is GROUPS:
        meaning = f"only source.offsets.group needs it; {meaning}"
    worst = _WARN if topic is GROUPS else _FAILS
    unread = not state.is_sure, _UNKNOWN, meaning
    return _rule("", topic.name, state.found, unread, (state.problem, worst, meaning), (True, _OK, state.way_out))


def _history(admin: Admin, name: str, deadline: int) -> CheckLine:
    about, without = f"history {name}".rstrip(), f"without it, {WITHOUT_HISTORY}"
    if not name:
        return CheckLine(about, "topic", "switched off", _WARN, without)
    try:
        topic = admin.topic(name, deadline)
    except (AuthorizationError, BrokerRefusedError) as denied:
        return CheckLine(about, "topic", denied.code, _WARN, f"grant Read, Write and Create on it; {without}")
    if topic is None:
        return CheckLine(about, "topic", "does not exist yet", meaning="the first write creates it")
    operations = topic.topic_authorized_operations
    can_read = AclOperation.READ.is_in(operations)
    return _rights_on(about, operations, _WARN, "" if can_read else f"; {without}")


def _topic(admin: Admin, about: str, name: str, deadline: int, is_commit_log: bool = False) -> Iterator[CheckLine]:
    try:
        topic = admin.topic(name, deadline)
    except AuthorizationError:
        yield CheckLine(about, "topic", "missing Describe permission", _FAILS, "grant Describe, Write and Read on it")
        return
    except BrokerRefusedError as refused:
        yield CheckLine(about, "topic", "rejected", _FAILS, refused.message)
        return
    if topic is not None:
        yield from _partitions(about, topic, is_commit_log)
        yield from _configs(admin, about, topic, topics.visible_configs(admin, name, None, deadline), is_commit_log)
        yield _rights_on(about, topic.topic_authorized_operations, _FAILS)
    elif is_commit_log:
        yield _created_log(admin, about, name, deadline)
    else:
        yield CheckLine(about, "topic", "does not exist", _FAILS, "create it, or grant Describe on it")


def _created_log(admin: Admin, about: str, name: str, deadline: int) -> CheckLine:
    """Validate on the cluster how the first write would create the commit log."""
    brokers = requirements.broker_count(admin, deadline)
    try:
        made = topics.create_commit_log(admin, name, brokers, deadline, validate_only=True)
    except ConfigurationError as rejected:
        return CheckLine(about, "topic", "does not exist", _FAILS, str(rejected))
    replicas, configs = (-1, {}) if made is None else (made.replication_factor, topics.created_configs(made))
    size = f"{LOG_PARTITIONS} partitions" + (f", replication factor {replicas}" if replicas > 0 else "")
    created = f"does not exist yet, the first write creates it with {size}"
    weak = topics.weaknesses(replicas, brokers, configs)
    meaning = f"{weak}: the loss of a broker can lose decisions; create it yourself"
    return _rule(about, "topic", created, (weak, _WARN, meaning))


def _partitions(about: str, topic: TopicMetadata, is_commit_log: bool) -> Iterator[CheckLine]:
    if topic.is_internal:
        yield CheckLine(about, "topic", "internal to Kafka", _FAILS, "choose another topic")
    count = len(topic.partitions)
    leaderless = [partition.partition_index for partition in topic.partitions if partition.leader_id < 0]
    shown = f"{leaderless} have no leader" if leaderless else f"{count}, all with a leader"
    down = leaderless, _FAILS, "restart their brokers"
    # A write id hashes to one of LOG_PARTITIONS partitions, whatever number the topic has.
    if is_commit_log and count < LOG_PARTITIONS and not leaderless:
        yield CheckLine(about, "partitions", str(count), _FAILS, f"the commit log needs {LOG_PARTITIONS}")
    else:
        yield _rule(about, "partitions", shown, down)
    factor = topic.replication_factor
    meaning = "the loss of one broker can lose committed rows: use 3 in production"
    yield _rule(about, "replication factor", factor, (factor < 3, _WARN, meaning))


def _configs(
    admin: Admin, about: str, topic: TopicMetadata, configs: Mapping[str, str], is_commit_log: bool
) -> Iterator[CheckLine]:
    if not configs:
        grant = "grant DescribeConfigs on the topic to check them"
        yield CheckLine(about, "settings", "missing DescribeConfigs permission", _UNKNOWN, grant)
        return
    shown = requirements.number(configs, "min.insync.replicas")
    insync, factor = 1 if shown is None else shown, topic.replication_factor
    least = required_in_sync(admin, insync, factor)
    below = [partition.partition_index for partition in topic.partitions if len(partition.isr_nodes) < least]
    rejected = f"partitions {below} have fewer in sync: they reject acks=all writes until a replica is back in sync"
    single = "an acknowledged row may be on one broker only: use 2 in production"
    yield _rule(
        about,
        "min.insync.replicas",
        insync,
        (factor < least, _FAILS, f"more than the {factor} replicas: no write can succeed"),
        (below, _FAILS, rejected),
        (insync < 2, _WARN, single),
    )
    name = "unclean.leader.election.enable"
    unclean = peer_text(configs.get(name, "false"))
    meaning = "set it to false: an unclean election can lose markers and decisions"
    yield _rule(about, name, unclean, (unclean == "true", _WARN, meaning))
    if is_commit_log:
        policy = peer_text(configs.get("cleanup.policy", ""))
        meaning = "set it to compact: any other policy can lose decisions, and the sink rejects it"
        yield _rule(about, "cleanup.policy", policy, (policy != "compact", _FAILS, meaning))
        room, small = requirements.number(configs, topics.MAX_BYTES), topics.small_decisions(configs)
        worst = _FAILS if (room or 0) < topics.FEW_TASKS_BYTES else _WARN
        yield _rule(about, topics.MAX_BYTES, room, (small, worst, f"{small}; raise it"))


def _rights_on(about: str, operations: int, lacking: CheckResult, cost: str = "") -> CheckLine:
    needed = (AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE)
    missing = " and ".join(each.name.title() for each in needed if not each.is_in(operations))
    shown = f"{missing} missing" if missing else "Read, Write and Describe"
    if operations == UNKNOWN_AUTHORIZED_OPERATIONS:
        return CheckLine(about, "rights", "not reported by the broker", _UNKNOWN)
    return _rule(about, "rights", shown, (missing, lacking, f"grant {missing} on the topic{cost}"))


def _ids(admin: Admin, deadline: int, coordinator: CheckLine) -> CheckLine:
    # Only Describe can be checked: Write on a transactional id shows only when a write uses it.
    what = f"transactional ids {DEFAULT_PREFIX}..."
    if coordinator.result is _FAILS:
        return CheckLine("", what, "not checked", _UNKNOWN, f"no coordinator without {coordinator.what}")
    try:
        admin.describe_transactions((_CHECK_ID,), min(deadline, admin.client.clock() + _BROKER_TIMEOUT_MS))
    except AuthorizationError:
        return CheckLine("", what, "missing Describe permission", _WARN, text("grant_ids"))
    except BrokerUnavailableError as failure:
        return CheckLine("", what, "their coordinator does not respond", _FAILS, str(failure))
    return CheckLine("", what, "may be described", meaning="Write on them shows only when a write uses them")
