"""An embedded Kafka: a real Apache Kafka of one or three KRaft nodes on the loopback interface, started from Python."""

from __future__ import annotations

import atexit
import base64
import fcntl
import json
import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal

from kafka_eos_sink.client.key_stores import pem_certificates
from kafka_eos_sink.client.network_client import monotonic_ms
from kafka_eos_sink.client.security import Secret
from kafka_eos_sink.embedded import broker_security, distribution
from kafka_eos_sink.embedded.broker_security import BrokerSecurity
from kafka_eos_sink.embedded.distribution import DEFAULT_KAFKA_VERSION, Progress
from kafka_eos_sink.embedded.java import find_java
from kafka_eos_sink.embedded.node import (
    HOST,
    JvmSettings,
    KafkaNode,
    NodeAddress,
    server_properties,
    telling_lines,
    write_properties,
)
from kafka_eos_sink.embedded.ports import choose_free_ports, is_free
from kafka_eos_sink.embedded.process_guard import ProcessGuard
from kafka_eos_sink.embedded.readiness import wait_until_ready
from kafka_eos_sink.errors import KafkaEosError
from kafka_eos_sink.settings.java_properties import read_properties

__all__ = ["EmbeddedKafka"]

_START_ATTEMPTS = 5
_STOP_PATIENCE_S = 15.0
_FAILURE_LINES = 12


def new_cluster_id(random_uuid: Callable[[], uuid.UUID] = uuid.uuid4) -> str:
    """A random id as Kafka writes it; none begins with a dash, which Kafka's tools would take for an option (Uuid.randomUuid)."""
    while (found := base64.urlsafe_b64encode(random_uuid().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return found


class EmbeddedKafka:
    """A Kafka of `brokers` nodes (1 or 3, each broker and controller), to be used as a context manager.

    version              Apache Kafka's; the jars are resolved once into the cache, see `kafka_distribution`
    transaction_version  the finalized feature transaction.version, 0 to 2; None is the default of that Kafka
    directory            keeps the data, and a later start goes on with it; None is a temporary folder, removed after
    port                 of the first node, the others follow; None takes free ones
    heap                 of each node, in Java's notation
    properties           server properties that win over the ones chosen here
    security             TLS and SASL of the listener for clients; None is plaintext
    tuned_for            "start" for tests, "throughput" where speed is measured or the broker runs for long
    start_timeout_ms     until all nodes must be ready

    The nodes die with this process, however it ends. Not for several threads at once.
    Raises KafkaEosError EMBEDDED_KAFKA_FAILED, DISTRIBUTION_UNAVAILABLE, JAVA_NOT_FOUND or JAVA_TOO_OLD from `start`,
    and ValueError for arguments that make no cluster.
    """

    def __init__(
        self,
        *,
        brokers: int = 1,
        version: str = DEFAULT_KAFKA_VERSION,
        transaction_version: int | None = None,
        directory: str | Path | None = None,
        port: int | None = None,
        heap: str = "384m",
        properties: Mapping[str, str] | None = None,
        security: BrokerSecurity | None = None,
        tuned_for: Literal["start", "throughput"] = "start",
        start_timeout_ms: int = 120_000,
        progress: Callable[[Progress], None] | None = None,
    ) -> None:
        if brokers not in (1, 3):
            raise ValueError(f"brokers is {brokers}; an embedded Kafka has 1 or 3")
        if transaction_version not in (None, 0, 1, 2):
            raise ValueError(f"transaction_version is {transaction_version}; it is 0, 1 or 2")
        if port is not None and not 1 <= port <= 65_536 - brokers:
            raise ValueError(f"port is {port}; it must be between 1 and {65_536 - brokers}")
        self.version = version
        self.transaction_version = transaction_version
        self._brokers = brokers
        self._port = port
        self._kept_directory = None if directory is None else Path(directory).absolute()
        self._heap = heap
        self._properties = dict(properties or {})
        self._security = security
        self._users: dict[str, Secret] = {}
        self._tuned_for = tuned_for
        self._start_timeout_ms = start_timeout_ms
        self._progress = progress
        self._owner = os.getpid()
        self._root: Path | None = None
        self._root_lock: IO[str] | None = None
        self._guard: ProcessGuard | None = None
        self._jvm: JvmSettings | None = None
        self._nodes: dict[int, KafkaNode] = {}
        self._cluster_id = ""

    # ---- the life of the cluster

    def start(self) -> EmbeddedKafka:
        """Resolves, formats and starts; returns when every node is ready. Leaves nothing behind when it raises."""
        if self._root is not None:
            raise KafkaEosError("EMBEDDED_KAFKA_FAILED", "This embedded Kafka is running already.")
        java = find_java()
        jars = distribution.resolve(self.version, progress=self._progress)
        self._jvm = JvmSettings(java=java, jars=jars, heap=self._heap, tuned_for=self._tuned_for)
        atexit.register(self.stop)
        try:
            self._open_root()
            self._prepare()
            self._start_nodes()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Ends all nodes and removes a temporary folder; harmless when stopped already, and in a forked child."""
        if self._root is None or self._owner != os.getpid():
            return
        atexit.unregister(self.stop)
        # Data that is thrown away needs no orderly shutdown. Kept data gets one; the last of three nodes has no quorum
        # left to take its leave from and is killed after a while, which Kafka's log recovery copes with.
        kept = self._kept_directory is not None
        self._end(self._nodes.values(), signal.SIGTERM if kept else signal.SIGKILL)
        self._nodes = {}
        if self._guard is not None:
            self._guard.close()
            self._guard = None
        if not kept:
            shutil.rmtree(self._root, ignore_errors=True)
        if self._root_lock is not None:
            self._root_lock.close()
            self._root_lock = None
        self._root = None

    def __enter__(self) -> EmbeddedKafka:
        return self.start()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    # ---- what it is

    @property
    def bootstrap_servers(self) -> str:
        """``host:port,...`` of all nodes, also of those that are down at the moment."""
        return ",".join(node.address.server for node in self._nodes.values())

    @property
    def plaintext_servers(self) -> str:
        """As `bootstrap_servers`, of the listener without TLS and SASL that the nodes use among themselves."""
        return ",".join(f"{HOST}:{node.address.plaintext_port}" for node in self._nodes.values())

    @property
    def client_properties(self) -> dict[str, str]:
        """What a client is to be told to reach this cluster, secrets included; also in the file of this name."""
        if self._security is None:
            return {"bootstrap.servers": self.bootstrap_servers}
        trusted = self._running_root() / "cluster" / "client-truststore.pem"
        return broker_security.client_properties(self._security, self._users, self.bootstrap_servers, trusted)

    @property
    def client_properties_file(self) -> Path:
        """`client_properties`, readable by this user only."""
        return self._running_root() / "cluster" / "client.properties"

    @property
    def cluster_id(self) -> str:
        return self._cluster_id

    @property
    def directory(self) -> Path:
        """Where properties, data and logs are; only while it runs."""
        return self._running_root()

    @property
    def node_ids(self) -> tuple[int, ...]:
        return tuple(self._nodes)

    @property
    def pids(self) -> dict[int, int]:
        """The process id of each node that runs, by node id."""
        return {node.node_id: pid for node in self._nodes.values() if (pid := node.process_id) is not None}

    def log_tail(self, lines: int = 40) -> str:
        """The last `lines` of each node's log since its last start, under a heading per node."""
        return "\n".join(f"== node {node.node_id}\n{node.log_tail(lines)}" for node in self._nodes.values())

    def failure(self) -> KafkaEosError | None:
        """The error of a node that ended without being asked to, else None."""
        for node in self._nodes.values():
            if node.exit_status is not None:
                return _ended(node)
        return None

    # ---- single nodes

    def kill(self, node_id: int) -> None:
        """SIGKILL: the node is gone at once, its data stays as it is."""
        self._end([self._node(node_id)], signal.SIGKILL)

    def stop_node(self, node_id: int) -> None:
        """SIGTERM: the node hands over its partitions, then ends; killed if that takes too long."""
        self._end([self._node(node_id)], signal.SIGTERM)

    def start_node(self, node_id: int) -> None:
        """Starts a node that was killed or stopped, on its data and port, and waits until it is ready."""
        node = self._node(node_id)
        if node.process_id is not None:
            return
        self._launch([node])
        if not self._wait_until_ready([node]):
            raise self._not_ready()

    # ---- inside

    def _node(self, node_id: int) -> KafkaNode:
        if node_id not in self._nodes:
            raise ValueError(
                f"no node {node_id} here; the nodes are {', '.join(map(str, self._nodes)) or 'not started'}"
            )
        return self._nodes[node_id]

    def _running_root(self) -> Path:
        if self._root is None:
            raise KafkaEosError("EMBEDDED_KAFKA_FAILED", "This embedded Kafka is not running; start it first.")
        return self._root

    def _open_root(self) -> None:
        if self._kept_directory is None:
            self._root = Path(tempfile.mkdtemp(prefix="kafka-eos-"))
            self._guard = ProcessGuard(scratch=self._root)
            return
        root = self._kept_directory
        try:
            root.mkdir(parents=True, exist_ok=True)
            lock = (root / "lock").open("w")
        except OSError as failure:
            raise KafkaEosError(
                "EMBEDDED_KAFKA_FAILED", f"The folder {root} cannot be written ({failure.strerror}); name another one."
            ) from failure
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise KafkaEosError(
                "EMBEDDED_KAFKA_FAILED", f"Another embedded Kafka is running on {root}; stop it or name another folder."
            ) from None
        self._root, self._root_lock = root, lock
        self._guard = ProcessGuard()

    def _prepare(self) -> None:
        """Reads what an earlier start left in the folder, or formats it; sets the cluster's id."""
        root = self._running_root()
        description = root / "cluster" / "cluster.json"
        if description.is_file():
            self._reuse(json.loads(description.read_text(encoding="utf-8")))
            return
        strangers = [entry.name for entry in root.iterdir() if entry.name not in ("lock", "formatting")]
        if strangers:
            raise KafkaEosError(
                "EMBEDDED_KAFKA_FAILED",
                f"The folder {root} holds other things ({', '.join(sorted(strangers)[:3])}); name an empty or new one.",
            )
        self._cluster_id = new_cluster_id()
        self._place(self._choose_ports(()))
        self._format()

    def _reuse(self, description: dict[str, Any]) -> None:
        for name, asked, found in (
            ("nodes", self._brokers, description["brokers"]),
            ("transaction.version", self.transaction_version, description["transaction_version"]),
        ):
            if asked is not None and asked != found:
                raise KafkaEosError(
                    "EMBEDDED_KAFKA_FAILED",
                    f"The folder {self._running_root()} was made with {name} {found}, not {asked}; ask for the same or "
                    "name another folder.",
                )
        self.transaction_version = description["transaction_version"]
        self._cluster_id = description["cluster_id"]
        self._reuse_users()
        addresses = [NodeAddress(**address) for address in description["nodes"]]
        wanted = None if self._port is None else [self._port + index for index in range(self._brokers)]
        free = all(is_free(HOST, port) for node in addresses for port in node.ports)
        as_before = all((node.broker_port is None) == (self._security is None) for node in addresses)
        if free and as_before and wanted in (None, [node.port for node in addresses]):
            self._place(addresses)
        else:
            self._place(self._choose_ports(()))
        self._describe(self._running_root() / "cluster")

    def _choose_ports(self, avoid: Iterable[int]) -> list[NodeAddress]:
        avoid = set(avoid)
        if self._port is None:
            ports = choose_free_ports(HOST, self._brokers, avoid=avoid)
        else:
            ports = tuple(range(self._port, self._port + self._brokers))
            for port in ports:
                if not is_free(HOST, port):
                    raise KafkaEosError(
                        "EMBEDDED_KAFKA_FAILED", f"Port {port} on {HOST} is in use; choose another one or none at all."
                    )
        others = choose_free_ports(HOST, 2 * self._brokers, avoid=avoid.union(ports))
        return [
            NodeAddress(
                node_id=index + 1,
                port=ports[index],
                controller_port=others[2 * index],
                broker_port=None if self._security is None else others[2 * index + 1],
            )
            for index in range(self._brokers)
        ]

    def _place(self, addresses: Iterable[NodeAddress]) -> None:
        root = self._running_root()
        self._nodes = {
            address.node_id: KafkaNode(address, root / "cluster" / f"node-{address.node_id}") for address in addresses
        }

    def _describe(self, folder: Path) -> None:
        description = {
            "cluster_id": self._cluster_id,
            "brokers": self._brokers,
            "kafka_version": self.version,
            "transaction_version": self.transaction_version,
            "nodes": [
                {name: getattr(node.address, name) for name in ("node_id", "port", "controller_port", "broker_port")}
                for node in self._nodes.values()
            ],
        }
        (folder / "cluster.json").write_text(json.dumps(description, indent=1), encoding="utf-8")

    def _format(self) -> None:
        """Formats every node beside the final place and moves all there at once, so that half a cluster is never found.

        StorageTool runs once. What it writes for one node holds for each: the bootstrap records (features) are the
        cluster's, and meta.properties names the node and a random id of the data directory.
        """
        root = self._running_root()
        formatting = root / "formatting"
        shutil.rmtree(formatting, ignore_errors=True)
        formatting.mkdir()
        self._choose_users(formatting)
        first, *others = self._nodes.values()
        first_data = self._format_first(first, formatting)
        for node in others:
            data = formatting / node.directory.name / "data"
            data.mkdir(parents=True)
            for file in first_data.iterdir():
                if file.name == "meta.properties":
                    file_properties = {
                        "version": "1",
                        "cluster.id": self._cluster_id,
                        "node.id": str(node.node_id),
                        "directory.id": _directory_id(),
                    }
                    write_properties(data / file.name, file_properties)
                else:
                    shutil.copy2(file, data / file.name)
        self._describe(formatting)
        formatting.rename(root / "cluster")

    def _format_first(self, node: KafkaNode, formatting: Path) -> Path:
        assert self._jvm is not None
        folder = formatting / node.directory.name
        folder.mkdir()
        settings = folder / "server.properties"
        quorum = [each.address for each in self._nodes.values()]
        properties = server_properties(node.address, quorum, folder, self._properties, self._client_protocol)
        write_properties(settings, properties)
        command = self._jvm.command("kafka.tools.StorageTool", "format", "-t", self._cluster_id, "-c", str(settings))
        if self.transaction_version is not None:
            command += ["--feature", f"transaction.version={self.transaction_version}"]
        command += broker_security.scram_arguments(self._users)
        answer = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
        )
        if answer.returncode != 0:
            said = telling_lines((answer.stdout + answer.stderr).splitlines(), _FAILURE_LINES)
            raise KafkaEosError(
                "EMBEDDED_KAFKA_FAILED",
                f"Kafka {self.version} could not format its data folder; it said:\n{said}",
            )
        return folder / "data"

    # ---- security

    @property
    def _client_protocol(self) -> str:
        return "PLAINTEXT" if self._security is None else self._security.protocol

    def _choose_users(self, folder: Path) -> None:
        """Kafka keeps the users' SCRAM credentials in its data, so who they are is settled when that is formatted."""
        if self._security is None or not self._security.uses_sasl:
            return
        self._users = dict(self._security.users) or {
            broker_security.DEFAULT_USER: broker_security.new_password(),
        }
        write_properties(folder / "users", {name: password.reveal() for name, password in self._users.items()})

    def _reuse_users(self) -> None:
        if self._security is None or not self._security.uses_sasl:
            return
        found = self._running_root() / "cluster" / "users"
        if found.is_file():
            self._users = {name: Secret(password) for name, password in read_properties(found).items()}
        if not self._users or (self._security.users and dict(self._security.users) != self._users):
            raise KafkaEosError(
                "EMBEDDED_KAFKA_FAILED",
                f"The folder {self._running_root()} was made with {'other' if self._users else 'no'} users; they cannot "
                "be changed: ask for the same or name another folder.",
            )

    def _secure(self, security: BrokerSecurity) -> dict[str, str]:
        """The properties of the clients' listener; writes what clients need to reach it."""
        assert self._jvm is not None
        folder = self._running_root() / "cluster"
        store: dict[str, str] = {}
        if security.certificate is not None:
            store = {"type": "PEM", "location": str(security.certificate.absolute())}
            (folder / "client-truststore.pem").write_text(_last_certificate(security.certificate), encoding="ascii")
        elif security.uses_tls:
            password = folder / "keystore-password"
            if not password.is_file():
                write_properties(password, {"password": broker_security.new_password().reveal()})
            store = broker_security.make_certificate(
                self._jvm.java.executable, folder, Secret(read_properties(password)["password"])
            )
        write_properties(self.client_properties_file, self.client_properties)
        return broker_security.listener_properties(security, self._users, store)

    def _start_nodes(self) -> None:
        tried: set[int] = set()
        for attempt in range(1, _START_ATTEMPTS + 1):
            self._launch(self._nodes.values())
            try:
                if self._wait_until_ready(self._nodes.values()):
                    return
                raise self._not_ready()
            except KafkaEosError:
                # Between choosing a port and listening on it somebody else can have taken it.
                lost_a_port = any(node.had_port_conflict() for node in self._nodes.values())
                if not lost_a_port or self._port is not None or attempt == _START_ATTEMPTS:
                    raise
            self._end(self._nodes.values(), signal.SIGKILL)
            tried.update(port for node in self._nodes.values() for port in node.address.ports)
            self._place(self._choose_ports(tried))
            self._describe(self._running_root() / "cluster")

    def _launch(self, nodes: Iterable[KafkaNode]) -> None:
        assert self._guard is not None
        assert self._jvm is not None
        quorum = [node.address for node in self._nodes.values()]
        overrides = self._properties if self._security is None else self._secure(self._security) | self._properties
        for node in nodes:
            properties = server_properties(node.address, quorum, node.directory, overrides, self._client_protocol)
            write_properties(node.directory / "server.properties", properties)
            node.start(self._jvm, self._guard)

    def _wait_until_ready(self, started: Iterable[KafkaNode]) -> bool:
        nodes = list(started)

        def check_alive() -> None:
            for node in nodes:
                if node.exit_status is not None:
                    raise _ended(node)

        return wait_until_ready(
            [node.address for node in nodes],
            {node.node_id for node in nodes},
            self._cluster_id,
            deadline_ms=monotonic_ms() + self._start_timeout_ms,
            check_alive=check_alive,
        )

    def _not_ready(self) -> KafkaEosError:
        return KafkaEosError(
            "EMBEDDED_KAFKA_FAILED",
            f"Kafka {self.version} was not ready within {self._start_timeout_ms / 1000:g} s; the logs end:\n"
            + self.log_tail(_FAILURE_LINES),
        )

    def _end(self, nodes: Iterable[KafkaNode], signal_number: signal.Signals) -> None:
        nodes = list(nodes)
        for node in nodes:  # all at once, then wait for each
            node.signal(signal_number)
        for node in nodes:
            if self._guard is not None:
                node.wait_for_end(self._guard, patience_s=_STOP_PATIENCE_S)


def _ended(node: KafkaNode) -> KafkaEosError:
    status = node.exit_status
    how = f"signal {-status}" if status is not None and status < 0 else f"exit status {status}"
    said = node.failure_lines(_FAILURE_LINES) or "nothing"
    return KafkaEosError(
        "EMBEDDED_KAFKA_FAILED", f"Kafka's node {node.node_id} ended by itself ({how}); its log says:\n{said}"
    )


def _last_certificate(file: Path) -> str:
    """The certificate that has signed the others of a chain, or is the only one."""
    try:
        certificates = pem_certificates(file.read_text(encoding="utf-8", errors="replace"))
    except OSError as failure:
        raise KafkaEosError("EMBEDDED_KAFKA_FAILED", f"{file} cannot be read ({failure.strerror}).") from None
    if not certificates:
        raise KafkaEosError("EMBEDDED_KAFKA_FAILED", f"{file} holds no certificate in PEM.")
    _, begin, last = certificates.rpartition("-----BEGIN ")
    return f"{begin}{last}\n"


def _directory_id() -> str:
    """A random id as Kafka's Uuid.randomUuid makes it: 16 bytes in URL-safe base 64, not beginning with a dash."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text
