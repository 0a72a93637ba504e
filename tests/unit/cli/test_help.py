"""The help of every command, shell completion, and where servers and properties come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_eos_sink.cli.main import main


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
