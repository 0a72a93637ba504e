"""Transactions without a marker on a partition: its leader holds them open, and no coordinator does (KIP-664).

A broker leaves a marker out (KAFKA-20734) when a partition has no leader at the wrong moment, which one node cannot be made to do.
The same comes of a partition that the coordinator does not know to be part of the transaction: with the broker's verification of
partitions switched off, records can be produced to one that was never added.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import kafka as kafka_python
from kafka.admin import AbortTransactionSpec

from dead_writes import ROWS
from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.commit.log_access import append_in_transaction
from kafka_eos_sink.commit.log_records import decision_records, part_record
from kafka_eos_sink.commit.steps import End, EndTransactions, InitProducerId, LogRecord, Procedure
from kafka_eos_sink.commit.transactional_id import task_transactional_id
from kafka_eos_sink.commit.values import Decision, OffsetRange, Plan, PreparedTransaction
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.protocol.identity import ProducerIdentity
from kafka_eos_sink.protocol.messages import ProduceRequest
from kafka_eos_sink.protocol.record_batch import encode_rows, seal
from kafka_eos_sink.runtime import session
from kafka_eos_sink.runtime.executor import Executor
from kafka_testing import change_config

LAST_VERSION_WITHOUT_IMPLICIT_PARTITIONS = 11
SIDE = LogRecord(b"", b"side")
"""For a topic of its own: a transaction without any partition cannot be ended."""


@contextmanager
def unverified_partitions(kafka: EmbeddedKafka) -> Iterator[None]:
    """The broker takes transactional records for partitions that their transaction does not have."""
    (broker,) = kafka.node_ids
    servers = kafka.plaintext_servers or kafka.bootstrap_servers

    def verify(value: str) -> None:
        change_config(servers, "broker", str(broker), "transaction.partition.verification.enable", value)

    verify("false")
    try:
        yield
    finally:
        verify("true")


def produce_without_adding(
    admin: Admin, identity: ProducerIdentity, where: tuple[str, int], rows: Sequence[tuple[bytes | None, bytes | None]]
) -> OffsetRange:
    """Records to a partition, of which the coordinator does not learn."""
    topic, partition = where
    # Of now: retention removes old records at its next round, also of a transaction that hangs.
    block = encode_rows([(key, value, ()) for key, value in rows], timestamp_ms=int(time.time() * 1_000))
    records = b"".join(
        seal(
            block,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            base_sequence=0,
            transactional=True,
        )
    )
    data = (ProduceRequest.Topic.Partition(index=partition, records=records),)
    request = ProduceRequest(
        transactional_id=identity.transactional_id,
        acks=-1,
        timeout_ms=30_000,
        topic_data=(ProduceRequest.Topic(name=topic, partition_data=data),),
    )
    deadline = admin.client.clock() + 30_000
    while True:  # the switch reaches the broker through its metadata log
        node = admin.leaders([where], deadline)[where]
        response = admin.client.call(
            node, request, deadline_ms=deadline, max_version=LAST_VERSION_WITHOUT_IMPLICIT_PARTITIONS
        )
        result = response.responses[0].partition_responses[0]
        if result.error_code == 0:
            break
        assert admin.client.clock() < deadline, f"Produce was answered {result.error_code}"
        admin.client.wait(100, deadline)
    first = result.base_offset
    return OffsetRange(
        topic=topic, partition=partition, first_offset=first, last_offset=first + len(rows) - 1, rows=len(rows)
    )


def begin(transactional_id: str, record: LogRecord) -> Procedure[ProducerIdentity]:
    """A transaction with one record; one without any partition cannot be ended."""
    identity = yield from InitProducerId(transactional_id, 60_000)
    yield from append_in_transaction(identity, (record,), 0)
    return identity


def commit_at_coordinator(identity: ProducerIdentity, commit: bool = True) -> Procedure[None]:
    (result,) = yield from EndTransactions((End(identity=identity, commit=commit),))
    assert result.error == 0


def abort_by_hand(kafka: EmbeddedKafka, where: tuple[str, int], producer_id: int, producer_epoch: int) -> None:
    """Write an ABORT marker past the coordinator, as `kafka-transactions.sh abort` does."""
    person = kafka_python.KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    try:
        person.abort_transaction(AbortTransactionSpec(kafka_python.TopicPartition(*where), producer_id, producer_epoch))
    finally:
        person.close()


def decision_of(given: session.WriteSettings, plan: Plan, *named: PreparedTransaction) -> Decision:
    return Decision(
        write_id=given.write.id,
        query_id=given.batch.query_id,
        version=given.batch.version,
        nonce=plan.nonce,
        driver=plan.driver,
        topic=given.batch.topic,
        schema=given.batch.schema,
        offsets_hash=None,
        transactions=named,
    )


def committed_without_a_marker(
    kafka: EmbeddedKafka, given: session.WriteSettings, *, commits_part: bool = True, also: tuple[OffsetRange, ...] = ()
) -> None:
    """A batch of one task, decided and committed (or aborted) at its coordinator, with no marker on its data partition.

    `also`: what it is said to have written elsewhere."""
    plan: Plan = session.plan(given)
    with unverified_partitions(kafka), NetworkClient(given.client) as client:
        admin = Admin(client)
        executor = Executor(admin, given.write.commit_log, ProducerConfig(delivery_timeout_ms=30_000))

        def begin() -> Procedure[ProducerIdentity]:
            identity = yield from InitProducerId(task_transactional_id(given.write.id, 0, 0), 60_000)
            return identity

        def end(identity: ProducerIdentity, written: OffsetRange) -> Procedure[None]:
            part = part_record(given.write.id, given.batch.query_id, 0, given.batch.version, 0)
            appended = yield from append_in_transaction(identity, (part,), 0)
            prepared = PreparedTransaction(
                partition=0,
                identity=identity,
                part_offset=appended.offset,
                rows=ROWS,
                offsets=(*also, written),
            )
            records = decision_records(decision_of(given, plan, prepared))
            yield from append_in_transaction(plan.driver, records, 0)
            yield from commit_at_coordinator(plan.driver)
            yield from commit_at_coordinator(identity, commits_part)

        identity = executor.run(begin())
        rows = [(None, b"%d" % number) for number in range(ROWS)]
        executor.run(end(identity, produce_without_adding(admin, identity, (given.batch.topic or "", 0), rows)))
