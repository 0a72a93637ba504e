from __future__ import annotations

import threading
import time
from typing import Any
from uuid import UUID

import pytest

from kafka_eos_sink.commit.transactional_id import random_write_id
from kafka_eos_sink.commit.values import Write
from kafka_eos_sink.spark import late_sweep
from kafka_eos_sink.spark.late_sweep import sweep_later
from tests.model.scripted_cluster import ScriptedCluster

PLAN = ScriptedCluster().plan()


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


def test_a_writer_waits_some_seconds_at_most_if_brokers_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    assert late_sweep.AT_ONCE_S <= 5
    monkeypatch.setattr(late_sweep, "AT_ONCE_S", 0.05)
    released = threading.Event()
    monkeypatch.setattr(late_sweep.session, "sweep", lambda *_: released.wait(30))
    settings: Any = None
    began = time.monotonic()
    sweep_later(settings, PLAN, None, at_once=True)
    assert time.monotonic() - began < 10
    late_sweep._superseded[PLAN.write.id].set()
    released.set()


def test_next_run_is_promised_only_to_a_write_that_has_one(caplog: pytest.LogCaptureFixture) -> None:
    no_app_id = Write(id=random_write_id("kafka-eos", str(UUID(int=1))), log_topic="commits", connection="-b b:9092")
    for write in (None, PLAN.write, no_app_id):  # of a stream; of a job with txnAppId; of one without
        late_sweep.log_failed_abort("the failed batch", OSError(), write)
    assert ["next run finishes" in line for line in caplog.messages] == [True, True, False]
    assert no_app_id.command("recover") in caplog.messages[2]
