"""`kafka-eos resolve` against a real Kafka: each answer, and what the next run of the version makes of it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import pytest

from dead_writes import ROWS, abort_by_hand, delete_rows, die_at, tasks, varied, write_all, write_settings
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.commit.values import TaskOutcome
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.runtime import session
from kafka_testing import assert_nothing_open, create_topic, read_committed, read_uncommitted, unique_topic


def resolve(kafka: EmbeddedKafka, write_id: str, version: int, answer: str, *more: str) -> int:
    where = ("--bootstrap-servers", kafka.bootstrap_servers, "--write-id", write_id)
    return main(["resolve", "--yes", *where, "--version", str(version), "--as", answer, *more])


def dead_write(
    kafka: EmbeddedKafka,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    at: str = "commit.decided",
    aborted: Sequence[int] = (),
    gone: bool = False,
) -> session.WriteSettings:
    """A write of two tasks that died at a point of its commit; some of its transactions are aborted, or their records gone."""
    given = write_settings(kafka, topic)
    plan = session.plan(given)
    messages = tasks(given, plan)
    die_at(at, given, plan, messages, monkeypatch)
    lost = [messages[each] for each in aborted]
    if lost:
        abort_by_hand(given, lost)
    if gone:
        delete_rows(kafka, lost)
    return given


def test_resolve_committed_ends_open_parts_and_skips_any_rerun(
    any_kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = any_kafka.bootstrap_servers
    topic = create_topic(servers)
    given = dead_write(any_kafka, topic, monkeypatch)
    for _ in range(2):
        assert resolve(any_kafka, given.write.id, 3, "committed") == 0, capsys.readouterr().err
    assert len(read_committed(servers, topic)) == 2 * ROWS
    assert_nothing_open(servers, [topic])
    other = write_settings(any_kafka, topic, write_id=given.write.id, schema="value string, other int")
    assert {message.outcome for message in write_all(other)} == {TaskOutcome.ALREADY_COMMITTED}
    assert len(read_uncommitted(servers, topic)) == 2 * ROWS


def without_rows(given: session.WriteSettings) -> None:
    """Write the batch of one task that Spark gives no row."""
    plan = session.plan(given)
    task = session.TaskIdentity(partition=0, attempt_number=0, task_attempt_id=0)
    session.commit(given, plan, [session.write_task(given, plan, task, iter([]))])


def test_empty_version_is_written_after_the_command_of_its_warning(
    any_kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    topic = create_topic(any_kafka.bootstrap_servers)
    given = write_settings(any_kafka, topic)
    write_all(varied(given, version=2))
    without_rows(given)
    line = caplog.messages[-1]  # the first write on a cluster announces its commit log before
    printed = line[line.index("kafka-eos resolve") :]
    command = shlex.split(printed)[1:]
    caplog.clear()
    # The source has rows by now.
    assert {message.outcome for message in write_all(given)} == {TaskOutcome.ALREADY_COMMITTED}
    (again,) = caplog.messages
    assert again.endswith(printed)
    session.abort(given, session.plan(given), [])  # Spark stopped such a run, because it could not read the source
    assert caplog.messages == [again, again]
    assert main([*command, "--yes"]) == 0, capsys.readouterr().err
    assert {message.outcome for message in write_all(given)} == {TaskOutcome.PREPARED}
    assert len(read_committed(any_kafka.bootstrap_servers, topic)) == 4 * ROWS
    # It is not empty now, so the same command is refused. Nor is it the newest any more after another version.
    assert main([*command, "--yes"]) == 1
    assert "[KAFKA_EOS.ROWS_ARE_VISIBLE]" in capsys.readouterr().err
    without_rows(varied(given, version=4))
    write_all(varied(given, version=5))
    assert resolve(any_kafka, given.write.id, 4, "rewrite") == 1
    assert "[KAFKA_EOS.NOTHING_TO_RESOLVE]" in capsys.readouterr().err


def test_aborted_version_is_written_again(
    any_kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All its transactions timed out, and its records are gone. Below version 2, no coordinator proves that (LATE ADD)."""
    servers = any_kafka.bootstrap_servers
    topic = create_topic(servers, partitions=2)
    given = dead_write(any_kafka, topic, monkeypatch, aborted=[0, 1], gone=True)
    if any_kafka.transaction_version == 2:
        assert resolve(any_kafka, given.write.id, 3, "rewrite") == 0, capsys.readouterr().err
    else:
        assert resolve(any_kafka, given.write.id, 3, "rewrite") == 1
        assert "[KAFKA_EOS.ROWS_ARE_VISIBLE]" in capsys.readouterr().err
        assert resolve(any_kafka, given.write.id, 3, "rewrite", "--allow-duplicates") == 0, capsys.readouterr().err
    assert_nothing_open(servers, [topic])
    write_all(given)
    assert len(read_committed(servers, topic)) == 2 * ROWS


def test_visible_rows_reject_rewrite_unless_duplicates_allowed(
    any_kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = any_kafka.bootstrap_servers
    topic = create_topic(servers)
    given = dead_write(any_kafka, topic, monkeypatch, at="commit.between_ends")
    assert resolve(any_kafka, given.write.id, 3, "rewrite") == 1
    assert capsys.readouterr().err.startswith("kafka-eos: [KAFKA_EOS.ROWS_ARE_VISIBLE]")
    assert len(read_committed(servers, topic)) == 2 * ROWS
    assert resolve(any_kafka, given.write.id, 3, "rewrite", "--allow-duplicates") == 0
    assert len(read_committed(servers, topic)) == 2 * ROWS
    write_all(given)
    assert len(read_committed(servers, topic)) == 4 * ROWS
    assert_nothing_open(servers, [topic])
    assert resolve(any_kafka, given.write.id, 3, "rewrite") == 1
    assert "it counts as written" in capsys.readouterr().err


def test_query_id_is_needed_where_two_queries_share_a_write_id(
    kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mutation: the command takes the first query id."""
    topic = create_topic(kafka.bootstrap_servers)
    given = write_settings(kafka, topic, write_id=unique_topic("stream"), query_id="5f1c", version=0)
    for query_id in ("5f1c", "77aa"):
        write_all(varied(given, query_id=query_id))
    assert resolve(kafka, given.write.id, 0, "committed") == 1
    assert "[KAFKA_EOS.QUERY_ID_NEEDED]" in capsys.readouterr().err
    assert resolve(kafka, given.write.id, 0, "committed", "--query-id", "77aa") == 0
