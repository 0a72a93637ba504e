"""`kafka-eos metrics` beside a real Kafka: what a scrape shows of writes, of open transactions, and of a broker that is away."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cluster_views import documented_metrics
from dead_writes import ROWS, die_at, tasks, varied, write_all, write_settings
from kafka_eos_sink.commit.forget import forget_write
from kafka_eos_sink.commit.transactional_id import application_of
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.operations.operator import OperatorSettings, perform
from kafka_eos_sink.runtime import session
from kafka_testing import create_topic, unique_topic, wait_until

PHASES = {"plan", "write", "check", "decide", "end", "verify"}
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
Scrape = dict[str, list[tuple[dict[str, str], float]]]


def new_write(kafka: EmbeddedKafka) -> session.WriteSettings:
    """Of a write with a commit log and a history of its own."""
    given = write_settings(kafka, create_topic(kafka.bootstrap_servers, partitions=2))
    return varied(given, commit_log_topic=unique_topic("ledger"), history_topic=unique_topic("history"))


class Exporter:
    """A running `kafka-eos metrics`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        self.url = process.stdout.readline().strip()
        assert self.url, "the command has ended"

    def scrape(self) -> Scrape:
        with DIRECT.open(self.url, timeout=10) as response:
            assert response.headers["Content-Type"].startswith("text/plain")
            text = response.read().decode()
        found: Scrape = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found.setdefault(sample.name, []).append((sample.labels, sample.value))
        return found

    def stop(self, number: signal.Signals) -> str:
        """Send a signal, and return what the command has printed on standard error."""
        self.process.send_signal(number)
        _, err = self.process.communicate(timeout=30)
        assert self.process.returncode == 0, err
        return err


@contextmanager
def exporter(servers: str, *more: str) -> Iterator[Exporter]:
    command = [sys.executable, "-m", "kafka_eos_sink.cli.main", "metrics", "--port", "0", "--interval", "0.2"]
    process = subprocess.Popen(
        [*command, "--bootstrap-servers", servers, *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield Exporter(process)
    finally:
        process.kill()
        process.communicate()


def of(given: session.WriteSettings, *more: str) -> list[str]:
    return ["--commit-log-topic", given.write.log_topic, "--history-topic", given.history_topic, *more]


def values(found: Scrape, name: str, **labels: str) -> list[float]:
    return [value for these, value in found.get(f"kafka_eos_{name}", []) if labels.items() <= these.items()]


def test_write_and_its_open_transactions_are_scraped(kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    given = new_write(kafka)
    write, topic = application_of(given.write.id), given.batch.topic or ""
    write_all(given, 2)
    later = varied(given, version=4)
    with exporter(kafka.bootstrap_servers, *of(given, "--prefix", given.write.id)) as running:
        found: Scrape = {}

        def seen(name: str, wanted: float, **labels: str) -> bool:
            found.clear()
            found.update(running.scrape())
            return values(found, name, **labels) == [wanted]

        wait_until(
            lambda: seen("versions", 1, app_id=write, state="finished") and values(found, "data_readable") == [1] * 4,
            lambda: f"the first view in {found}",
        )
        # The first batch was finished before.
        assert values(found, "batches_total", app_id=write) == [0]
        assert values(found, "last_version", app_id=write) == [3]
        assert values(found, "last_version_rows", app_id=write) == [2 * ROWS]
        assert {labels["phase"] for labels, _ in found["kafka_eos_batch_phase_seconds_total"]} == PHASES
        assert 0 <= time.time() - values(found, "last_version_finished_timestamp_seconds")[0] < 300
        assert 0 < values(found, "least_headroom_seconds")[0] <= 900
        assert values(found, "open_transactions", app_id=write) == [0]

        plan = session.plan(later)
        messages = tasks(later, plan, 2)
        # A look reads log, transactions and partitions one after the other, perhaps while the tasks write.
        wait_until(
            lambda: (
                seen("versions", 1, app_id=write, state="prepared")
                and values(found, "open_transactions", app_id=write) == [2]
                and sum(values(found, "blocked_partition_hidden_offsets")) == 2 * ROWS
            ),
            lambda: f"the prepared version in {found}",
        )
        (age,) = values(found, "open_transaction_age_seconds", app_id=write)
        (headroom,) = values(found, "open_transaction_headroom_seconds", app_id=write)
        assert 0 <= age < 300
        assert age + headroom == pytest.approx(plan.transaction_timeout_ms / 1000)
        blocked = [
            (labels["topic"], labels["app_id"]) for labels, _ in found["kafka_eos_blocked_partition_hidden_offsets"]
        ]
        assert set(blocked) == {(topic, write)}

        missing = [name for name in documented_metrics() if not {name, f"{name}_bucket"} & found.keys()]
        assert missing == ["kafka_eos_unfinished_age_seconds"]

        die_at("commit.decided", later, plan, messages, monkeypatch)
        wait_until(lambda: seen("versions", 1, app_id=write, state="decided"), "the decided version")
        assert 0 <= values(found, "unfinished_age_seconds", app_id=write)[0] < 300
        write_all(varied(given, version=5), 3)  # whose plan finishes version 4
        wait_until(lambda: seen("batches_total", 2, app_id=write), lambda: f"two batches in {found}")
        assert values(found, "recovered_batches_total", app_id=write) == [1]
        assert values(found, "rows_total", app_id=write) == [5 * ROWS]
        assert values(found, "written_bytes_total", app_id=write)[0] > 0
        # Nobody has measured the batch of the dead driver.
        assert values(found, "batch_duration_seconds_count", app_id=write) == [1]
        assert values(found, "batch_phase_seconds_total", app_id=write, phase="write")[0] > 0
        assert values(found, "versions", app_id=write, state="decided") == [0]
        wait_until(lambda: seen("open_transactions", 0, app_id=write), "the ends of the transactions")
        assert values(found, "open_transaction_age_seconds") == []
        assert values(found, "blocked_partition_hidden_offsets") == []

        log = OperatorSettings(write_id=given.write.id, commit_log_topic=given.write.log_topic, client=given.client)
        perform(log, forget_write)
        wait_until(
            lambda: not any(labels.get("app_id") for rows in running.scrape().values() for labels, _ in rows),
            "the end of the metrics of a forgotten write",
        )
        assert running.stop(signal.SIGTERM).splitlines()[-1] == "Stopping ..."


def test_exporter_outlives_a_broker_that_is_away() -> None:
    with EmbeddedKafka(transaction_version=2) as cluster:
        given = new_write(cluster)
        write_all(given, 1)
        with exporter(cluster.bootstrap_servers, *of(given)) as running:
            wait_until(lambda: values(running.scrape(), "up") == [1], "the first view")
            (looked,) = values(running.scrape(), "last_view_timestamp_seconds")
            cluster.stop_node(1)
            wait_until(lambda: values(running.scrape(), "up") == [0], "a look that failed")
            away = running.scrape()
            assert values(away, "view_failures_total")[0] >= 1
            assert values(away, "batches_total", app_id=application_of(given.write.id)) == [0]
            # The last view stays for a while, with its time.
            assert values(away, "last_version", app_id=application_of(given.write.id)) == [3]
            assert looked <= values(away, "last_view_timestamp_seconds")[0] < time.time()
            cluster.start_node(1)
            wait_until(lambda: values(running.scrape(), "up") == [1], "a look after the restart")
            write_all(varied(given, version=4), 1)
            wait_until(lambda: values(running.scrape(), "batches_total") == [1], "the batch after the restart")
            err = running.stop(signal.SIGTERM)
    # A broker that shuts down may still refuse a request, which is then tried again until its deadline.
    assert re.search(r"kafka-eos: \[KAFKA_EOS\.(BROKER_UNREACHABLE|REQUEST_DEADLINE)\]", err), err
    assert "everything is read again" in err
