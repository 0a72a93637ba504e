"""Spark's standalone cluster as users start it: a master and two workers, each a process of its own, and an archive of the environment."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tarfile
import venv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import files
from pathlib import Path

import pyspark

from kafka_eos_sink.embedded.ports import choose_free_ports
from kafka_testing import wait_until
from tests.spark.killable_job import descendants, signal_all
from tests.spark.quick_start import SHORT_LIVED_JVM

REPOSITORY = Path(__file__).parents[2]
HOSTS = ("127.0.0.1", "127.0.0.2")
DEADLINE_S = 180.0
DEPENDENCIES = ("pyarrow", "numpy", "crc32c", "lz4")
OURS = ("kafka_eos_sink", "pyspark_kafka_eos")


def pack_environment(folder: Path) -> None:
    """Make ``environment/`` and ``environment.tar.gz`` as docs/standalone.md does, of files that are installed here already.

    PySpark is not part of it: the cluster brings its own.
    """
    environment = folder / "environment"
    venv.create(environment, symlinks=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    for name in DEPENDENCIES:
        for file in files(name) or ():
            if ".." in file.parts or {"tests", "include"}.intersection(file.parts):
                continue  # commands; and what nobody imports is half of the files
            (packages / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file.locate(), packages / file)
    for name in OURS:
        shutil.copytree(REPOSITORY / name, packages / name)
    with tarfile.open(folder / "environment.tar.gz", "w:gz", compresslevel=1) as archive:
        archive.add(environment, ".")


class StandaloneCluster:
    """A master, and a worker with one core on each of two hosts."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        """The folders of the workers, with those of their executors."""
        self._environment = environment
        (port,) = choose_free_ports(HOSTS[0], 1)
        self.url = f"spark://{HOSTS[0]}:{port}"
        self._processes: list[subprocess.Popen[bytes]] = []

    @staticmethod
    @contextmanager
    def started(folder: Path, environment: Mapping[str, str]) -> Iterator[StandaloneCluster]:
        """While the block runs; killed with all that it started when the block ends."""
        cluster = StandaloneCluster(folder, environment)
        try:
            cluster._start("master.Master", "--host", HOSTS[0], "--port", cluster.url.rpartition(":")[2])
            for host in HOSTS:
                resources = ("--cores", "1", "--memory", "1g", "--work-dir", str(folder / host))
                cluster._start("worker.Worker", "--host", host, *resources, cluster.url)
            wait_until(lambda: cluster.said().count("Registering worker") == 2, "two workers", patience_s=DEADLINE_S)
            yield cluster
        finally:
            for process in cluster._processes:
                signal_all(process.pid, signal.SIGKILL)
                process.wait()
            for host in HOSTS:
                shutil.rmtree(folder / host, ignore_errors=True)  # hundreds of megabytes for each job

    def _start(self, name: str, *arguments: str) -> None:
        spark = Path(pyspark.__file__).parent / "bin" / "spark-class"
        with (self.folder / "cluster.log").open("ab") as log:
            self._processes.append(
                subprocess.Popen(
                    [str(spark), f"org.apache.spark.deploy.{name}", "--webui-port", "0", *arguments],
                    env={**os.environ, **self._environment, "SPARK_DAEMON_JAVA_OPTS": SHORT_LIVED_JVM},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=self.folder,
                )
            )

    def said(self) -> str:
        """What master and workers have logged."""
        return (self.folder / "cluster.log").read_text()

    def kill_worker_of(self, process: int) -> None:
        """The worker whose executor has this process, with all that it started, as a machine that is gone."""
        (worker,) = (each for each in self._processes if process in descendants(each.pid))
        signal_all(worker.pid, signal.SIGKILL)
        worker.wait()
