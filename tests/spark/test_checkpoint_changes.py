"""A checkpoint that goes on under another sink, and under a newer library than the one that decided its last batch."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from pyspark.sql import DataFrame, SparkSession

from kafka_eos_sink.client.admin import connected
from kafka_eos_sink.client.transactions_admin import EndTransaction
from kafka_eos_sink.commit.log_records import decision_records
from kafka_eos_sink.commit.log_view import LogView
from kafka_eos_sink.commit.steps import Marker, MarkerType, ReadRecord
from kafka_eos_sink.commit.transactional_id import driver_transactional_id
from kafka_eos_sink.commit.values import Decision, log_partition_of
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_testing import assert_nothing_open, create_topic, read_committed
from tests.spark.jobs.stream_rows import LINES, add_files, writer_of
from tests.spark.printed_commands import run_printed
from tests.spark.streams import Stream

CodeOf = Callable[[str], str]
COMMIT_LOG = "__kafka_eos_commits"


# another sink


@pytest.fixture
def stream(kafka: EmbeddedKafka, spark: SparkSession, tmp_path: Path) -> Stream:
    return Stream(kafka, spark, tmp_path)


def run_with_sparks_sink(stream: Stream) -> None:
    """The same query and checkpoint, written by the sink that Spark brings."""
    writer = stream.frame().writeStream.format("kafka").option("kafka.bootstrap.servers", stream.servers)
    writer = writer.option("topic", stream.topic).option("checkpointLocation", str(stream.checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()


def test_query_moves_between_spark_sink_and_ours_exactly_once(stream: Stream, code_of: CodeOf) -> None:
    """Every row once over all changes, since each comes after a batch that Spark has noted as done.

    That is all that is promised: what Spark's sink writes in between is its own affair, at least once, and nobody looks at it again.
    """
    run_with_sparks_sink(stream)
    add_files(stream.source, 2, 1)
    text = stream.fails()
    assert code_of(text) == "COMMIT_LOG_LOST"
    assert "this run wrote nothing of batch 2: the commit log has no batch of query" in text
    assert "This query wrote with another sink until now" in text
    assert "--version 1 --as committed" in text
    stream.assert_every_line_once(2)
    run_printed(text, "resolve")
    stream.run()
    stream.assert_every_line_once(3)

    add_files(stream.source, 3, 2)
    run_with_sparks_sink(stream)
    stream.assert_every_line_once(5)

    add_files(stream.source, 5, 1)
    text = stream.fails()  # batch 5 after batch 2 of ours: an older commit log would look the same
    assert code_of(text) == "COMMIT_LOG_LOST"
    assert "ends at batch 2" in text
    assert "--version 4 --as committed" in text
    run_printed(text, "resolve")
    stream.run()
    stream.assert_every_line_once(6)
    assert (stream.decision().version, stream.decision().resolution) == (5, None)


def test_query_with_replaced_metadata_writes_on_once_it_is_restored(stream: Stream, code_of: CodeOf) -> None:
    """Spark 4.3 rejects a checkpoint without the file, so people write one; older ones do. The commit log has no batch of the new id."""
    stream.run()
    add_files(stream.source, 2, 1)
    metadata, checksum = stream.checkpoint / "metadata", stream.checkpoint / ".metadata.crc"
    before = metadata.read_text()
    checksum.unlink()
    metadata.write_text(json.dumps({"id": str(uuid.uuid4())}))
    text = stream.fails()
    assert code_of(text) == "COMMIT_LOG_LOST"
    assert "the file metadata of its checkpoint was lost or replaced" in text
    assert "If metadata was lost or replaced, restore it" in text
    stream.assert_every_line_once(2)
    metadata.write_text(before)
    stream.run()
    stream.assert_every_line_once(3)


def test_uncommitted_batch_at_sink_change_is_written_twice(stream: Stream, code_of: CodeOf) -> None:
    """Not promised: the one batch in flight when the sink is changed. Neither sink knows what the other one wrote of it.

    So a query is to be stopped when it has nothing to do, or started once more with its old sink, before it is changed.
    """
    run_with_sparks_sink(stream)
    stream.forget_commit(1)  # as a driver that died when the rows were written
    text = stream.fails()
    assert code_of(text) == "COMMIT_LOG_LOST"
    run_printed(text, "resolve")
    stream.run()
    first, second = Counter(range(LINES)), Counter(range(LINES, 2 * LINES))
    assert stream.numbers() == first + second + second
    stream.forget_commit(1)
    run_with_sparks_sink(stream)
    assert stream.numbers() == first + second + second + second
    assert_nothing_open(stream.servers)


# an older library


class Recorded:
    """What an older library left behind: a checkpoint and the records of a commit log, byte by byte."""

    def __init__(self) -> None:
        found = json.loads((Path(__file__).parent / "recorded_decision.json").read_text())
        self.metadata: str = found["metadata"]
        self.offsets: str = found["offsets/0"]
        self.parts: list[dict[str, str]] = found["parts"]
        self.decision: dict[str, str] = found["decision"]

    @property
    def query_id(self) -> str:
        query_id: str = json.loads(self.metadata)["id"]
        return query_id

    @property
    def write_id(self) -> str:
        return f"kafka-eos-{self.query_id}"

    def read(self) -> Decision:
        """The decision as the library of today reads it."""
        view = LogView(self.write_id)
        key, value = self.decision["key"].encode(), self.decision["value"].encode()
        driver = {"producer_id": 0, "producer_epoch": 0}
        view.feed(
            [
                ReadRecord(offset=0, transactional=True, key=key, value=value, **driver),
                Marker(offset=1, producer_id=0, producer_epoch=1, type=MarkerType.COMMIT),
            ],
            2,
            0,
        )
        found = view.query(self.query_id).newest
        assert found is not None
        return found.decision

    def decision_of(self, driver: dict[str, int], transactions: list[dict[str, Any]]) -> bytes:
        """The recorded value with what is different on every cluster: producer ids, epochs and offsets."""
        value = json.loads(self.decision["value"])
        body = json.loads(value["body"])
        body["driver"].update(driver)
        for recorded, found in zip(body["transactions"], transactions, strict=True):
            recorded["identity"].update(found.pop("identity"))
            assert found.keys() <= recorded.keys()
            recorded.update(found)
        compact = {"ensure_ascii": False, "separators": (",", ":")}
        return json.dumps(value | {"body": json.dumps(body, **compact)}, **compact).encode()


def test_recorded_decision_is_read_and_keeps_all_but_its_digests() -> None:
    recorded = Recorded()
    decision = recorded.read()
    assert (decision.version, decision.topic, decision.schema) == (0, "recorded-orders", "key string, value string")
    assert [(prepared.partition, prepared.rows) for prepared in decision.transactions] == [(0, 257), (1, 256), (2, 87)]
    (record,) = decision_records(decision)
    body = json.loads(json.loads(recorded.decision["value"])["body"])
    for each in body["transactions"]:
        assert each.pop("digest")
    assert record.key.decode() == recorded.decision["key"]
    written = json.loads(json.loads(record.value or b"")["body"])
    # Null is what the recorded driver did not know.
    for before, now in zip(body["transactions"], written["transactions"], strict=True):
        before["offsets"] = [[*each, None] for each in before["offsets"]]  # the rows of a range
        assert dict.fromkeys(now) | before == now
    assert dict.fromkeys(written) | body | {"transactions": written["transactions"]} == written


class OldDriver:
    """Writes to Kafka what the recorded driver and its tasks wrote, with a client that is not ours, and ends it as they did."""

    def __init__(self, servers: str, recorded: Recorded) -> None:
        self._servers, self._recorded = servers, recorded
        self._log_partition = log_partition_of(recorded.write_id)
        self._producers: list[confluent_kafka.Producer] = []

    def open(self, transactional_id: str) -> confluent_kafka.Producer:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self._servers,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": 600_000,
                "partitioner": "murmur2_random",
            }
        )
        producer.init_transactions(60)
        producer.begin_transaction()
        self._producers.append(producer)  # one that is forgotten ends its transaction
        return producer

    def log(self, producer: confluent_kafka.Producer, key: str, value: bytes) -> int:
        """The offset."""
        offsets: list[int] = []
        producer.produce(
            COMMIT_LOG, value, key, self._log_partition, on_delivery=lambda _, message: offsets.append(message.offset())
        )
        assert producer.flush(60) == 0
        return offsets[0]

    def prepare(self, transactional_id: str, rows: range, part: dict[str, str]) -> dict[str, Any]:
        """A task; what the decision has to say of it."""
        producer = self.open(transactional_id)
        found: dict[int, list[int]] = {}
        for row in rows:
            producer.produce(
                "recorded-orders",
                f"{row:07d}",
                str(row % 100),
                on_delivery=lambda _, message: found.setdefault(message.partition(), []).append(message.offset()),
            )
        assert producer.flush(60) == 0
        part_offset = self.log(producer, part["key"], part["value"].encode())
        offsets = [["recorded-orders", where, min(each), max(each)] for where, each in sorted(found.items())]
        return {"identity": self.identity(transactional_id), "part_offset": part_offset, "offsets": offsets}

    def identity(self, transactional_id: str) -> dict[str, int]:
        with connected(self._servers) as admin:
            (state,) = admin.describe_transactions([transactional_id], admin.client.clock() + 30_000).values()
        assert state is not None
        return {"producer_id": state.producer_id, "producer_epoch": state.producer_epoch}

    def end(self, transactional_id: str, *, committed: bool) -> None:
        """In version 5 of EndTxn, which is that of the recorded transactions and one that librdkafka does not speak."""
        ending = EndTransaction(
            transactional_id=transactional_id, committed=committed, version=5, **self.identity(transactional_id)
        )
        with connected(self._servers) as admin:
            (result,) = admin.end_transactions([ending], admin.client.clock() + 30_000)
        assert result.error_code == 0


def recorded_frame(spark: SparkSession, source: Path) -> DataFrame:
    spark.conf.set("spark.sql.files.maxPartitionBytes", "2048")
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(str(source))
    return lines.selectExpr("cast(cast(value as int) % 100 as string) key", "value")


def test_older_decision_is_finished_and_lost_rows_restored(
    kafka: EmbeddedKafka, spark: SparkSession, tmp_path: Path
) -> None:
    """The recorded bytes of the decision, with digests of that time: of three parts one is committed, one lost and one open."""
    recorded, servers = Recorded(), kafka.bootstrap_servers
    decided = recorded.read()
    create_topic(servers, "recorded-orders", partitions=3)
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    source.mkdir()
    rows = sum(prepared.rows for prepared in decided.transactions)
    (source / "0.txt").write_text("".join(f"{row:07d}\n" for row in range(rows)))
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text(recorded.metadata)
    # The source's own log holds the path of this run's file; the offsets are those of the recorded one.
    planned = recorded_frame(spark, source).writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    planned.trigger(availableNow=True).start().awaitTermination()
    (checkpoint / "offsets" / "0").write_text(recorded.offsets)
    for stale in ("offsets/.0.crc", "commits/0", "commits/.0.crc"):
        (checkpoint / stale).unlink()

    ensure_commit_log(kafka, spark, tmp_path)
    old, first = OldDriver(servers, recorded), 0
    entries = []
    for prepared, part in zip(decided.transactions, recorded.parts, strict=True):
        entries.append(old.prepare(prepared.identity.transactional_id, range(first, first + prepared.rows), part))
        first += prepared.rows
    driver_id = driver_transactional_id(recorded.write_id)
    driver = old.open(driver_id)
    old.log(driver, recorded.decision["key"], recorded.decision_of(old.identity(driver_id), entries))
    old.end(driver_id, committed=True)
    committed, lost, _ = (prepared.identity.transactional_id for prepared in decided.transactions)
    old.end(committed, committed=True)
    old.end(lost, committed=False)

    def run() -> None:
        frame = recorded_frame(spark, source)
        writer_of(frame, servers, "recorded-orders", str(checkpoint)).start().awaitTermination()

    def numbers() -> Counter[int]:
        return Counter(int(record.value or b"") for record in read_committed(servers, "recorded-orders"))

    run()
    assert numbers() == Counter(range(rows))
    assert_nothing_open(servers)
    (source / "1.txt").write_text("".join(f"{row:07d}\n" for row in range(rows, 2 * rows)))
    run()
    assert numbers() == Counter(range(2 * rows))
    assert_nothing_open(servers)


def ensure_commit_log(kafka: EmbeddedKafka, spark: SparkSession, folder: Path) -> None:
    (folder / "other").mkdir()
    Stream(kafka, spark, folder / "other", files=1).run()
