"""Below transaction version 2 only a leader that verifies transactional appends protects from an aborted attempt's late rows."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

import pytest

from dead_writes import write_all, write_settings
from kafka_eos_sink.client.admin import Admin, connected
from kafka_eos_sink.commit.steps import AppendInTransaction, LogRecord
from kafka_eos_sink.embedded import distribution
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.embedded.java import find_java
from kafka_eos_sink.errors import ConfigurationError
from kafka_eos_sink.operations.cluster_check import CheckResult, check_cluster
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.runtime import driver_requests, session
from kafka_eos_sink.runtime.requirements import VERIFICATION, broker_settings
from kafka_testing import create_topic, end_as_driver, initialised, read_committed, wait_until

TIMEOUT_MS = 30_000
OFF = {VERIFICATION: "false"}


def append_behind_abort(admin: Admin, topic: str) -> int | None:
    """The error of a Produce whose transaction the coordinator has aborted."""

    def deadline() -> int:
        return admin.client.clock() + TIMEOUT_MS

    name, where = "aborted.0.0", (topic, 0)
    identity = initialised(admin, name)
    if identity.transaction_version < 2:
        assert driver_requests.add_partitions(admin, identity, [where], deadline()).error == ErrorCode.NONE
    records = (LogRecord(b"key", b"row"),)
    assert driver_requests.append(admin, AppendInTransaction(identity, 0, records), where, TIMEOUT_MS).error == 0
    assert end_as_driver(admin.client, identity, False, deadline()) == ErrorCode.NONE

    def is_aborted() -> bool:
        state = admin.describe_transactions([name], deadline())[name]
        return state is not None and state.transaction_state == "CompleteAbort"

    wait_until(is_aborted, "the marker of the abort")
    return driver_requests.append(admin, AppendInTransaction(identity, 1, records), where, TIMEOUT_MS).error


@pytest.mark.parametrize(
    ("version", "transaction_version", "properties", "way_out"),
    [
        ("3.5.2", None, {}, "upgrade them to Kafka 3.6 or newer"),
        ("4.2.2", 0, OFF, f"--entity-default --alter --add-config {VERIFICATION}=true"),
    ],
)
def test_write_is_rejected_if_leaders_append_behind_an_abort(
    version: str, transaction_version: int | None, properties: Mapping[str, str], way_out: str
) -> None:
    with EmbeddedKafka(version=version, transaction_version=transaction_version, properties=properties) as kafka:
        servers = kafka.bootstrap_servers
        topic = create_topic(servers)
        given = write_settings(kafka, topic)
        with connected(servers) as admin:
            assert append_behind_abort(admin, create_topic(servers, partitions=1)) == ErrorCode.NONE
            with pytest.raises(ConfigurationError, match=r"TRANSACTIONS_NOT_VERIFIED\]") as refused:
                session.plan(given)
            assert way_out in refused.value.message
            log = given.write.log_topic
            found = check_cluster(admin, topic=topic, commit_log_topic=log, timeout_ms=TIMEOUT_MS)
            assert {each.what for each in found if each.result is CheckResult.FAILS} == {"verified appends"}
            assert admin.topic(log, admin.client.clock() + TIMEOUT_MS) is None
            if not properties:
                return
            arguments = refused.value.message.partition("kafka-configs.sh ")[2].split()
            java = find_java().command(distribution.resolve() / "*", "kafka.admin.ConfigCommand", *arguments)
            subprocess.run(java, check=True, timeout=120)
            deadline = admin.client.clock() + TIMEOUT_MS
            wait_until(lambda: broker_settings(admin, deadline)[VERIFICATION] == "true", "the setting")
            assert append_behind_abort(admin, create_topic(servers, partitions=1)) == ErrorCode.TRANSACTION_ABORTABLE
            write_all(given)
            assert len(read_committed(servers, topic)) == 20


def test_setting_does_not_matter_from_transaction_version_2_on() -> None:
    with EmbeddedKafka(transaction_version=2, properties=OFF) as kafka:
        topic, other = create_topic(kafka.bootstrap_servers), create_topic(kafka.bootstrap_servers)
        with connected(kafka.bootstrap_servers) as admin:
            assert append_behind_abort(admin, other) == ErrorCode.INVALID_PRODUCER_EPOCH
        write_all(write_settings(kafka, topic))
        assert len(read_committed(kafka.bootstrap_servers, topic)) == 20


def test_oldest_supported_kafka_rejects_append_behind_an_abort() -> None:
    with EmbeddedKafka(version="3.6.2") as kafka, connected(kafka.bootstrap_servers) as admin:
        topic = create_topic(kafka.bootstrap_servers, partitions=1)
        assert append_behind_abort(admin, topic) == ErrorCode.INVALID_TXN_STATE
