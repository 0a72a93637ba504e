"""Errors and warnings name the setting of the brokers that a write breaks: on a Kafka whose settings are unusually low."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dead_writes import ROWS, tasks, write_all, write_settings
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.client.admin import connected
from kafka_eos_sink.commit.steps import InitProducerId
from kafka_eos_sink.commit.transactional_id import task_transactional_id
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.errors import DecisionPendingError, KafkaEosError
from kafka_eos_sink.runtime import session
from kafka_eos_sink.runtime.executor import Executor
from kafka_testing import assert_nothing_open, create_topic, read_committed, wait_until
from unmarked_transactions import (
    committed_without_a_marker,
    produce_without_adding,
    unverified_partitions,
)

SOCKET_REQUEST_MAX_BYTES = 200_000
EXPIRATION_MS = 3_000


@pytest.fixture(scope="module")
def low() -> Iterator[EmbeddedKafka]:
    properties = {
        "socket.request.max.bytes": str(SOCKET_REQUEST_MAX_BYTES),
        "transactional.id.expiration.ms": str(EXPIRATION_MS),
        "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
    }
    with EmbeddedKafka(properties=properties, transaction_version=2) as started:
        yield started


def test_plan_warns_of_low_limits_of_the_brokers(low: EmbeddedKafka, caplog: pytest.LogCaptureFixture) -> None:
    session.plan(write_settings(low, create_topic(low.bootstrap_servers)))
    assert f"transactional.id.expiration.ms={EXPIRATION_MS} without use" in caplog.text
    assert f"socket.request.max.bytes={SOCKET_REQUEST_MAX_BYTES}, less than kafka.max.request.size" in caplog.text


def await_expired(kafka: EmbeddedKafka, transactional_id: str) -> None:
    """Wait until the coordinator has removed the id."""
    with connected(kafka.bootstrap_servers) as admin:

        def is_gone() -> bool:
            found = admin.describe_transactions([transactional_id], admin.client.clock() + 30_000)
            return found[transactional_id] is None

        wait_until(is_gone, f"the end of {transactional_id}")


def test_expired_driver_id_is_named_at_the_commit(low: EmbeddedKafka) -> None:
    topic = create_topic(low.bootstrap_servers)
    settings = write_settings(low, topic)
    plan = session.plan(settings)
    messages = tasks(settings, plan, 1)
    await_expired(low, plan.driver.transactional_id)
    with pytest.raises(KafkaEosError) as raised:
        session.commit(settings, plan, messages)
    assert raised.value.code == "NOT_DECIDED"
    assert "INVALID_PRODUCER_ID_MAPPING" in raised.value.message
    assert "transactional.id.expiration.ms" in raised.value.message
    session.abort(settings, plan, messages)
    write_all(settings, 1)
    assert len(read_committed(low.bootstrap_servers, topic)) == ROWS


@pytest.mark.parametrize("joined", [False, True], ids=["untouched", "joined by a late attempt"])
def test_what_hangs_under_a_forgotten_id_is_discarded_by_an_operator(
    low: EmbeddedKafka, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, joined: bool
) -> None:
    """No transaction of the id can end it: its coordinator gives the id another producer id."""
    topic = create_topic(low.bootstrap_servers, partitions=1)
    given = write_settings(low, topic)
    committed_without_a_marker(low, given)
    name = task_transactional_id(given.write.id, 0, 0)
    if joined:
        with unverified_partitions(low), connected(low.bootstrap_servers) as admin:
            executor = Executor(admin, given.write.commit_log, given.producer)
            late = executor.run(iter(InitProducerId(name, 60_000)))
            produce_without_adding(admin, late, (topic, 0), [(None, b"late")])
    await_expired(low, name)
    with pytest.raises(DecisionPendingError, match=rf"{topic}-0 is still open.*kafka-eos recover .*--discard"):
        session.plan(given)
    command = ["recover", "--bootstrap-servers", low.bootstrap_servers, "--write-id", given.write.id]
    assert main(command) == 1, "not confirmed"
    shown = " ".join(capsys.readouterr().out.split())
    assert f"on {topic}-0 from offset 0, version {given.batch.version}" in shown
    assert "1 transaction would still hang: add --discard." in shown
    # An operator's command copies no rows of a producer that the coordinator does not know: the decision could be forged.
    assert main([*command, "--discard", "--yes"]) == 1
    shown = capsys.readouterr()
    assert "aborted by a marker: 1 transaction" in caplog.text
    assert "Run the write again under its own user" in shown.err
    assert read_committed(low.bootstrap_servers, topic) == []
    assert_nothing_open(low.bootstrap_servers, [topic])
    session.plan(given)
    assert len(read_committed(low.bootstrap_servers, topic)) == ROWS
    assert_nothing_open(low.bootstrap_servers, [topic])
