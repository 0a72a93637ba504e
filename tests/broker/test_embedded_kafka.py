"""The embedded Kafka: versions, kept data, nodes that end, and every end of the command."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.config import ClientConfig, parse_bootstrap_servers
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.client.pump import monotonic_ms
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.embedded.node import HOST
from kafka_eos_sink.errors import KafkaEosError
from kafka_testing import create_topic, read_committed, wait_until


def transaction_version(kafka: EmbeddedKafka) -> int:
    config = ClientConfig(bootstrap_servers=parse_bootstrap_servers(kafka.bootstrap_servers))
    with NetworkClient(config) as client:
        return Admin(client).transaction_version(monotonic_ms() + 30_000)


def write(kafka: EmbeddedKafka, topic: str, value: bytes) -> None:
    import confluent_kafka

    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers, "acks": "all"})
    producer.produce(topic, value)
    assert producer.flush(120) == 0


def values(kafka: EmbeddedKafka, topic: str) -> list[bytes | None]:
    return [record.value for record in read_committed(kafka.bootstrap_servers, topic)]


def test_kept_folder_starts_with_its_data_and_port(tmp_path: Path) -> None:
    folder = tmp_path / "kept"

    def modes() -> list[int]:
        return [each.stat().st_mode & 0o777 for each in (folder, folder / "cluster")]

    with EmbeddedKafka(directory=folder, transaction_version=1) as first:
        topic = create_topic(first.bootstrap_servers)
        write(first, topic, b"kept")
        assert modes() == [0o700, 0o700]
        bootstrap_servers, cluster_id = first.bootstrap_servers, first.cluster_id
        with pytest.raises(KafkaEosError, match="Another embedded Kafka is running on"):
            EmbeddedKafka(directory=folder).start()
    with pytest.raises(KafkaEosError, match=r"was made with transaction\.version 1, not 2"):
        EmbeddedKafka(directory=folder, transaction_version=2).start()
    with pytest.raises(KafkaEosError, match=r"was made with nodes 1, not 3"):
        EmbeddedKafka(directory=folder, brokers=3).start()
    with EmbeddedKafka(directory=folder) as again:
        assert (again.bootstrap_servers, again.cluster_id) == (bootstrap_servers, cluster_id)
        assert values(again, topic) == [b"kept"]
        assert modes() == [0o700, 0o700]
        assert transaction_version(again) == 1


def test_folder_with_other_files_is_rejected_and_untouched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("x")
    with pytest.raises(KafkaEosError, match=r"holds other files \(thesis\.txt\)"):
        EmbeddedKafka(directory=tmp_path).start()
    assert (tmp_path / "thesis.txt").read_text() == "x"


def test_port_in_use_fails_before_any_start() -> None:
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(KafkaEosError, match=f"Port {port} on 127.0.0.1 is in use"):
            EmbeddedKafka(port=port).start()


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"num.io.threads": "none"}, "could not format its data folder. Its output:\n(.*\n)*.*num.io.threads"),
        ({"advertised.listeners": "BROKER://0.0.0.0:1"}, "(?s)advertised.listeners"),
    ],
)
def test_failed_start_shows_the_reason_and_leaves_nothing(
    properties: dict[str, str], reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    kafka = EmbeddedKafka(properties=properties)
    with pytest.raises(KafkaEosError, match=reason) as raised:
        kafka.start()
    assert raised.value.code == "EMBEDDED_KAFKA_FAILED"
    assert kafka.pids == {}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_broker_command_runs_until_a_signal(number: signal.Signals, tmp_path: Path, kafka_jars: Path) -> None:
    command = subprocess.Popen(
        [sys.executable, "-m", "kafka_eos_sink.cli.main", "broker", "--transaction-version", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    assert command.stdout is not None
    bootstrap_servers = command.stdout.readline().strip()
    try:
        create_topic(bootstrap_servers)
        (root,) = tmp_path.iterdir()
    finally:
        command.send_signal(number)
        _, errors = command.communicate(timeout=60)
    assert command.returncode == (-signal.SIGKILL if number == signal.SIGKILL else 0), errors
    wait_until(lambda: not root.exists(), f"the end of {root}", patience_s=30)
    port = int(bootstrap_servers.rpartition(":")[2])
    with socket.socket() as probe:
        assert probe.connect_ex((HOST, port)) != 0
