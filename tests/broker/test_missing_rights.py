"""A broker with ACLs (KRaft's StandardAuthorizer): rights that are taken away, prefixed and denied ones, and `check`.

`test_acl_scripts.py` takes each right of a writer alone. Each case has a user of its own.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import confluent_kafka.admin as confluent
import pyarrow as pa
import pytest

from dead_writes import ROWS, abort_by_hand, die_at, rows_of, tasks, varied, write_all, write_settings
from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.config import ClientConfig
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.client.security import Secret
from kafka_eos_sink.commit.decide import GroupOffsets
from kafka_eos_sink.commit.resolve import resolve
from kafka_eos_sink.commit.values import ResolveRequest
from kafka_eos_sink.embedded.broker_security import BrokerSecurity
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.errors import AuthorizationError, DecisionPendingError
from kafka_eos_sink.operations.cluster_check import CheckResult, check_cluster
from kafka_eos_sink.operations.operator import OperatorSettings, perform
from kafka_eos_sink.producer.rows import Rows
from kafka_eos_sink.runtime import at_least_once, session
from kafka_eos_sink.settings.kafka_properties import read_kafka_properties
from kafka_testing import assert_nothing_open, read_committed, read_uncommitted, wait_until

PASSWORD = "correct-horse"
PATIENCE_S = 30.0
LITERAL, PREFIXED = confluent.ResourcePatternType.LITERAL, confluent.ResourcePatternType.PREFIXED


@dataclass(frozen=True, slots=True)
class Right:
    """An operation on one of the things that a write needs: transactional-id, topic, letters, commit-log, group or cluster."""

    thing: str
    operation: str


NEEDED = (
    Right("transactional-id", "WRITE"),  # and Describe with it, as everywhere
    Right("topic", "WRITE"),
    Right("topic", "READ"),
    Right("commit-log", "WRITE"),
    Right("commit-log", "READ"),
)
FOR_SETTINGS = (
    Right("commit-log", "DESCRIBE_CONFIGS"),
    Right("cluster", "DESCRIBE_CONFIGS"),
)
FOR_OFFSETS = (Right("group", "READ"), Right("source", "READ"))
EVERYTHING = NEEDED + FOR_SETTINGS + FOR_OFFSETS
LETTERS = (Right("letters", "WRITE"), Right("letters", "READ"))


def without(thing: str, *operations: str) -> tuple[Right, ...]:
    return tuple(right for right in EVERYTHING if right.thing != thing or right.operation not in operations)


PREFIX = (Right("prefix", "READ"), Right("prefix", "WRITE"))
NOTHING = "nothing-at-all"
READ_REVOKED = "read-revoked"
USERS: dict[str, tuple[Right, ...]] = {
    "topic-read": without("topic", "WRITE"),
    "no-topic-read": without("topic", "READ"),
    "commit-log-write": without("commit-log", "READ"),
    "everything": EVERYTHING,
    READ_REVOKED: EVERYTHING,
    "revoked": EVERYTHING,
    "column": without("topic", "READ"),
    "letters": (*EVERYTHING, *LETTERS),
    **{f"prefix-{verb}": (*without("topic", "READ", "WRITE"), *PREFIX) for verb in ("allows", "denies")},
    "topic-write": (Right("topic", "WRITE"), Right("letters", "WRITE")),
    NOTHING: (),
}


def bindings(
    user: str, rights: Sequence[Right], permission: confluent.AclPermissionType = confluent.AclPermissionType.ALLOW
) -> Iterator[confluent.AclBinding]:
    kinds = {
        "transactional-id": (confluent.ResourceType.TRANSACTIONAL_ID, "kafka-eos", PREFIXED),
        "topic": (confluent.ResourceType.TOPIC, f"data-{user}", LITERAL),
        "prefix": (confluent.ResourceType.TOPIC, "data-prefix", PREFIXED),
        "letters": (confluent.ResourceType.TOPIC, f"letters-{user}", LITERAL),
        "commit-log": (confluent.ResourceType.TOPIC, f"log-{user}", LITERAL),
        "source": (confluent.ResourceType.TOPIC, "source", LITERAL),
        "group": (confluent.ResourceType.GROUP, "group", LITERAL),
        "cluster": (confluent.ResourceType.BROKER, "kafka-cluster", LITERAL),
    }
    for right in rights:
        operation = confluent.AclOperation[right.operation]
        yield confluent.AclBinding(*kinds[right.thing], f"User:{user}", "*", operation, permission)


def allow(guarded: EmbeddedKafka, given: Sequence[confluent.AclBinding]) -> None:
    admin = confluent.AdminClient({"bootstrap.servers": guarded.plaintext_servers})
    for future in admin.create_acls(list(given)).values():
        future.result(PATIENCE_S)
    await_acls(admin, given, there=True)


def revoke(guarded: EmbeddedKafka, given: Sequence[confluent.AclBinding]) -> None:
    admin = confluent.AdminClient({"bootstrap.servers": guarded.plaintext_servers})
    for future in admin.delete_acls([filter_of(each) for each in given]).values():
        assert len(future.result(PATIENCE_S)) == 1
    await_acls(admin, given, there=False)


def await_acls(admin: confluent.AdminClient, given: Sequence[confluent.AclBinding], *, there: bool) -> None:
    any_operation, any_permission = confluent.AclOperation.ANY, confluent.AclPermissionType.ANY
    any_name = (confluent.ResourceType.ANY, None, confluent.ResourcePatternType.ANY, None, None)
    everything = confluent.AclBindingFilter(*any_name, any_operation, any_permission)

    def known() -> bool:
        found = set(admin.describe_acls(everything).result(PATIENCE_S))
        return found.issuperset(given) if there else found.isdisjoint(given)

    wait_until(known, "the ACLs")


def filter_of(each: confluent.AclBinding) -> confluent.AclBindingFilter:
    return confluent.AclBindingFilter(
        each.restype,
        each.name,
        each.resource_pattern_type,
        each.principal,
        each.host,
        each.operation,
        each.permission_type,
    )


@pytest.fixture(scope="module")
def guarded() -> Iterator[EmbeddedKafka]:
    """Whoever comes through the plaintext listener may do everything: the node itself, and the readers of these tests."""
    security = BrokerSecurity(
        protocol="SASL_PLAINTEXT", users=tuple((user, Secret(PASSWORD)) for user in USERS), mechanisms=("PLAIN",)
    )
    properties = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with EmbeddedKafka(security=security, properties=properties, transaction_version=2) as cluster:
        admin = confluent.AdminClient({"bootstrap.servers": cluster.plaintext_servers})
        topics = [
            confluent.NewTopic("source", 1),
            *(confluent.NewTopic(f"data-{user}", 2) for user in USERS),
            *(confluent.NewTopic(f"letters-{user}", 1) for user in ("letters", "topic-write")),
            *(confluent.NewTopic(f"log-{user}", 16, config={"cleanup.policy": "compact"}) for user in USERS),
        ]
        for future in admin.create_topics(topics, operation_timeout=30).values():
            future.result(PATIENCE_S)
        allow(cluster, [binding for user, rights in USERS.items() for binding in bindings(user, rights)])
        yield cluster


def properties_of(guarded: EmbeddedKafka, user: str, client_id: str = "test") -> dict[str, str]:
    return {
        "client.id": client_id,
        "bootstrap.servers": guarded.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": PASSWORD,
    }


def client_of(guarded: EmbeddedKafka, user: str, client_id: str = "test") -> ClientConfig:
    problems: list[str] = []
    found = read_kafka_properties(properties_of(guarded, user, client_id), problems)
    assert found is not None
    assert problems == []
    return found.client


def settings_of(guarded: EmbeddedKafka, user: str) -> session.WriteSettings:
    given = write_settings(guarded, f"data-{user}")
    offsets = GroupOffsets(group_id="group", offsets=(("source", 0, 7),))
    return varied(
        given,
        client=client_of(guarded, user),
        commit_log_topic=f"log-{user}",
        group_offsets=offsets,
        producer=replace(given.producer, delivery_timeout_ms=15_000, max_block_ms=15_000),
    )


def assert_every_row_once(guarded: EmbeddedKafka, user: str) -> None:
    records = read_committed(guarded.plaintext_servers, f"data-{user}")
    assert Counter(int(record.value or b"") for record in records) == Counter(range(2 * ROWS))
    assert_nothing_open(guarded.plaintext_servers)


def test_with_all_rights_a_write_that_dies_is_recovered(
    guarded: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    given = settings_of(guarded, "everything")
    plan = session.plan(given)
    die_at("commit.between_ends", given, plan, tasks(given, plan), monkeypatch)
    with caplog.at_level(logging.WARNING):
        write_all(given)
    assert "right" not in caplog.text
    assert_every_row_once(guarded, "everything")


def test_read_by_a_prefixed_acl_is_enough_unless_it_is_denied(guarded: EmbeddedKafka) -> None:
    write_all(settings_of(guarded, "prefix-allows"))
    assert_every_row_once(guarded, "prefix-allows")
    denied = bindings("prefix-denies", [Right("topic", "READ")], confluent.AclPermissionType.DENY)
    allow(guarded, list(denied))
    with pytest.raises(AuthorizationError, match=r"TOPIC_AUTHORIZATION_FAILED\] .*may not Read data-prefix-denies\. "):
        session.plan(settings_of(guarded, "prefix-denies"))


def tasks_with_topics(
    given: session.WriteSettings, plan: session.Plan, topic: str, without_topic: int
) -> list[session.TaskMessage]:
    """Two tasks as `tasks`, whose rows name their topic; the first ones name none, and become dead letters."""
    messages = []
    for task in range(2):
        rows = rows_of("", task)
        names = [None if task == 0 and row < without_topic else topic for row in range(ROWS)]
        rows = Rows(topic=pa.array(names, pa.string()), partition=None, columns=rows.columns)
        identity = session.TaskIdentity(partition=task, attempt_number=0, task_attempt_id=task)
        messages.append(session.write_task(given, plan, identity, iter([rows])))
    return messages


@pytest.mark.parametrize(("user", "thing"), [("revoked", "topic"), ("column", "topic"), ("letters", "letters")])
def test_batch_with_a_topic_without_read_is_not_decided(guarded: EmbeddedKafka, user: str, thing: str) -> None:
    """Read is taken away from the option's topic or the dead letter topic after the plan, or was never there for the column's topic."""
    read = list(bindings(user, [Right(thing, "READ")]))
    topics = [f"data-{user}", *([f"letters-{user}"] if user == "letters" else [])]
    given = settings_of(guarded, user)
    if user != "revoked":
        given = varied(given, topic=None)
    if user == "letters":
        given = replace(given, producer=replace(given.producer, dead_letter_topic=f"letters-{user}"))
    bad = 3 if user == "letters" else 0
    plan = session.plan(given)
    messages = tasks_with_topics(given, plan, f"data-{user}", bad)
    if user != "column":
        revoke(guarded, read)
    with pytest.raises(AuthorizationError, match=rf"TOPIC_AUTHORIZATION_FAILED\] .*may not Read {topics[-1]}\. "):
        session.commit(given, plan, messages)
    session.abort(given, plan, messages)
    for topic in topics:
        assert len(read_uncommitted(guarded.plaintext_servers, topic)) > 0
        assert read_committed(guarded.plaintext_servers, topic) == []
    assert_nothing_open(guarded.plaintext_servers)

    allow(guarded, read)
    plan = session.plan(given)
    session.commit(given, plan, tasks_with_topics(given, plan, f"data-{user}", bad))
    found = [record for topic in topics for record in read_committed(guarded.plaintext_servers, topic)]
    assert Counter(int(record.value or b"") for record in found) == Counter(range(2 * ROWS))
    assert_nothing_open(guarded.plaintext_servers)


def test_unreadable_lost_rows_are_copied_after_read_is_granted(
    guarded: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read is taken away after the decision. No operator without it gives the rows up, although none may be visible."""
    user = READ_REVOKED
    topic = f"data-{user}"
    read = list(bindings(user, [Right("topic", "READ")]))
    given = settings_of(guarded, user)
    plan = session.plan(given)
    messages = tasks(given, plan)
    die_at("commit.between_ends", given, plan, messages, monkeypatch)
    abort_by_hand(given, messages[1:])
    revoke(guarded, read)
    with pytest.raises(AuthorizationError, match=f"may not Read {topic}"):
        session.plan(varied(given, client=client_of(guarded, user, "another process")))
    operator_without_read = OperatorSettings(
        write_id=given.write.id, commit_log_topic=given.write.log_topic, client=given.client
    )
    with pytest.raises(DecisionPendingError, match=rf"DECIDED_NOT_FINISHED\].*TOPIC_AUTHORIZATION_FAILED\].*{topic}"):
        perform(
            operator_without_read,
            lambda run: resolve(ResolveRequest(run=run, query_id=None, version=3, resolution="committed")),
        )
    assert len(read_committed(guarded.plaintext_servers, topic)) == ROWS
    assert_nothing_open(guarded.plaintext_servers)
    allow(guarded, read)
    session.plan(given)
    assert_every_row_once(guarded, user)


def test_without_transactions_write_on_the_topic_is_enough(guarded: EmbeddedKafka) -> None:
    def write_as(user: str, letters: str | None = None) -> None:
        topic, given = f"data-{user}", settings_of(guarded, user)
        # With a dead letter topic, the option topic is looked for first.
        given = replace(given, producer=replace(given.producer, dead_letter_topic=letters))
        at_least_once.write_rows(given, iter([rows_of(topic, 0), rows_of(topic, 1)]))

    write_as("topic-write", letters="letters-topic-write")
    assert_every_row_once(guarded, "topic-write")
    with pytest.raises(AuthorizationError, match=r"CLUSTER_AUTHORIZATION_FAILED.*IdempotentWrite"):
        write_as(NOTHING)


def test_check_reports_missing_rights(guarded: EmbeddedKafka) -> None:
    def found(user: str) -> dict[tuple[str, str], tuple[str, CheckResult]]:
        with NetworkClient(client_of(guarded, user)) as client:
            findings = check_cluster(
                Admin(client), topic=f"data-{user}", commit_log_topic=f"log-{user}", timeout_ms=15_000
            )
        return {(each.about, each.what): (each.found, each.result) for each in findings}

    assert found("topic-read")["topic data-topic-read", "rights"] == ("Write missing", CheckResult.FAILS)
    assert found("no-topic-read")["topic data-no-topic-read", "rights"] == ("Read missing", CheckResult.FAILS)
    log = "commit log log-commit-log-write"
    assert found("commit-log-write")[log, "rights"] == ("Read missing", CheckResult.FAILS)
    assert CheckResult.FAILS not in {result for _, result in found("everything").values()}
