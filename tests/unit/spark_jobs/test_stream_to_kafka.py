"""The command line of stream_to_kafka.py, without Spark."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.clientserver import ClientServer, PythonParameters
from py4j.java_gateway import server_started
from py4j.protocol import get_command_part
from pyspark import java_gateway

from kafka_eos_sink.errors import ConfigurationError
from spark_jobs.stream_to_kafka import StopOnSignal, arguments, sink_options, source_options

CLUSTER = ("--bootstrap-servers", "a:1", "--checkpoint", "c")
FILES = ("--files", "in", "--format", "json", "--schema", "a INT")


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    with pytest.raises(SystemExit) as caught:
        arguments(argv)
    assert caught.value.code == 2
    return capsys.readouterr().err.splitlines()[-1].removeprefix("stream_to_kafka.py: error: ")


@pytest.mark.parametrize(
    ("words", "trigger"),
    [
        ((), {}),
        (("--trigger", "available-now"), {"availableNow": True}),
        (("--trigger", "once"), {"once": True}),
        (("--trigger", "processing-time", "10 seconds"), {"processingTime": "10 seconds"}),
    ],
)
def test_triggers(words: tuple[str, ...], trigger: dict[str, object]) -> None:
    assert arguments((*CLUSTER, *FILES, "--topic", "t", *words)).trigger == trigger


def test_topic_source_defaults_to_earliest_and_read_committed() -> None:
    given = arguments((*CLUSTER, "--from-topic", "s,t"))
    defaults = {
        "subscribe": "s,t",
        "startingoffsets": "earliest",
        "kafka.isolation.level": "read_committed",
        "kafka.allow.auto.create.topics": "false",
        "includeheaders": "true",
        "kafka.bootstrap.servers": "a:1",
    }
    assert source_options(given, sink_options(given)) == defaults
    given = arguments((*CLUSTER, "--from-topic", "s,t", "--read-option", "startingOffsets=latest"))
    assert source_options(given, sink_options(given)) == {**defaults, "startingoffsets": "latest"}


def test_the_cluster_of_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKERS", "from-environment:1")
    given = arguments(("--option", "kafka.bootstrap.servers=${env:BROKERS}", "--checkpoint", "c", "--from-topic", "s"))
    sink = sink_options(given)
    assert sink["kafka.bootstrap.servers"] == "${env:BROKERS}"
    # Spark's source knows no references.
    assert source_options(given, sink)["kafka.bootstrap.servers"] == "from-environment:1"

    file = tmp_path / "consumer.properties"
    file.write_text("bootstrap.servers=b:1\nsecurity.protocol=SSL\nssl.key.password=${env:BROKERS}\n", "utf-8")
    other = (*CLUSTER, "--from-topic", "s", "--from-properties", str(file))
    given = arguments(other)
    found = source_options(given, sink_options(given))
    assert found["kafka.bootstrap.servers"] == "b:1"
    assert found["kafka.security.protocol"] == "SSL"
    assert found["kafka.ssl.key.password"] == "from-environment:1"
    given = arguments((*other, "--from-bootstrap-servers", "c:1"))
    assert source_options(given, sink_options(given))["kafka.bootstrap.servers"] == "c:1"


def test_source_inherits_sink_cluster_options_java_supports() -> None:
    secured = ("--option", "kafka.security.protocol=SASL_SSL", "--option", "kafka.linger.ms=1")
    given = arguments((*CLUSTER, "--from-topic", "s", *secured))
    found = source_options(given, sink_options(given))
    assert found["kafka.security.protocol"] == "SASL_SSL"
    assert "kafka.linger.ms" not in found
    given = arguments((*CLUSTER, "--from-topic", "s", *secured, "--from-bootstrap-servers", "b:1"))
    assert "kafka.security.protocol" not in source_options(given, sink_options(given))
    given = arguments((*CLUSTER, "--from-topic", "s", "--option", "kafka.sasl.username=me"))
    with pytest.raises(
        ConfigurationError, match=r"kafka\.sasl\.username: Spark reads with Java.* use sasl\.jaas\.config"
    ):
        source_options(given, sink_options(given))


@pytest.fixture
def gateway() -> Iterator[Any]:
    """Py4J's real callback server, as PySpark starts it, without a JVM."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    started = threading.Event()

    def on_start(*_: object, **__: object) -> None:
        started.set()

    server_started.connect(on_start)
    made = ClientServer(python_parameters=PythonParameters(port=0, daemonize=True, daemonize_connections=True))
    assert started.wait(10)
    server_started.disconnect(on_start)
    yield made
    made.shutdown_callback_server()
    for number, handler in before.items():
        signal.signal(number, handler)


def call(gateway: Any, object_id: str, method: str) -> bytes:
    """Call a method of a Python object as the JVM does, with the number of SIGTERM."""
    with socket.create_connection(gateway.get_callback_server().server_socket.getsockname(), 10) as connection:
        connection.sendall(f"c\n{object_id}\n{method}\ni{signal.SIGTERM.value}\ne\n".encode())
        return connection.recv(1_000)


def test_only_the_jvm_can_stop_a_query(gateway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java_gateway, "ensure_callback_server_started", lambda _: None)
    pool = gateway.gateway_property.pool

    class Signal:
        def __init__(self, name: str) -> None:
            pass

        @staticmethod
        def handle(_: Signal, handler: object) -> None:
            get_command_part(handler, pool)  # gives the object its id, when it is an argument of a call to the JVM

    jvm = SimpleNamespace(sun=SimpleNamespace(misc=SimpleNamespace(Signal=Signal)))
    stop = StopOnSignal(SimpleNamespace(_jvm=jvm, sparkContext=SimpleNamespace(_gateway=gateway)))  # type: ignore[arg-type]
    ids = [each for each, known in pool.dict.items() if known is stop]
    assert len(ids) == 2  # for TERM and INT
    assert b"unknown" in call(gateway, "p0", "_request")
    assert not stop.requested.is_set()
    call(gateway, ids[0], "_request")
    assert stop.requested.is_set()
