"""The points at which tests have a process fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_eos_sink.errors import KafkaEosError
from kafka_eos_sink.runtime import failpoints


def test_failpoint_does_nothing_unless_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(failpoints.VARIABLE, raising=False)
    failpoints.reached("commit.decided")
    monkeypatch.setenv(failpoints.VARIABLE, "plan.read=raise")
    failpoints.reached("commit.decided")
    assert not failpoints.is_set("commit.decided")
    assert failpoints.is_set("plan.read")


def test_a_point_fails_as_often_as_it_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(failpoints.VARIABLE, "plan.read=raise;commit.decided=raise")
    for _ in range(2):
        with pytest.raises(KafkaEosError, match=r"FAILPOINT.*commit.decided"):
            failpoints.reached("commit.decided")


def test_with_a_file_it_fails_once_for_all_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(failpoints.VARIABLE, f"commit.decided=raise:{tmp_path / 'once'}")
    with pytest.raises(KafkaEosError):
        failpoints.reached("commit.decided")
    failpoints.reached("commit.decided")
