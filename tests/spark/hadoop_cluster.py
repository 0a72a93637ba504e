"""Hadoop's own test clusters in a JVM of their own: HDFS with one data node, and YARN with two node managers if asked for."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway

from kafka_eos_sink.embedded.java import find_java
from tests.downloads import pinned_jars
from tests.spark.killable_job import signal_all
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
NODES = 2
SETTINGS = {
    "dfs.replication": "1",
    "yarn.scheduler.minimum-allocation-mb": "128",
    "yarn.scheduler.capacity.root.queues": "default",
    "yarn.scheduler.capacity.root.default.capacity": "100",
    "yarn.scheduler.capacity.maximum-am-resource-percent": "1",
    "yarn.nodemanager.vmem-check-enabled": "false",  # Arrow and a JVM reserve much more than they use
    "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
    "yarn.nodemanager.delete.debug-delay-sec": "600",
    "yarn.log-aggregation-enable": "true",
}


class HadoopCluster:
    """The URL of the file system; ``configuration`` is a folder for HADOOP_CONF_DIR."""

    def __init__(self, folder: Path, java: Any) -> None:
        self.folder, self.configuration = folder, folder / "conf"
        self.configuration.mkdir()
        self._java = java
        self._settings = java.org.apache.hadoop.yarn.conf.YarnConfiguration()
        for name, value in SETTINGS.items():
            self._settings.set(name, value)
        builder = getattr(java.org.apache.hadoop.hdfs, "MiniDFSCluster$Builder")
        self._hdfs = builder(self._settings).numDataNodes(1).build()
        self._hdfs.waitActive()
        self.url = f"hdfs://localhost:{self._hdfs.getNameNodePort()}"
        self._settings.set("fs.defaultFS", self.url)
        # Spark's own jars do not have the class that the test cluster sets.
        self._settings.set("net.topology.node.switch.mapping.impl", "org.apache.hadoop.net.ScriptBasedMapping")
        self._write("core-site.xml")

    @staticmethod
    @contextmanager
    def started(folder: Path, *, yarn: bool = False) -> Iterator[HadoopCluster]:
        """While the block runs."""
        with _jvm(folder) as java:
            cluster = HadoopCluster(folder, java)
            if yarn:
                cluster._start_yarn()
            yield cluster

    def _start_yarn(self) -> None:
        yarn = self._java.org.apache.hadoop.yarn.server.MiniYARNCluster("nodes", NODES, 1, 1)
        yarn.init(self._settings)
        yarn.start()
        self._settings = yarn.getConfig()
        self._write("yarn-site.xml")

    def kill_applications(self) -> None:
        """All that have not ended, as ``yarn application -kill`` does."""
        client = self._java.org.apache.hadoop.yarn.client.api.YarnClient.createYarnClient()
        client.init(self._settings)
        client.start()
        for report in client.getApplications():
            if report.getFinishTime() == 0:
                client.killApplication(report.getApplicationId())
        client.stop()

    def logs(self, application: str) -> str:
        """What ``yarn logs -applicationId ID -log_files stdout`` prints; empty until the nodes have collected the files."""
        java = str(find_java().executable), *SHORT_LIVED_JVM.split(), "-cp", f"{self.configuration}:{_class_path()}"
        tool = "org.apache.hadoop.yarn.client.cli.LogsCLI", "-applicationId", application, "-log_files", "stdout"
        return subprocess.run([*java, *tool], capture_output=True, text=True, check=False).stdout

    def _write(self, name: str) -> None:
        stream = self._java.java.io.FileOutputStream(str(self.configuration / name))
        self._settings.writeXml(stream)
        stream.close()

    @staticmethod
    def spark_jars() -> str:
        """PySpark's jars, as a class path."""
        return str(Path(pyspark.__file__).parent / "jars" / "*")

    def environment(self) -> Mapping[str, str]:
        """For spark-submit."""
        return {"HADOOP_CONF_DIR": str(self.configuration), "YARN_CONF_DIR": str(self.configuration)}


@contextmanager
def _jvm(folder: Path) -> Iterator[Any]:
    options = (
        *SHORT_LIVED_JVM.split(),
        "-Xmx512m",
        f"-Dtest.build.data={folder}/data",
        f"-Dhadoop.tmp.dir={folder}/tmp",
    )
    command = (
        str(find_java().executable),
        *options,
        "-cp",
        _class_path(),
        "py4j.GatewayServer",
        "--die-on-broken-pipe",
    )
    with (folder / "hadoop.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--enable-auth", "0"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=folder,
        )
    with process:
        try:
            assert process.stdout is not None
            port, token = process.stdout.readline(), process.stdout.readline()
            Thread(target=deque, args=(process.stdout, 0), daemon=True).start()
            gateway = JavaGateway(gateway_parameters=GatewayParameters(port=int(port), auth_token=token.strip()))
            yield gateway.jvm
            gateway._gateway_client.is_connected = False
        finally:
            signal_all(process.pid, signal.SIGKILL)  # containers outlive their node manager


def _class_path() -> str:
    return os.pathsep.join([*map(str, pinned_jars(JARS)), HadoopCluster.spark_jars()])
