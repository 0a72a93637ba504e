"""The blocks of Python and SQL in README and docs, as they stand there, in one Spark application and on real brokers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from certificates import Authority
from documents import Block, all_blocks, words_of
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.client.security import Secret
from kafka_eos_sink.embedded.broker_security import BrokerSecurity
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.embedded.ports import choose_free_ports
from kafka_testing import assert_nothing_open, create_topic, read_committed, unique_topic, wait_until
from snippets import IN_SPARK
from terminals import broker

ROWS = 50
PASSWORD = "correct-horse"
SECURED = {"docs/secure.md#tls-and-sasl", "docs/deploy.md#a-standalone-cluster-with-an-archive:11"}
"""Blocks for a broker with SASL_SSL."""
WRITTEN = {
    "docs/batch.md#threads": 0,
    "docs/consume.md#spark": 0,
    "docs/deploy.md#the-environment": 0,
    "docs/deploy.md#a-standalone-cluster-with-an-archive:11": 0,
    "docs/records.md#partitioner": 0,
    "docs/start.md#a-batch:2": 1_000,
}
"""Rows that a block writes, unless it writes those of ``df``."""
ENDLESS = "docs/start.md#a-stream"
STREAM = "README.md#a-stream-killed-and-resumed"


def block_of(name: str) -> Block:
    (block,) = (block for block in all_blocks() if block.name == name)
    return block


@pytest.fixture(scope="module")
def secured(authority: Authority) -> Iterator[EmbeddedKafka]:
    security = BrokerSecurity(
        protocol="SASL_SSL",
        certificate=authority.issue("127.0.0.1").file,
        users=(("orders", Secret(PASSWORD)), ("kafka-eos", Secret("..."))),
    )
    with EmbeddedKafka(security=security) as started:
        yield started


class Page:
    """What a reader of the documents has: a cluster with a topic, files, a frame of rows, and names for them."""

    def __init__(self, spark: SparkSession, kafka: EmbeddedKafka, folder: Path, block: Block) -> None:
        self.spark, self.kafka, self.folder, self.block = spark, kafka, folder, block
        made_by_the_block = "create_topics" in block.text
        self.topic = unique_topic() if made_by_the_block else create_topic(kafka.plaintext_servers, partitions=3)
        (folder / "client.properties").write_text(f"bootstrap.servers={kafka.bootstrap_servers}\n", "utf-8")
        (folder / "secrets.properties").write_text(f"password={PASSWORD}\n", "utf-8")
        rows = spark.range(ROWS).selectExpr("id", "CONCAT('c', id % 7) AS key", "CAST(id AS STRING) AS value")
        if "writeStream" in block.text:
            rows.write.parquet(str(folder / "rows"))
            rows = spark.readStream.schema(rows.schema).parquet(str(folder / "rows"))
        self.names: dict[str, Any] = {
            "spark": spark,
            "df": rows,
            "options": {"kafka.bootstrap.servers": kafka.bootstrap_servers, "topic": self.topic},
        }

    def filled(self) -> str:
        """The block, with this cluster, topic and folder in place of the documents'."""
        servers = self.kafka.bootstrap_servers
        text = re.sub(r"(broker1|localhost|127\.0\.0\.1):909[23](,broker2:9092)?", servers, self.block.text)
        text = re.sub(r"(?<!username\", )([\"'])(orders|counts)\1", rf"\1{self.topic}\1", text)
        text = text.replace('"truststore.pem"', '"/etc/kafka/ca.pem"').replace('"checkpoints/', '"/data/checkpoints/')
        text = text.replace("\nstream.awaitTermination()", "")  # `run` ends the query
        return re.sub(r"(s3a://bucket|/etc/kafka|/tmp|/data)/", f"{self.folder}/", text)

    def run(self) -> dict[str, Any]:
        """Run the block, and its query until it has read all rows; returns the names that it leaves."""
        if self.block.language == "sql":
            self._run_sql()
        else:
            exec(compile(self.filled(), self.block.name, "exec"), self.names)
        for query in self.spark.streams.active:
            if self.block.name == ENDLESS:
                wait_until(lambda: self.written() > 0, "rows of the endless stream")
            else:
                query.processAllAvailable()
            query.stop()
        return self.names

    def _run_sql(self) -> None:
        self.names["df"].withColumnRenamed("id", "order_id").createOrReplaceTempView("new_orders")
        (table,) = re.findall(r"``(CREATE TABLE orders_table .*?)``", re.sub(r"\s+", " ", page_text("docs/batch.md")))
        self.spark.sql(table)
        try:
            for statement in filter(str.strip, self.filled().split(";")):
                self.spark.sql(statement)
        finally:
            for what in ("TABLE orders_table", "VIEW IF EXISTS orders", "VIEW new_orders"):
                self.spark.sql(f"DROP {what}")

    def written(self) -> int:
        return len(read_committed(self.kafka.plaintext_servers, self.topic))


def page_text(name: str) -> str:
    return (Path(__file__).parents[2] / name).read_text("utf-8")


@pytest.fixture
def page(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[Block], Page]:
    def make(block: Block) -> Page:
        kafka = request.getfixturevalue("secured" if block.name in SECURED else "kafka")
        if block.name in SECURED:
            (tmp_path / "ca.pem").write_bytes(request.getfixturevalue("authority").file.read_bytes())
        return Page(spark, kafka, tmp_path, block)

    return make


@pytest.mark.parametrize("block", IN_SPARK, ids=lambda block: block.name)
def test_block_runs_and_writes_its_rows_once(block: Block, page: Callable[[Block], Page]) -> None:
    reader = page(block)
    names = reader.run()
    if block.name == "docs/deploy.md#a-standalone-cluster-with-an-archive:11":
        assert reader.topic in names["admin"].list_topics(timeout=30).topics
    elif block.name == "docs/consume.md#spark":
        assert read_by_spark(names["orders"], reader) == ROWS
    elif block.name == "docs/records.md#partitioner":
        batch = pa.RecordBatch.from_pydict({"value": [b"", b"a", b"abcd"]})
        assert names["by_length"](batch, "orders", 3).to_pylist() == [0, 1, 1]
    if block.name == ENDLESS:
        values = [int(record.value or b"") for record in read_committed(reader.kafka.plaintext_servers, reader.topic)]
        assert len(values) == len(set(values)) > 0
    elif block.name != "docs/consume.md#spark":
        assert reader.written() == WRITTEN.get(block.name, ROWS)
    assert_nothing_open(reader.kafka.plaintext_servers, [reader.topic])


def read_by_spark(orders: DataFrame, reader: Page) -> int:
    """Write rows, and count what the stream of docs/consume.md shows of them."""
    options = reader.names["options"]
    reader.names["df"].write.format("kafka-eos").options(**options).mode("append").save()
    query = orders.writeStream.format("memory").queryName("orders_read").start()
    query.processAllAvailable()
    query.stop()
    return reader.spark.table("orders_read").count()


def test_day_is_rerun_corrected_and_backfilled(page: Callable[[Block], Page]) -> None:
    """The table of docs/batch.md, call by call."""
    block = block_of("docs/batch.md#reruns-corrections-backfills")
    reader = page(block)
    rows = reader.names["df"]
    days = ["2026-10-01", "2026-11-21", "2026-11-22"]
    names = reader.run() | {"late": rows, "corrected": rows, "days": days, "read": lambda _day: rows}
    section = (
        page_text("docs/batch.md").partition("## Reruns, corrections, backfills")[2].partition("## From Airflow")[0]
    )
    calls = [line.split("`")[1] if "`" in line else "" for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(calls) == 6
    found = [reader.written()]
    for number, call in enumerate(calls):
        exec(call or calls[number - 1], names)
        found.append(reader.written())
    # Once, nightly, rerun, late day, correction, rerun, backfill of one day that is not in the topic.
    assert found == [times * ROWS for times in (1, 2, 2, 3, 4, 4, 5)]


def test_consumer_of_librdkafka_reads_the_rows(page: Callable[[Block], Page]) -> None:
    reader = page(block_of("docs/consume.md#python"))
    reader.names["df"].write.format("kafka-eos").options(**reader.names["options"]).mode("append").save()
    consumer = reader.run()["consumer"]
    values: set[bytes | None] = set()
    wait_until(lambda: len(values) == ROWS, "the rows", meanwhile=lambda: values.update(taken(consumer)))
    consumer.close()


def taken(consumer: Any) -> list[bytes | None]:
    return [message.value() for message in consumer.consume(100, timeout=0.5) if not message.error()]


@contextmanager
def running(program: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The program as the README runs it, killed in the end with all that it started."""
    process = subprocess.Popen(
        [sys.executable, program.name], cwd=program.parent, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_readme_stream_is_killed_and_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """README.md: written, read back, killed, resumed, and seen in `kafka-eos top`."""
    (port,) = choose_free_ports("127.0.0.1", 1)
    start, run, watch = (
        [command.replace("9092", str(port)) for command in block_of(f"{STREAM}:{number}").commands()]
        for number in (2, 3, 4)
    )
    assert run == [".venv/bin/python stream.py"]
    program = tmp_path / "stream.py"
    program.write_text(block_of(STREAM).text.replace("9092", str(port)), "utf-8")
    with broker(*words_of(start[0])[1:]) as (servers, _):
        name, _, value = watch[0].removeprefix("export ").partition("=")
        monkeypatch.setenv(name, value)

        def visible() -> int:
            return len(read_committed(servers, "numbers"))

        def wait_for(rows: int, process: subprocess.Popen[bytes]) -> None:
            wait_until(lambda: visible() >= rows or process.poll() is not None, f"{rows} rows", patience_s=120)
            assert process.poll() is None, "the query ended"

        with running(program) as process:
            wait_for(200, process)
        with running(program) as process:
            wait_for(max(1_000, visible() + 200), process)
            for command in watch[1:]:
                assert main(words_of(command)) == 0
        shown = capsys.readouterr().out
        (write_id,) = set(re.findall(r"kafka-eos-[0-9a-f-]{36}", shown))
        assert len([line for line in shown.splitlines() if re.match(r"\d\t\d+\tnull\t\d+$", line)]) == 1_000
        assert main(["recover", "--write-id", write_id, "--yes"]) == 0  # ends what the second kill left open
        values = sorted(int(record.value or b"") for record in read_committed(servers, "numbers"))
        assert values == list(range(len(values)))
        assert len(values) >= 1_000
        assert_nothing_open(servers)
        capsys.readouterr()
        assert main(["history", "--write-id", write_id, "--json"]) == 0
        batches = json.loads(capsys.readouterr().out)
        assert sum(batch["rows"] for batch in batches) <= len(values)
