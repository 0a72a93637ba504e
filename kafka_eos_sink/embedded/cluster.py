"""A real Apache Kafka of one or three KRaft nodes on the loopback interface."""

from __future__ import annotations

import atexit
import base64
import os
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from kafka_eos_sink.client.config import ClientConfig
from kafka_eos_sink.client.connection import LostResponse
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.client.pump import monotonic_ms
from kafka_eos_sink.client.security import Secret
from kafka_eos_sink.embedded import broker_security, distribution, kept
from kafka_eos_sink.embedded.broker_security import BrokerSecurity
from kafka_eos_sink.embedded.distribution import DEFAULT_KAFKA_VERSION, Progress
from kafka_eos_sink.embedded.java import JavaRuntime, find_java, run_to_end
from kafka_eos_sink.embedded.node import (
    HOST,
    KafkaNode,
    NodeAddress,
    failed,
    failure_lines,
    jvm_options,
    server_properties,
    write_java_arguments,
    write_properties,
)
from kafka_eos_sink.embedded.ports import choose_free_ports, is_free
from kafka_eos_sink.embedded.process_guard import ProcessGuard
from kafka_eos_sink.errors import BrokerUnavailableError, KafkaEosError
from kafka_eos_sink.protocol.messages import MetadataRequest

_START_ATTEMPTS = 5
_STOP_PATIENCE_S = 15.0
_ATTEMPT_MS = 1_000
_RECONNECT_MS = 50
_TRUSTSTORE = "client-truststore.pem"


def random_kafka_id(random_uuid: Callable[[], uuid.UUID] = uuid.uuid4) -> str:
    """Return a random id of 22 characters, as Kafka's ``Uuid.randomUuid`` writes them."""
    # Kafka's tools read a leading dash as an option; Kafka never draws such an id either.
    while (drawn := base64.urlsafe_b64encode(random_uuid().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return drawn


@dataclass(kw_only=True, eq=False, repr=False)
class EmbeddedKafka:
    """A Kafka of 1 or 3 nodes, each broker and controller; a context manager.

    The nodes die with this process, however it ends. An instance is not thread-safe.

    Args:
        brokers: Number of nodes, 1 or 3.
        version: Version of Apache Kafka; the first start downloads its jars (``distribution``).
        transaction_version: The finalized feature ``transaction.version``, 0 to 2. None takes this Kafka's default.
        directory: Keeps the data for a later start. None takes a temporary folder, which ``stop`` removes.
        port: Client port of the first node; the others follow. None chooses free ports.
        heap: Heap of each node in Java's notation.
        properties: Server properties that win over the ones chosen here.
        security: TLS and SASL of the listener for clients. None is plaintext.
        tuned_for: ``start`` for tests, ``throughput`` for measurements and brokers that run for long.
        start_timeout_ms: Time in which all nodes must be ready.
        progress: Called with the progress of the download.

    Raises:
        ValueError: The arguments make no cluster.
    """

    brokers: int = 1
    version: str = DEFAULT_KAFKA_VERSION
    transaction_version: int | None = None
    directory: str | Path | None = None
    port: int | None = None
    heap: str = "384m"
    properties: Mapping[str, str] | None = None
    security: BrokerSecurity | None = None
    tuned_for: Literal["start", "throughput"] = "start"
    start_timeout_ms: int = 120_000
    progress: Callable[[Progress], None] | None = None

    def __post_init__(self) -> None:
        if self.brokers not in (1, 3):
            raise ValueError(f"brokers is {self.brokers}; an embedded Kafka has 1 or 3")
        if self.transaction_version not in (None, 0, 1, 2):
            raise ValueError(f"transaction_version is {self.transaction_version}; it is 0, 1 or 2")
        if self.port is not None and not 1 <= self.port <= 65_536 - self.brokers:
            raise ValueError(f"port is {self.port}; it must be between 1 and {65_536 - self.brokers}")
        self._owner = os.getpid()
        self._folder: Path | None = None
        self._nodes: dict[int, KafkaNode] = {}
        self._users: dict[str, Secret] = {}
        self.cluster_id = ""
        self._java: JavaRuntime
        self._java_command: Callable[..., list[str]]
        self._guard: ProcessGuard
        self._release = ExitStack()
        """Clean-up of ``stop`` after the nodes have ended."""

    def start(self) -> EmbeddedKafka:
        """Download, format and start; return when every node is ready.

        An error leaves no process and no temporary folder.

        Raises:
            KafkaEosError: ``EMBEDDED_KAFKA_FAILED``, ``DISTRIBUTION_UNAVAILABLE``, ``JAVA_NOT_FOUND`` or
                ``JAVA_TOO_OLD``.
        """
        if self._folder is not None:
            raise failed("This embedded Kafka is running already; stop it first.")
        self._java = find_java()
        jars = distribution.resolve(self.version, progress=self.progress)
        options = jvm_options(jars, self._java, self.heap, self.tuned_for)
        self._java_command = partial(self._java.command, jars / "*", options=options)
        atexit.register(self.stop)
        try:
            self._open_folder()
            self._prepare()
            self._start_nodes()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End all nodes and remove a temporary folder; a second call does nothing."""
        # A forked child inherits the atexit handler, and must not end the nodes of its parent.
        if self._folder is None or self._owner != os.getpid():
            return
        atexit.unregister(self.stop)
        # Temporary data needs no orderly shutdown. Kept data gets one, but the last of three nodes has lost its quorum:
        # no controller confirms its shutdown, so it is killed after a while. Kafka's log recovery handles that.
        self._end(self._nodes.values(), signal.SIGKILL if self.directory is None else signal.SIGTERM)
        self._release.close()
        self._nodes, self._folder = {}, None

    def __enter__(self) -> EmbeddedKafka:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ---- addresses, files and processes

    @property
    def bootstrap_servers(self) -> str:
        """``host:port,...`` of all nodes, including nodes that are down."""
        return ",".join(node.address.server for node in self._nodes.values())

    @property
    def plaintext_servers(self) -> str:
        """``host:port,...`` of the nodes' own listener without TLS and SASL."""
        return ",".join(f"{HOST}:{node.address.broker_port}" for node in self._nodes.values())

    @property
    def client_properties(self) -> dict[str, str]:
        """The properties with which a client connects, secrets included."""
        if self.security is None:
            return {"bootstrap.servers": self.bootstrap_servers}
        trusted = self._cluster_folder / _TRUSTSTORE
        return broker_security.client_properties(self.security, self._users, self.bootstrap_servers, trusted)

    @property
    def client_properties_file(self) -> Path:
        """File with ``client_properties``, readable by this user only."""
        return self._cluster_folder / "client.properties"

    @property
    def folder(self) -> Path:
        """The folder of properties, data and logs of a running cluster."""
        if self._folder is None:
            raise failed("This embedded Kafka is not running; start it first.")
        return self._folder

    @property
    def log_files(self) -> tuple[Path, ...]:
        """The log file of each node; ``stop`` removes the logs of a temporary folder."""
        return tuple(node.log_file for node in self._nodes.values())

    @property
    def node_ids(self) -> tuple[int, ...]:
        return tuple(self._nodes)

    @property
    def pids(self) -> dict[int, int]:
        """The process id of each running node, by node id."""
        return {node.node_id: pid for node in self._nodes.values() if (pid := node.process_id) is not None}

    def failure(self) -> KafkaEosError | None:
        """Return the error of a node that ended by itself, else None."""
        return next((_ended(node) for node in self._nodes.values() if node.exit_status is not None), None)

    # ---- single nodes

    def kill(self, node_id: int) -> None:
        """Send SIGKILL: the node ends at once, and its data stays as it is."""
        self._end([self._node(node_id)], signal.SIGKILL)

    def stop_node(self, node_id: int) -> None:
        """Send SIGTERM: the node moves its leaderships and ends; kill it after 15 s."""
        self._end([self._node(node_id)], signal.SIGTERM)

    def start_node(self, node_id: int) -> None:
        """Start a killed or stopped node on its data and ports; return when it is ready."""
        node = self._node(node_id)
        if node.process_id is None:
            self._launch([node])
            self._await_ready([node])

    def _node(self, node_id: int) -> KafkaNode:
        if node_id not in self._nodes:
            nodes = ", ".join(map(str, self._nodes)) or "not started"
            raise ValueError(f"no node {node_id} here; the nodes are {nodes}")
        return self._nodes[node_id]

    # ---- the folder, formatted or reused

    @property
    def _cluster_folder(self) -> Path:
        return self.folder / "cluster"

    def _open_folder(self) -> None:
        if self.directory is None:
            self._folder = Path(tempfile.mkdtemp(prefix="kafka-eos-"))
            self._release.callback(shutil.rmtree, self._folder, ignore_errors=True)
            self._guard = ProcessGuard(scratch=self._folder)
        else:
            folder = Path(self.directory).absolute()
            self._release.enter_context(kept.lock_folder(folder))
            # Only now: a start that fails at the lock must not touch the folder of the other cluster.
            self._folder = folder
            self._guard = ProcessGuard()
        # Close the guard first. Later, it could remove a folder that another cluster uses, or kill a process that reuses a node's id.
        self._release.callback(self._guard.close)

    def _prepare(self) -> None:
        """Format the folder, or read what an earlier start formatted."""
        found = kept.read_description(self.folder, brokers=self.brokers, transaction_version=self.transaction_version)
        if found is None:
            self.cluster_id = random_kafka_id()
            self._place(self._choose_addresses())
            self._format()
            return
        self.cluster_id, self.transaction_version = found.cluster_id, found.transaction_version
        if self.security is not None and self.security.uses_sasl:
            self._users = kept.read_users(self._cluster_folder, self.security)
        # Clients find a kept cluster again on its ports, unless they were taken meanwhile or must differ now.
        self._place(found.nodes if self._can_reuse(found.nodes) else self._choose_addresses())
        self._describe(self._cluster_folder)

    def _can_reuse(self, addresses: Iterable[NodeAddress]) -> bool:
        return all(
            address.has_client_listener == (self.security is not None)
            and (self.port is None or address.port == self.port + index)
            and all(is_free(HOST, port) for port in address.ports)
            for index, address in enumerate(addresses)
        )

    def _choose_addresses(self, avoid: Collection[int] = ()) -> list[NodeAddress]:
        if self.port is None:
            ports = choose_free_ports(HOST, self.brokers, avoid=avoid)
        else:
            ports = tuple(range(self.port, self.port + self.brokers))
            for port in ports:
                if not is_free(HOST, port):
                    raise failed(f"Port {port} on {HOST} is in use; choose another port, or none for a free one.")
        others = choose_free_ports(HOST, 2 * self.brokers, avoid={*avoid, *ports})
        return [
            NodeAddress(
                node_id=index + 1,
                port=port,
                broker_port=port if self.security is None else others[2 * index],
                controller_port=others[2 * index + 1],
            )
            for index, port in enumerate(ports)
        ]

    def _place(self, addresses: Iterable[NodeAddress]) -> None:
        folder, guard = self._cluster_folder, self._guard
        self._nodes = {each.node_id: KafkaNode(each, folder / f"node-{each.node_id}", guard) for each in addresses}

    def _describe(self, cluster: Path) -> None:
        nodes = tuple(node.address for node in self._nodes.values())
        kept.Description(self.cluster_id, self.transaction_version, nodes).write(cluster)

    def _format(self) -> None:
        """Format all nodes in a second folder, then rename it to the final one."""
        formatting = self.folder / "formatting"
        shutil.rmtree(formatting, ignore_errors=True)
        formatting.mkdir(mode=0o700)
        if self.security is not None and self.security.uses_sasl:
            # Now and not at each start: Kafka stores the users' SCRAM credentials while it formats.
            self._users = dict(self.security.users)
            if not self._users:
                self._users = {broker_security.DEFAULT_USER: broker_security.new_password()}
            kept.write_users(formatting, self._users)
        first, *others = self._nodes.values()
        first_data = self._format_first(first, formatting / first.directory.name)
        # StorageTool starts a JVM, so it runs once: its bootstrap records (features, users) hold for the whole cluster.
        # Only ``meta.properties`` holds the node and a random id of its data directory.
        for node in others:
            data = formatting / node.directory.name / "data"
            shutil.copytree(first_data, data)
            identity = {"cluster.id": self.cluster_id, "node.id": str(node.node_id), "directory.id": random_kafka_id()}
            write_properties(data / "meta.properties", {"version": "1", **identity})
        self._describe(formatting)
        formatting.rename(self._cluster_folder)

    def _format_first(self, node: KafkaNode, folder: Path) -> Path:
        folder.mkdir()
        settings = folder / "server.properties"
        write_properties(settings, self._server_properties(node, folder, {}))
        command = ["kafka.tools.StorageTool", "format", "-t", self.cluster_id, "-c", str(settings)]
        if self.transaction_version is not None:
            command += ["--feature", f"transaction.version={self.transaction_version}"]
        arguments = folder / "arguments"
        write_java_arguments(arguments, [*command, *broker_security.scram_arguments(self._users)])
        status, output = run_to_end(self._java_command(f"@{arguments}"))
        arguments.unlink()
        if status != 0:
            lines = failure_lines(output.splitlines())
            raise failed(f"Kafka {self.version} could not format its data folder. Its output:\n{lines}")
        return folder / "data"

    # ---- processes

    def _server_properties(self, node: KafkaNode, folder: Path, secured: Mapping[str, str]) -> dict[str, str]:
        quorum = [each.address for each in self._nodes.values()]
        protocol = "PLAINTEXT" if self.security is None else self.security.protocol
        return server_properties(node.address, quorum, folder, {**secured, **(self.properties or {})}, protocol)

    def _secure(self, security: BrokerSecurity) -> dict[str, str]:
        """Write the client properties and stores; return the server properties."""
        trusted = self._cluster_folder / _TRUSTSTORE
        key_store = broker_security.make_key_store(security, self._java.executable, trusted)
        write_properties(self.client_properties_file, self.client_properties)
        return broker_security.listener_properties(security, self._users, key_store)

    def _start_nodes(self) -> None:
        tried: set[int] = set()
        for attempt in range(1, _START_ATTEMPTS + 1):
            self._launch(self._nodes.values())
            try:
                self._await_ready(self._nodes.values())
                return
            except KafkaEosError:
                # Another process can take a port between choosing it and listening on it.
                lost_a_port = any(node.had_port_conflict() for node in self._nodes.values())
                if not lost_a_port or self.port is not None or attempt == _START_ATTEMPTS:
                    raise
            self._end(self._nodes.values(), signal.SIGKILL)
            tried.update(port for node in self._nodes.values() for port in node.address.ports)
            self._place(self._choose_addresses(tried))
            self._describe(self._cluster_folder)

    def _launch(self, nodes: Iterable[KafkaNode]) -> None:
        secured = {} if self.security is None else self._secure(self.security)
        for node in nodes:
            node.start(self._java_command, self._server_properties(node, node.directory, secured))

    def _await_ready(self, started: Collection[KafkaNode]) -> None:
        """Wait until each node is ready; raise if one ended, or if the time is over."""
        deadline_ms = monotonic_ms() + self.start_timeout_ms
        waiting = list(started)
        while waiting:
            if failures := [_ended(node) for node in started if node.exit_status is not None]:
                raise failures[0]
            if monotonic_ms() >= deadline_ms:
                logs = "\n".join(
                    f"== node {each}\n{failure_lines(node.output())}" for each, node in self._nodes.items()
                )
                seconds = self.start_timeout_ms / 1_000
                raise failed(f"Kafka {self.version} was not ready within {seconds:g} s. The end of its logs:\n{logs}")
            if self._is_ready(waiting[0], {node.node_id for node in started}, deadline_ms):
                del waiting[0]
            else:
                time.sleep(_RECONNECT_MS / 1_000)

    def _is_ready(self, node: KafkaNode, expected: Collection[int], deadline_ms: int) -> bool:
        """Return True if the node's metadata lists the expected nodes."""
        config = ClientConfig(
            bootstrap_servers=((HOST, node.address.broker_port),),
            client_id="kafka-eos-readiness",
            reconnect_backoff_ms=_RECONNECT_MS,
            reconnect_backoff_max_ms=_RECONNECT_MS,
        )
        attempt_deadline_ms = min(monotonic_ms() + _ATTEMPT_MS, deadline_ms)
        # A node that is still starting refuses connections or drops them: connect again until the deadline.
        with suppress(BrokerUnavailableError, LostResponse), NetworkClient(config) as client:
            connection = client.any_node(attempt_deadline_ms)
            metadata = client.call(
                connection, MetadataRequest(topics=(), allow_auto_topic_creation=False), deadline_ms=attempt_deadline_ms
            )
            # A node serves Metadata once it has caught up with the controllers, and lists only brokers that are registered
            # and not fenced: then any of them can lead partitions. Another cluster can have taken the same port.
            listed = {broker.node_id for broker in metadata.brokers}
            return metadata.cluster_id == self.cluster_id and listed.issuperset(expected)
        return False

    def _end(self, nodes: Collection[KafkaNode], number: signal.Signals) -> None:
        # First a signal to all: they end at the same time, and three nodes take no longer than one.
        for node in nodes:
            node.signal(number)
        for node in nodes:
            node.wait_for_end(patience_s=_STOP_PATIENCE_S)


def _ended(node: KafkaNode) -> KafkaEosError:
    status = node.exit_status
    how = f"signal {-status}" if status is not None and status < 0 else f"exit status {status}"
    lines = failure_lines(node.output()) or "(empty)"
    return failed(f"Node {node.node_id} of the embedded Kafka ended by itself ({how}). Its log:\n{lines}")
