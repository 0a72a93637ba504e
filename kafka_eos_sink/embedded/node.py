"""One node of an embedded Kafka: ports, server properties, process and log."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kafka_eos_sink.embedded.java import JavaRuntime
from kafka_eos_sink.embedded.process_guard import ProcessGuard
from kafka_eos_sink.errors import KafkaEosError

HOST = "127.0.0.1"

_FAILURE_LINES = 12
_FAILURE = re.compile(r"\b(ERROR|FATAL)\b|Exception\b|\bError:|^Caused by:|^Could not|OutOfMemoryError")
_PORT_CONFLICT = re.compile(r"BindException|Address already in use|failed to bind to", re.IGNORECASE)

# Buffers, threads and internal partitions for a machine with two cores; short waits for a loopback interface.
_FIXED_PROPERTIES = {
    "process.roles": "broker,controller",
    "inter.broker.listener.name": "BROKER",
    "controller.listener.names": "CONTROLLER",
    "num.partitions": "4",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "num.recovery.threads.per.data.dir": "1",
    # The cleaner allocates this on the heap when the broker starts; the default is 128 MB.
    "log.cleaner.dedupe.buffer.size": str(4 << 20),
    # Until the session of a killed node expires, its partitions have no leader, and the controller rejects its next
    # registration as a duplicate. The default of 9 s suits networks.
    "broker.session.timeout.ms": "4000",
    "broker.heartbeat.interval.ms": "500",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAddress:
    """The ports of one node on the loopback interface.

    Clients and brokers share one plaintext listener: ``port`` equals ``broker_port``. If clients use TLS or SASL,
    they have their own listener on ``port``.
    """

    node_id: int
    port: int
    broker_port: int
    controller_port: int

    @property
    def server(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def has_client_listener(self) -> bool:
        return self.port != self.broker_port

    @property
    def ports(self) -> frozenset[int]:
        return frozenset((self.port, self.broker_port, self.controller_port))


def server_properties(
    address: NodeAddress,
    quorum: Sequence[NodeAddress],
    directory: Path,
    overrides: Mapping[str, str],
    client_protocol: str = "PLAINTEXT",
) -> dict[str, str]:
    """Return Kafka's settings for one node that is broker and controller.

    Topics have as many replicas as there are nodes, and stay writable if one of three nodes is down.

    Args:
        quorum: The addresses of all nodes.
        directory: The node's folder; its data is in ``data``.
        overrides: Properties that win over the chosen ones.
        client_protocol: Security protocol of the clients' own listener, if ``address`` has one.
    """
    internal = ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")
    replicas, in_sync = str(len(quorum)), str(max(1, len(quorum) - 1))
    listeners = f"BROKER://{HOST}:{address.broker_port}"
    protocols = "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT"
    if address.has_client_listener:
        listeners += f",CLIENT://{address.server}"
        protocols += f",CLIENT:{client_protocol}"
    return {
        **_FIXED_PROPERTIES,
        "node.id": str(address.node_id),
        "controller.quorum.voters": ",".join(f"{node.node_id}@{HOST}:{node.controller_port}" for node in quorum),
        "listeners": f"{listeners},CONTROLLER://{HOST}:{address.controller_port}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": protocols,
        "log.dirs": str(directory / "data"),
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        **{f"{topic}.replication.factor": replicas for topic in internal},
        # The topic of consumer offsets has no such property: min.insync.replicas holds for it.
        **{f"{topic}.min.isr": in_sync for topic in internal[1:]},
        **overrides,
    }


def write_properties(path: Path, properties: Mapping[str, str]) -> None:
    """Write a Java properties file that only this user can read."""
    # Kafka reads the file as UTF-8, so only backslashes and line ends need escaping.
    lines = (f"{name}={value}".replace("\\", "\\\\").replace("\n", "\\n") for name, value in sorted(properties.items()))
    _write_private(path, lines)


def write_java_arguments(path: Path, arguments: Sequence[str]) -> None:
    """Write main class and arguments for ``java @path``, readable by this user only."""
    # Java reads backslashes in quotes as escapes.
    _write_private(path, ('"{}"'.format(each.replace("\\", r"\\").replace('"', r"\"")) for each in arguments))


def _write_private(path: Path, lines: Iterable[str]) -> None:
    # It may hold passwords, so its mode is set before its content is written.
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def failure_lines(output: Sequence[str]) -> str:
    """Return the last lines that name an error, else the last lines."""
    errors = [line for line in output if _FAILURE.search(line) and not line.startswith("\tat ")]
    return "\n".join((errors or list(output))[-_FAILURE_LINES:])


def class_archive(jars: Path, java: JavaRuntime) -> Path:
    """Return the path of Kafka's class archive (JEP 350); the archive is optional."""
    # Java ignores an archive of another version without an error, so the name keeps the versions apart.
    return jars / f"classes-java-{java.version}.jsa"


def jvm_options(jars: Path, java: JavaRuntime, heap: str, tuned_for: Literal["start", "throughput"]) -> list[str]:
    """Return a node's Java options; ``heap`` is in Java's notation, such as ``384m``."""
    # The quick compiler alone: ready about a second sooner, at most half the throughput.
    quick = ["-XX:TieredStopAtLevel=1"] if tuned_for == "start" else []
    archive = class_archive(jars, java)
    if archive.exists():
        quick += [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
    return [
        f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-XX:+ExitOnOutOfMemoryError",
        *quick, "-Djava.awt.headless=true", "-Djava.net.preferIPv4Stack=true",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true",
        "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
    ]  # fmt: skip


class KafkaNode:
    """The process of one node; ``directory`` holds its properties, data and log."""

    def __init__(self, address: NodeAddress, directory: Path, guard: ProcessGuard) -> None:
        self.address = address
        self.node_id = address.node_id
        self.directory = directory
        self._guard = guard
        self.log_file = directory / "server.log"
        self._log_start = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process_id(self) -> int | None:
        """The id of the running process, else None."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def exit_status(self) -> int | None:
        """The exit status of a process that ended by itself, else None."""
        return None if self._process is None else self._process.poll()

    def start(self, java_command: Callable[..., list[str]], properties: Mapping[str, str]) -> None:
        """Start the process without waiting until Kafka is ready."""
        settings = self.directory / "server.properties"
        write_properties(settings, properties)
        command = java_command("kafka.Kafka", str(settings))
        # One log file for all starts: remember where this one begins.
        with self.log_file.open("ab") as log:
            self._log_start = log.tell()
            self._process = self._guard.start(command, output=log, directory=self.directory)

    def signal(self, number: signal.Signals) -> None:
        """Send the signal to the process, if it runs."""
        if self._process is not None:
            self._process.send_signal(number)

    def wait_for_end(self, *, patience_s: float) -> None:
        """Wait until the process has ended; kill it after ``patience_s`` seconds."""
        if self._process is None:
            return
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._guard.forget(self._process)
        self._process = None

    def output(self) -> list[str]:
        """Return the lines that the process has written since its last start."""
        written = self.log_file.read_bytes() if self.log_file.exists() else b""
        return written[self._log_start :].decode(errors="replace").splitlines()

    def had_port_conflict(self) -> bool:
        return any(_PORT_CONFLICT.search(line) for line in self.output())


def failed(message: str) -> KafkaEosError:
    return KafkaEosError("EMBEDDED_KAFKA_FAILED", message)
