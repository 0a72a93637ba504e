"""stream_to_kafka.py and verify_exactly_once.py through spark-submit, against a real Kafka."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_testing import assert_nothing_open, create_topic, read_committed
from tests.spark.spark_submit import SparkSubmit, own_lines
from tests.spark.streams import lag, produce

STREAM, VERIFY = "stream_to_kafka", "verify_exactly_once"
PATIENCE_S = 180.0


def add_file(folder: Path, name: str, numbers: Iterable[int]) -> None:
    """A file of rows, moved in whole, as a stream wants its files."""
    folder.mkdir(exist_ok=True)
    written = folder.with_name(f"{name}.part")
    written.write_text("".join(json.dumps({"id": n, "customer": f"c{n % 5}"}) + "\n" for n in numbers), "utf-8")
    written.rename(folder / name)


def verified(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The report of verify_exactly_once.py --json."""
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("{")]
    report: dict[str, Any] = json.loads(line)
    return report


def counts(report: dict[str, Any]) -> tuple[int, ...]:
    return tuple(report[name] for name in ("expected", "found", "missing", "duplicated", "unexpected"))


def assert_ended_well(done: subprocess.CompletedProcess[str], job: str, line: str) -> None:
    assert done.returncode == 0, done.stdout + done.stderr
    assert own_lines(done.stdout, job) == [f"{job}: {line}"]


def test_late_files_go_to_a_topic_once(spark_submit: SparkSubmit, kafka: EmbeddedKafka, tmp_path: Path) -> None:
    topic = create_topic(kafka.bootstrap_servers, partitions=3)
    (tmp_path / "client.properties").write_text(f"bootstrap.servers={kafka.bootstrap_servers}\n", "utf-8")
    words = (
        *("--properties", "client.properties", "--topic", topic, "--files", "orders", "--format", "json"),
        *("--schema", "id BIGINT, customer STRING", "--key", "customer", "--value", "struct(id, customer)"),
        *("--where", "id % 10 <> 0"),
    )
    stream = (*words, "--checkpoint", "checkpoint", "--name", "orders", "--trigger", "available-now")
    done_line = f"all written, orders to {topic}"
    add_file(tmp_path / "orders", "1.json", range(100))
    assert_ended_well(spark_submit(STREAM, *stream), STREAM, done_line)
    add_file(tmp_path / "orders", "2.json", range(100, 200))
    assert_ended_well(spark_submit(STREAM, *stream), STREAM, done_line)
    assert_nothing_open(kafka.bootstrap_servers, [topic])
    found = read_committed(kafka.bootstrap_servers, topic)
    assert sorted((json.loads(record.value or b"")["id"], record.key) for record in found) == [
        (n, f"c{n % 5}".encode()) for n in range(200) if n % 10
    ]

    done = spark_submit(VERIFY, *words, "--order-by", "id")
    assert done.returncode == 0, done.stdout + done.stderr
    assert own_lines(done.stdout, VERIFY) == [f"verify_exactly_once: topic {topic} holds every record exactly once"]
    report = done.stdout[done.stdout.index(f"topic {topic} under read_committed") :].splitlines()
    assert report[:7] == [
        f"topic {topic} under read_committed, read by this package's client; compared: key, value",
        "  expected                 180",
        "  found                    180",
        "  missing                    0",
        "  duplicated                 0",
        "  unexpected                 0",
        "  out of order               0",
    ]


def test_query_copies_topic_to_topic_and_commits_offsets(
    spark_submit: SparkSubmit, kafka: EmbeddedKafka, kafka_source_jars: list[Path]
) -> None:
    servers = kafka.bootstrap_servers
    source, topic = (create_topic(servers, partitions=2) for _ in range(2))
    group = f"group-{uuid.uuid4()}"
    query = "SELECT key, concat(CAST(value AS STRING), '!') AS value, headers, offset, partition AS source FROM source"
    words = ("--bootstrap-servers", servers, "--topic", topic, "--from-topic", source, "--sql", query)
    stream = (*words, "--checkpoint", "checkpoint", "--trigger", "once", "--source-offsets-group", group)
    for part in range(2):
        produce(servers, source, ((f"k{n % 7}", f"{part}-{n}") for n in range(100)), end="commit")
        produce(servers, source, (("k1", f"aborted {n}") for n in range(20)), end="abort")
        done = spark_submit(STREAM, *stream, jars=kafka_source_jars)
        assert_ended_well(done, STREAM, f"all written, {source} to {topic}")
    assert_nothing_open(servers, [source, topic])
    found = read_committed(servers, topic)
    assert sorted((record.key, record.value, record.headers) for record in found) == sorted(
        (f"k{n % 7}".encode(), f"{part}-{n}!".encode(), (("from", source.encode()),))
        for part in range(2)
        for n in range(100)
    )
    assert lag(servers, group, source) == 0

    for reader, name in (("auto", "Spark's Kafka source"), ("client", "this package's client")):
        done = spark_submit(
            VERIFY, *words, "--json", "--reader", reader, "--order-by", "offset", jars=kafka_source_jars
        )
        assert done.returncode == 0, done.stdout + done.stderr
        report = verified(done)
        assert report["reader"] == name
        assert counts(report) == (200, 200, 0, 0, 0)
        assert report["compared"] == ["key", "value", "headers"]
        assert report["out_of_order"] == 0


def await_records(servers: str, topic: str, process: subprocess.Popen[str]) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while not read_committed(servers, topic):
        assert process.poll() is None, process.stdout and process.stdout.read()
        assert time.monotonic() < give_up_at, "nothing arrived"
        time.sleep(0.2)


def numbers(servers: str, topic: str) -> list[int]:
    """The numbers of the rows in the topic."""
    lines = (json.loads(json.loads(record.value or b"")["value"]) for record in read_committed(servers, topic))
    return sorted(line["id"] for line in lines)


def said(process: subprocess.Popen[str]) -> tuple[int, list[str]]:
    """Waits for the end; the exit status and the job's own lines."""
    output, _ = process.communicate(timeout=PATIENCE_S)
    return process.returncode, own_lines(output, STREAM)


def test_sigterm_ends_a_query_that_would_run_for_ever(
    spark_submit: SparkSubmit, kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    servers = kafka.bootstrap_servers
    topic = create_topic(servers, partitions=2)
    words = ("--bootstrap-servers", servers, "--topic", topic, "--files", "orders", "--format", "text")
    add_file(tmp_path / "orders", "1.json", range(50))
    trigger = ("--trigger", "processing-time", "100 milliseconds")
    with spark_submit.started(STREAM, *words, "--checkpoint", "c", *trigger) as process:
        await_records(servers, topic, process)
        add_file(tmp_path / "orders", "2.json", range(50, 100))
        os.kill(process.pid, signal.SIGTERM)
        assert said(process) == (
            0,
            [f"stream_to_kafka: stopped by a signal, orders to {topic}; run the same command again to continue"],
        )
    done = spark_submit(STREAM, *words, "--checkpoint", "c", "--trigger", "available-now")
    assert done.returncode == 0, done.stdout + done.stderr
    assert_nothing_open(servers, [topic])
    assert numbers(servers, topic) == list(range(100))


def test_ctrl_c_exits_1_and_names_rerun_of_same_command(
    spark_submit: SparkSubmit, kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    servers = kafka.bootstrap_servers
    topic = create_topic(servers, partitions=2)
    for number in range(500):
        add_file(tmp_path / "orders", f"{number}.json", range(number * 10, number * 10 + 10))
    words = ("--bootstrap-servers", servers, "--topic", topic, "--files", "orders", "--format", "text")
    stream = (*words, "--checkpoint", "c", "--trigger", "available-now")
    with spark_submit.started(STREAM, *stream, "--read-option", "maxFilesPerTrigger=1") as process:
        await_records(servers, topic, process)
        os.killpg(process.pid, signal.SIGINT)
        assert said(process) == (
            1,
            ["stream_to_kafka: stopped by a signal before all was written; run the same command again to continue"],
        )
    assert len(read_committed(servers, topic)) < 5_000
    done = spark_submit(STREAM, *stream)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_nothing_open(servers, [topic])
    assert numbers(servers, topic) == list(range(5_000))
