"""The checks of ``kafka-eos check``: requests, and rules for their results.

Each check is a row: its name, and cases in order. The first case whose condition holds is the finding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.connection import BrokerVersions
from kafka_eos_sink.client.coordinator_topics import (
    GROUPS,
    TRANSACTIONS,
    CoordinatorTopic,
    coordinator_state,
    required_in_sync,
)
from kafka_eos_sink.client.metadata import TopicMetadata, topic_metadata
from kafka_eos_sink.commit.transactional_id import DEFAULT_PREFIX, driver_transactional_id
from kafka_eos_sink.commit.transactions import DRIVER_TRANSACTION_TIMEOUT_MS, NEVER_TIMES_OUT_MS
from kafka_eos_sink.commit.values import DEFAULT_TOPIC, LOG_PARTITIONS
from kafka_eos_sink.errors import (
    AuthorizationError,
    BrokerUnavailableError,
    ConfigurationError,
    KafkaEosError,
    ProtocolError,
    counted,
    peer_text,
)
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.messages import (
    UNKNOWN_AUTHORIZED_OPERATIONS,
    AclOperation,
    ApiVersionsRequest,
    MetadataRequest,
    MetadataResponse,
)
from kafka_eos_sink.runtime.batch_record import DEFAULT_HISTORY_TOPIC
from kafka_eos_sink.runtime.history_reading import WITHOUT_HISTORY
from kafka_eos_sink.runtime.requirements import (
    EXPIRATION,
    MAX_TIMEOUT,
    NEEDED,
    OPTIONAL,
    OTHER_SERVICES,
    REQUEST_BYTES,
    UNVERIFIED,
    broker_count,
    broker_settings,
    missing_apis,
    no_sign_of_verification,
    number,
    short_expiration,
    small_requests,
    verifies_appends,
    way_to_verify,
)
from kafka_eos_sink.runtime.topics import (
    FEW_TASKS_BYTES,
    MAX_BYTES,
    create_commit_log,
    created_configs,
    small_decisions,
    visible_configs,
    weaknesses,
)
from kafka_eos_sink.runtime.write_settings import DEFAULT_TRANSACTION_TIMEOUT_MS

_BROKER_TIMEOUT_MS = 10_000
_CHECK_ID = driver_transactional_id(f"{DEFAULT_PREFIX}/check")

# First feature level of metadata.version -> its release (Kafka's MetadataVersion). A broker supports the newest level of its
# release. Patch releases add no level.
_RELEASES = {
    34: None, 31: "4.4", 30: "4.3", 28: "4.2", 26: "4.1", 22: "4.0", 21: "3.9", 20: "3.8", 15: "3.7", 12: "3.6", 9: "3.5",
    8: "3.4", 7: "3.3", 0: None,
}  # fmt: skip
_OMITS_MARKERS_FROM = 30
"""The level of Kafka 4.3, the first release with KAFKA-20734. No later release is known to be without it."""


class CheckResult(Enum):
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


_Case = tuple[bool | None, str, CheckResult, str]
"""A condition, the finding, the result, and the advice."""


def _rule(about: str, what: str, *cases: _Case, otherwise: str = "") -> CheckLine:
    """Return the first case that holds, else ``otherwise`` with result ok."""
    return next((CheckLine(about, what, *case[1:]) for case in cases if case[0]), CheckLine(about, what, otherwise))


_cluster_rule = partial(_rule, "")


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
    if missing_apis(versions, [MetadataRequest]):
        return [_offers("connection", admin.client.config.bootstrap_servers_text, versions)]
    admin.client.wait_for_metadata(deadline)
    found = [*_brokers(admin, deadline)]
    # The other checks send some of these requests.
    if missing_apis(versions, NEEDED):
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
    levels: list[int] = []
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
        levels.append(level)
        shown = f"{address}, Kafka {release or f'of an unknown release (metadata.version {level})'}"
        yield _offers(what, shown, BrokerVersions.from_response(response))
    omits = "Kafka 4.3 and newer can omit a transaction marker if a partition has no leader"
    mended = f"{omits}; the write then aborts what hangs, and copies its rows"
    affected = (max(levels, default=0) >= _OMITS_MARKERS_FROM, "Kafka 4.3 or newer", _WARN, mended)
    # A broker without KRaft reports no level.
    unsure = (0 in levels or not levels, "release not known", _UNKNOWN, omits)
    yield _cluster_rule("KAFKA-20734", affected, unsure, otherwise="not in this release")


def _offers(what: str, found: str, versions: BrokerVersions) -> CheckLine:
    needed, optional = missing_apis(versions, NEEDED), missing_apis(versions, OPTIONAL)
    return _cluster_rule(
        what,
        (bool(needed), found, _FAILS, f"does not offer {needed}. {OTHER_SERVICES}"),
        (bool(optional), found, _WARN, f"does not offer {optional}"),
        otherwise=found,
    )


def _transactions(admin: Admin, deadline: int) -> Iterator[CheckLine]:
    version = admin.transaction_version(deadline)
    upgrade = (
        "works; 2 also rejects delayed requests of earlier transactions (KIP-890): kafka-features.sh upgrade --feature "
        "transaction.version=2"
    )
    yield _cluster_rule("transaction.version", (version < 2, str(version), _OK, upgrade), otherwise=str(version))
    settings = broker_settings(admin, deadline)
    verifies = None if version >= 2 else verifies_appends(admin, settings, deadline)
    unread = "grant DescribeConfigs on the cluster to check it"
    yield _cluster_rule(
        "verified appends",
        (version >= 2, "part of transaction.version 2", _OK, ""),
        (verifies is None, "not shown", _UNKNOWN, f"{unread}; without it, {UNVERIFIED}"),
        (not verifies, no_sign_of_verification(settings), _FAILS, f"{UNVERIFIED}; {way_to_verify(admin, settings)}"),
        otherwise="yes",
    )
    value = number(settings, MAX_TIMEOUT)
    limit = value or 0
    smaller = f"the sink tries 900000 and then smaller values; {unread}"
    short = f"raise it: the driver's own transaction needs {DRIVER_TRANSACTION_TIMEOUT_MS}"
    brief = "a batch must be decided within this time"
    never = "kafka.transaction.timeout.ms=2147483647 is possible: then no transaction times out"
    yield _cluster_rule(
        MAX_TIMEOUT,
        (value is None, "not shown", _UNKNOWN, smaller),
        (limit < DRIVER_TRANSACTION_TIMEOUT_MS, str(limit), _FAILS, short),
        (limit < DEFAULT_TRANSACTION_TIMEOUT_MS, str(limit), _WARN, brief),
        (limit == NEVER_TIMES_OUT_MS, str(limit), _OK, never),
        otherwise=str(limit),
    )
    for name, problem in (
        (EXPIRATION, short_expiration(settings, DEFAULT_TRANSACTION_TIMEOUT_MS)),
        (REQUEST_BYTES, small_requests(settings, ProducerConfig().max_request_size)),
    ):
        shown = settings.get(name)
        hidden = (shown is None, "not shown", _UNKNOWN, unread)
        yield _cluster_rule(name, hidden, (bool(problem), str(shown), _WARN, problem), otherwise=str(shown))


def _coordinator(admin: Admin, topic: CoordinatorTopic, deadline: int) -> CheckLine:
    state = coordinator_state(admin, topic, deadline)
    problem = f"{'' if state.is_sure else 'perhaps '}{state.problem}" if state.problem else ""
    meaning = "; ".join(filter(None, (problem, state.way_out)))
    if topic is GROUPS:
        meaning = f"only source.offsets.group needs it; {meaning}"
    unread = (not state.is_sure, state.found, _UNKNOWN, meaning)
    worst = _WARN if topic is GROUPS else _FAILS
    return _cluster_rule(
        topic.name,
        unread,
        (bool(state.problem), state.found, worst, meaning),
        (True, state.found, _OK, state.way_out),
    )


def _history(admin: Admin, name: str, deadline: int) -> CheckLine:
    about, without = f"history {name}".rstrip(), f"without it, {WITHOUT_HISTORY}"
    if not name:
        return CheckLine(about, "topic", "switched off", _WARN, without)
    described = _described(admin, name, deadline)
    operations, error = described.topic_authorized_operations, described.error_code
    if error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return CheckLine(about, "topic", "does not exist yet", meaning="the first write creates it")
    if error:
        found = ErrorCode.of(error).name
        return CheckLine(about, "topic", found, _WARN, f"grant Read, Write and Create on it; {without}")
    can_read = AclOperation.READ.is_in(operations)
    return _rights_on(about, operations, _WARN, "" if can_read else f"; {without}")


def _topic(admin: Admin, about: str, name: str, deadline: int, is_commit_log: bool = False) -> Iterator[CheckLine]:
    response = _described(admin, name, deadline)
    error = response.error_code
    if error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and is_commit_log:
        yield _created_log(admin, about, name, deadline)
        return
    if error:
        found, meaning = ErrorCode.of(error).name, ""
        if error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            found, meaning = "does not exist", "create it, or grant Describe on it"
        elif error == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            found, meaning = "missing Describe permission", "grant Describe, Write and Read on it"
        yield CheckLine(about, "topic", found, _FAILS, meaning)
        return
    topic = topic_metadata(response)
    yield from _partitions(about, topic, is_commit_log)
    yield from _configs(admin, about, topic, visible_configs(admin, name, None, deadline), is_commit_log)
    yield _rights_on(about, response.topic_authorized_operations, _FAILS)


def _described(admin: Admin, name: str, deadline: int) -> MetadataResponse.Topic:
    client = admin.client
    # Without automatic creation: the command must change nothing.
    request = MetadataRequest(
        topics=(MetadataRequest.Topic(name=name),),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
    )
    described = client.call(client.any_node(deadline), request, deadline_ms=deadline).topics
    response = next((each for each in described if each.name == name), None)
    if response is None:
        raise ProtocolError(f"Metadata of topic {name!r} got a response that does not fit the request")
    return response


def _created_log(admin: Admin, about: str, name: str, deadline: int) -> CheckLine:
    """Validate on the cluster how the first write would create the commit log."""
    brokers = broker_count(admin, deadline)
    try:
        made = create_commit_log(admin, name, brokers, deadline, validate_only=True)
    except ConfigurationError as rejected:
        return CheckLine(about, "topic", "does not exist", _FAILS, str(rejected))
    replicas, configs = (-1, {}) if made is None else (made.replication_factor, created_configs(made))
    size = f"{LOG_PARTITIONS} partitions" + (f", replication factor {replicas}" if replicas > 0 else "")
    created = f"does not exist yet, the first write creates it with {size}"
    weak = weaknesses(replicas, brokers, configs)
    meaning = f"{weak}: the loss of a broker can lose decisions; create it yourself"
    return _rule(about, "topic", (bool(weak), created, _WARN, meaning), otherwise=created)


def _partitions(about: str, topic: TopicMetadata, is_commit_log: bool) -> Iterator[CheckLine]:
    if topic.is_internal:
        yield CheckLine(about, "topic", "internal to Kafka", _FAILS, "choose another topic")
    count = len(topic.partitions)
    leaderless = [partition.partition_index for partition in topic.partitions if partition.leader_id < 0]
    down = (bool(leaderless), f"{leaderless} have no leader", _FAILS, "restart their brokers")
    # A write id hashes to one of LOG_PARTITIONS partitions, whatever number the topic has.
    too_few = (is_commit_log and count < LOG_PARTITIONS, str(count), _FAILS, f"the commit log needs {LOG_PARTITIONS}")
    yield _rule(about, "partitions", down, too_few, otherwise=f"{count}, all with a leader")
    factor = _replication_factor(topic)
    meaning = "the loss of one broker can lose committed rows: use 3 in production"
    yield _rule(about, "replication factor", (factor < 3, str(factor), _WARN, meaning), otherwise=str(factor))


def _replication_factor(topic: TopicMetadata) -> int:
    return min((len(partition.replica_nodes) for partition in topic.partitions), default=0)


def _configs(
    admin: Admin, about: str, topic: TopicMetadata, configs: Mapping[str, str], is_commit_log: bool
) -> Iterator[CheckLine]:
    if not configs:
        grant = "grant DescribeConfigs on the topic to check them"
        yield CheckLine(about, "settings", "missing DescribeConfigs permission", _UNKNOWN, grant)
        return
    shown = number(configs, "min.insync.replicas")
    insync, factor = 1 if shown is None else shown, _replication_factor(topic)
    least = required_in_sync(admin, insync, factor)
    below = [partition.partition_index for partition in topic.partitions if len(partition.isr_nodes) < least]
    rejected = "they reject acks=all writes until a replica is back in sync"
    single = "an acknowledged row may be on one broker only: use 2 in production"
    yield _rule(
        about,
        "min.insync.replicas",
        (factor < least, str(insync), _FAILS, f"more than the {factor} replicas: no write can succeed"),
        (bool(below), f"{insync}; partitions {below} have fewer in sync", _FAILS, rejected),
        (insync < 2, str(insync), _WARN, single),
        otherwise=str(insync),
    )
    name = "unclean.leader.election.enable"
    unclean = peer_text(configs.get(name, "false"))
    meaning = "set it to false: an unclean election can lose markers and decisions"
    yield _rule(about, name, (unclean == "true", unclean, _WARN, meaning), otherwise=unclean)
    if is_commit_log:
        policy = peer_text(configs.get("cleanup.policy", ""))
        meaning = "set it to compact: any other policy can lose decisions, and the sink rejects it"
        yield _rule(about, "cleanup.policy", (policy != "compact", policy, _FAILS, meaning), otherwise=policy)
        room, small = number(configs, MAX_BYTES), small_decisions(configs)
        too_small = bool(small) and (room or 0) < FEW_TASKS_BYTES
        yield _rule(
            about,
            MAX_BYTES,
            (too_small, str(room), _FAILS, f"{small}; raise it"),
            (bool(small), str(room), _WARN, f"{small}; raise it"),
            otherwise="not shown" if room is None else str(room),
        )


def _rights_on(about: str, operations: int, lacking: CheckResult, cost: str = "") -> CheckLine:
    needed = (AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE)
    missing = " and ".join(each.name.title() for each in needed if not each.is_in(operations))
    return _rule(
        about,
        "rights",
        (operations == UNKNOWN_AUTHORIZED_OPERATIONS, "not reported by the broker", _UNKNOWN, ""),
        (bool(missing), f"{missing} missing", lacking, f"grant {missing} on the topic{cost}"),
        otherwise="Read, Write and Describe",
    )


def _ids(admin: Admin, deadline: int, coordinator: CheckLine) -> CheckLine:
    # Only Describe can be checked: Write on a transactional id shows only when a write uses it.
    what = f"transactional ids {DEFAULT_PREFIX}..."
    if coordinator.result is _FAILS:
        return CheckLine("", what, "not checked", _UNKNOWN, f"no coordinator without {coordinator.what}")
    try:
        admin.describe_transactions((_CHECK_ID,), min(deadline, admin.client.clock() + _BROKER_TIMEOUT_MS))
    except AuthorizationError:
        meaning = "grant Describe and Write on the ids that begin with your transactional.id.prefix"
        return CheckLine("", what, "missing Describe permission", _WARN, meaning)
    except BrokerUnavailableError as failure:
        return CheckLine("", what, "their coordinator does not respond", _FAILS, str(failure))
    return CheckLine("", what, "may be described", meaning="Write on them shows only when a write uses them")
