"""Warnings that are said once."""

from __future__ import annotations

import pytest

from kafka_eos_sink.logs import warn_once


def test_a_warning_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    for warning in ("only once, please", "100 % of another", "only once, please"):
        warn_once(warning)
    assert [record.getMessage() for record in caplog.records] == [
        "kafka-eos: only once, please",
        "kafka-eos: 100 % of another",
    ]
