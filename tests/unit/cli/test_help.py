"""The help of every command, shell completion, and where servers and properties come from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kafka_eos_sink.cli.main import _COMMANDS, main


@pytest.mark.parametrize("command", _COMMANDS)
def test_help_ends_with_an_example_and_a_neighbouring_command(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
    options, _, end = text.partition("Example:")
    example, *_, neighbour = [line.strip() for line in end.splitlines() if line.strip()]
    assert f"kafka-eos {command}" in example
    for option in re.findall(r"--[a-z-]+", example.partition(f"kafka-eos {command}")[2]):
        assert f" {option} " in options
    (named,) = re.findall(r": kafka-eos ([a-z]+)$", neighbour)
    assert named in set(_COMMANDS) - {command}


@pytest.mark.parametrize("command", _COMMANDS)
def test_help_cuts_nothing_off_at_80_columns(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([command, "--help"]) == 0
    assert "…" not in capsys.readouterr().out


READING = ("topics", "consume", "check", "status", "history", "audit", "top", "recover", "offsets", "explain")


@pytest.mark.parametrize("command", READING)
def test_commands_that_read_take_json(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    assert " --json " in capsys.readouterr().out


CONNECTING = (
    *("topics", "consume", "check", "status", "history", "audit", "top", "metrics"),
    *("recover", "resolve", "forget", "offsets"),
)
REQUIRED = {
    "consume": ("--topic", "orders"),
    "audit": ("--write-id", "w"),
    "recover": ("--write-id", "w"),
    "resolve": ("--write-id", "w", "--version", "0", "--as", "rewrite"),
    "forget": ("--write-id", "w"),
    "history": ("--write-id", "w"),
    "offsets": ("--group", "g"),
}


@pytest.mark.parametrize("command", CONNECTING)
def test_missing_servers_name_option_and_variable(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    arguments = [command, *REQUIRED.get(command, ())]
    assert main(arguments) == 2
    shown = capsys.readouterr().err
    assert "--bootstrap-servers (or KAFKA_EOS_BOOTSTRAP_SERVERS)" in shown
    assert "--properties (or KAFKA_EOS_PROPERTIES)" in shown
    monkeypatch.setenv("KAFKA_EOS_BOOTSTRAP_SERVERS", "nonsense")
    assert main(arguments) == 1
    assert "'nonsense' is not host:port" in capsys.readouterr().err
    monkeypatch.delenv("KAFKA_EOS_BOOTSTRAP_SERVERS")
    monkeypatch.setenv("KAFKA_EOS_PROPERTIES", "/none.properties")
    assert main(arguments) == 1
    assert "[KAFKA_EOS.INVALID_PROPERTIES] /none.properties" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "in_file", "in_environment", "used"),
    [
        ("option", "file", "variable", "option"),
        (None, "file", "variable", "file"),
        (None, None, "variable", "variable"),
    ],
)
@pytest.mark.parametrize("named_by", ["option", "variable"])
def test_option_wins_over_file_and_file_over_variable(
    option: str | None,
    in_file: str | None,
    in_environment: str,
    used: str,
    named_by: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Text that is no address shows which servers a command would use."""
    file = tmp_path / "client.properties"
    file.write_text("client.id=test\n" + (f"bootstrap.servers={in_file}\n" if in_file else ""), "utf-8")
    monkeypatch.setenv("COLUMNS", "1000")  # the file's path must not decide where the message is broken
    monkeypatch.setenv("KAFKA_EOS_BOOTSTRAP_SERVERS", in_environment)
    arguments = ["status", *(("--bootstrap-servers", option) if option else ())]
    if named_by == "variable":
        monkeypatch.setenv("KAFKA_EOS_PROPERTIES", str(file))
    else:
        arguments += ["--properties", str(file)]
    # The credentials in a file that nobody has typed must not reach servers that the file is not for.
    mixed = named_by == "variable" and used == "option"
    assert main(arguments) == (2 if mixed else 1)
    shown = capsys.readouterr().err
    assert ("which is for other" in shown) if mixed else (f"not '{used}'" in shown)
