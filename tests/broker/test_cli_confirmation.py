"""`kafka-eos recover` and `resolve` show what they would do, and do it only if somebody agrees."""

from __future__ import annotations

import pytest

from dead_writes import ROWS, tasks, write_all, write_settings
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.runtime import session
from kafka_testing import assert_nothing_open, create_topic, read_committed
from terminals import on_terminal


def test_recover_without_consent_shows_and_changes_nothing(
    kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = create_topic(kafka.bootstrap_servers)
    given = write_settings(kafka, topic)
    plan = session.plan(given)
    messages = tasks(given, plan)
    where = ["recover", "--bootstrap-servers", kafka.bootstrap_servers, "--write-id", given.write.id]
    assert main(where) == 1
    captured = capsys.readouterr()
    for message in messages:
        assert message.prepared is not None
        assert message.prepared.identity.transactional_id in captured.out
    assert "prepared" in captured.out
    assert f"recover would fence every job or query that runs under {given.write.id}" in captured.out
    assert "Nothing was changed. To do it without a question: kafka-eos" in captured.err
    assert captured.err.rstrip().endswith(" --yes")
    assert main([*where, "--json"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "recover would fence" in captured.err
    status, shown = on_terminal(where, "n")
    assert status == 1
    assert "recover would fence" in shown
    # The driver is not fenced, and its transactions are open.
    session.commit(given, plan, messages)
    assert len(read_committed(kafka.bootstrap_servers, topic)) == 2 * ROWS
    assert_nothing_open(kafka.bootstrap_servers, [topic])


def finished_write(kafka: EmbeddedKafka) -> list[str]:
    """The options that name it."""
    given = write_settings(kafka, create_topic(kafka.bootstrap_servers))
    write_all(given)
    return ["--bootstrap-servers", kafka.bootstrap_servers, "--write-id", given.write.id]


def test_resolve_shows_its_warning_once(kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture) -> None:
    finished = ["resolve", *finished_write(kafka), "--as", "committed", "--version", "3"]
    warning = "is {}, so it needs no record unless DIFFERENT_BATCH or DIFFERENT_QUERY names this command"
    status, shown = on_terminal(finished, "y")
    assert status == 0, shown
    assert shown.count(warning.format("finished")) == 1, shown
    assert main([*finished, "--yes"]) == 0
    assert caplog.text.count(warning.format("resolved as committed")) == 1
