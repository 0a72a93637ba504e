"""YARN and HDFS of Hadoop's test cluster: both deploy modes, killed and decommissioned processes, a checkpoint on HDFS."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen

import pytest

from documents import all_blocks, submitted
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.runtime import failpoints
from kafka_testing import assert_nothing_open, create_topic, read_committed, wait_until
from tests.spark.hadoop_cluster import HadoopCluster
from tests.spark.killable_job import Gate, descendants, signal_all
from tests.spark.spark_submit import SparkSubmit, own_lines
from tests.spark.standalone_cluster import pack_environment

pytestmark = pytest.mark.timeout(1_200)
ROWS, FILES = 1_000, 4
DEADLINE_S = 600.0


@pytest.fixture(scope="module")
def hadoop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HadoopCluster]:
    with HadoopCluster.started(tmp_path_factory.mktemp("hadoop"), yarn=True) as started:
        yield started


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """From where the jobs are submitted, with files of rows."""
    made = tmp_path_factory.mktemp("submitted")
    (made / "rows").mkdir()
    for number in range(FILES):
        rows = (json.dumps({"order_id": row}) for row in range(number, ROWS, FILES))
        (made / "rows" / f"{number}.json").write_text("\n".join(rows))
    return made


class Yarn:
    """Submits jobs with an environment that is at one path on all nodes, or with its archive."""

    def __init__(self, hadoop: HadoopCluster, package: Path, environment: dict[str, str], folder: Path) -> None:
        self._package, self._folder = package, folder
        self._environment = {**environment, **hadoop.environment(), "PYTHONPATH": ""}

    def with_archive(self) -> SparkSubmit:
        """In client mode, as docs/deploy.md does: nothing of the nodes is used."""
        pack_environment(self._folder)
        python = "./environment/bin/python"
        self._environment |= {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
        return self.submit("client", **{"spark.archives": "environment.tar.gz#environment"})

    def submit(self, mode: str, **settings: str) -> SparkSubmit:
        given = {
            "spark.yarn.jars": f"local:{HadoopCluster.spark_jars()}",  # otherwise 400 MB go to HDFS with each job
            # The folder of a container is too long for a socket, which conf/spark-defaults.conf turns on.
            "spark.python.unix.domain.socket.dir": "/tmp",
            "spark.driver.bindAddress": "0.0.0.0",  # containers reach the driver by the machine's name
            "spark.executor.instances": "2",
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
        } | settings
        words = (word for name, value in given.items() for word in ("--conf", f"{name}={value}"))
        package = () if "spark.archives" in settings else ("--py-files", str(self._package))
        return SparkSubmit(self._environment, self._folder, "--master", "yarn", "--deploy-mode", mode, *package, *words)


@pytest.fixture
def yarn(hadoop: HadoopCluster, package: Path, spark_environment: dict[str, str], folder: Path) -> Yarn:
    return Yarn(hadoop, package, spark_environment, folder)


def on_page(job: str, servers: str, topic: str, folder: Path) -> tuple[str, ...]:
    """The job and its arguments as docs/deploy.md submits it, with the broker, topic and folders of this test.

    The checkpoint is a path of fs.defaultFS.
    """
    commands = (command for block in all_blocks() if block.document == "docs/deploy.md" for command in block.commands())
    (arguments,) = (found[1] for found in map(submitted, commands) if found and found[0] == job)
    here = {
        "broker:9092": servers,
        "orders": topic,
        "/data/orders": f"file:{folder}/rows",
        "/checkpoints/orders": f"/checkpoints/{topic}",
    }
    return (job, *(here.get(word, word) for word in arguments))


def batch(servers: str, topic: str, folder: Path) -> tuple[str, ...]:
    return on_page("batch_to_kafka", servers, topic, folder)


def stream(servers: str, topic: str, folder: Path) -> tuple[str, ...]:
    return (*on_page("stream_to_kafka", servers, topic, folder), "--trigger", "available-now")


def assert_every_row_once(servers: str, topic: str) -> None:
    values = [json.loads(record.value or b"")["order_id"] for record in read_committed(servers, topic)]
    assert sorted(values) == list(range(ROWS))
    assert_nothing_open(servers, [topic])


def kill_jvm_of(process: int, main: str) -> None:
    """Kill the container whose JVM runs a class and started this process, as a machine that is gone."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"/java") and main.encode() in words and process in descendants(int(entry.name)):
            for each in descendants(int(entry.name)):
                os.kill(each, signal.SIGKILL)
            return
    raise AssertionError(f"no {main} above {process}")


@contextmanager
def caught_at_gate(submit: SparkSubmit, gate: Gate, job: str, *arguments: str) -> Iterator[tuple[Popen[str], int]]:
    """The job, and the process of it that waits at the gate."""
    gate.close()
    with submit.started(job, *arguments) as process:
        wait_until(
            lambda: gate.waits_here() or process.poll() is not None, "a process at the gate", patience_s=DEADLINE_S
        )
        caught = gate.waits_here()
        assert caught is not None, process.communicate()[0][-3000:]
        yield process, caught


def output_at_success(process: Popen[str]) -> str:
    printed, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, printed[-3000:]
    return printed


def killed_at_gate(submit: SparkSubmit, gate: Gate, main: str, job: str, *arguments: str) -> str:
    """Kill the JVM of the process that comes to the gate; return what the job prints until it ends well."""
    with caught_at_gate(submit, gate, job, *arguments) as (process, caught):
        kill_jvm_of(caught, main)
        gate.open()
        return output_at_success(process)


def test_second_application_master_continues_the_stream(
    yarn: Yarn, kafka: EmbeddedKafka, folder: Path, tmp_path: Path
) -> None:
    """Nobody starts the query again: YARN does."""
    servers = kafka.bootstrap_servers
    topic, gate = create_topic(servers, partitions=3), Gate(tmp_path / "gate")
    submit = yarn.submit(
        "cluster",
        **{
            "spark.yarn.maxAppAttempts": "2",
            f"spark.yarn.appMasterEnv.{failpoints.VARIABLE}": f"commit.decided=wait:{tmp_path / 'gate'}",
        },
    )
    main = "org.apache.spark.deploy.yarn.ApplicationMaster"
    killed_at_gate(submit, gate, main, *stream(servers, topic, folder))
    assert_every_row_once(servers, topic)


def test_stream_killed_in_client_mode_continues_on_hdfs(
    yarn: Yarn, kafka: EmbeddedKafka, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = kafka.bootstrap_servers
    topic, gate = create_topic(servers, partitions=3), Gate(tmp_path / "gate")
    monkeypatch.setenv(failpoints.VARIABLE, f"commit.decided=wait:{tmp_path / 'gate'}")
    submit, job = yarn.submit("client"), stream(servers, topic, folder)
    with caught_at_gate(submit, gate, *job) as (process, _):
        signal_all(process.pid, signal.SIGKILL)
    gate.open()
    done = submit(*job)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert_every_row_once(servers, topic)


def test_killed_application_continues_when_submitted_again(
    hadoop: HadoopCluster, yarn: Yarn, kafka: EmbeddedKafka, folder: Path, tmp_path: Path
) -> None:
    """YARN makes no second attempt of an application that a user kills."""
    servers = kafka.bootstrap_servers
    topic, gate = create_topic(servers, partitions=3), Gate(tmp_path / "gate")
    variable = f"spark.yarn.appMasterEnv.{failpoints.VARIABLE}"
    submit = yarn.submit("cluster", **{variable: f"commit.decided=wait:{tmp_path / 'gate'}"})
    job = stream(servers, topic, folder)
    with caught_at_gate(submit, gate, *job) as (process, _):
        hadoop.kill_applications()
        assert process.wait(DEADLINE_S) != 0
    gate.open()
    done = submit(*job)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert_every_row_once(servers, topic)


def test_rows_of_a_decommissioned_executor_are_visible_once(
    yarn: Yarn, kafka: EmbeddedKafka, folder: Path, tmp_path: Path
) -> None:
    """Dynamic allocation releases the executor of a task that is done, while another task of the write still runs."""
    servers = kafka.bootstrap_servers
    topic, gate, events = create_topic(servers, partitions=3), Gate(tmp_path / "gate"), tmp_path / "events"
    events.mkdir()
    submit = yarn.submit(
        "client",
        **{
            f"spark.executorEnv.{failpoints.VARIABLE}": f"task.flushed=wait:{tmp_path / 'gate'}",
            "spark.dynamicAllocation.enabled": "true",
            "spark.dynamicAllocation.executorIdleTimeout": "3s",
            "spark.decommission.enabled": "true",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": events.as_uri(),
            "spark.eventLog.compress": "false",
        },
    )

    def decommissioned() -> int:
        text = "".join(file.read_text() for file in events.rglob("events_*"))
        return len(re.findall(r'"Removed Reason":"[^"]*decommission', text, re.IGNORECASE))

    job, *arguments = batch(servers, topic, folder)
    with caught_at_gate(submit, gate, job, *arguments) as (process, _):
        before = decommissioned()
        wait_until(lambda: decommissioned() > before, "an executor to be decommissioned", patience_s=DEADLINE_S)
        gate.open()
        printed = output_at_success(process)
    assert own_lines(printed, job) == [f"batch_to_kafka: topic {topic} holds the rows"]
    assert_every_row_once(servers, topic)


def test_rows_are_visible_once_after_a_container_was_killed(
    yarn: Yarn, kafka: EmbeddedKafka, folder: Path, tmp_path: Path
) -> None:
    servers = kafka.bootstrap_servers
    topic, gate = create_topic(servers, partitions=3), Gate(tmp_path / "gate")
    submit = yarn.submit(
        "client", **{f"spark.executorEnv.{failpoints.VARIABLE}": f"task.flushed=wait:{tmp_path / 'gate'}"}
    )
    job, *arguments = batch(servers, topic, folder)
    main = "org.apache.spark.executor.YarnCoarseGrainedExecutorBackend"
    said = killed_at_gate(submit, gate, main, job, *arguments)
    assert own_lines(said, job) == [f"batch_to_kafka: topic {topic} holds the rows"]
    assert_every_row_once(servers, topic)


def test_batch_in_cluster_mode_writes_once(
    hadoop: HadoopCluster, yarn: Yarn, kafka: EmbeddedKafka, folder: Path
) -> None:
    servers = kafka.bootstrap_servers
    topic = create_topic(servers, partitions=3)
    for _ in range(2):
        done = yarn.submit("cluster")(*batch(servers, topic, folder))
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert_every_row_once(servers, topic)
    (application,) = set(re.findall(r"application_\d+_\d+", done.stdout + done.stderr))
    line = f"batch_to_kafka: topic {topic} holds the rows"
    wait_until(lambda: line in hadoop.logs(application), "the line in the collected logs", patience_s=DEADLINE_S)


def test_check_connection_runs_with_the_archive(yarn: Yarn, kafka: EmbeddedKafka, folder: Path) -> None:
    topic = create_topic(kafka.bootstrap_servers)
    done = yarn.with_archive()(*on_page("check_connection", kafka.bootstrap_servers, topic, folder))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert own_lines(done.stdout, "check_connection") == ["check_connection: 2 of 2 executors can write to Kafka"]
    places = [line.rpartition(" in ")[2] for line in own_lines(done.stdout, "executor ")]
    assert len(places) == 2
    for place in places:
        assert "/environment/lib/python" in place
        assert place.endswith("; rows over Unix sockets")  # at the short path that the page sets
