from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from kafka_eos_sink.cli import console
from kafka_eos_sink.cli import demo as command
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.commit.write_states import CommittedWrite
from kafka_eos_sink.demo import run as demo_run
from kafka_eos_sink.demo.report import DemoWrite
from kafka_eos_sink.demo.topic_census import Census


def test_demo_with_wrong_counts_exits_1_and_names_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found: Any = SimpleNamespace(problems=["3 records are missing"])
    monkeypatch.setattr(demo_run.Demo, "run", lambda self: found)
    monkeypatch.setattr(command, "_show", lambda console, run: None)
    assert main(["demo"]) == 1
    assert "[KAFKA_EOS.DEMO_FAILED] 3 records are missing" in capsys.readouterr().err


def test_demo_json_has_census_and_the_writes(capsys: pytest.CaptureFixture[str]) -> None:
    census = Census(sent=2, visible=2, duplicates=0, missing=0, unknown=0)
    write = DemoWrite(name="exactly-once", sink="kafka-eos", topic="flights", census=census, in_log=3)
    logged = CommittedWrite(write_id="w", query_id="batch", version=1, state="finished")
    console.print_json(demo_run.DemoRun(write, write, (logged,), "killed", ()))
    shown = json.loads(capsys.readouterr().out)
    assert shown["exactly_once"]["census"]["visible"] == 2
    assert (shown["first_save"], shown["problems"]) == ("killed", [])
    console.print_json({"lost": frozenset((3, 1))})
    assert json.loads(capsys.readouterr().out) == {"lost": [1, 3]}
