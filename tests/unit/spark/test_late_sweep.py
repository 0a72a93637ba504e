from __future__ import annotations

import threading
from typing import Any

import pytest

from kafka_eos_sink.spark.late_sweep import sweep_later
from tests.unit.commit.scripted_world import PLAN


@pytest.mark.parametrize("at_once", [True, False])
def test_no_free_thread_does_not_fail_a_committed_batch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, at_once: bool
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    settings: Any = None
    sweep_later(settings, PLAN, None, at_once=at_once)
    assert "no sweep for open transactions of 'w': can't start new thread" in caplog.text
