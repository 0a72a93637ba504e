"""`kafka-eos repair` against a real Kafka, with a marker that is really missing.

A broker leaves a marker out (KAFKA-20734) when a partition has no leader at the wrong moment, which one node cannot be made to do.
The same comes of a partition that the coordinator does not know to be part of the transaction: with the broker's verification of
partitions switched off, records can be produced to one that was never added.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import confluent_kafka.admin as confluent
import pytest
from dead_writes import ROWS, tasks, write_all, write_settings

from kafka_eos_sink.cli.embedded_kafka import EmbeddedKafka
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.commit import write
from kafka_eos_sink.commit.commit_log import decision_records, part_record
from kafka_eos_sink.commit.executor import Executor
from kafka_eos_sink.commit.operator_commands import OperatorSettings, recover
from kafka_eos_sink.commit.prepared_transaction import (
    Decision,
    OffsetRange,
    Plan,
    PreparedTransaction,
    ProducerIdentity,
)
from kafka_eos_sink.commit.steps import End, EndTransactions, InitProducerId, Procedure
from kafka_eos_sink.commit.take_over import append_in_transaction
from kafka_eos_sink.commit.transactional_id import task_transactional_id
from kafka_eos_sink.errors import DecisionPendingError
from kafka_eos_sink.protocol.messages import PartitionProduceData, ProduceRequest, TopicProduceData
from kafka_eos_sink.protocol.record_batch import encode_rows, seal
from kafka_testing import assert_nothing_open, create_topic, read_committed, unique_topic

LAST_VERSION_WITHOUT_IMPLICIT_PARTITIONS = 11


def repair(kafka: EmbeddedKafka, write_id: str, *more: str) -> int:
    return main(["repair", "--bootstrap-servers", kafka.bootstrap_servers, "--write-id", write_id, *more])


@contextmanager
def unverified_partitions(kafka: EmbeddedKafka) -> Iterator[None]:
    """The broker takes transactional records for partitions that their transaction does not have."""
    admin = confluent.AdminClient({"bootstrap.servers": kafka.bootstrap_servers})

    def verify(value: str) -> None:
        entry = confluent.ConfigEntry(
            "transaction.partition.verification.enable",
            value,
            incremental_operation=confluent.AlterConfigOpType.SET,
        )
        (broker,) = admin.list_topics(timeout=30).brokers
        resource = confluent.ConfigResource(confluent.ResourceType.BROKER, str(broker), incremental_configs=[entry])
        for result in admin.incremental_alter_configs([resource]).values():
            result.result(30)

    verify("false")
    try:
        yield
    finally:
        verify("true")


def produce_without_adding(admin: Admin, identity: ProducerIdentity, topic: str) -> OffsetRange:
    """ROWS records to partition 0, of which the coordinator does not learn."""
    block = encode_rows([(None, b"%d" % number, ()) for number in range(ROWS)], timestamp_ms=1_700_000_000_000)
    records = b"".join(
        seal(
            block,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            base_sequence=0,
            transactional=True,
        )
    )
    request = ProduceRequest(
        transactional_id=identity.transactional_id,
        acks=-1,
        timeout_ms=30_000,
        topic_data=(TopicProduceData(name=topic, partition_data=(PartitionProduceData(index=0, records=records),)),),
    )
    deadline = admin.client.clock() + 30_000
    while True:  # the switch reaches the broker through its metadata log
        node = admin.leaders([(topic, 0)], deadline)[topic, 0]
        response = admin.client.call(
            node, request, deadline_ms=deadline, max_version=LAST_VERSION_WITHOUT_IMPLICIT_PARTITIONS
        )
        result = response.responses[0].partition_responses[0]
        if result.error_code == 0:
            break
        assert admin.client.clock() < deadline, f"Produce was answered {result.error_code}"
        admin.client.wait(100, deadline)
    return OffsetRange(
        topic=topic, partition=0, first_offset=result.base_offset, last_offset=result.base_offset + ROWS - 1
    )


def committed_without_a_marker(kafka: EmbeddedKafka, given: write.WriteSettings) -> None:
    """A batch of one task, decided and committed at its coordinator, with no marker on its data partition."""
    plan: Plan = write.plan(given)
    with unverified_partitions(kafka), NetworkClient(given.client) as client:
        admin = Admin(client)
        executor = Executor(
            client, admin, log_topic=given.commit_log_topic, log_partition=given.log_partition, timeout_ms=30_000
        )

        def begin() -> Procedure[ProducerIdentity]:
            identity: ProducerIdentity = yield InitProducerId(task_transactional_id(given.write_id, 0, 0), 60_000)
            return identity

        def end(identity: ProducerIdentity, written: OffsetRange) -> Procedure[None]:
            part = part_record(given.write_id, given.query_id, 0, given.version, 0)
            appended = yield from append_in_transaction(identity, (part,), 0)
            prepared = PreparedTransaction(
                partition=0,
                identity=identity,
                part_offset=appended.offset,
                rows=ROWS,
                digest=None,
                offsets=(written,),
            )
            decision = Decision(
                write_id=given.write_id,
                query_id=given.query_id,
                version=given.version,
                nonce=plan.nonce,
                driver=plan.driver,
                topic=given.topic,
                schema=given.schema,
                offsets_hash=None,
                transactions=(prepared,),
            )
            yield from append_in_transaction(plan.driver, decision_records(decision), 0)
            for each in (plan.driver, identity):
                (result,) = yield EndTransactions((End(identity=each, commit=True),))
                assert result.error == 0

        identity = executor.run(begin())
        executor.run(end(identity, produce_without_adding(admin, identity, given.topic or "")))


def test_a_missing_marker_is_shown_then_written_and_the_write_finished(
    any_kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = any_kafka.bootstrap_servers
    topic = create_topic(servers, partitions=1)
    given = write_settings(any_kafka, topic)
    committed_without_a_marker(any_kafka, given)
    assert read_committed(servers, topic) == []
    with pytest.raises(DecisionPendingError, match=rf"{topic}-0 does not let readers past.*kafka-eos repair"):
        recover(
            OperatorSettings(
                write_id=given.write_id,
                commit_log_topic=given.commit_log_topic,
                client=given.client,
                timeout_ms=2_000,
            )
        )

    assert repair(any_kafka, given.write_id) == 0
    shown = capsys.readouterr().out
    assert f"{topic}-0" in shown
    assert "1 markers are missing and would be written: say it again with --yes" in shown
    assert read_committed(servers, topic) == []

    assert repair(any_kafka, given.write_id, "--yes") == 0
    assert "1 markers were written" in capsys.readouterr().out
    assert len(read_committed(servers, topic)) == ROWS
    assert_nothing_open(servers, [topic])
    assert repair(any_kafka, given.write_id, "--yes") == 0
    assert "Nothing to repair" in capsys.readouterr().out

    assert main(["recover", "--bootstrap-servers", servers, "--write-id", given.write_id]) == 0
    assert "every row is visible, finished just now" in capsys.readouterr().out
    # The partition goes on as if nothing had happened, for the same producer ids too.
    write_all(replace(given, version=given.version + 1), 1)
    assert len(read_committed(servers, topic)) == 2 * ROWS
    assert_nothing_open(servers, [topic])


def test_a_healthy_cluster_has_nothing_to_repair(any_kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str]) -> None:
    topic = create_topic(any_kafka.bootstrap_servers)
    given = write_settings(any_kafka, topic)
    write_all(given)
    assert repair(any_kafka, given.write_id, "--yes") == 0
    assert capsys.readouterr().out.startswith("Nothing to repair under")
    # Nor do transactions that wait for their decision.
    later = replace(given, version=given.version + 1)
    plan = write.plan(later)
    messages = tasks(later, plan)
    assert repair(any_kafka, given.write_id, "--yes") == 0
    assert capsys.readouterr().out.startswith("Nothing to repair under")
    write.commit(later, plan, messages)  # and nobody was fenced
    assert repair(any_kafka, unique_topic("nobody"), "--yes") == 0
    assert_nothing_open(any_kafka.bootstrap_servers, [topic])
