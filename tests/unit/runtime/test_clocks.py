"""Which clock the steps of a procedure read."""

from __future__ import annotations

import time

import pytest

from kafka_eos_sink.client.admin import connected
from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.steps import Procedure
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.runtime.executor import Executor

HOUR_MS = 3_600_000


def test_setting_the_wall_clock_moves_no_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    true_time_ns = time.time_ns

    def measure() -> Procedure[tuple[int, int]]:
        started = yield from steps.Now()
        wall = yield from steps.WallClock()
        monkeypatch.setattr(time, "time_ns", lambda: true_time_ns() - HOUR_MS * 1_000_000)
        now = yield from steps.Now()
        wall_now = yield from steps.WallClock()
        return now - started, wall_now - wall

    with connected("localhost:1") as admin:
        passed, wall_passed = Executor(admin, ("log", 0), ProducerConfig()).run(measure())
    assert 0 <= passed < HOUR_MS
    assert wall_passed < 0
