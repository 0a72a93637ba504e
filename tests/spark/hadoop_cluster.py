"""Hadoop's own test clusters in a process of their own: HDFS with one data node, and YARN if asked for."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from kafka_eos_sink.embedded.distribution import resolve_coordinates
from kafka_eos_sink.embedded.java import find_java
from kafka_testing import wait_until
from tests.spark.quick_start import SHORT_LIVED_JVM

JARS = {
    "org.apache.hadoop:hadoop-client-minicluster:3.5.0": "06772d24529e59939915979b3edba204d367750ef7dc5120411f35221dd4818c",
    "org.junit.jupiter:junit-jupiter-api:5.8.2": "1808ee87e0f718cd6e25f3b75afc17956ac8a3edc48c7e9bab9f19f9a79e3801",
    "org.mockito:mockito-core:4.11.0": "4b909690cab288c761eb94c0bf0e814496cf3921d8affac84cd87774530351e5",
    "org.bouncycastle:bcprov-jdk18on:1.82": "14cde2fdfaa8890480a8e5b67aceef0c90f96682c1e23c133bafdc9e0b3255ce",
    "org.bouncycastle:bcpkix-jdk18on:1.82": "bdc723e20834832ac6af136cb5b5ff05e43b71d4fa151cc6510d9212ee086e63",
    "org.bouncycastle:bcutil-jdk18on:1.82": "4420691958ad1c0ba275a6d6d8a6317adbdbdc9277055b6a72aa89c88cda8c7d",
}
"""Coordinate -> SHA-256. PySpark's jars, of the same Hadoop, hold the rest."""
PATIENCE_S = 180.0


class HadoopCluster:
    """The URL of the file system; ``configuration`` is a folder for HADOOP_CONF_DIR."""

    def __init__(self, folder: Path) -> None:
        self.configuration = folder / "conf"
        port = json.loads((folder / "details.json").read_text())["namenode_port"]
        self.url = f"hdfs://localhost:{port}"

    @staticmethod
    @contextmanager
    def hdfs(folder: Path) -> Iterator[HadoopCluster]:
        """While the block runs."""
        with _started(folder, "org.apache.hadoop.test.MiniDFSClusterManager", "-datanodes", "1", "-format"):
            yield HadoopCluster(folder)


@contextmanager
def _started(folder: Path, main: str, *arguments: str) -> Iterator[None]:
    details, log = folder / "details.json", folder / "hadoop.log"
    (folder / "conf").mkdir()
    command = [
        *(str(find_java().executable), *SHORT_LIVED_JVM.split(), "-Xmx384m", f"-Dtest.build.data={folder}/data"),
        *(f"-Dhadoop.tmp.dir={folder}/tmp", "-cp", _class_path(), main, *arguments),
        *(
            "-D",
            "dfs.replication=1",
            "-writeConfig",
            str(folder / "conf" / "core-site.xml"),
            "-writeDetails",
            str(details),
        ),
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=folder)

    def is_ready() -> bool:
        assert process.poll() is None, log.read_text()[-3000:]
        return details.exists() and details.stat().st_size > 0

    try:
        wait_until(is_ready, "Hadoop", patience_s=PATIENCE_S)
        yield
    finally:
        process.kill()
        process.wait()


def _class_path() -> str:
    jars = resolve_coordinates(list(JARS))
    for jar, expected in zip(jars, JARS.values(), strict=True):
        with jar.open("rb") as file:
            assert hashlib.file_digest(file, "sha256").hexdigest() == expected, jar
    return os.pathsep.join([*map(str, jars), str(Path(pyspark.__file__).parent / "jars" / "*")])
