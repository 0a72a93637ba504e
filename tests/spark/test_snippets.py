"""The blocks of Python and SQL in README and docs, as they stand there, in one Spark application and on real brokers."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
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
from kafka_testing import assert_nothing_open, create_topic, read_committed, wait_until
from shown_output import assert_shows
from snippets import IN_SPARK, OUTPUTS
from terminals import broker

ROWS = 50
PASSWORD = "correct-horse"
SECURED = {"docs/secure.md#tls-and-sasl"}
"""Blocks for a broker with SASL_SSL."""
WRITTEN = {
    "docs/batch.md#threads": 0,
    "docs/read.md#spark": 0,
    "docs/deploy.md#the-environment:2": 0,
    "docs/records.md#partitioner": 0,
    "docs/records.md#interceptors": 0,
    "docs/services.md#idle-connections": 0,
}
"""Rows that a block writes, unless it writes those of ``df``."""
FIRST_PAGE = "docs/start.md"


def block_of(name: str) -> Block:
    (block,) = (block for block in all_blocks() if block.name == name)
    return block


@pytest.fixture(scope="module")
def secured(authority: Authority) -> Iterator[EmbeddedKafka]:
    security = BrokerSecurity(
        protocol="SASL_SSL",
        certificate=authority.issue("127.0.0.1").file,
        users=(("orders", Secret(PASSWORD)),),
    )
    with EmbeddedKafka(security=security) as started:
        yield started


class Page:
    """What a reader of the documents has: a cluster with a topic, files, a frame of rows, and names for them."""

    def __init__(self, spark: SparkSession, kafka: EmbeddedKafka, folder: Path, block: Block) -> None:
        self.spark, self.kafka, self.folder, self.block = spark, kafka, folder, block
        self.topic = create_topic(kafka.plaintext_servers, partitions=3)
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
        text = re.sub(r"(broker1|localhost):909[23](,broker2:9092)?", servers, self.block.text)
        text = re.sub(r"(?<!username\", )([\"'])(orders|counts)\1", rf"\1{self.topic}\1", text)
        text = text.replace('"checkpoints/', '"/data/checkpoints/')
        return re.sub(r"(s3a://bucket|/etc/kafka|/tmp|/data)/", f"{self.folder}/", text)

    def run(self) -> dict[str, Any]:
        """Run the block, and its query until it has read all rows; returns the names that it leaves."""
        if self.block.language == "sql":
            self._run_sql()
        else:
            with redirect_stdout(io.StringIO()) as printed:
                exec(compile(self.filled(), self.block.name, "exec"), self.names)
            if output := OUTPUTS.get(self.block.name):
                assert_shows(output.text, printed.getvalue(), output.name)
        for query in self.spark.streams.active:
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
    if block.name == "docs/read.md#spark":
        assert read_by_spark(names["orders"], reader) == ROWS
    elif block.name == "docs/records.md#partitioner":
        batch = pa.RecordBatch.from_pydict({"value": [b"", b"a", b"abcd"]})
        assert names["by_length"](batch, "orders", 3).to_pylist() == [0, 1, 1]
    if block.name != "docs/read.md#spark":
        assert reader.written() == WRITTEN.get(block.name, ROWS)
    assert_nothing_open(reader.kafka.plaintext_servers, [reader.topic])


def read_by_spark(orders: DataFrame, reader: Page) -> int:
    """Write rows, and count what the stream of docs/read.md shows of them."""
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
    days = ["20261001", "20261121", "20261122"]
    names = reader.run() | {"late": rows, "corrected": rows, "days": days, "read": lambda _day: rows}
    section = (
        page_text("docs/batch.md").partition("## Reruns, corrections, backfills")[2].partition("## From Airflow")[0]
    )
    calls = [line.split("`")[1] if "`" in line else "" for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(calls) == 5
    found = [reader.written()]
    for number, call in enumerate(calls):
        exec(call or calls[number - 1], names)
        found.append(reader.written())
    # Once, nightly, rerun, late day, correction, backfill of one day that is not in the topic.
    assert found == [times * ROWS for times in (1, 2, 2, 3, 4, 5)]


def test_consumer_of_librdkafka_reads_the_rows(page: Callable[[Block], Page]) -> None:
    reader = page(block_of("docs/read.md#python"))
    reader.names["df"].write.format("kafka-eos").options(**reader.names["options"]).mode("append").save()
    consumer = reader.run()["consumer"]
    values: set[bytes | None] = set()
    wait_until(lambda: len(values) == ROWS, "the rows", meanwhile=lambda: values.update(taken(consumer)))
    consumer.close()


def taken(consumer: Any) -> list[bytes | None]:
    return [message.value() for message in consumer.consume(100, timeout=0.5) if not message.error()]


@contextmanager
def running(program: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program in its folder, killed at last with all that it started."""
    process = subprocess.Popen(
        [sys.executable, program.name], cwd=program.parent, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def printed_by(program: Path, *arguments: str) -> tuple[str, str]:
    """What a program prints, on standard output and standard error."""
    command = [sys.executable, program.name, *arguments]
    ended = subprocess.run(command, cwd=program.parent, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout, ended.stderr


def headings(output: str) -> set[str]:
    """The first column's heading of each table."""
    return {line.split("  ")[0] for line in output.splitlines() if re.match(r"[a-z]+( [a-z]+)?  ", line)}


def test_first_page_is_done_step_by_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/start.md: a batch that is written once, a stream that is killed and resumed, and what each step prints."""
    (port,) = choose_free_ports("127.0.0.1", 1)

    def text(section: str) -> str:
        return block_of(f"{FIRST_PAGE}#{section}").text.replace("9092", str(port))

    def count(topic: str, section: str) -> int:
        """Run count.py, and check that no key is missing and none is there twice."""
        printed, _ = printed_by(tmp_path / "count.py", topic)
        for each in (printed, text(section)):
            assert re.fullmatch(r"(\d+) rows, \1 different keys from 0 to \d+\n", each), each
        rows, last = int(printed.split()[0]), int(printed.split()[-1])
        assert last == rows - 1
        return rows

    def view(*words: str, shown: str) -> str:
        """Run a command whose output depends on the moment: its tables are those of the page."""
        capsys.readouterr()
        assert main([*words]) == 0
        printed = capsys.readouterr().out
        assert set() < headings(printed) <= headings(text(shown))
        return printed

    programs = {"batch.py": "write-a-batch", "count.py": "write-a-batch:2", "stream.py": "write-a-stream"}
    for name, section in programs.items():
        (tmp_path / name).write_text(text(section), "utf-8")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("KAFKA_EOS_BOOTSTRAP_SERVERS", f"localhost:{port}")
    (start,) = block_of(f"{FIRST_PAGE}#start-a-broker").commands()
    places = {"9092": str(port), "kafka": str(tmp_path / "kafka")}
    with broker(*(places.get(word, word) for word in words_of(start)[1:])) as (servers, printed):
        printed_by(tmp_path / "batch.py")
        assert count("orders", "write-a-batch:4") == 1_000
        _, warned = printed_by(tmp_path / "batch.py")
        (line,) = re.findall(r"version \d+ of write id .*", warned)
        assert_shows(text("write-a-batch:6"), line, FIRST_PAGE)
        assert count("orders", "write-a-batch:8") == 1_000
        assert_shows(text("write-a-batch:10"), view("status", shown="write-a-batch:10"), FIRST_PAGE)

        def visible() -> int:
            return len(read_committed(servers, "numbers"))

        def wait_for(rows: int, process: subprocess.Popen[bytes]) -> None:
            wait_until(lambda: visible() >= rows or process.poll() is not None, f"{rows} rows", patience_s=120)
            assert process.poll() is None, "the query ended"

        with running(tmp_path / "stream.py") as process:
            wait_for(200, process)
        (write_id,) = set(re.findall(r"kafka-eos-[0-9a-f-]{36}", view("status", shown="kill-it:3")))
        with running(tmp_path / "stream.py") as process:
            wait_for(visible() + 200, process)
            view("history", "--write-id", write_id, shown="kill-it:6")
        # The second kill may have left transactions open, also of a decided batch.
        assert main(["recover", "--write-id", write_id, "--yes"]) == 0
        assert count("numbers", "kill-it:8") >= 400
        assert_nothing_open(servers)
        for command in block_of(f"{FIRST_PAGE}#if-something-fails").commands():
            assert main(words_of(command)) == 0
    *started, ready, _ = printed
    ready = ready.replace(str(tmp_path), "/home/you/kafka-eos/first-evening")
    assert_shows(text("start-a-broker:2"), "\n".join([*started, servers, ready]), FIRST_PAGE)
