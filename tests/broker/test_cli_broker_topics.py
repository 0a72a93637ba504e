"""`kafka-eos broker --topic`, and other commands that find its servers in the environment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kafka_eos_sink.cli.main import main
from terminals import broker


def partitions(capsys: pytest.CaptureFixture[str]) -> dict[str, int]:
    assert main(["topics", "--json"]) == 0, capsys.readouterr().err
    return {each["name"]: each["partitions"] for each in json.loads(capsys.readouterr().out)}


def test_broker_creates_topics_and_keeps_those_it_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ("--dir", str(tmp_path / "kept"))
    with broker(*folder, "--topic", "orders:3", "--topic", "events.v1:1") as (servers, printed):
        monkeypatch.setenv("KAFKA_EOS_BOOTSTRAP_SERVERS", servers)
        assert partitions(capsys) == {"events.v1": 1, "orders": 3}
    assert "Topic orders was created, with 3 partitions." in printed
    with broker(*folder, "--topic", "orders:5", "--topic", "late:2") as (servers, printed):
        monkeypatch.setenv("KAFKA_EOS_BOOTSTRAP_SERVERS", servers)
        assert partitions(capsys) == {"events.v1": 1, "late": 2, "orders": 3}
    assert "Topic orders was kept, with 3 partitions." in printed
