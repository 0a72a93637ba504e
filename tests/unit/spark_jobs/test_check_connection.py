"""The command line of check_connection.py, without Spark."""

from __future__ import annotations

import pytest

from kafka_eos_sink.errors import AuthenticationError
from kafka_eos_sink.operations.cluster_check import CheckLine, CheckResult
from spark_jobs import check_connection
from spark_jobs.check_connection import arguments, check_here, sink_options

EXECUTORS = ("--executors", "2")


def test_the_options_of_the_sink() -> None:
    given = arguments((*EXECUTORS, "--topic", "t", "--option", "kafka.properties.file=client.properties"))
    assert sink_options(given) == {"kafka.properties.file": "client.properties", "topic": "t"}
    given = arguments((*EXECUTORS, "--bootstrap-servers", "a:1"))
    assert sink_options(given) == {"kafka.bootstrap.servers": "a:1"}


def test_any_failure_is_a_line_of_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("broken\nexecutor db7, process 1: ok")

    monkeypatch.setattr(check_connection, "check_cluster", fail)
    assert check_here({"kafka.bootstrap.servers": "a:1", "topic": "t"}) == (False, "broken")


def test_failed_login_to_one_broker_is_found_by_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each round of the job logs in again, and failed logins can lock the account."""
    failure = AuthenticationError("SASL_AUTHENTICATION_FAILED", "Authentication failed")
    finding = CheckLine(
        "", "broker 2", "b:2 cannot be reached from here", CheckResult.FAILS, f"check its listener; {failure}"
    )
    monkeypatch.setattr(check_connection, "check_cluster", lambda *_, **__: [finding])
    row = check_here({"kafka.bootstrap.servers": "a:1", "topic": "t"})
    assert not row[0]
    assert check_connection.login_failed({"executor x": row})
