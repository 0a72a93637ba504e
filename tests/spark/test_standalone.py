"""A standalone cluster of two workers and a broker with SASL_SSL: the environment travels as an archive, as docs/standalone.md says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from certificates import Authority
from kafka_eos_sink.client.security import Secret
from kafka_eos_sink.embedded.broker_security import BrokerSecurity
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.runtime import failpoints
from kafka_testing import assert_nothing_open, create_topic, read_committed, read_uncommitted, wait_until
from tests.spark.killable_job import Gate
from tests.spark.spark_submit import SparkSubmit, own_lines
from tests.spark.standalone_cluster import DEADLINE_S, HOSTS, StandaloneCluster, pack_environment

ROWS, FILES = 1_000, 4
PROPERTIES = "client.properties"
CHECK = ("check_connection", "--executors", "2", "--option", f"kafka.properties.file={PROPERTIES}", "--topic")


@pytest.fixture(scope="module")
def secured(authority: Authority) -> Iterator[EmbeddedKafka]:
    security = BrokerSecurity(
        protocol="SASL_SSL",
        certificate=authority.issue(HOSTS[0]).file,
        users=(("alice", Secret("correct-horse")),),
    )
    with EmbeddedKafka(security=security) as started:
        yield started


@pytest.fixture(scope="module")
def folder(secured: EmbeddedKafka, authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """From where the jobs are submitted: the environment, its archive, the client's properties and the authority that it trusts."""
    made = tmp_path_factory.mktemp("submitted")
    pack_environment(made)
    (made / "truststore.pem").write_bytes(authority.file.read_bytes())
    lines = secured.client_properties_file.read_text().splitlines()
    ours = [line for line in lines if not line.startswith("ssl.truststore.location=")]
    (made / PROPERTIES).write_text("\n".join([*ours, "ssl.truststore.location=truststore.pem"]))
    (made / "rows").mkdir()
    for number in range(FILES):
        rows = (json.dumps({"id": row}) for row in range(number, ROWS, FILES))
        (made / "rows" / f"{number}.json").write_text("\n".join(rows))
    return made


@pytest.fixture
def processes(spark_environment: dict[str, str]) -> dict[str, str]:
    """The environment of all processes: nothing in it leads to this repository."""
    python = "./environment/bin/python"
    return {**spark_environment, "PYTHONPATH": "", "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}


@pytest.fixture
def cluster(processes: dict[str, str], tmp_path: Path) -> Iterator[StandaloneCluster]:
    with StandaloneCluster.started(tmp_path, processes) as started:
        yield started


class Submit:
    """Submits jobs to the cluster with the archive."""

    def __init__(self, cluster: StandaloneCluster, processes: dict[str, str], folder: Path) -> None:
        self._cluster, self._processes, self._folder = cluster, processes, folder

    def __call__(self, truststore: str = "truststore.pem", **settings: str) -> SparkSubmit:
        memory = {"spark.driver.memory": "512m", "spark.executor.memory": "512m", "spark.driver.host": HOSTS[0]}
        given = (word for name, value in (memory | settings).items() for word in ("--conf", f"{name}={value}"))
        return SparkSubmit(
            self._processes,
            self._folder,
            *("--master", self._cluster.url),
            *("--archives", "environment.tar.gz#environment"),
            *("--files", f"{PROPERTIES},{truststore}"),
            *given,
        )


@pytest.fixture
def submit(cluster: StandaloneCluster, processes: dict[str, str], folder: Path) -> Submit:
    return Submit(cluster, processes, folder)


def batch(topic: str) -> tuple[str, ...]:
    connection = ("--option", f"kafka.properties.file={PROPERTIES}", "--topic", topic)
    return ("batch_to_kafka", *connection, "--format", "json", "--txn-app-id", "rows", "--txn-version", "1", "rows")


def assert_every_row_once(kafka: EmbeddedKafka, topic: str) -> None:
    values = [json.loads(record.value or b"")["id"] for record in read_committed(kafka.plaintext_servers, topic)]
    assert sorted(values) == list(range(ROWS))
    assert_nothing_open(kafka.plaintext_servers)


def test_executors_run_the_package_of_the_archive(
    cluster: StandaloneCluster, submit: Submit, secured: EmbeddedKafka, folder: Path
) -> None:
    topic = create_topic(secured.plaintext_servers)
    done = submit()(*CHECK, topic)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert own_lines(done.stdout, "check_connection") == ["check_connection: 2 of 2 executors can write to Kafka"]
    (driver,) = own_lines(done.stdout, "driver ")
    assert f" ok: 1 broker, cluster {secured.cluster_id}; kafka-eos-sink " in driver
    assert f" in {folder}/environment/" in driver
    places = [line.rpartition(" in ")[2] for line in own_lines(done.stdout, "executor ")]
    assert len(places) == 2
    for host in HOSTS:
        (place,) = (each for each in places if each.startswith(f"{cluster.folder}/{host}/app-"))
        assert "/environment/lib/python" in place
    for _ in range(2):
        done = submit()(*batch(topic))
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert_every_row_once(secured, topic)


def test_rows_are_visible_once_after_a_worker_was_killed(
    cluster: StandaloneCluster, submit: Submit, secured: EmbeddedKafka, tmp_path: Path
) -> None:
    topic = create_topic(secured.plaintext_servers)
    gate = Gate(tmp_path / "gate")
    gate.close()
    failing = submit(**{f"spark.executorEnv.{failpoints.VARIABLE}": f"task.flushed=wait:{tmp_path / 'gate'}"})
    job, *arguments = batch(topic)
    with failing.started(job, *arguments) as process:
        wait_until(
            lambda: gate.waits_here() or process.poll() is not None, "a task with rows in Kafka", patience_s=DEADLINE_S
        )
        caught = gate.waits_here()
        assert caught is not None, process.communicate()[0][-3000:]
        cluster.kill_worker_of(caught)
        said, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, said[-3000:]
    assert own_lines(said, job) == [f"batch_to_kafka: topic {topic} holds the rows"]
    assert_every_row_once(secured, topic)
    assert (
        len(read_uncommitted(secured.plaintext_servers, topic)) > ROWS
    )  # those of the killed task were in an open transaction
