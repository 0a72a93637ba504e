"""The producer against real brokers; what it wrote is read by other clients under read_committed."""

from __future__ import annotations

import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import numpy as np
import pyarrow as pa
import pytest

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.config import ClientConfig, parse_bootstrap_servers
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.commit.steps import CommitGroupOffsets
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.errors import FencedError, InvalidRowError, TransactionAbortedError
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.producer.producer import Producer
from kafka_eos_sink.producer.rows import Rows
from kafka_eos_sink.producer.transaction_states import IllegalTransition, State
from kafka_eos_sink.protocol.record_columns import RecordColumns
from kafka_eos_sink.runtime.driver_requests import commit_group_offsets
from kafka_testing import (
    BEING_ENDED,
    READERS,
    assert_nothing_open,
    commit_as_driver,
    create_topic,
    end_as_driver,
    read_committed,
    read_uncommitted,
    started_producer,
    unique_topic,
    wait_until,
)

DEADLINE_MS = 30_000


@pytest.fixture
def client(any_kafka: EmbeddedKafka) -> Iterator[NetworkClient]:
    with connect(any_kafka) as connected:
        yield connected


def connect(kafka: EmbeddedKafka, **settings: Any) -> NetworkClient:
    return NetworkClient(ClientConfig(bootstrap_servers=parse_bootstrap_servers(kafka.bootstrap_servers), **settings))


@pytest.fixture
def started(client: NetworkClient) -> Iterator[Callable[..., Producer]]:
    """A producer in its transaction; without a transactional id one that is only idempotent."""
    made: list[Producer] = []

    def start(transactional_id: str | None = "", **settings: Any) -> Producer:
        wanted = unique_topic("tx") if transactional_id == "" else transactional_id
        producer = started_producer(client, wanted, ProducerConfig(**settings))
        made.append(producer)
        return producer

    yield start
    for producer in made:
        producer.close()


@pytest.fixture
def user_module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module ``user_module``, empty: what a test sets in it can be named in a config."""
    module = types.ModuleType("user_module")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def deadline(client: NetworkClient) -> int:
    return client.clock() + DEADLINE_MS


def commit(client: NetworkClient, producer: Producer) -> None:
    """Returns when the rows can be read."""
    commit_as_driver(client, producer)
    if (name := producer._transactions.transactional_id) is not None:
        wait_until(lambda: not is_being_ended(client, name), "the markers")


def is_being_ended(client: NetworkClient, transactional_id: str) -> bool:
    """A coordinator answers EndTxn before it has the markers written."""
    found = Admin(client).describe_transactions([transactional_id], deadline(client))[transactional_id]
    return found is not None and found.transaction_state in BEING_ENDED


def columns(first: int, count: int, *, keyed: bool = True, size: int = 0) -> RecordColumns:
    numbers = range(first, first + count)
    return RecordColumns(
        value=pa.array([(b"%d" % n).ljust(size, b".") for n in numbers], pa.binary()),
        key=pa.array([b"key-%d" % (n % 997) for n in numbers], pa.binary()) if keyed else None,
        headers=None,
        timestamp=None,
    )


def rows(topic: Any, first: int, count: int, partition: Any = None, **shape: Any) -> Rows:
    return Rows(topic=topic, partition=partition, columns=columns(first, count, **shape))


def write_all(producer: Producer, batches: list[Rows]) -> None:
    for batch in batches:
        producer.write(batch)
    producer.flush()


def assert_exactly_once_in_order(kafka: EmbeddedKafka, topic: str, count: int, reader: str = "confluent") -> None:
    """Numbers 0 to count - 1, each once, ascending in every partition."""
    records = read_committed(kafka.bootstrap_servers, topic, reader=reader)  # type: ignore[arg-type]
    numbers = [int((record.value or b"").rstrip(b".")) for record in records]
    assert Counter(numbers) == Counter(range(count))
    for partition in {record.partition for record in records}:
        own = [n for n, record in zip(numbers, records, strict=True) if record.partition == partition]
        assert own == sorted(own)


@pytest.mark.feature("adding partitions", "compression")
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_row_is_read_once_and_in_order_with_each_codec(
    any_kafka: EmbeddedKafka, client: NetworkClient, started: Any, codec: str
) -> None:
    topic = create_topic(any_kafka.bootstrap_servers)
    producer = started(compression=codec, batch_size=20_000)
    for first in range(0, 30_000, 10_000):
        producer.write(rows(topic, first, 10_000))
    commit(client, producer)
    for reader in READERS:
        assert_exactly_once_in_order(any_kafka, topic, 30_000, reader)
    assert_nothing_open(any_kafka.bootstrap_servers, [topic])


@pytest.mark.feature("commit and abort", "producer states")
def test_an_aborted_transaction_shows_nothing(any_kafka: EmbeddedKafka, client: NetworkClient, started: Any) -> None:
    topic = create_topic(any_kafka.bootstrap_servers)
    producer = started()
    producer.write(rows(topic, 0, 100))
    producer.flush()
    producer.write(rows(topic, 100, 100))
    result = producer.abort(deadline(client))
    assert result is not None
    assert result.error_code == 0
    assert read_committed(any_kafka.bootstrap_servers, topic) == []
    assert len(read_uncommitted(any_kafka.bootstrap_servers, topic)) == 100
    assert_nothing_open(any_kafka.bootstrap_servers, [topic])
    # The producer cannot begin again. Another one can, under a new identity of the same id.
    with pytest.raises(IllegalTransition):
        producer.begin()
    again = started(producer._transactions.transactional_id)
    again.write(rows(topic, 0, 50))
    commit(client, again)
    assert_exactly_once_in_order(any_kafka, topic, 50)


@pytest.mark.feature("fenced producers")
def test_fenced_producer_raises_fenced_error(any_kafka: EmbeddedKafka, client: NetworkClient, started: Any) -> None:
    topic = create_topic(any_kafka.bootstrap_servers)
    old = started(unique_topic("tx"))
    old.write(rows(topic, 0, 10))
    old.flush()
    started(old._transactions.transactional_id)
    old.write(rows(topic, 10, 10))
    with pytest.raises((TransactionAbortedError, FencedError)) as raised:
        old.flush()
    assert "fenced" in str(raised.value) or "taken over" in str(raised.value)
    old.abort(deadline(client))
    assert read_committed(any_kafka.bootstrap_servers, topic) == []
    assert_nothing_open(any_kafka.bootstrap_servers, [topic])


@pytest.mark.feature("consumer offsets")
def test_offsets_are_committed_only_with_their_transaction(
    any_kafka: EmbeddedKafka, client: NetworkClient, started: Any
) -> None:
    source = create_topic(any_kafka.bootstrap_servers, partitions=2)
    group = unique_topic("group")
    for committed, offsets in ((False, {(source, 0): 5}), (True, {(source, 0): 7, (source, 1): 8})):
        producer = started()
        identity = producer.prepare()
        given = tuple((topic, partition, offset) for (topic, partition), offset in offsets.items())
        assert (
            commit_group_offsets(Admin(client), CommitGroupOffsets(identity, group, given), deadline(client)).error == 0
        )
        assert end_as_driver(client, identity, committed) == 0
    consumer = confluent_kafka.Consumer({"bootstrap.servers": any_kafka.bootstrap_servers, "group.id": group})
    found = consumer.committed([confluent_kafka.TopicPartition(source, p) for p in (0, 1)], timeout=30)
    consumer.close()
    assert [partition.offset for partition in found] == [7, 8]


@pytest.mark.feature("producer without transactions")
def test_without_transactions_producer_is_idempotent(
    any_kafka: EmbeddedKafka, client: NetworkClient, started: Any
) -> None:
    topic = create_topic(any_kafka.bootstrap_servers)
    producer = started(None, batch_size=5_000)
    producer.write(rows(topic, 0, 5_000))
    producer.flush()
    assert_exactly_once_in_order(any_kafka, topic, 5_000)
    assert producer.state is State.READY
    assert producer.abort(deadline(client)) is None


@pytest.mark.feature("epoch bump", "producer without transactions")
def test_idempotent_producer_bumps_epoch_on_unresolved_sequence(
    any_kafka: EmbeddedKafka, client: NetworkClient, started: Any
) -> None:
    topic = create_topic(any_kafka.bootstrap_servers, partitions=1)
    producer = started(None)
    producer.write(rows(topic, 0, 10))
    producer.flush()
    epoch = producer.producer_epoch
    # As if the broker had lost what it acknowledged: it answers OUT_OF_ORDER_SEQUENCE_NUMBER to all that follows.
    producer._accumulator.queue(topic, 0).next_sequence = 1_000
    producer.write(rows(topic, 10, 10))
    producer.flush()
    producer.write(rows(topic, 20, 10))
    producer.flush()
    assert producer.producer_epoch == epoch + 1
    assert_exactly_once_in_order(any_kafka, topic, 30)


@pytest.mark.feature("retries and errors", "results per partition")
def test_bad_rows_fail_the_task_before_any_row_of_slab_is_sent(
    any_kafka: EmbeddedKafka, client: NetworkClient, started: Any
) -> None:
    topic = create_topic(any_kafka.bootstrap_servers, partitions=2)
    cases = [
        ("NULL_TOPIC", rows(pa.array([topic, None], pa.string()), 0, 2)),
        ("UNKNOWN_TOPIC", rows(pa.array([topic, unique_topic("missing")]), 0, 2)),
        ("NO_SUCH_PARTITION", rows(topic, 0, 2, partition=pa.array([0, 2], pa.int32()))),
        ("RECORD_TOO_LARGE", rows(topic, 0, 2, size=2_000_000)),
        ("INTERNAL_TOPIC", rows("__consumer_offsets", 0, 1)),
        ("INVALID_TOPIC", rows("not/a/topic", 0, 1)),
    ]
    consumer = confluent_kafka.Consumer({"bootstrap.servers": any_kafka.bootstrap_servers, "group.id": "g"})
    wait_until(lambda: knows_offsets(consumer, topic), "the topic __consumer_offsets")
    consumer.close()
    for code, given in cases:
        producer = started(max_block_ms=2_000 if code == "UNKNOWN_TOPIC" else 60_000)
        with pytest.raises(InvalidRowError) as raised:
            write_all(producer, [given])
        assert raised.value.code == code
        assert "[KAFKA_EOS." in str(raised.value)
        producer.abort(deadline(client))
    assert read_uncommitted(any_kafka.bootstrap_servers, topic) == []
    assert_nothing_open(any_kafka.bootstrap_servers, [topic])


def knows_offsets(consumer: confluent_kafka.Consumer, topic: str) -> bool:
    """Whether the group has a coordinator; the first request creates its topic, of which a broker may not lead the partition yet."""
    try:
        consumer.committed([confluent_kafka.TopicPartition(topic, 0)], timeout=30)
    except confluent_kafka.KafkaException as error:
        if error.args[0].code() != confluent_kafka.KafkaError.NOT_COORDINATOR:
            raise
        return False
    return True


@pytest.mark.feature("rejected records")
def test_rows_that_broker_rejects_reach_dead_letter_topic(
    any_kafka: EmbeddedKafka, client: NetworkClient, started: Any
) -> None:
    """A null key on a compacted topic, and a time that is older than the topic takes."""
    configs = {"cleanup.policy": "compact", "message.timestamp.before.max.ms": "3600000"}
    topic = create_topic(any_kafka.bootstrap_servers, partitions=1, configs=configs)
    dlq = create_topic(
        any_kafka.bootstrap_servers, partitions=1, configs={"message.timestamp.before.max.ms": "3600000"}
    )
    producer = started(dead_letter_topic=dlq, batch_size=2_000)
    numbers = range(1_000)
    without_key, old = {7, 8, 500, 999}, {0, 7, 300}
    given = RecordColumns(
        value=pa.array([b"%d" % n for n in numbers], pa.binary()),
        key=pa.array([None if n in without_key else b"%d" % n for n in numbers], pa.binary()),
        headers=None,
        timestamp=pa.array([1_500_000_000_000 if n in old else None for n in numbers], pa.int64()),
    )
    producer.write(Rows(topic=topic, partition=None, columns=given))
    commit(client, producer)
    kept = [int(r.value or b"") for r in read_committed(any_kafka.bootstrap_servers, topic)]
    assert kept == [n for n in numbers if n not in without_key | old]
    letters = {int(r.value or b""): dict(r.headers) for r in read_committed(any_kafka.bootstrap_servers, dlq)}
    assert letters.keys() == without_key | old
    assert {headers["kafka-eos.error"] for headers in letters.values()} == {b"RECORD_REFUSED"}
    assert {n for n, headers in letters.items() if headers.get("kafka-eos.timestamp") == b"1500000000000"} == old
    assert all(headers["kafka-eos.row"] == b"%d" % n for n, headers in letters.items())
    assert_nothing_open(any_kafka.bootstrap_servers, [topic, dlq])


@pytest.mark.feature("metadata")
def test_partitions_added_while_writing_are_found(
    any_kafka: EmbeddedKafka, client: NetworkClient, started: Any
) -> None:
    topic = create_topic(any_kafka.bootstrap_servers, partitions=1)
    producer = started()
    producer.write(rows(topic, 0, 10))
    producer.flush()
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": any_kafka.bootstrap_servers})
    for future in admin.create_partitions([confluent_kafka.admin.NewPartitions(topic, 3)]).values():
        future.result(30)
    wait_until(lambda: len(admin.list_topics(topic, timeout=30).topics[topic].partitions) == 3, "the new partitions")
    producer.write(rows(topic, 10, 10, partition=pa.array(np.full(10, 2), pa.int32())))
    commit(client, producer)
    assert sum(r.partition == 2 for r in read_committed(any_kafka.bootstrap_servers, topic)) == 10


class Recording:
    """An interceptor that keeps what it is told; ``made`` is the newest."""

    made: Recording

    def __init__(self) -> None:
        Recording.made = self
        self.told: list[tuple[Any, ...]] = []
        self.closed = 0

    def on_acknowledgement(self, *arguments: Any) -> None:
        self.told.append(arguments)

    def close(self) -> None:
        self.closed += 1


@pytest.mark.feature("interceptors")
@pytest.mark.parametrize("transactional_id", ["", None])
def test_interceptor_receives_each_row_once_with_broker_error(
    any_kafka: EmbeddedKafka,
    client: NetworkClient,
    started: Any,
    user_module: Any,
    transactional_id: str | None,
) -> None:
    """Partition 0 is given rows that are older than its topic takes, in one request with good ones for partition 1."""
    topic = create_topic(
        any_kafka.bootstrap_servers, partitions=2, configs={"message.timestamp.before.max.ms": "3600000"}
    )
    user_module.Recording = Recording
    producer = started(transactional_id, interceptors=("user_module:Recording",))
    producer.write(rows(topic, 0, 4, partition=pa.array([0] * 4, pa.int32())))
    producer.flush()
    recording = Recording.made
    assert recording.told == [(topic, 0, 0, 4, None)]
    old_and_new = RecordColumns(
        value=pa.array([b"%d" % n for n in range(4, 9)], pa.binary()),
        key=None,
        headers=None,
        timestamp=pa.array([1_500_000_000_000, 1_500_000_000_000, None, None, None], pa.int64()),
    )
    producer.write(Rows(topic=topic, partition=pa.array([0, 0, 1, 1, 1], pa.int32()), columns=old_and_new))
    with pytest.raises(InvalidRowError) as raised:
        producer.flush()
    assert raised.value.code == "RECORD_REFUSED"
    assert "INVALID_TIMESTAMP" in str(raised.value)
    assert "row 4 of the task" in str(raised.value)
    producer.abort(deadline(client))
    producer.close()
    assert recording.closed == 1
    _, *told = recording.told
    # The good ones are acknowledged first or given up with the others, and that is their end.
    assert sorted((partition, count) for _, partition, _, count, _ in told) == [(0, 2), (1, 3)]
    assert (topic, 0, -1, 2, raised.value) in told
    assert_nothing_open(any_kafka.bootstrap_servers, [topic])


@pytest.mark.feature("identical resends")
@pytest.mark.parametrize("transactional_id", ["", None])
def test_connections_lost_in_flight_cause_no_duplicates(
    any_kafka: EmbeddedKafka, client: NetworkClient, started: Any, transactional_id: str | None
) -> None:
    topic = create_topic(any_kafka.bootstrap_servers)
    producer = started(transactional_id, batch_size=5_000)
    for first in range(0, 40_000, 4_000):
        producer.write(rows(topic, first, 4_000))
        producer._send_slab()
        while not producer._sender.produces_in_flight and not producer._accumulator.idle:
            producer._sender.pump(10)
        # What is on the wire may be written or not, and its answer is lost.
        for node in client.metadata.brokers:
            client.disconnect(node)
    producer.flush()
    assert not producer.tainted
    if transactional_id is not None:
        commit(client, producer)
    assert_exactly_once_in_order(any_kafka, topic, 40_000)
    assert_nothing_open(any_kafka.bootstrap_servers, [topic])
