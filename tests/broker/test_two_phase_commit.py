"""Transactions that Kafka never times out (KIP-939), on a broker with the flags, without them, and without the right."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import confluent_kafka.admin as confluent
import pytest

from dead_writes import ROWS, abort_by_hand, decided, die_at, prepared_by, tasks, varied, write_all, write_settings
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.client.admin import Admin, connected
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.client.security import Secret
from kafka_eos_sink.commit.deadlines import NEVER_TIMES_OUT_MS
from kafka_eos_sink.commit.driver import DRIVER_TRANSACTION_TIMEOUT_MS
from kafka_eos_sink.embedded.broker_security import BrokerSecurity
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.operations.cluster_check import CheckLine, CheckResult, check_cluster
from kafka_eos_sink.operations.operator import OperatorSettings, recover
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.protocol.messages import TransactionState
from kafka_eos_sink.runtime import session
from kafka_eos_sink.settings.kafka_properties import read_kafka_properties
from kafka_testing import (
    assert_nothing_open,
    create_topic,
    read_committed,
    read_uncommitted,
    unique_topic,
    wait_until,
)
from tests.broker.test_missing_rights import allow, revoke

UNSTABLE = {"unstable.api.versions.enable": "true"}
FLAGS = {**UNSTABLE, "transaction.two.phase.commit.enable": "true"}
TIMEOUT_MS = 3_000
PASSWORD = "correct-horse"
PATIENCE_MS = 30_000


@pytest.fixture(scope="module", params=[2, 1, 0], ids=lambda version: f"transaction.version={version}")
def two_phase(request: pytest.FixtureRequest) -> Iterator[EmbeddedKafka]:
    sooner = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
    properties = {**FLAGS, **sooner}
    with EmbeddedKafka(version="4.4.0", properties=properties, transaction_version=request.param) as started:
        yield started


def two_phase_settings(kafka: EmbeddedKafka, topic: str, timeout_ms: int | None = TIMEOUT_MS) -> session.WriteSettings:
    producer = ProducerConfig(two_phase_commit=True, transaction_timeout_ms=timeout_ms)
    return varied(write_settings(kafka, topic), producer=producer)


def states(given: session.WriteSettings, ids: Sequence[str]) -> list[TransactionState]:
    with NetworkClient(given.client) as client:
        found = Admin(client).describe_transactions(ids, client.clock() + PATIENCE_MS)
    return [state for each in ids if (state := found[each]) is not None]


def ids_of(messages: Sequence[session.TaskMessage]) -> list[str]:
    return [entry.identity.transactional_id for entry in prepared_by(messages)]


def open_with_timeouts(given: session.WriteSettings, ids: Sequence[str]) -> list[int]:
    found = states(given, ids)
    assert [state.transaction_state for state in found] == ["Ongoing"] * len(ids)
    return [state.transaction_timeout_ms for state in found]


def outlast_a_timeout(given: session.WriteSettings) -> None:
    """Wait until Kafka has aborted a transaction that began now, with the write's timeout and without two-phase commit."""
    name, topic = unique_topic("ordinary"), create_topic(given.client.bootstrap_servers_text)
    one_phase = varied(given, producer=replace(given.producer, two_phase_commit=False))
    with NetworkClient(given.client) as client:
        admin = Admin(client)
        plan = session.plan(varied(one_phase, topic=topic, write_id=name))
        (identity,) = ids_of(tasks(varied(one_phase, topic=topic, write_id=name), plan, 1))

        def is_aborted() -> bool:
            state = admin.describe_transactions([identity], client.clock() + PATIENCE_MS)[identity]
            assert state is not None
            return state.transaction_state == "CompleteAbort"

        wait_until(is_aborted, "the timeout of an ordinary transaction")


def assert_every_row_once(kafka: EmbeddedKafka, topic: str) -> None:
    values = Counter(int(each.value or b"") for each in read_committed(kafka.plaintext_servers, topic))
    assert values == Counter(range(2 * ROWS))
    assert_nothing_open(kafka.plaintext_servers)


@pytest.mark.feature("two-phase commit")
@pytest.mark.parametrize("finisher", ["next run", "recover"])
def test_decided_batch_outlives_its_timeout_and_needs_no_copy(
    two_phase: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], finisher: str
) -> None:
    topic = create_topic(two_phase.bootstrap_servers, partitions=2)
    given = two_phase_settings(two_phase, topic)
    ids = ids_of(decided(given, "commit.decided", monkeypatch, 2))
    assert open_with_timeouts(given, ids) == [NEVER_TIMES_OUT_MS] * 2
    outlast_a_timeout(given)
    (node,) = two_phase.node_ids
    two_phase.kill(node)
    two_phase.start_node(node)
    outlast_a_timeout(given)
    assert open_with_timeouts(given, ids) == [NEVER_TIMES_OUT_MS] * 2
    assert main(("status", "--bootstrap-servers", two_phase.bootstrap_servers, "--write-id", given.write.id)) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if ", epoch " in line]
    assert [(line.split()[0], " never " in line) for line in lines] == [(each, True) for each in ids]

    if finisher == "next run":
        write_all(given)
    else:
        recovered = recover(
            OperatorSettings(write_id=given.write.id, commit_log_topic=given.write.log_topic, client=given.client)
        )
        assert recovered.all_ended
    assert_every_row_once(two_phase, topic)
    assert len(read_uncommitted(two_phase.bootstrap_servers, topic)) == 2 * ROWS, "rows were copied or written again"


@pytest.mark.feature("two-phase commit")
def test_undecided_batch_blocks_readers_until_the_next_run(two_phase: EmbeddedKafka) -> None:
    topic = create_topic(two_phase.bootstrap_servers, partitions=2)
    given = two_phase_settings(two_phase, topic)
    ids = ids_of(tasks(given, session.plan(given)))
    outlast_a_timeout(given)
    assert open_with_timeouts(given, ids) == [NEVER_TIMES_OUT_MS] * 2
    write_all(given)
    assert_every_row_once(two_phase, topic)


def test_the_driver_and_its_decision_keep_their_timeout(
    two_phase: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = create_topic(two_phase.bootstrap_servers)
    given = two_phase_settings(two_phase, topic)
    plan = session.plan(given)
    die_at("commit.decision_written", given, plan, tasks(given, plan), monkeypatch)
    assert open_with_timeouts(given, [given.write.driver_id]) == [DRIVER_TRANSACTION_TIMEOUT_MS]
    write_all(given)
    assert_every_row_once(two_phase, topic)


def test_copies_of_lost_transactions_never_time_out(two_phase: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = create_topic(two_phase.bootstrap_servers)
    given = two_phase_settings(two_phase, topic)
    messages = decided(given, "commit.decided", monkeypatch, 2)
    abort_by_hand(given, messages)
    write_all(given)
    assert_every_row_once(two_phase, topic)
    found = {state.transactional_id: state for state in states(given, given.write.task_ids([0, 1]))}
    copies = found.keys() - set(ids_of(messages))
    assert len(copies) == 2
    assert {found[each].transaction_timeout_ms for each in copies} == {NEVER_TIMES_OUT_MS}


def two_phase_line(admin: Admin) -> CheckLine:
    """What `kafka-eos check` shows, after which no coordinator knows the id that it asked about."""
    findings = check_cluster(admin, topic=None, commit_log_topic=unique_topic("log"), timeout_ms=PATIENCE_MS)
    (found,) = (each for each in findings if each.what == "two-phase commit (KIP-939)")
    listed = admin.list_transactions(states=(), deadline_ms=admin.client.clock() + PATIENCE_MS)
    assert not [each for each in listed if "check" in each.transactional_id]
    return found


@pytest.mark.feature("two-phase commit")
def test_check_shows_that_the_cluster_offers_it(two_phase: EmbeddedKafka) -> None:
    with connected(two_phase.bootstrap_servers) as admin:
        found = two_phase_line(admin)
    assert (found.found, found.result) == ("offered", CheckResult.WORKS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Without:
    """A broker that does not offer two-phase commit: its release and flags, what `check` shows, and the way out."""

    version: str
    properties: Mapping[str, str]
    found: str
    way_out: str

    def __str__(self) -> str:
        return f"{self.version}, {self.found}"


@pytest.mark.feature("two-phase commit")
@pytest.mark.parametrize(
    "broker",
    [
        Without(version="3.9.2", properties=UNSTABLE, found="not in this release", way_out="Kafka 4.2 or newer"),
        Without(version="4.4.0", properties={}, found="not offered", way_out="unstable.api.versions.enable=true"),
        Without(
            version="4.4.0", properties=UNSTABLE, found="switched off", way_out="commit.enable=true on the brokers"
        ),
    ],
    ids=str,
)
def test_broker_without_it_gets_one_warning_and_a_timeout(broker: Without, caplog: pytest.LogCaptureFixture) -> None:
    with EmbeddedKafka(version=broker.version, properties=broker.properties) as kafka:
        topic = create_topic(kafka.bootstrap_servers)
        given = two_phase_settings(kafka, topic, None)
        with caplog.at_level(logging.WARNING):
            assert open_with_timeouts(given, ids_of(tasks(given, session.plan(given)))) == [900_000] * 2
            write_all(given)
        assert_warned_once(caplog, f"two-phase commit (KIP-939) is {broker.found}")
        assert "time out after 900000 ms" in caplog.text
        assert broker.way_out in caplog.text
        assert_every_row_once(kafka, topic)
        with connected(kafka.bootstrap_servers) as admin:
            shown = two_phase_line(admin)
        assert (shown.found, shown.result) == (broker.found, CheckResult.WORKS)
        assert broker.way_out in shown.meaning


def assert_warned_once(caplog: pytest.LogCaptureFixture, text: str) -> None:
    warnings = [record.getMessage() for record in caplog.records if "KIP-939" in record.getMessage()]
    assert len(warnings) == 1, warnings
    assert text in warnings[0]


PERMITTED, WRITES_ONLY, REVOKED = "permitted", "writes-only", "revoked"


@pytest.fixture(scope="module", params=[FLAGS, UNSTABLE], ids=["switched on", "switched off"])
def guarded(request: pytest.FixtureRequest) -> Iterator[EmbeddedKafka]:
    """Users who may do everything with topics. They may not read the brokers' settings."""
    users = (PERMITTED, WRITES_ONLY, REVOKED)
    security = BrokerSecurity(
        protocol="SASL_PLAINTEXT", users=tuple((user, Secret(PASSWORD)) for user in users), mechanisms=("PLAIN",)
    )
    authorizer = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with EmbeddedKafka(version="4.4.0", security=security, properties={**request.param, **authorizer}) as kafka:
        allow(kafka, [acl(user, confluent.ResourceType.TOPIC, "*", "ALL") for user in users])
        allow(kafka, [acl(user, confluent.ResourceType.TRANSACTIONAL_ID, "*", "WRITE") for user in users])
        # librdkafka has no name for TwoPhaseCommit.
        for user in (PERMITTED, REVOKED):
            allow(kafka, [acl(user, confluent.ResourceType.TRANSACTIONAL_ID, "*", "ALL")])
        yield kafka


def acl(user: str, kind: confluent.ResourceType, name: str, operation: str) -> confluent.AclBinding:
    literal, allowed = confluent.ResourcePatternType.LITERAL, confluent.AclPermissionType.ALLOW
    return confluent.AclBinding(kind, name, literal, f"User:{user}", "*", confluent.AclOperation[operation], allowed)


def settings_of(guarded: EmbeddedKafka, user: str) -> session.WriteSettings:
    problems: list[str] = []
    properties = {
        "client.id": "test",
        "bootstrap.servers": guarded.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": PASSWORD,
    }
    found = read_kafka_properties(properties, problems)
    assert found is not None
    assert problems == []
    return varied(two_phase_settings(guarded, create_topic(guarded.plaintext_servers), None), client=found.client)


@pytest.mark.feature("two-phase commit")
def test_principal_without_right_gets_a_warning_and_a_timeout(
    guarded: EmbeddedKafka, caplog: pytest.LogCaptureFixture
) -> None:
    given = settings_of(guarded, WRITES_ONLY)
    with caplog.at_level(logging.WARNING):
        write_all(given)
    assert_warned_once(caplog, "two-phase commit (KIP-939) is not permitted")
    assert "grant TwoPhaseCommit on the transactional ids" in caplog.text
    assert {state.transaction_timeout_ms for state in states(given, given.write.task_ids([0, 1]))} == {900_000}
    assert_every_row_once(guarded, given.batch.topic or "")
    with NetworkClient(given.client) as client:
        assert two_phase_line(Admin(client)).found == "not permitted"


def test_without_the_right_to_settings_tasks_see_what_is_offered(
    guarded: EmbeddedKafka, caplog: pytest.LogCaptureFixture
) -> None:
    """The plan finds the version and the right. Whether the brokers have it switched on, only their coordinators show."""
    is_on = FLAGS.items() <= (guarded.properties or {}).items()
    given = settings_of(guarded, PERMITTED)
    with caplog.at_level(logging.WARNING):
        messages = tasks(given, session.plan(given))
    assert open_with_timeouts(given, ids_of(messages)) == [NEVER_TIMES_OUT_MS if is_on else 900_000] * 2
    if not is_on:
        assert_warned_once(caplog, "a coordinator rejects two-phase commit (KIP-939)")
    write_all(given)
    assert_every_row_once(guarded, given.batch.topic or "")
    with NetworkClient(given.client) as client:
        shown = two_phase_line(Admin(client))
    assert (shown.found, shown.result) == ("offered, perhaps switched off", CheckResult.UNKNOWN)


def test_right_revoked_after_the_plan_gives_a_timeout(guarded: EmbeddedKafka) -> None:
    given = settings_of(guarded, REVOKED)
    plan = session.plan(given)
    revoke(guarded, [acl(REVOKED, confluent.ResourceType.TRANSACTIONAL_ID, "*", "ALL")])
    messages = tasks(given, plan)
    assert open_with_timeouts(given, ids_of(messages)) == [900_000] * 2
    session.commit(given, plan, messages)
    assert_every_row_once(guarded, given.batch.topic or "")
