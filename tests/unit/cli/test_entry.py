"""The installed command without its extra."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from kafka_eos_sink.cli.main import main
from kafka_eos_sink.extras import install_command


def test_command_without_cli_extra_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "typer", None)
    sentence = f"kafka-eos: the command needs typer, and this Python does not have it. Run: {install_command('cli')}"
    with pytest.raises(SystemExit, match=f"^{re.escape(sentence)}$"):
        main([])


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("--help",), 0),
        (("status",), 2),
        (("status", "--bootstrap-servers", "nonsense"), 1),
        (("check", "--bootstrap-servers", "127.0.0.1:1"), 1),
    ],
)
def test_installed_command_returns_its_exit_status(arguments: tuple[str, ...], status: int) -> None:
    command = Path(sys.executable).with_name("kafka-eos")
    ended = subprocess.run([command, *arguments], capture_output=True, text=True, check=False)
    assert ended.returncode == status, ended.stdout + ended.stderr


def test_exporter_without_its_extra_names_the_install_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert main(["metrics", "--bootstrap-servers", "127.0.0.1:1"]) == 1
    error = capsys.readouterr().err
    assert "[KAFKA_EOS.PROMETHEUS_CLIENT_MISSING]" in error
    assert install_command("metrics") in error
