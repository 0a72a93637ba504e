"""Another program writes into the commit log of a real Kafka, and plan, commit, recover and commits go on beside it."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from dead_writes import ROWS, die_at, tasks, varied, write_all, write_settings
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.client.requests import Route, single
from kafka_eos_sink.commit import log_records
from kafka_eos_sink.commit.log_access import read_to_end
from kafka_eos_sink.commit.log_records import decision_records
from kafka_eos_sink.commit.log_view import LoggedDecision, LogView
from kafka_eos_sink.commit.steps import AddPartitions, AppendInTransaction, LogRecord
from kafka_eos_sink.commit.values import Decision, OffsetRange, PreparedTransaction
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.logs import forget
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.protocol import messages as m
from kafka_eos_sink.protocol.compression import Compression, compress
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import ProducerIdentity
from kafka_eos_sink.protocol.record_batch import encode_rows
from kafka_eos_sink.protocol.varints import encode_varint
from kafka_eos_sink.runtime import session
from kafka_eos_sink.runtime.executor import Executor
from kafka_testing import assert_nothing_open, create_topic, end_as_driver, initialised, read_committed, unique_topic
from tests.fuzz.hostile_log import signed

TIMEOUT_MS = 30_000


class HostileProducer:
    """A program that may Write the commit log and a transactional id of its own."""

    def __init__(self, given: session.WriteSettings, client: NetworkClient) -> None:
        self.admin = Admin(client)
        self.where = given.write.commit_log
        self.executor = Executor(self.admin, self.where, ProducerConfig())

    @property
    def deadline(self) -> int:
        return self.admin.client.clock() + TIMEOUT_MS

    def append(self, records: bytes, count: int = 1, codec: Compression = Compression.NONE) -> None:
        """Append a batch with these bytes as its records, whatever they are."""
        header = bytearray(61)
        header[16] = 2
        struct.pack_into(">hiqqqhii", header, 21, codec, count - 1, 1, 1, -1, -1, -1, count)
        data = m.ProduceRequest.Topic.Partition(index=self.where[1], records=signed(header + records))
        topic = m.ProduceRequest.Topic(name=self.where[0], partition_data=(data,))
        request = m.ProduceRequest(transactional_id=None, acks=-1, timeout_ms=TIMEOUT_MS, topic_data=(topic,))

        def read(response: m.ProduceResponse) -> Iterator[tuple[int, str | None, Any]]:
            for each in response.responses[0].partition_responses:
                yield each.error_code, each.error_message, each.base_offset

        call = single(request, Route.LEADER, "commit log", read)
        assert self.admin.perform(call, [self.where], self.deadline)[self.where].error_code == ErrorCode.NONE

    def write(self, own: ProducerIdentity, *records: LogRecord) -> None:
        """Append records in a transaction, which stays open."""
        if own.transaction_version < 2:
            assert self.executor._performers[AddPartitions](AddPartitions(own)).error == ErrorCode.NONE
        step = AppendInTransaction(own, 0, records)
        assert self.executor._performers[AppendInTransaction](step).error == ErrorCode.NONE

    def end(self, own: ProducerIdentity, committed: bool = True) -> None:
        assert end_as_driver(self.admin.client, own, committed, self.deadline) == ErrorCode.NONE

    def newest(self, write_id: str) -> LoggedDecision | None:
        view = LogView(write_id)
        self.executor.run(read_to_end(view))
        return view.query("batch").newest


@pytest.fixture(autouse=True)
def no_warning_was_given() -> None:
    forget()


def record(key: bytes, value: bytes | None, headers: bytes = b"\0") -> bytes:
    body = b"\0\0\0" + encode_varint(len(key)) + key
    body += encode_varint(-1) if value is None else encode_varint(len(value)) + value
    return encode_varint(len(body + headers)) + body + headers


ZEROS = encode_rows([(b"zeros", bytes(65 << 20), ())], 1).records
POISONS: dict[str, tuple[bytes, Compression]] = {
    "nested value": (record(b'["done","somebody","batch"]', b"[" * 100_000), Compression.NONE),
    "65 MiB in zstd": (bytes(compress(Compression.ZSTD, None, ZEROS)), Compression.ZSTD),
}


@pytest.mark.parametrize("poison", POISONS)
def test_writes_continue_beside_unreadable_records(
    kafka: EmbeddedKafka,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    poison: str,
) -> None:
    (records, codec), topic, log = POISONS[poison], create_topic(kafka.bootstrap_servers), unique_topic("log")
    given = varied(write_settings(kafka, topic), commit_log_topic=log)
    where = ["--bootstrap-servers", kafka.bootstrap_servers, "--commit-log-topic", log]
    plan = session.plan(given)
    with NetworkClient(given.client) as client:
        hostile = HostileProducer(given, client)
        hostile.append(records, codec=codec)
        die_at("commit.decided", given, plan, tasks(given, plan), monkeypatch)
        hostile.append(records, codec=codec)
    assert main(["recover", "--yes", *where, "--write-id", given.write.id]) == 0, capsys.readouterr().err
    write_all(varied(given, version=4))
    capsys.readouterr()
    assert main(["status", *where, "--json"]) == 0
    shown = {each["write_id"]: each for each in json.loads(capsys.readouterr().out)["writes"]}
    assert (shown[given.write.id]["version"], shown[given.write.id]["state"]) == (4, "finished")
    assert len(read_committed(kafka.bootstrap_servers, topic)) == 4 * ROWS
    assert_nothing_open(kafka.bootstrap_servers, [topic], of=given.write.id)
    assert len(warnings(caplog, "The sink skips such batches")) == (codec is not Compression.NONE)


def warnings(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    return [each.getMessage() for each in caplog.records if text in each.getMessage()]


def decision_of(
    given: session.WriteSettings, driver: ProducerIdentity, named: ProducerIdentity, topic: str
) -> Decision:
    """A decision of a later version, which names one transaction with one record."""
    offsets = (OffsetRange(topic=topic, partition=0, first_offset=0, last_offset=0),)
    prepared = PreparedTransaction(partition=0, identity=named, part_offset=0, rows=1, offsets=offsets)
    return Decision(
        write_id=given.write.id,
        query_id=given.batch.query_id,
        version=given.batch.version + 1,
        nonce="f",
        driver=driver,
        topic=topic,
        schema=given.batch.schema,
        offsets_hash=None,
        transactions=(prepared,),
    )


def test_forged_decision_ends_nothing_and_hides_no_decision(
    any_kafka: EmbeddedKafka,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The victim's driver has the right to end what the forger names: they share a prefix, or it may Write every id."""
    servers, log = any_kafka.bootstrap_servers, unique_topic("log")
    where = ["--bootstrap-servers", servers, "--commit-log-topic", log]
    topic, foreign_topic = create_topic(servers), create_topic(servers, partitions=1)
    given = varied(write_settings(any_kafka, topic), commit_log_topic=log)
    plan = session.plan(given)
    die_at("commit.decided", given, plan, tasks(given, plan), monkeypatch)
    with NetworkClient(given.client) as client:
        hostile = HostileProducer(given, client)
        foreign = initialised(hostile.admin, unique_topic("payments-service"))
        hostile.where, forger = (foreign_topic, 0), initialised(hostile.admin, unique_topic("forger"))
        hostile.executor = Executor(hostile.admin, hostile.where, ProducerConfig())
        hostile.write(foreign, LogRecord(b"key", b"value"))
        hostile.executor = Executor(hostile.admin, given.write.commit_log, ProducerConfig())
        driver = replace(forger, transactional_id=f"{given.write.id}.driver")
        records = decision_records(decision_of(given, driver, foreign, foreign_topic))
        key = log_records.decision_key(given.write.id, given.batch.query_id, 0)
        hostile.write(forger, *(LogRecord(key, each.value) for each in records))
        hostile.end(forger)
        found = hostile.newest(given.write.id)
        assert found is not None
        assert found.decision.version == given.batch.version
        assert main(["status", *where, "--json"]) == 0
        shown = {(each["version"], each["state"]) for each in json.loads(capsys.readouterr().out)["writes"]}
        assert shown == {(None, "unreadable"), (given.batch.version, "decided")}
        assert main(["recover", "--yes", *where, "--write-id", given.write.id]) == 0
        write_all(varied(given, version=given.batch.version + 1))
        state = hostile.admin.describe_transactions([foreign.transactional_id], hostile.deadline)
        described = state[foreign.transactional_id]
        assert described is not None
        assert described.transaction_state == "Ongoing"
        hostile.end(foreign)
    assert len(read_committed(servers, topic)) == 4 * ROWS
    assert_nothing_open(servers, [topic], of=given.write.id)
    assert warnings(caplog, "that its driver did not write")
