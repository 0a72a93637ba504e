"""conf/acls-*.sh on a broker with ACLs: Kafka's own tool runs their commands, and each right that they grant is needed."""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import confluent_kafka.admin as confluent
import pyarrow as pa
import pytest

from dead_writes import ROWS, varied, write_settings
from documents import ROOT, all_blocks
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.client.security import Secret
from kafka_eos_sink.commit.decide import GroupOffsets
from kafka_eos_sink.commit.transactional_id import batch_write_id
from kafka_eos_sink.commit.values import DEFAULT_TOPIC
from kafka_eos_sink.embedded import distribution
from kafka_eos_sink.embedded.broker_security import BrokerSecurity
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.embedded.java import find_java
from kafka_eos_sink.errors import KafkaEosError
from kafka_eos_sink.producer.rows import Rows
from kafka_eos_sink.protocol.record_columns import RecordColumns
from kafka_eos_sink.runtime import session
from kafka_eos_sink.runtime.batch_record import DEFAULT_HISTORY_TOPIC
from kafka_testing import assert_nothing_open, open_transaction, read_committed, wait_until
from tests.broker.test_cli_metrics import exporter, values
from tests.broker.test_missing_rights import allow, client_of

PASSWORD = "correct-horse"
PATIENCE_S = 30.0
TOPIC, LETTERS, SOURCE, GROUP = "orders", "orders-letters", "incoming", "orders-loader"
LOG, HISTORY = DEFAULT_TOPIC, DEFAULT_HISTORY_TOPIC
OPTIONAL = {"GROUP": GROUP, "SOURCE_TOPICS": SOURCE}
BLOCKING = "kafka-eos/blocking/orders.0.0"
LARGE = 2_000
QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
DENIED = "docs/access.md#rights-of-readers-and-operators:3"


class Right(NamedTuple):
    """An operation on a thing: the kind of resource, and its name."""

    kind: str
    name: str
    operation: str


WRITER: Mapping[Right, str] = {
    Right("TRANSACTIONAL_ID", "kafka-eos", "WRITE"): r"\[KAFKA_EOS\.TRANSACTIONAL_ID_AUTHORIZATION_FAILED\]",
    Right("TOPIC", TOPIC, "WRITE"): r"\[KAFKA_EOS\.TOPIC_AUTHORIZATION_FAILED\].*\borders\b.*Write",
    Right("TOPIC", TOPIC, "READ"): r"may not Read orders\.",
    Right("TOPIC", LOG, "WRITE"): rf"\[KAFKA_EOS\.TOPIC_AUTHORIZATION_FAILED\].*{LOG}.*Write",
    Right("TOPIC", LOG, "READ"): rf"\[KAFKA_EOS\.TOPIC_AUTHORIZATION_FAILED\].*{LOG}.*Read",
    Right("TOPIC", LOG, "CREATE"): r"\[KAFKA_EOS\.COMMIT_LOG_TOPIC\].*TOPIC_AUTHORIZATION_FAILED.*Create",
    Right("TOPIC", LOG, "DESCRIBE_CONFIGS"): r"cleanup\.policy of the commit log topic .* may not be read",
    Right("BROKER", "kafka-cluster", "DESCRIBE_CONFIGS"): r"transaction\.max\.timeout\.ms may not be read",
    Right("TOPIC", HISTORY, "WRITE"): rf"history topic '{HISTORY}' lacks records.*TOPIC_AUTHORIZATION_FAILED",
    Right("TOPIC", HISTORY, "CREATE"): r"history topic '.*' lacks records.*TOPIC_AUTHORIZATION_FAILED.*Create",
    Right(
        "TOPIC", HISTORY, "READ"
    ): rf"may not Read the history topic '{HISTORY}'.*7 days.*--operation Read --topic {HISTORY}",
    Right("TOPIC", LETTERS, "WRITE"): rf"\[KAFKA_EOS\.TOPIC_AUTHORIZATION_FAILED\].*{LETTERS}.*Write",
    Right("TOPIC", LETTERS, "READ"): rf"may not Read {LETTERS}\.",
    Right("TOPIC", LETTERS, "DESCRIBE_CONFIGS"): rf"settings of the dead letter topic '{LETTERS}' were not checked",
    Right("GROUP", GROUP, "READ"): r"\[KAFKA_EOS\.GROUP_AUTHORIZATION_FAILED\].*Read on the consumer group",
    Right(
        "TOPIC", SOURCE, "READ"
    ): rf"commit of offsets of {SOURCE} for source\.offsets\.group .* returned TOPIC_AUTHORIZATION_FAILED",
}
"""What conf/acls-writer.sh grants, and the error or warning of a write that lacks only this."""
NOT_SHOWN = "not shown: "
WATCHER: Mapping[Right, str] = {
    Right("TRANSACTIONAL_ID", "kafka-eos", "DESCRIBE"): f"{NOT_SHOWN}transactions, blocked",
    Right("TOPIC", TOPIC, "DESCRIBE"): f"{NOT_SHOWN}blocked",
    Right("TOPIC", LOG, "READ"): r"^writes: .*TOPIC_AUTHORIZATION_FAILED",
    Right("TOPIC", HISTORY, "READ"): r"^history: .*TOPIC_AUTHORIZATION_FAILED",
    Right("GROUP", GROUP, "DESCRIBE"): r"^offsets: .*GROUP_AUTHORIZATION_FAILED",
    Right("TOPIC", SOURCE, "DESCRIBE"): r"^offsets: .*NO_GROUP_OFFSETS",
}
"""What conf/acls-watcher.sh grants, and what a watcher that lacks only this does not see."""


def number_of(rights: Mapping[Right, str], right: Right) -> int:
    return list(rights).index(right)


USERS = (
    "orders",
    "watcher",
    "auditor",
    *(f"orders-{number}" for number in range(len(WRITER))),
    *(f"watcher-{number}" for number in range(len(WATCHER))),
)


def script(name: str, **variables: str) -> str:
    """What conf/acls-<name>.sh prints."""
    command = [str(ROOT / "conf" / f"acls-{name}.sh")]
    environment = {"PATH": os.environ["PATH"], **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout


@dataclass(frozen=True, slots=True)
class Guarded:
    """A broker with ACLs, and Kafka's own tool on a PATH. Its plaintext listener accepts everything."""

    kafka: EmbeddedKafka
    tools: Path

    @property
    def servers(self) -> str:
        return self.kafka.plaintext_servers

    def run(self, commands: str) -> None:
        environment = {**os.environ, "PATH": f"{self.tools}:{os.environ['PATH']}"}
        done = subprocess.run(
            ["sh", "-e"], input=commands, env=environment, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def acls(self, **only: str) -> list[confluent.AclBinding]:
        everything = confluent.AclBindingFilter(
            confluent.ResourceType.ANY,
            None,
            confluent.ResourcePatternType.ANY,
            only.get("principal"),
            None,
            confluent.AclOperation.ANY,
            confluent.AclPermissionType.ANY,
        )
        admin = confluent.AdminClient({"bootstrap.servers": self.servers})
        found: list[confluent.AclBinding] = admin.describe_acls(everything).result(PATIENCE_S)
        return found

    def properties_of(self, user: str, folder: Path) -> str:
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        lines = {
            "bootstrap.servers": self.kafka.bootstrap_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": f'{module} required username="{user}" password="{PASSWORD}";',
        }
        path = folder / f"{user}.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()), "utf-8")
        return str(path)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("tools")
    (jar,) = distribution.resolve_coordinates([f"org.apache.kafka:kafka-tools:{distribution.DEFAULT_KAFKA_VERSION}"])
    class_path = f"{jar}:{distribution.resolve()}/*"
    java = find_java().command(class_path, "org.apache.kafka.tools.AclCommand", options=QUICK)
    tool = folder / "kafka-acls.sh"
    tool.write_text(f'#!/bin/sh\nexec {shlex.join(java)} "$@"\n', "utf-8")
    tool.chmod(0o755)
    security = BrokerSecurity(
        protocol="SASL_PLAINTEXT", users=tuple((user, Secret(PASSWORD)) for user in USERS), mechanisms=("PLAIN",)
    )
    properties = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with EmbeddedKafka(security=security, properties=properties, transaction_version=2) as kafka:
        admin = confluent.AdminClient({"bootstrap.servers": kafka.plaintext_servers})
        new = [confluent.NewTopic(name, 1) for name in (TOPIC, LETTERS, SOURCE)]
        for future in admin.create_topics(new, operation_timeout=30).values():
            future.result(PATIENCE_S)
        yield Guarded(kafka, folder)


def copied(found: list[confluent.AclBinding], user: str, lacking: Right) -> list[confluent.AclBinding]:
    """The same rights for another user, without one of them. A topic that this user may not create gets another name."""
    left = [each for each in found if right_of(each) != lacking]
    assert len(left) == len(found) - 1
    renamed = lacking.name if lacking.operation == "CREATE" else None
    return [bound(each, user, f"{each.name}-{user}" if each.name == renamed else None) for each in left]


def bound(each: confluent.AclBinding, user: str, name: str | None = None) -> confluent.AclBinding:
    pattern, operation, permission = each.resource_pattern_type, each.operation, each.permission_type
    return confluent.AclBinding(each.restype, name or each.name, pattern, f"User:{user}", "*", operation, permission)


def literal(right: Right, user: str) -> confluent.AclBinding:
    kind, operation = confluent.ResourceType[right.kind], confluent.AclOperation[right.operation]
    pattern, permission = confluent.ResourcePatternType.LITERAL, confluent.AclPermissionType.ALLOW
    return confluent.AclBinding(kind, right.name, pattern, f"User:{user}", "*", operation, permission)


def right_of(each: confluent.AclBinding) -> Right:
    return Right(each.restype.name, each.name, each.operation.name)


@pytest.fixture(scope="module")
def written(guarded: Guarded) -> session.WriteSettings:
    """A batch of the writer with exactly the script's rights, which creates commit log and history."""
    variables = {"KAFKA_EOS_BOOTSTRAP_SERVERS": guarded.servers, "DEAD_LETTER_TOPIC": LETTERS, **OPTIONAL}
    guarded.run(script("writer", **variables))
    found = guarded.acls(principal="User:orders")
    assert {right_of(each) for each in found} == set(WRITER)
    for right in WRITER:
        user = f"orders-{number_of(WRITER, right)}"
        allow(guarded.kafka, copied(found, user, right))
    given = settings_of(guarded, "orders")
    write(given)
    return given


@pytest.fixture(scope="module")
def watched(guarded: Guarded, written: session.WriteSettings) -> Guarded:
    guarded.run(script("watcher", BOOTSTRAP_SERVERS=guarded.servers, **OPTIONAL))
    found = guarded.acls(principal="User:watcher")
    assert {right_of(each) for each in found} == set(WATCHER)
    for right in WATCHER:
        allow(guarded.kafka, copied(found, f"watcher-{number_of(WATCHER, right)}", right))
    return guarded


def settings_of(guarded: Guarded, user: str, *, log: str = LOG, history: str = HISTORY) -> session.WriteSettings:
    given = write_settings(guarded.kafka, TOPIC, write_id=batch_write_id(None, user, TOPIC))
    producer = replace(
        given.producer,
        delivery_timeout_ms=15_000,
        max_block_ms=15_000,
        batch_size=LARGE // 2,
        max_request_size=LARGE,
        dead_letter_topic=LETTERS,
    )
    return varied(
        given,
        client=client_of(guarded.kafka, user),
        commit_log_topic=log,
        history_topic=history,
        group_offsets=GroupOffsets(group_id=GROUP, offsets=((SOURCE, 0, 7),)),
        producer=producer,
    )


def write(given: session.WriteSettings) -> None:
    """Write rows, and one that is too large for the topic."""
    plan = session.plan(given)
    value = pa.array([*(b"%d" % number for number in range(ROWS)), b"x" * LARGE])
    rows = Rows(topic=TOPIC, partition=None, columns=RecordColumns(value=value))
    messages: list[session.TaskMessage] = []
    try:
        identity = session.TaskIdentity(partition=0, attempt_number=0, task_attempt_id=0)
        messages.append(session.write_task(given, plan, identity, iter([rows])))
        session.commit(given, plan, messages)
    except KafkaEosError:
        if messages:
            session.abort(given, plan, messages)
        raise


def test_writer_with_the_rights_of_the_script_writes(
    guarded: Guarded, written: session.WriteSettings, caplog: pytest.LogCaptureFixture
) -> None:
    # The first batch has created the commit log and the history; the second one finds them.
    with caplog.at_level(logging.WARNING):
        write(varied(written, version=4))
    assert [record.getMessage() for record in caplog.records if "dead letter" not in record.getMessage()] == []
    rows = Counter(int(record.value or b"") for record in read_committed(guarded.servers, TOPIC))
    assert rows == Counter(dict.fromkeys(range(ROWS), 2))
    assert len(read_committed(guarded.servers, LETTERS)) == 2
    assert len(read_committed(guarded.servers, HISTORY)) == 2
    assert_nothing_open(guarded.servers)


@pytest.mark.parametrize("right", WRITER, ids="-".join)
def test_writer_that_lacks_one_right_fails_or_warns(
    guarded: Guarded, written: session.WriteSettings, caplog: pytest.LogCaptureFixture, right: Right
) -> None:
    user = f"orders-{number_of(WRITER, right)}"
    own = {"log" if right.name == LOG else "history": f"{right.name}-{user}"} if right.operation == "CREATE" else {}
    failed = ""
    with caplog.at_level(logging.WARNING):
        try:
            write(settings_of(guarded, user, **own))
        except KafkaEosError as failure:
            failed = str(failure)
    assert re.search(WRITER[right], "\n".join([failed, caplog.text]), re.DOTALL), failed + caplog.text
    assert_nothing_open(guarded.servers)


@pytest.fixture
def blocked(guarded: Guarded, written: session.WriteSettings) -> Iterator[None]:
    """An open transaction of another write on the topic."""
    producer = open_transaction(guarded.servers, BLOCKING, TOPIC, partitions=1)
    yield
    producer.abort_transaction(60)


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(watched: Guarded, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command as a user; return its exit status and what it printed."""

    def as_user(user: str, command: str, *more: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main([command, "--properties", watched.properties_of(user, tmp_path), "--json", *more])
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    return as_user


def missing(run: Run, user: str, given: session.WriteSettings) -> list[str]:
    """What the commands of a watcher do not show."""
    found = []
    for command in ("status", "top"):
        _, out, _ = run(user, command)
        view = json.loads(out)
        empty = [name for name in ("transactions", "blocked", "writes") if not view[name]]
        empty += ["hidden offsets"] * any(each["hidden_offsets"] is None for each in view["blocked"])
        found += [*view["not_read"], *([f"{NOT_SHOWN}{', '.join(empty)}"] if empty else [])]
    for command, *more in (("history", "--write-id", given.write.id), ("offsets", "--group", GROUP)):
        status, _, err = run(user, command, *more)
        found += [f"{command}: {err}"] if status else []
    return found


def test_watcher_with_the_rights_of_the_script_sees_everything(
    watched: Guarded, written: session.WriteSettings, blocked: None, run: Run, tmp_path: Path
) -> None:
    assert missing(run, "watcher", written) == []
    properties = watched.properties_of("watcher", tmp_path)
    with exporter(watched.kafka.bootstrap_servers, "--properties", properties) as running:
        wait_until(lambda: values(running.scrape(), "up") == [1], "the first view")
        found = running.scrape()
    assert values(found, "data_readable") == [1] * 4
    assert len(values(found, "blocked_partition_hidden_offsets")) == 1


@pytest.mark.parametrize("right", WATCHER, ids="-".join)
def test_watcher_that_lacks_one_right_does_not_see_its_part(
    watched: Guarded, written: session.WriteSettings, blocked: None, run: Run, right: Right
) -> None:
    found = missing(run, f"watcher-{number_of(WATCHER, right)}", written)
    assert any(re.search(WATCHER[right], line, re.DOTALL) for line in found), found


def test_commands_that_read_rows_need_read_on_the_topics(
    watched: Guarded, written: session.WriteSettings, run: Run
) -> None:
    topics = f"{TOPIC} {LETTERS}"
    texts = [script("watcher", TOPICS=topics, **more) for more in ({}, {"READ_ROWS": "yes"})]
    describe, read = (f"--operation {verb} --topic {TOPIC}" for verb in ("Describe", "Read"))
    assert texts[1] == texts[0].replace(describe, read)

    of_rows = {TOPIC, LETTERS}
    found = [each for each in watched.acls(principal="User:watcher") if each.name not in of_rows]
    rows = [Right("TOPIC", name, "READ") for name in of_rows]
    allow(watched.kafka, [*(bound(each, "auditor") for each in found), *(literal(each, "auditor") for each in rows)])
    for command in (
        ("history", "--topic", TOPIC, "--partition", "0", "--offset", "0"),
        ("audit", "--write-id", written.write.id),
    ):
        assert run("auditor", *command)[0] == 0
        status, _, err = run("watcher", *command)
        assert status == 1
        assert "TOPIC_AUTHORIZATION_FAILED" in err


def test_pages_command_denies_deletion(guarded: Guarded) -> None:
    (block,) = (block for block in all_blocks() if block.name == DENIED)
    guarded.run(block.text.replace("broker1:9092", guarded.servers))
    denied = {right_of(each) for each in guarded.acls(principal="User:*") if each.permission_type.name == "DENY"}
    assert denied == {Right("TOPIC", name, "DELETE") for name in (LOG, HISTORY)}
