"""What a real Kafka holds open because a marker is missing heals in the next run, without a person."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from dead_writes import ROWS, tasks, varied, write_all, write_settings
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.commit.log_access import append_in_transaction
from kafka_eos_sink.commit.log_records import decision_records, part_record
from kafka_eos_sink.commit.steps import Procedure
from kafka_eos_sink.commit.transactional_id import task_transactional_id
from kafka_eos_sink.commit.values import Plan, TaskOutcome
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.protocol.identity import ProducerIdentity
from kafka_eos_sink.runtime import session
from kafka_eos_sink.runtime.executor import Executor
from kafka_testing import assert_nothing_open, create_topic, read_committed
from unmarked_transactions import (
    begin,
    commit_at_coordinator,
    committed_without_a_marker,
    decision_of,
    produce_without_adding,
    unverified_partitions,
)

SETTINGS = ProducerConfig(delivery_timeout_ms=30_000)


def recover(kafka: EmbeddedKafka, write_id: str, *more: str) -> int:
    return main(["recover", "--bootstrap-servers", kafka.bootstrap_servers, "--write-id", write_id, *more])


def finishes(kafka: EmbeddedKafka, write_id: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing hangs, or is left open."""
    capsys.readouterr()
    assert recover(kafka, write_id, "--yes", "--json") == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert (found["discarded"], found["hanging"]) == ([], {"held": [], "not_checked": []})
    assert shown.err == ""


def resolve_as_committed(kafka: EmbeddedKafka, given: session.WriteSettings) -> int:
    where = ["--bootstrap-servers", kafka.bootstrap_servers, "--write-id", given.write.id]
    return main(["resolve", "--yes", *where, "--version", str(given.batch.version), "--as", "committed"])


def decided_without_a_marker(kafka: EmbeddedKafka, given: session.WriteSettings) -> ProducerIdentity:
    """Two prepared tasks and their decision, committed at its coordinator, with no marker in the commit log.

    Returns:
        The driver, as it was before its transaction ended.
    """
    plan: Plan = session.plan(given)
    named = [message.prepared for message in tasks(given, plan) if message.prepared is not None]
    side = create_topic(kafka.bootstrap_servers, partitions=1)
    with unverified_partitions(kafka), NetworkClient(given.client) as client:
        admin = Admin(client)
        records = decision_records(decision_of(given, plan, *named))
        where = (given.write.log_topic, given.write.commit_log[1])
        produce_without_adding(admin, plan.driver, where, [(record.key, record.value) for record in records])

        def end() -> Procedure[None]:
            yield from append_in_transaction(
                plan.driver, records, 0
            )  # a transaction without any partition cannot be ended
            yield from commit_at_coordinator(plan.driver)

        Executor(admin, (side, 0), SETTINGS).run(end())
    return plan.driver


@pytest.mark.parametrize("by", ["the next run", "recover", "resolve"])
@pytest.mark.parametrize("taken", [False, True], ids=["untouched", "taken by a late attempt"])
@pytest.mark.parametrize("commits_part", [True, False], ids=["committed", "aborted"])
def test_what_hangs_is_discarded_and_copied(
    any_kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str], commits_part: bool, taken: bool, by: str
) -> None:
    """Whatever its coordinator made of the transaction: no reader has seen a row of it."""
    servers = any_kafka.bootstrap_servers
    topic = create_topic(servers, partitions=1)
    given = write_settings(any_kafka, topic)
    committed_without_a_marker(any_kafka, given, commits_part=commits_part)
    if taken:
        with NetworkClient(given.client) as client:
            Admin(client).init_producer_id(task_transactional_id(given.write.id, 0, 0), 60_000, client.clock() + 30_000)
    assert read_committed(servers, topic) == []
    if by == "recover":
        assert recover(any_kafka, given.write.id) == 1, "not confirmed"
        assert read_committed(servers, topic) == []
        assert recover(any_kafka, given.write.id, "--yes") == 0
    elif by == "resolve":
        assert resolve_as_committed(any_kafka, given) == 0
    else:
        assert {each.outcome for each in write_all(given, 1)} == {TaskOutcome.ALREADY_COMMITTED}
    assert Counter(record.value for record in read_committed(servers, topic)) == Counter(
        b"%d" % number for number in range(ROWS)
    )
    assert_nothing_open(servers, [topic])
    write_all(varied(given, version=given.batch.version + 1), 1)
    assert len(read_committed(servers, topic)) == 2 * ROWS
    assert_nothing_open(servers, [topic])
    finishes(any_kafka, given.write.id, capsys)


def test_decision_without_its_marker_is_undecided(any_kafka: EmbeddedKafka) -> None:
    """Its driver, too, would have read the marker before it acts on it."""
    servers = any_kafka.bootstrap_servers
    topic = create_topic(servers)
    given = write_settings(any_kafka, topic)
    decided_without_a_marker(any_kafka, given)
    assert recover(any_kafka, given.write.id, "--yes") == 0
    messages = write_all(given)
    assert {message.outcome for message in messages} == {TaskOutcome.PREPARED}
    assert len(read_committed(servers, topic)) == 2 * ROWS
    assert_nothing_open(servers)


def test_aborted_attempt_that_hangs_is_discarded(any_kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str]) -> None:
    """The batch is decided without it, its ABORT was omitted on a data partition, and nobody uses its id again."""
    servers = any_kafka.bootstrap_servers
    topic = create_topic(servers, partitions=1)
    given = write_settings(any_kafka, topic)
    write_all(given, 1)
    name = task_transactional_id(given.write.id, 57, 5)
    part = part_record(given.write.id, given.batch.query_id, 57, given.batch.version, 5)
    with unverified_partitions(any_kafka), NetworkClient(given.client) as client:
        executor = Executor(Admin(client), given.write.commit_log, SETTINGS)
        loser = executor.run(begin(name, part))
        produce_without_adding(executor.admin, loser, (topic, 0), [(None, b"lost")])
        executor.run(commit_at_coordinator(loser, False))
    later = varied(given, version=given.batch.version + 1)
    write_all(later, 1)
    assert len(read_committed(servers, topic)) == ROWS, "the second version is committed, and nobody sees it"
    capsys.readouterr()
    assert recover(any_kafka, given.write.id) == 1, "not confirmed"
    shown = capsys.readouterr()
    assert name in shown.out
    assert f"on {topic}-0 from offset {ROWS + 1}, an attempt" in shown.out
    assert recover(any_kafka, given.write.id, "--yes") == 0
    finishes(any_kafka, given.write.id, capsys)
    assert len(read_committed(servers, topic)) == 2 * ROWS
    assert_nothing_open(servers, [topic])
