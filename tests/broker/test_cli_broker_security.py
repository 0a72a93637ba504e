"""``kafka-eos broker --security``: other commands and librdkafka connect with the client properties it writes."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from documents import all_blocks, output_blocks, words_of
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.client.security import Secret
from kafka_eos_sink.embedded import cluster
from kafka_eos_sink.embedded.broker_security import BrokerSecurity
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.embedded.java import run_to_end
from kafka_eos_sink.embedded.ports import choose_free_ports
from kafka_eos_sink.errors import KafkaEosError
from kafka_eos_sink.settings.java_properties import read_properties
from kafka_eos_sink.settings.kafka_properties import kafka_properties_from_file
from shown_output import assert_shows
from terminals import broker as foreground_broker

PASSWORD = "correct-horse"


@contextmanager
def broker(*options: str, folder: Path) -> Iterator[Path]:
    """Run the command in another process; yield the file of client properties that it writes."""
    with foreground_broker("--dir", str(folder), *options) as (servers, printed):
        file = folder / "cluster" / "client.properties"
        if servers:
            assert read_properties(file)["bootstrap.servers"] == servers
        yield file
    said = "\n".join(printed)
    assert f"Clients connect with the properties in {file}" in said
    assert PASSWORD not in said


def everything_works(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--properties", str(file)]) == 0
    captured = capsys.readouterr()
    assert "transaction.version" in captured.out
    assert PASSWORD not in captured.out + captured.err


def test_sasl_ssl_without_files_starts_twice_on_one_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "kept"
    with broker("--security", "sasl_ssl", folder=folder) as file:
        everything_works(file, capsys)
        first = read_properties(file)
        assert first["security.protocol"] == "SASL_SSL"
        assert first["sasl.mechanism"] == "SCRAM-SHA-512"
    with broker("--security", "sasl_ssl", folder=folder) as file:
        everything_works(file, capsys)
        assert read_properties(file) == first
    for path in folder.rglob("*"):
        if path.name in ("client.properties", "server.properties", "users", "keystore-password"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_kept_folder_rejects_other_users(tmp_path: Path) -> None:
    """Kafka keeps SCRAM credentials in its data: other users would only seem to work."""
    alice = BrokerSecurity(protocol="SASL_PLAINTEXT", users=(("alice", Secret(PASSWORD)),))
    mallory = BrokerSecurity(protocol="SASL_PLAINTEXT", users=(("mallory", Secret(PASSWORD)),))
    with EmbeddedKafka(directory=tmp_path / "kept", security=alice) as first:
        servers = first.bootstrap_servers
    with pytest.raises(KafkaEosError, match="was made with other users"):
        EmbeddedKafka(directory=tmp_path / "kept", security=mallory).start()
    with EmbeddedKafka(directory=tmp_path / "kept", security=alice) as again:
        assert again.bootstrap_servers == servers
        client = kafka_properties_from_file(again.client_properties_file).client
        assert client.security.sasl is not None


def test_command_line_of_the_format_holds_no_credential(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A salted password is enough to log in, and any user of the machine can read a command line."""
    commands: list[Sequence[str]] = []

    def run(command: Sequence[str]) -> tuple[int, str]:
        commands.append(command)
        assert {each.stat().st_mode & 0o777 for each in tmp_path.rglob("arguments")} <= {0o600}
        return run_to_end(command)

    monkeypatch.setattr(cluster, "run_to_end", run)
    alice = BrokerSecurity(protocol="SASL_PLAINTEXT", users=(("alice", Secret(PASSWORD)),))
    with EmbeddedKafka(directory=tmp_path / "a b", security=alice) as kafka:
        everything_works(kafka.client_properties_file, capsys)
    assert len(commands) == 1
    assert "alice" not in " ".join(commands[0])
    assert list(tmp_path.rglob("arguments")) == []


def test_secured_broker_prints_what_the_page_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = (block for block in all_blocks() if block.name == "docs/secure.md#try-it-on-your-machine")
    (command,) = block.commands()
    (port,) = choose_free_ports("127.0.0.1", 1)
    folder = tmp_path / "kept"
    words = words_of(command.replace("9093", str(port)).replace("~/kafka-eos-broker", str(folder)))
    with foreground_broker(*words[1:]) as (servers, printed):
        everything_works(folder / "cluster" / "client.properties", capsys)
    first, *others = [line for line in printed if not line.startswith("Stopping")]
    shown = output_blocks()[block.name].text.replace("/home/you/kafka-eos-broker", str(folder))
    assert_shows(shown, "\n".join([first, servers, *others]), block.name)
