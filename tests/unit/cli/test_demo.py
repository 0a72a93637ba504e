from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kafka_eos_sink.cli import demo as command
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.demo import run as demo_run


def test_demo_with_wrong_counts_exits_1_and_names_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found: Any = SimpleNamespace(problems=["3 records are missing"])
    monkeypatch.setattr(demo_run.Demo, "run", lambda self: found)
    monkeypatch.setattr(command, "_show", lambda console, run: None)
    assert main(["demo"]) == 1
    assert "[KAFKA_EOS.DEMO_FAILED] 3 records are missing" in capsys.readouterr().err
