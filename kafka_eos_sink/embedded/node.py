"""One node of an embedded Kafka: its server properties, its Java process, its log."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kafka_eos_sink.embedded.java import JavaRuntime
from kafka_eos_sink.embedded.process_guard import ProcessGuard

__all__ = [
    "HOST",
    "JvmSettings",
    "KafkaNode",
    "NodeAddress",
    "class_archive",
    "server_properties",
    "telling_lines",
    "write_properties",
]

HOST = "127.0.0.1"

_NAMED_FAILURE = re.compile(r"\b(ERROR|FATAL)\b|Exception\b|\bError:|^Caused by:|^Could not|OutOfMemoryError")
_PORT_CONFLICT = re.compile(r"BindException|Address already in use|failed to bind to", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAddress:
    """Where one node listens on the loopback interface: for clients and brokers, and for the controllers.

    `broker_port` is where clients are asked for more than to come: brokers have a listener of their own then.
    """

    node_id: int
    port: int
    controller_port: int
    broker_port: int | None = None

    @property
    def server(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def plaintext_port(self) -> int:
        """Of the listener that is neither encrypted nor asks who comes."""
        return self.port if self.broker_port is None else self.broker_port

    @property
    def ports(self) -> tuple[int, ...]:
        return tuple({self.port, self.controller_port, self.plaintext_port})


def server_properties(
    address: NodeAddress,
    quorum: Sequence[NodeAddress],
    directory: Path,
    overrides: Mapping[str, str],
    client_protocol: str = "PLAINTEXT",
) -> dict[str, str]:
    """Kafka's settings for one node that is broker and controller at once; `overrides` win.

    `client_protocol` is the security protocol of the clients' listener where that is another than the brokers'.

    Replication is the number of nodes (internal topics stay writable with one of three down); buffers, threads and
    internal partitions are as few as a machine with two cores wants; waits that only make sense among many are short.
    """
    replicas = len(quorum)
    in_sync = max(1, replicas - 1)
    listeners = f"BROKER://{HOST}:{address.plaintext_port}"
    protocols = "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT"
    if address.broker_port is not None:
        listeners += f",CLIENT://{address.server}"
        protocols += f",CLIENT:{client_protocol}"
    properties = {
        "node.id": str(address.node_id),
        "process.roles": "broker,controller",
        "controller.quorum.voters": ",".join(f"{node.node_id}@{HOST}:{node.controller_port}" for node in quorum),
        "listeners": f"{listeners},CONTROLLER://{HOST}:{address.controller_port}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": protocols,
        "inter.broker.listener.name": "BROKER",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(directory / "data"),
        "auto.create.topics.enable": "false",
        "num.partitions": "4",
        "default.replication.factor": str(replicas),
        "min.insync.replicas": str(in_sync),
        "offsets.topic.num.partitions": "4",
        "offsets.topic.replication.factor": str(replicas),
        "transaction.state.log.num.partitions": "4",
        "transaction.state.log.replication.factor": str(replicas),
        "transaction.state.log.min.isr": str(in_sync),
        "share.coordinator.state.topic.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": str(replicas),
        "share.coordinator.state.topic.min.isr": str(in_sync),
        "group.initial.rebalance.delay.ms": "0",
        "num.network.threads": "2",
        "num.io.threads": "4",
        "num.recovery.threads.per.data.dir": "1",
        # The cleaner takes this from the heap when the broker starts; the default is 128 MB.
        "log.cleaner.dedupe.buffer.size": str(4 << 20),
        # A killed node is believed alive until its session ends, and until then its partitions have no leader and its
        # next start is refused as a duplicate. The default of 9 s suits networks, not a loopback interface.
        "broker.session.timeout.ms": "4000",
        "broker.heartbeat.interval.ms": "500",
    }
    return properties | dict(overrides)


def write_properties(path: Path, properties: Mapping[str, str]) -> None:
    """Writes a Java properties file; Kafka reads it as UTF-8, so only backslashes and line ends need escaping.

    Nobody else can read it: passwords may stand there.
    """
    lines = (f"{name}={value}".replace("\\", "\\\\").replace("\n", "\\n") for name, value in sorted(properties.items()))
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def telling_lines(output: Sequence[str], lines: int) -> str:
    """The last lines of a Java program's output that name an error or exception; the last ones at all if none does."""
    named = [line for line in output if _NAMED_FAILURE.search(line) and not line.startswith("\tat ")]
    return "\n".join((named or list(output))[-lines:])


def class_archive(jars: Path, java: JavaRuntime) -> Path:
    """Where an archive of Kafka's classes may lie, made by whoever starts many nodes; a Java that it does not fit starts without."""
    return jars / f"classes-java-{java.version}.jsa"


@dataclass(frozen=True, slots=True, kw_only=True)
class JvmSettings:
    """How a node's Java runs. ``tuned_for="start"`` compiles quickly and little (ready about a second sooner, half the
    throughput at most); ``"throughput"`` leaves compiling to Java. `heap` is Java's notation, as ``384m``.

    Where an archive of Kafka's classes (JEP 350) lies beside the jars, a node takes over the classes as they are in it.
    """

    java: JavaRuntime
    jars: Path
    heap: str
    tuned_for: Literal["start", "throughput"]

    def command(self, main_class: str, *arguments: str) -> list[str]:
        quick = ["-XX:TieredStopAtLevel=1"] if self.tuned_for == "start" else []
        archive = class_archive(self.jars, self.java)
        if archive.exists():
            quick += [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
        return [
            str(self.java.executable), f"-Xmx{self.heap}", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-XX:+ExitOnOutOfMemoryError",
            *quick, "-Djava.awt.headless=true", "-Djava.net.preferIPv4Stack=true",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
            "-cp", str(self.jars / "*"), main_class, *arguments,
        ]  # fmt: skip


class KafkaNode:
    """The process of one node; `directory` holds its properties, its data and its log."""

    def __init__(self, address: NodeAddress, directory: Path) -> None:
        self.address = address
        self.directory = directory
        self.log = directory / "server.log"
        self._log_start = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def node_id(self) -> int:
        return self.address.node_id

    @property
    def process_id(self) -> int | None:
        """The id of the running process, else None."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def exit_status(self) -> int | None:
        """How the last process ended (negative: the signal), None while it runs or before the first start."""
        return None if self._process is None else self._process.poll()

    def start(self, jvm: JvmSettings, guard: ProcessGuard) -> None:
        """Starts the process; whether Kafka in it gets ready is for the caller to ask."""
        self.directory.mkdir(parents=True, exist_ok=True)
        command = jvm.command("kafka.Kafka", str(self.directory / "server.properties"))
        with self.log.open("ab") as log:
            self._log_start = log.tell()
            self._process = guard.start(command, output=log, directory=self.directory)

    def signal(self, number: signal.Signals) -> None:
        """Sends the signal to the process, if it runs."""
        if self._process is not None:
            self._process.send_signal(number)

    def wait_for_end(self, guard: ProcessGuard, *, patience_s: float) -> None:
        """Waits until the process has ended; it is killed when that takes longer than `patience_s`."""
        process = self._process
        if process is None:
            return
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        guard.forget(process)
        self._process = None

    def log_tail(self, lines: int) -> str:
        """The last lines that the process wrote since it was started last."""
        return "\n".join(self._output()[-lines:])

    def failure_lines(self, lines: int) -> str:
        """The lines that say why the process ended: errors and exceptions where there are any, else the last ones."""
        return telling_lines(self._output(), lines)

    def had_port_conflict(self) -> bool:
        return any(_PORT_CONFLICT.search(line) for line in self._output())

    def _output(self) -> list[str]:
        try:
            with self.log.open("rb") as log:
                log.seek(self._log_start)
                return log.read().decode(errors="replace").splitlines()
        except FileNotFoundError:
            return []
