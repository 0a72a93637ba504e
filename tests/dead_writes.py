"""Writes that stop where a test wants them to, through the commit protocol and without Spark.

Importable from every test as ``dead_writes`` (pytest's ``pythonpath`` names the folder).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import chain
from pathlib import Path
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pyarrow as pa
import pytest

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.config import ClientConfig, parse_bootstrap_servers
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.commit.transactional_id import BATCH_QUERY_ID, batch_write_id, parse
from kafka_eos_sink.commit.values import DEFAULT_TOPIC, BatchIdentity, PreparedTransaction, Write
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.errors import KafkaEosError
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.producer.rows import Rows
from kafka_eos_sink.protocol.record_columns import RecordColumns
from kafka_eos_sink.runtime import session
from kafka_eos_sink.runtime.failpoints import VARIABLE
from kafka_testing import end_as_driver, unique_topic, wait_until

ROWS = 10
POINTS = (
    "plan.fenced",
    "plan.read",
    "plan.finished",
    "task.initialised",
    "task.may_write",
    "task.writing",
    "task.flushed",
    "task.prepared",
    "commit.check",
    "commit.before_decision",
    "commit.decision_written",
    "commit.decided",
    "commit.between_ends",
    "commit.finished",
)
"""The named steps of plan, task and commit at which tests kill a write (`failpoints`)."""
RESTORE_POINTS = ("restore.initialised", "restore.copying", "restore.copied", "restore.decided")
"""Those of a recovery, or a commit, that copies aborted transactions."""
_TESTS = Path(__file__).parent
_PROGRAM = """
import sys
from types import SimpleNamespace
from dead_writes import write_all, write_settings

servers, topic, write_id, tasks = sys.argv[1:]
write_all(write_settings(SimpleNamespace(bootstrap_servers=servers), topic, write_id=write_id), int(tasks))
"""


def write_settings(
    kafka: EmbeddedKafka,
    topic: str,
    *,
    write_id: str | None = None,
    query_id: str = BATCH_QUERY_ID,
    version: int = 3,
    schema: str = "value binary",
) -> session.WriteSettings:
    """A batch write with a txnAppId of its own unless a write id is given."""
    client = ClientConfig(bootstrap_servers=parse_bootstrap_servers(kafka.bootstrap_servers))
    write_id = write_id or batch_write_id(None, unique_topic("app"), topic)
    return session.WriteSettings(
        batch=BatchIdentity(query_id=query_id, version=version, topic=topic, schema=schema, offsets_hash=None),
        write=Write(write_id, DEFAULT_TOPIC, client.command_options),
        client=client,
        producer=ProducerConfig(),
    )


def varied(given: session.WriteSettings, **changes: Any) -> session.WriteSettings:
    """Return the settings with other fields, also of their batch; ``write_id`` and ``commit_log_topic`` are those of their write."""
    of_batch = {each.name: changes.pop(each.name) for each in fields(given.batch) if each.name in changes}
    write = replace(
        given.write,
        id=changes.pop("write_id", given.write.id),
        log_topic=changes.pop("commit_log_topic", given.write.log_topic),
        connection=changes.get("client", given.client).command_options,
    )
    return replace(given, batch=replace(given.batch, **of_batch), write=write, **changes)


def rows_of(topic: str, task: int) -> Rows:
    value = pa.array([b"%d" % number for number in range(task * ROWS, (task + 1) * ROWS)])
    return Rows(topic=topic, partition=None, columns=RecordColumns(value=value))


def tasks(given: session.WriteSettings, plan: session.Plan, count: int = 2) -> list[session.TaskMessage]:
    """What so many tasks hand over: each wrote ROWS rows and left its transaction open, or skipped."""
    return [
        session.write_task(
            given,
            plan,
            session.TaskIdentity(partition=task, attempt_number=0, task_attempt_id=task),
            iter([rows_of(given.batch.topic or "", task)]),
        )
        for task in range(count)
    ]


def write_all(given: session.WriteSettings, count: int = 2) -> list[session.TaskMessage]:
    plan = session.plan(given)
    messages = tasks(given, plan, count)
    session.commit(given, plan, messages)
    return messages


def die_at(
    point: str,
    given: session.WriteSettings,
    plan: session.Plan,
    messages: Sequence[session.TaskMessage],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Begin the commit and stop at a failpoint, as a driver that is killed there."""
    with monkeypatch.context() as patched:
        patched.setenv(VARIABLE, f"{point}=raise")
        with pytest.raises(KafkaEosError, match="FAILPOINT"):
            session.commit(given, plan, messages)


def decided(
    given: session.WriteSettings, point: str, monkeypatch: pytest.MonkeyPatch, count: int
) -> list[session.TaskMessage]:
    """What the tasks of a write handed over whose driver died behind its decision: before the first EndTxn, or after it."""
    plan = session.plan(given)
    messages = tasks(given, plan, count)
    die_at(point, given, plan, messages, monkeypatch)
    return messages


def be_killed_at(
    point: str, kafka: EmbeddedKafka, given: session.WriteSettings, count: int = 2, *, losing: Path | None = None
) -> None:
    """`write_all` in a process of its own, of which nothing is left once it has reached the point.

    Args:
        losing: A file by which it stops behind its decision, until its transactions have been aborted.
    """
    hold = f";commit.decided=wait:{losing}" if losing else ""
    writer = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, kafka.bootstrap_servers, given.batch.topic or "", given.write.id, str(count)],
        env={
            **os.environ,
            VARIABLE: f"{point}=kill{hold}",
            "PYTHONPATH": os.pathsep.join([str(_TESTS.parent), str(_TESTS)]),
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        if losing is not None:
            wait_until(lambda: losing.exists() or writer.poll() is not None, "the decision")
            abort_open(given)
            losing.unlink(missing_ok=True)
        _, said = writer.communicate(timeout=120)
    finally:
        writer.kill()
        writer.wait()
    assert writer.returncode == -signal.SIGKILL, f"{point} was not reached: {said[-2000:]}"


def prepared_by(messages: Sequence[session.TaskMessage]) -> list[PreparedTransaction]:
    return [message.prepared for message in messages if message.prepared is not None]


def delete_rows(kafka: EmbeddedKafka, messages: Sequence[session.TaskMessage]) -> None:
    """Delete the records up to the last ones of some tasks, as retention does."""
    ends: dict[tuple[str, int], int] = {}
    for part in chain.from_iterable(prepared.offsets for prepared in prepared_by(messages)):
        ends[part.topic, part.partition] = max(ends.get((part.topic, part.partition), 0), part.last_offset + 1)
    where = [confluent_kafka.TopicPartition(*partition, end) for partition, end in ends.items()]
    deleter = confluent_kafka.admin.AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for deleted in deleter.delete_records(where).values():
        deleted.result(30)


def abort_by_hand(given: session.WriteSettings, messages: Sequence[session.TaskMessage]) -> None:
    """End prepared transactions as the coordinator's timeout would: behind the back of their driver."""
    identities = [prepared.identity for prepared in prepared_by(messages)]
    with NetworkClient(given.client) as client:
        codes = [end_as_driver(client, identity, committed=False) for identity in identities]
    assert codes == [0] * len(identities)


def abort_open(given: session.WriteSettings) -> None:
    """The same for every open transaction of a write's tasks, by somebody else's InitProducerId."""
    with NetworkClient(given.client) as client:
        admin, deadline = Admin(client), client.clock() + 30_000
        for listed in admin.list_transactions(states=("Ongoing",), deadline_ms=deadline):
            if parse(listed.transactional_id, given.write.id) is not None:
                admin.init_producer_id(listed.transactional_id, 60_000, deadline)
