"""Log levels by the environment variable, and warnings that a process logs once."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from kafka_eos_sink import logs
from kafka_eos_sink.logs import VARIABLE, warn_once

PROGRAM = """
import logging, os, kafka_eos_sink
for name in ("kafka_eos_sink.client", "kafka_eos_sink.commit"):
    for level in (logging.DEBUG, logging.INFO, logging.WARNING):
        logging.getLogger(name).log(level, "%s %d", logging.getLevelName(level), os.getpid())
"""


def lines(value: str | None) -> list[str]:
    """The lines on standard error of a process that logs two loggers at three levels."""
    environment = {name: text for name, text in os.environ.items() if name != VARIABLE}
    if value is not None:
        environment[VARIABLE] = value
    command = [sys.executable, "-c", PROGRAM]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stderr.splitlines()


def test_warning_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    for warning in ("only once, please", "100 % of another", "only once, please"):
        warn_once(warning)
    assert [record.getMessage() for record in caplog.records] == [
        "kafka-eos: only once, please",
        "kafka-eos: 100 % of another",
    ]


def test_threads_warn_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweep of one query beside the commit of another; an error of the log would fail the commit."""

    def warn(thread: int) -> None:
        for number in range(3_000):
            warn_once("somebody", about=(thread, number))

    monkeypatch.setattr(logs, "AGAIN_AFTER_S", 0.000_5)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(warn, range(4)))
    finally:
        sys.setswitchinterval(interval)


def test_without_variable_only_warnings_are_shown() -> None:
    assert [line.split()[0] for line in lines(None)] == ["WARNING", "WARNING"]


def test_variable_sets_level_of_one_logger() -> None:
    shown = lines("warning,kafka_eos_sink.client=debug")
    assert [(line.split()[2], line.split()[4]) for line in shown] == [
        ("DEBUG", "kafka_eos_sink.client:"),
        ("INFO", "kafka_eos_sink.client:"),
        ("WARNING", "kafka_eos_sink.client:"),
        ("WARNING", "kafka_eos_sink.commit:"),
    ]


def test_unknown_level_is_a_warning_and_no_failure() -> None:
    first, *others = lines("loud")
    assert "KAFKA_EOS_LOG: 'loud' is not a level" in first
    assert len(others) == 2
