"""Spark Connect: the user's program has no JVM; a server runs the planner, the tasks and the commit."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyspark
import pytest

from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_testing import assert_nothing_open, create_topic, read_committed, wait_until
from tests.spark.jobs.connect_client import ROWS
from tests.spark.killable_job import signal_all
from tests.spark.test_plan_redaction import SECRETS
from tests.spark.test_stream_jobs import add_file, await_records, numbers, said

REPOSITORY = Path(__file__).parents[2]
CLIENT = Path(__file__).parent / "jobs" / "connect_client.py"
FOREACH = CLIENT.with_name("connect_foreach_batch.py")
DEADLINE_S = 280.0
EVENTS = "CONNECT_SERVER_EVENTS"


@pytest.fixture(scope="module")
def connect_server(
    spark_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """A Connect server in a process of its own; the environment of its clients, and the folder of its event log."""
    folder = tmp_path_factory.mktemp("connect")
    events = folder / "events"
    events.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        "spark.master": "local[2,4]",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "4",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
    }
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(
            [
                str(submit),
                *("--properties-file", str(REPOSITORY / "conf" / "spark-defaults.conf")),
                *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}")),
                *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"),
            ],
            env={**os.environ, **spark_environment},
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
        )

    def listens() -> bool:
        assert server.poll() is None, (folder / "server.log").read_text()[-3000:]
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        return False

    try:
        wait_until(listens, "the Connect server", patience_s=DEADLINE_S)
        yield {**os.environ, **spark_environment, "SPARK_REMOTE": f"sc://127.0.0.1:{port}", EVENTS: str(events)}
    finally:
        signal_all(server.pid, signal.SIGKILL)
        server.wait()


def run(environment: dict[str, str], folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        cwd=folder,
    )


def test_batch_rerun_threads_stream_and_errors(
    connect_server: dict[str, str], kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    topics = [create_topic(kafka.bootstrap_servers, partitions=3) for _ in range(4)]
    done = run(connect_server, tmp_path, str(CLIENT), kafka.bootstrap_servers, str(tmp_path), *topics)
    assert done.returncode == 0, done.stderr[-3000:]
    for topic, times in zip(topics, (1, 2, 1, 1), strict=True):
        values = Counter(int(record.value or b"") for record in read_committed(kafka.bootstrap_servers, topic))
        assert values == dict.fromkeys(range(ROWS), times)
    assert_nothing_open(kafka.bootstrap_servers)
    errors = json.loads(done.stdout.splitlines()[-1])
    for name, sentence in {
        "option": "[KAFKA_EOS.INVALID_OPTIONS] txnapid is not known; the nearest known name is txnAppId",
        "columns": "[KAFKA_EOS.INVALID_COLUMNS] Required attribute 'value' not found",
        "duplicate": "[KAFKA_EOS.INVALID_COLUMNS] 2 columns are called 'id': ",
        "header": "[KAFKA_EOS.INVALID_HEADER] row 0 of the task ",
        "plan": "[KAFKA_EOS.DIFFERENT_BATCH] ",
        "task": "[KAFKA_EOS.UNKNOWN_TOPIC] topic 'no-such-topic' ",
        "stream": "[KAFKA_EOS.UNKNOWN_TOPIC] topic 'no-such-topic' ",
    }.items():
        assert sentence in errors[name], name


def test_foreach_batch_function_loses_no_rows(
    connect_server: dict[str, str], kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """Real Spark shows no task the query or the call here: without the options of `for_each_batch`, both errors are skips."""
    topic = create_topic(kafka.bootstrap_servers, partitions=2)
    done = run(connect_server, tmp_path, str(FOREACH), kafka.bootstrap_servers, str(tmp_path), topic)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["first"], found["rerun"]) == ("no error", "no error"), found
    assert "KAFKA_EOS.DIFFERENT_BATCH" in found["second write"]
    assert "KAFKA_EOS.DIFFERENT_QUERY" in found["new checkpoint"]
    values = Counter(int(record.value or b"") for record in read_committed(kafka.bootstrap_servers, topic))
    assert values == dict.fromkeys(range(200), 1)
    assert_nothing_open(kafka.bootstrap_servers, [topic])


def test_jobs_run_on_a_server(connect_server: dict[str, str], kafka: EmbeddedKafka, tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "rows.json").write_text("".join(f'{{"id": {number}}}\n' for number in range(100)))
    topics = [create_topic(kafka.bootstrap_servers, partitions=2) for _ in range(2)]
    connection = ("--bootstrap-servers", kafka.bootstrap_servers, "--topic")
    files = ("--format", "json", "--schema", "id BIGINT", "--key", "id")

    def job(name: str, *arguments: str) -> str:
        done = run(connect_server, tmp_path, str(REPOSITORY / "spark_jobs" / f"{name}.py"), *arguments)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    checked = job("check_connection", "--executors", "1", *connection, topics[0])
    assert checked.splitlines()[-1] == "check_connection: 1 of 1 executors can write to Kafka"
    assert "driver" not in checked  # the client is not the driver
    once = ("--txn-app-id", "connect-job", "--txn-version", "1")
    for _ in range(2):
        job("batch_to_kafka", *connection, topics[0], *files, *once, f"{tmp_path}/rows")
        where = ("--checkpoint", f"{tmp_path}/checkpoint", "--files", f"{tmp_path}/rows", "--trigger", "available-now")
        job("stream_to_kafka", *connection, topics[1], *files, *where)
    for topic in topics:
        job("verify_exactly_once", *connection, topic, *files, "--files", f"{tmp_path}/rows")
        assert len(read_committed(kafka.bootstrap_servers, topic)) == 100


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_to_the_client_stops_the_query_on_the_server(
    number: signal.Signals, connect_server: dict[str, str], kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    servers, orders = kafka.bootstrap_servers, tmp_path / "orders"
    topic = create_topic(servers, partitions=2)
    words = ("--bootstrap-servers", servers, "--topic", topic, "--files", str(orders), "--format", "text")
    job = [
        *(sys.executable, str(REPOSITORY / "spark_jobs" / "stream_to_kafka.py"), *words),
        *("--checkpoint", str(tmp_path / "checkpoint"), "--trigger"),
    ]
    add_file(orders, "1.json", range(50))
    with subprocess.Popen(
        [*job, "processing-time", "100 milliseconds"], env=connect_server, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            await_records(servers, topic, process)
            process.send_signal(number)
            stopped = f"stopped by a signal, {orders} to {topic}; run the same command again to continue"
            assert said(process) == (0, [f"stream_to_kafka: {stopped}"])
        finally:
            process.kill()
    add_file(orders, "2.json", range(50, 100))
    time.sleep(3)  # a query that still ran would write these rows after 0.1 s
    assert numbers(servers, topic) == list(range(50))
    done = run(connect_server, tmp_path, *job[1:], "available-now")
    assert done.returncode == 0, done.stderr[-3000:]
    assert_nothing_open(servers, [topic])
    assert numbers(servers, topic) == list(range(100))


def test_event_log_of_server_shows_no_inline_secret(connect_server: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text('{"value": "a"}\n')
    secrets = SECRETS | {"kafka.sasl.jaas.config": 'ScramLoginModule required password="inline-login-module";'}
    options = [word for name, value in secrets.items() for word in ("--option", f"{name}={value}")]
    nowhere = ("--bootstrap-servers", "localhost:1", "--topic", "orders", "--option", "kafka.max.block.ms=500")
    job = str(REPOSITORY / "spark_jobs" / "batch_to_kafka.py")
    run(connect_server, tmp_path, job, *nowhere, *options, "--format", "json", f"{tmp_path}/rows.json")
    text = "".join(
        file.read_text("utf-8", "replace") for file in Path(connect_server[EVENTS]).rglob("*") if file.is_file()
    )
    started = [
        line for line in text.splitlines() if "SparkListenerConnectOperationStarted" in line and "localhost:1" in line
    ]
    assert started  # the request is shown, without its secrets
    for value in SECRETS.values():
        assert value not in text
