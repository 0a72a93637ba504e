"""`kafka-eos check` against a real Kafka of one node: what it finds right, what it warns of, what would fail."""

from __future__ import annotations

import json

import pytest

from dead_writes import write_all, write_settings
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.client.admin import connected
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.operations.cluster_check import CheckLine, CheckResult, check_cluster
from kafka_testing import create_topic, unique_topic


def results(kafka: EmbeddedKafka, topic: str, log: str = "__kafka_eos_commits") -> dict[tuple[str, str], CheckLine]:
    """By topic ("" for the cluster) and question."""
    with connected(kafka.bootstrap_servers) as admin:
        found = check_cluster(admin, topic=topic, commit_log_topic=log, timeout_ms=30_000)
    assert len({(each.about, each.what) for each in found}) == len(found)
    return {(each.about, each.what): each for each in found}


def test_check_passes_working_cluster_and_lists_production_gaps(
    any_kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = any_kafka.bootstrap_servers
    topic = create_topic(servers, configs={"unclean.leader.election.enable": "true"})
    write_all(write_settings(any_kafka, topic), 1)  # creates the commit log
    found = results(any_kafka, topic)
    with connected(servers) as admin:
        version = admin.transaction_version(admin.client.clock() + 30_000)
    about, log = f"topic {topic}", "commit log __kafka_eos_commits"
    shown = {where: (finding.found, finding.result) for where, finding in found.items()}
    (broker,) = (value for (_, what), value in shown.items() if what.startswith("broker "))
    assert broker == (f"{servers}, Kafka 4.2", CheckResult.WORKS)
    assert shown["", "transaction.version"] == (str(version), CheckResult.WORKS)
    assert ("KIP-890" in found["", "transaction.version"].meaning) == (version < 2)
    assert shown["", "transaction.max.timeout.ms"] == ("900000", CheckResult.WORKS)
    assert shown[about, "partitions"] == ("4, all with a leader", CheckResult.WORKS)
    assert shown[about, "replication factor"] == ("1", CheckResult.WARNING)
    assert shown[about, "min.insync.replicas"] == ("1", CheckResult.WARNING)
    assert shown[about, "unclean.leader.election.enable"] == ("true", CheckResult.WARNING)
    assert shown[about, "rights"] == ("Read, Write and Describe", CheckResult.WORKS)
    assert shown[log, "partitions"] == ("16, all with a leader", CheckResult.WORKS)
    assert shown[log, "cleanup.policy"] == ("compact", CheckResult.WORKS)
    assert shown[log, "unclean.leader.election.enable"] == ("false", CheckResult.WORKS)

    assert main(["check", "--bootstrap-servers", servers, "--topic", topic]) == 0
    table = capsys.readouterr().out
    for finding in found.values():
        assert finding.what in table
    assert main(["check", "--bootstrap-servers", servers, "--topic", topic, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {(each["about"], each["what"], each["found"], each["result"]) for each in listed} == {
        (*where, value, result.value) for where, (value, result) in shown.items()
    }


def test_check_exits_1_when_a_write_would_fail(kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str]) -> None:
    servers = kafka.bootstrap_servers
    missing = unique_topic()
    assert main(["check", "--bootstrap-servers", servers, "--topic", missing]) == 1
    captured = capsys.readouterr()
    assert "does not exist" in captured.out
    assert captured.err == "kafka-eos: 1 of these would make a write fail\n"

    # From Kafka 4.0 on, a topic of one replica accepts writes in spite of min.insync.replicas=2.
    topic = create_topic(servers, partitions=1, configs={"min.insync.replicas": "2", "cleanup.policy": "delete"})
    found = results(kafka, topic, topic)
    fails = {where: finding.found for where, finding in found.items() if finding.result is CheckResult.FAILS}
    about, log = f"topic {topic}", f"commit log {topic}"
    assert fails == {
        (log, "partitions"): "1",
        (log, "cleanup.policy"): "delete",
        (about, "topic"): "the commit log",
    }


@pytest.mark.parametrize("topic", ["__transaction_state", "__kafka_eos_commits"])
def test_a_topic_that_a_write_would_refuse_is_no_ok(kafka: EmbeddedKafka, topic: str) -> None:
    write_all(write_settings(kafka, create_topic(kafka.bootstrap_servers)), 1)
    assert results(kafka, topic)[f"topic {topic}", "topic"].result is CheckResult.FAILS
    assert main(["check", "--bootstrap-servers", kafka.bootstrap_servers, "--topic", topic]) == 1


def test_history_that_is_missing_or_switched_off_is_shown(kafka: EmbeddedKafka) -> None:
    with connected(kafka.bootstrap_servers) as admin:

        def line(topic: str) -> CheckLine:
            log = unique_topic("log")
            found = check_cluster(admin, topic=None, commit_log_topic=log, history_topic=topic, timeout_ms=30_000)
            (of_history,) = (each for each in found if each.about.startswith("history"))
            return of_history

        missing = line(unique_topic("history"))
        assert (missing.found, missing.result) == ("does not exist yet", CheckResult.WORKS)
        off = line("")
        assert (off.found, off.result) == ("switched off", CheckResult.WARNING)
        assert "a lost commit log is noticed for 7 days only" in off.meaning
