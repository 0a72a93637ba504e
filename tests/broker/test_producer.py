"""The producer against real brokers; what it wrote is read by other clients under read_committed."""

from __future__ import annotations

import sys
import time
import types
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.config import ClientConfig, parse_bootstrap_servers
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.commit.steps import CommitGroupOffsets
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.errors import FencedError, InvalidRowError, KafkaEosError, TransactionAbortedError
from kafka_eos_sink.producer import dead_letters
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.producer.partition_queue import ProducerBatch
from kafka_eos_sink.producer.producer import Producer
from kafka_eos_sink.producer.rows import Rows
from kafka_eos_sink.producer.transaction_states import IllegalTransition, State
from kafka_eos_sink.protocol.messages import EndTxnRequest
from kafka_eos_sink.protocol.record_columns import HEADERS_TYPE, RecordColumns
from kafka_eos_sink.runtime.driver_requests import commit_group_offsets
from kafka_testing import (
    BEING_ENDED,
    READERS,
    assert_nothing_open,
    commit_as_driver,
    create_topic,
    delete_topic,
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


@pytest.mark.feature("timeouts")
def test_rows_that_come_after_the_delivery_timeout_are_written(
    any_kafka: EmbeddedKafka, client: NetworkClient, started: Any
) -> None:
    """Most batches wait behind the first one of their partition, and nobody sends them while Spark computes the next rows."""
    topic = create_topic(any_kafka.bootstrap_servers, partitions=1)
    producer = started(delivery_timeout_ms=1_500, linger_ms=0, batch_size=1_000, compression="none")
    producer.write(rows(topic, 0, 1_000))
    time.sleep(2)
    producer.write(rows(topic, 1_000, 1_000))
    commit(client, producer)
    assert_exactly_once_in_order(any_kafka, topic, 2_000)


def test_topic_recreated_within_a_transaction_fails_its_attempt(any_kafka: EmbeddedKafka, started: Any) -> None:
    """A leader without state of a producer accepts any sequence below transaction version 2."""
    topic = create_topic(any_kafka.bootstrap_servers, partitions=1)
    producer = started()
    producer.write(rows(topic, 0, 10))
    producer.flush()
    delete_topic(any_kafka.bootstrap_servers, topic)
    create_topic(any_kafka.bootstrap_servers, topic, partitions=1)
    with pytest.raises(TransactionAbortedError):
        write_all(producer, [rows(topic, 10, 10)])
    producer.abort(producer._client.clock() + DEADLINE_MS)


def test_acknowledged_offsets_match_the_log(any_kafka: EmbeddedKafka, client: NetworkClient, started: Any) -> None:
    topic = create_topic(any_kafka.bootstrap_servers, partitions=3)
    log = create_topic(any_kafka.bootstrap_servers, partitions=2)
    producer = started()
    producer.write(rows(topic, 0, 1_000))
    producer.append_record(log, 1, b"part", b"{}")
    producer.flush()
    acknowledged = producer.acknowledged
    prepared_offset = acknowledged[log, 1].first_offset
    commit(client, producer)
    (record,) = read_committed(any_kafka.bootstrap_servers, log)
    assert (record.partition, record.offset, record.key, record.value) == (1, prepared_offset, b"part", b"{}")
    for partition in range(3):
        offsets = [r.offset for r in read_committed(any_kafka.bootstrap_servers, topic) if r.partition == partition]
        assert acknowledged[topic, partition] == (offsets[0], offsets[-1], len(offsets))


def test_headers_nulls_and_timestamps_arrive(any_kafka: EmbeddedKafka, client: NetworkClient, started: Any) -> None:
    topic = create_topic(any_kafka.bootstrap_servers, partitions=1)
    headers = [[{"key": "a", "value": b"1"}, {"key": "b", "value": None}], None, []]
    producer = started()
    producer.write(
        Rows(
            topic=topic,
            partition=None,
            columns=RecordColumns(
                value=pa.array([b"v", None, b""], pa.binary()),
                key=pa.array([None, b"k", b""], pa.binary()),
                headers=pa.array(headers, HEADERS_TYPE),
                timestamp=pa.array([1_600_000_000_000, None, 1_500_000_000_000], pa.int64()),
            ),
        )
    )
    commit(client, producer)
    seen = read_committed(any_kafka.bootstrap_servers, topic)
    assert [(r.key, r.value) for r in seen] == [(None, b"v"), (b"k", None), (b"", b"")]
    assert seen[0].headers == (("a", b"1"), ("b", None))
    assert (seen[0].timestamp, seen[2].timestamp) == (1_600_000_000_000, 1_500_000_000_000)
    assert seen[1].timestamp > 1_700_000_000_000


@pytest.mark.feature("partitioning")
def test_rows_reach_their_own_topic_and_given_partition(
    any_kafka: EmbeddedKafka, client: NetworkClient, started: Any
) -> None:
    names = [create_topic(any_kafka.bootstrap_servers, partitions=3) for _ in range(3)]
    count = 3_000
    topics = pa.array([names[n % 3] for n in range(count)])
    partition = pa.array([None if n % 2 else n % 3 for n in range(count)], pa.int32())
    producer = started(batch_size=2_000)
    producer.write(Rows(topic=topics, partition=partition, columns=columns(0, count)))
    commit(client, producer)
    seen = 0
    for at, name in enumerate(names):
        for record in read_committed(any_kafka.bootstrap_servers, name):
            number = int(record.value or b"")
            assert number % 3 == at
            if number % 2 == 0:
                assert record.partition == number % 3
            seen += 1
    assert seen == count


@pytest.mark.feature("partitioning")
def test_keyless_rows_fill_sticky_batches_in_all_partitions(
    any_kafka: EmbeddedKafka, client: NetworkClient, started: Any
) -> None:
    topic = create_topic(any_kafka.bootstrap_servers, partitions=4)
    producer = started(batch_size=10_000)
    producer.write(rows(topic, 0, 20_000, keyed=False))
    commit(client, producer)
    seen = read_committed(any_kafka.bootstrap_servers, topic)
    assert {record.partition for record in seen} == {0, 1, 2, 3}
    assert_exactly_once_in_order(any_kafka, topic, 20_000)


@pytest.mark.feature("partitioning")
def test_rows_are_placed_by_a_users_function(
    any_kafka: EmbeddedKafka, client: NetworkClient, started: Any, user_module: Any
) -> None:
    asked: list[tuple[pa.RecordBatch, str, int]] = []

    def by_hundreds(batch: pa.RecordBatch, topic: str, partitions: int) -> pa.Int32Array:
        asked.append((batch, topic, partitions))
        numbers = batch.column("value").cast(pa.string()).cast(pa.int32())
        return pc.if_else(pc.less(numbers, 100), pa.scalar(0, pa.int32()), pa.scalar(partitions - 1, pa.int32()))

    user_module.by_hundreds = by_hundreds
    topic = create_topic(any_kafka.bootstrap_servers, partitions=4)
    producer = started(partitioner="user_module:by_hundreds", batch_size=500)
    given = pa.array([1 if n % 50 == 0 else None for n in range(1_000)], pa.int32())
    producer.write(rows(topic, 0, 1_000, partition=given))
    commit(client, producer)
    found = {int(r.value or b""): r.partition for r in read_committed(any_kafka.bootstrap_servers, topic)}
    assert found == {n: 1 if n % 50 == 0 else 0 if n < 100 else 3 for n in range(1_000)}
    assert_exactly_once_in_order(any_kafka, topic, 1_000)
    assert {(name, partitions) for _, name, partitions in asked} == {(topic, 4)}
    # A row that names its partition is none of the function's business.
    assert sum(batch.num_rows for batch, _, _ in asked) == 1_000 - 20
    assert all(batch.column("key").type == pa.binary() for batch, _, _ in asked)


@pytest.mark.feature("partitioning")
def test_round_robin_ignores_keys_and_alternates_each_row(
    any_kafka: EmbeddedKafka, client: NetworkClient, started: Any
) -> None:
    topic = create_topic(any_kafka.bootstrap_servers, partitions=3)
    producer = started(partitioner="round-robin", batch_size=500)
    for first in range(0, 1_000, 100):  # 100 is no multiple of 3: it goes on where it stopped
        producer.write(rows(topic, first, 100, keyed=first < 500))
        producer.flush()
    commit(client, producer)
    found = {int(r.value or b""): r.partition for r in read_committed(any_kafka.bootstrap_servers, topic)}
    assert found == {n: n % 3 for n in range(1_000)}
    assert_exactly_once_in_order(any_kafka, topic, 1_000)


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


@pytest.mark.feature("producer states")
def test_abort_before_first_send_writes_nothing(any_kafka: EmbeddedKafka, client: NetworkClient, started: Any) -> None:
    topic = create_topic(any_kafka.bootstrap_servers)
    producer = started()
    producer.write(rows(topic, 0, 10))
    result = producer.abort(deadline(client))
    assert result is not None
    assert result.error_code == 0
    assert read_uncommitted(any_kafka.bootstrap_servers, topic) == []


@pytest.mark.feature("producer states")
def test_prepared_transaction_is_ended_over_another_connection(
    any_kafka: EmbeddedKafka, client: NetworkClient, started: Any
) -> None:
    topic = create_topic(any_kafka.bootstrap_servers)
    producer = started()
    producer.write(rows(topic, 0, 500))
    prepared = producer.prepare()
    producer.close()
    with pytest.raises(IllegalTransition):
        producer.abort(deadline(client))
    assert read_committed(any_kafka.bootstrap_servers, topic) == []
    with connect(any_kafka) as driver:
        assert end_as_driver(driver, prepared, committed=True) == 0
    assert_nothing_open(any_kafka.bootstrap_servers, [topic])
    assert_exactly_once_in_order(any_kafka, topic, 500)


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


def test_offsets_of_a_deleted_topic_do_not_block_other_offsets(
    any_kafka: EmbeddedKafka, client: NetworkClient, started: Any
) -> None:
    source, deleted, group = create_topic(any_kafka.bootstrap_servers), unique_topic("deleted"), unique_topic("group")
    identity = started().prepare()
    step = CommitGroupOffsets(identity, group, ((deleted, 0, 3), (source, 0, 7)))
    assert commit_group_offsets(Admin(client), step, deadline(client)).error == 0
    assert end_as_driver(client, identity, True) == 0
    consumer = confluent_kafka.Consumer({"bootstrap.servers": any_kafka.bootstrap_servers, "group.id": group})
    (found,) = consumer.committed([confluent_kafka.TopicPartition(source, 0)], timeout=30)
    consumer.close()
    assert found.offset == 7


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


@pytest.mark.feature("rejected records")
def test_small_max_message_bytes_splits_batches(any_kafka: EmbeddedKafka, client: NetworkClient, started: Any) -> None:
    topic = create_topic(any_kafka.bootstrap_servers, partitions=2, configs={"max.message.bytes": "20000"})
    producer = started()
    for first in range(0, 30_000, 10_000):
        producer.write(rows(topic, first, 10_000))
        producer.flush()
    commit(client, producer)
    assert_exactly_once_in_order(any_kafka, topic, 30_000)


@pytest.mark.feature("rejected records")
def test_record_too_large_is_named_or_sent_to_dead_letter_topic(
    any_kafka: EmbeddedKafka, client: NetworkClient, started: Any
) -> None:
    topic = create_topic(any_kafka.bootstrap_servers, partitions=1, configs={"max.message.bytes": "2000"})
    dlq = create_topic(any_kafka.bootstrap_servers, partitions=1)
    values = [b"%d" % n for n in range(200)]
    values[77] = b"x" * 5_000
    given = Rows(
        topic=topic,
        partition=None,
        columns=RecordColumns(value=pa.array(values, pa.binary()), key=None, headers=None, timestamp=None),
    )
    producer = started()
    producer.write(given)
    with pytest.raises(InvalidRowError, match="row 77 of the task") as raised:
        producer.flush()
    assert raised.value.code == "RECORD_TOO_LARGE"
    producer.abort(deadline(client))

    producer = started(dead_letter_topic=dlq)
    producer.write(given)
    commit(client, producer)
    kept = [int(r.value or b"") for r in read_committed(any_kafka.bootstrap_servers, topic)]
    assert kept == [n for n in range(200) if n != 77]
    (letter,) = read_committed(any_kafka.bootstrap_servers, dlq)
    headers = dict(letter.headers)
    assert headers["kafka-eos.error"] == b"RECORD_TOO_LARGE"
    assert headers["kafka-eos.row"] == b"77"
    assert letter.value == b"x" * 5_000


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


def test_bad_rows_reach_dead_letter_topic_in_same_transaction(
    any_kafka: EmbeddedKafka, client: NetworkClient, started: Any
) -> None:
    topic = create_topic(any_kafka.bootstrap_servers, partitions=2)
    dlq = create_topic(any_kafka.bootstrap_servers)
    missing = unique_topic("missing")
    producer = started(dead_letter_topic=dlq, max_block_ms=5_000)
    producer.write(rows(pa.array([topic, None, missing, topic], pa.string()), 0, 4))
    producer.write(rows(topic, 4, 2, partition=pa.array([1, 7], pa.int32())))
    producer.flush()
    assert read_committed(any_kafka.bootstrap_servers, dlq) == []
    commit(client, producer)
    assert sorted(int(r.value or b"") for r in read_committed(any_kafka.bootstrap_servers, topic)) == [0, 3, 4]
    letters = {int(r.value or b""): dict(r.headers) for r in read_committed(any_kafka.bootstrap_servers, dlq)}
    assert {number: headers["kafka-eos.error"] for number, headers in letters.items()} == {
        1: b"NULL_TOPIC",
        2: b"UNKNOWN_TOPIC",
        5: b"NO_SUCH_PARTITION",
    }
    assert letters[2]["kafka-eos.topic"] == missing.encode()
    assert letters[5]["kafka-eos.partition"] == b"7"


def test_many_missing_topics_hide_no_known_one(
    any_kafka: EmbeddedKafka, client: NetworkClient, started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The response about all topics that rows have ever named would not fit into a frame."""
    monkeypatch.setattr("kafka_eos_sink.client.connection.MAX_FRAME_BYTES", 300_000)
    topic, dlq = create_topic(any_kafka.bootstrap_servers), create_topic(any_kafka.bootstrap_servers)
    producer = started(dead_letter_topic=dlq, max_block_ms=2_000)
    for slab in range(4):
        names = [topic, *(f"missing-{slab}-{number}-".ljust(249, "x") for number in range(500))]
        producer.write(rows(pa.array(names, pa.string()), 501 * slab, 501))
        producer.flush()
    commit(client, producer)
    assert len(read_committed(any_kafka.bootstrap_servers, topic)) == 4
    assert len(read_committed(any_kafka.bootstrap_servers, dlq)) == 2_000


def test_row_for_a_topic_of_the_sink_is_named_or_a_dead_letter(
    any_kafka: EmbeddedKafka, client: NetworkClient, started: Any
) -> None:
    """Readers of a commit log could take such a row for a decision."""
    topic, dlq, own = (create_topic(any_kafka.bootstrap_servers) for _ in range(3))
    given = rows(pa.array([topic, own, topic], pa.string()), 0, 3)
    producer = started(own_topics=frozenset({own}))
    with pytest.raises(InvalidRowError, match=rf"COMMIT_LOG_TOPIC\] row 1 of the task \(topic {own}"):
        write_all(producer, [given])
    producer.abort(deadline(client))
    producer = started(own_topics=frozenset({own}), dead_letter_topic=dlq)
    producer.write(given)
    commit(client, producer)
    assert [int(r.value or b"") for r in read_committed(any_kafka.bootstrap_servers, topic)] == [0, 2]
    assert read_committed(any_kafka.bootstrap_servers, own) == []
    (letter,) = read_committed(any_kafka.bootstrap_servers, dlq)
    headers = dict(letter.headers)
    assert (letter.value, headers["kafka-eos.error"]) == (b"1", b"COMMIT_LOG_TOPIC")
    assert headers["kafka-eos.topic"] == own.encode()


@pytest.mark.feature("rejected records")
def test_letter_that_its_topic_rejects_keeps_reason_and_origin(
    any_kafka: EmbeddedKafka, client: NetworkClient, started: Any
) -> None:
    topic = create_topic(any_kafka.bootstrap_servers, partitions=1, configs={"max.message.bytes": "20000"})
    dlq = create_topic(
        any_kafka.bootstrap_servers, partitions=1, configs={"max.message.bytes": str(dead_letters.ENOUGH_BYTES)}
    )
    values = [b"%d" % n for n in range(200)]
    values[20], values[30] = b"x" * 30_000, b"y" * 30_000
    # Rows that name the dead letter topic itself become letters there like others.
    topics = pa.array([dlq if n in (30, 31) else topic for n in range(200)], pa.string())
    keys = pa.array([b"k" * 5_000 if n == 30 else b"%d" % n for n in range(200)], pa.binary())
    headers = pa.array([[("h", b"z"), ("kafka-eos.letter.reason", b"forged")]] * 200, pa.map_(pa.string(), pa.binary()))
    producer = started(dead_letter_topic=dlq)
    columns = RecordColumns(value=pa.array(values, pa.binary()), key=keys, headers=headers)
    producer.write(Rows(topic=topics, partition=None, columns=columns))
    # One too large for the request, one for no topic: the second fits its topic whole.
    far = pa.array([None, None], pa.string())
    columns = RecordColumns(value=pa.array([b"v" * 2_000_000, b"small"], pa.binary()), headers=headers[:2])
    producer.write(Rows(topic=far, partition=None, columns=columns))
    commit(client, producer)
    assert len(read_committed(any_kafka.bootstrap_servers, topic)) == 197
    found = {dict(r.headers).get("kafka-eos.row"): r for r in read_committed(any_kafka.bootstrap_servers, dlq)}
    assert found.keys() == {None, b"20", b"30", b"200", b"201"}
    assert found[None].value == b"31"
    assert {number: letter.value for number, letter in found.items() if letter.value} == {None: b"31", b"201": b"small"}
    assert {number: letter.key for number, letter in found.items() if letter.key} == {None: b"31", b"20": b"20"}
    reasons = {number: dict(letter.headers) for number, letter in found.items() if number is not None}
    assert all(("h" in headers) == (number == b"201") for number, headers in reasons.items())
    assert {number for number, headers in reasons.items() if "kafka-eos.letter.reason" in headers} == {b"20", b"30"}
    assert b"RECORD_TOO_LARGE: topic " + dlq.encode() in reasons[b"20"]["kafka-eos.letter.reason"]
    assert reasons[b"20"]["kafka-eos.topic"] == topic.encode()
    assert reasons[b"20"]["kafka-eos.value.bytes"] == b"30000"
    assert reasons[b"30"]["kafka-eos.key.bytes"] == b"5000"
    assert_nothing_open(any_kafka.bootstrap_servers, [topic, dlq])


@pytest.mark.feature("rejected records")
@pytest.mark.parametrize(
    ("configs", "names"),
    [
        ({"cleanup.policy": "compact"}, "without key"),
        ({"max.message.bytes": "100"}, "max.message.bytes"),
    ],
)
def test_reduced_letter_that_its_topic_rejects_fails_the_task(
    any_kafka: EmbeddedKafka, client: NetworkClient, started: Any, configs: dict[str, str], names: str
) -> None:
    topic = create_topic(any_kafka.bootstrap_servers, partitions=1)
    dlq = create_topic(any_kafka.bootstrap_servers, partitions=1, configs=configs)
    producer = started(dead_letter_topic=dlq)
    given = RecordColumns(value=pa.array([b"good", b"bad"], pa.binary()))
    producer.write(Rows(topic=pa.array([topic, None], pa.string()), partition=None, columns=given))
    with pytest.raises(
        InvalidRowError, match=rf"DEAD_LETTER_TOPIC\] the dead letter topic {dlq} .* row 1 of"
    ) as raised:
        producer.flush()
    assert names in str(raised.value).lower()
    producer.abort(deadline(client))
    assert_nothing_open(any_kafka.bootstrap_servers, [topic, dlq])


@pytest.mark.parametrize("length", [250, 40_000, 2_000_000])
def test_row_with_unencodable_topic_becomes_a_dead_letter(
    any_kafka: EmbeddedKafka, client: NetworkClient, started: Any, length: int
) -> None:
    """A broker closes the connection on a Metadata request with a name of more than 32,767 bytes."""
    topic, dlq = create_topic(any_kafka.bootstrap_servers), create_topic(any_kafka.bootstrap_servers)
    given = rows(pa.array([topic, "x" * length, topic], pa.string()), 0, 3)
    producer = started()
    with pytest.raises(InvalidRowError, match=r"INVALID_TOPIC\] row 1 of the task \(topic xxx") as raised:
        write_all(producer, [given])
    assert len(str(raised.value)) < 1_000
    producer.abort(deadline(client))
    producer = started(dead_letter_topic=dlq, max_block_ms=10_000)
    producer.write(given)
    commit(client, producer)
    assert [int(r.value or b"") for r in read_committed(any_kafka.bootstrap_servers, topic)] == [0, 2]
    (letter,) = read_committed(any_kafka.bootstrap_servers, dlq)
    assert (letter.value, dict(letter.headers)["kafka-eos.error"]) == (b"1", b"INVALID_TOPIC")


@pytest.mark.feature("results per partition")
def test_a_null_key_on_a_compacted_topic_is_named_by_its_row(
    any_kafka: EmbeddedKafka, client: NetworkClient, started: Any
) -> None:
    topic = create_topic(any_kafka.bootstrap_servers, partitions=1, configs={"cleanup.policy": "compact"})
    producer = started()
    keys = pa.array([b"k", None, b"k"], pa.binary())
    given = RecordColumns(value=pa.array([b"1", b"2", b"3"], pa.binary()), key=keys, headers=None, timestamp=None)
    producer.write(Rows(topic=topic, partition=None, columns=given))
    with pytest.raises(InvalidRowError, match="row 1 of the task") as raised:
        producer.flush()
    assert "key" in raised.value.message
    producer.abort(deadline(client))
    assert_nothing_open(any_kafka.bootstrap_servers, [topic])


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


@pytest.mark.feature("batching")
def test_producer_memory_is_bounded_by_buffer_memory(
    any_kafka: EmbeddedKafka, client: NetworkClient, started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = create_topic(any_kafka.bootstrap_servers)
    producer = started(buffer_memory=400_000, batch_size=50_000)
    accumulator = producer._accumulator
    add, used = accumulator.add, []

    def added(batch: ProducerBatch) -> None:
        add(batch)
        used.append(accumulator.used_bytes)

    monkeypatch.setattr(accumulator, "add", added)
    for first in range(0, 50_000, 5_000):
        producer.write(rows(topic, first, 5_000))
    commit(client, producer)
    assert len(used) > 1, "rows for one batch only need no limit"
    assert max(used) <= 400_000
    assert_exactly_once_in_order(any_kafka, topic, 50_000)


class Raising:
    """An interceptor all of whose methods raise once it is there."""

    def on_send(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        raise RuntimeError("from on_send")

    def on_acknowledgement(self, *arguments: Any) -> None:
        raise RuntimeError("from on_acknowledgement")

    def close(self) -> None:
        raise RuntimeError("from close")


class Recording:
    """An interceptor that keeps what it is told; ``made`` is the newest."""

    made: Recording

    def __init__(self) -> None:
        Recording.made = self
        self.options: list[dict[str, str]] = []
        self.sent: list[int] = []
        self.told: list[tuple[Any, ...]] = []
        self.closed = 0

    def configure(self, options: dict[str, str]) -> None:
        self.options.append(options)

    def on_send(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.sent += [int(value) for value in batch.column("value").to_pylist()]
        return batch

    def on_acknowledgement(self, *arguments: Any) -> None:
        self.told.append(arguments)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def interceptors(user_module: Any) -> tuple[str, str]:
    """One that raises, and behind it one that records."""
    user_module.Raising, user_module.Recording = Raising, Recording
    return "user_module:Raising", "user_module:Recording"


@pytest.mark.feature("interceptors")
def test_interceptors_see_every_row_and_every_acknowledgement(
    any_kafka: EmbeddedKafka, client: NetworkClient, started: Any, user_module: Any
) -> None:
    told: list[tuple[Any, ...]] = []

    class Doubling:
        def on_send(self, batch: pa.RecordBatch) -> pa.RecordBatch:
            values = pa.array([v * 2 for v in batch.column("value").to_pylist()], pa.binary())
            return batch.set_column(batch.schema.get_field_index("value"), "value", values)

        def on_acknowledgement(self, *arguments: Any) -> None:
            told.append(arguments)

    user_module.Doubling = Doubling
    topic = create_topic(any_kafka.bootstrap_servers, partitions=1)
    producer = started(interceptors=("user_module:Doubling",))
    producer.write(rows(topic, 0, 3))
    commit(client, producer)
    assert [r.value for r in read_committed(any_kafka.bootstrap_servers, topic)] == [b"00", b"11", b"22"]
    assert told == [(topic, 0, 0, 3, None)]


@pytest.mark.feature("interceptors")
def test_raising_interceptor_is_logged_and_write_continues(
    any_kafka: EmbeddedKafka,
    client: NetworkClient,
    started: Any,
    interceptors: tuple[str, str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = create_topic(any_kafka.bootstrap_servers, partitions=1)
    producer = started(interceptors=interceptors, interceptor_options=(("topic", topic),))
    producer.write(rows(topic, 0, 10))
    producer.write(rows(topic, 10, 10))
    commit(client, producer)
    recording = Recording.made
    assert recording.closed == 0
    producer.close()
    producer.close()
    assert recording.closed == 1
    assert recording.options == [{"topic": topic}]
    assert recording.sent == list(range(20))
    assert recording.told == [(topic, 0, 0, 20, None)]
    for method in ("on_send", "on_acknowledgement", "close"):
        assert f"user_module:Raising failed in {method}" in caplog.text
        assert f"RuntimeError: from {method}" in caplog.text
    assert_exactly_once_in_order(any_kafka, topic, 20)


@pytest.mark.feature("interceptors")
@pytest.mark.parametrize("transactional_id", ["", None])
def test_interceptor_receives_each_row_once_with_broker_error(
    any_kafka: EmbeddedKafka,
    client: NetworkClient,
    started: Any,
    interceptors: tuple[str, str],
    transactional_id: str | None,
) -> None:
    """Partition 0 is given rows that are older than its topic takes, in one request with good ones for partition 1."""
    topic = create_topic(
        any_kafka.bootstrap_servers, partitions=2, configs={"message.timestamp.before.max.ms": "3600000"}
    )
    producer = started(transactional_id, interceptors=interceptors)
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


def test_no_broker_at_all_exhausts_the_buffer_in_time(kafka: EmbeddedKafka) -> None:
    topic = create_topic(kafka.bootstrap_servers, partitions=1)
    with connect(kafka) as client:
        client.want_topics([topic])
        assert client.wait_for_metadata(deadline(client))
        config = ProducerConfig(buffer_memory=200_000, batch_size=50_000, max_block_ms=300, delivery_timeout_ms=60_000)
        producer = started_producer(client, unique_topic("tx"), config)
        # A throttled broker takes nothing: the client keeps silent for as long as it was told (KIP-219).
        producer.write(rows(topic, 0, 10))
        producer.flush()
        for node in client._nodes.values():
            node.throttled_until = client.clock() + 60_000
        with pytest.raises(KafkaEosError) as raised:
            write_all(producer, [rows(topic, first, 10_000) for first in range(0, 100_000, 10_000)])
        assert raised.value.code == "BUFFER_EXHAUSTED"
        assert "buffer.memory" in str(raised.value)
        for node in client._nodes.values():
            node.throttled_until = 0
        producer.abort(deadline(client))
    assert_nothing_open(kafka.bootstrap_servers, [topic])


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


@pytest.mark.feature("commit and abort")
def test_abort_with_lost_response_is_resent_until_known(
    any_kafka: EmbeddedKafka, client: NetworkClient, started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = create_topic(any_kafka.bootstrap_servers)
    producer = started()
    producer.write(rows(topic, 0, 1_000))
    producer.flush()
    send, ends = client.send, []

    def lost_once(node_id: int, request: Any, **how: Any) -> Any:
        pending = send(node_id, request, **how)
        if isinstance(request, EndTxnRequest):
            ends.append((request, pending.version))
            if len(ends) == 1:
                client.disconnect(node_id)
        return pending

    monkeypatch.setattr(client, "send", lost_once)
    ended = producer.abort(deadline(client))
    assert ended is not None
    assert (ended.error_code, ended.has_lost_response) == (0, True)
    assert len(ends) > 1
    assert len(set(ends)) == 1
    assert producer.state is State.ABORTED
    assert_nothing_open(any_kafka.bootstrap_servers, [topic])
    assert read_committed(any_kafka.bootstrap_servers, topic) == []
    assert len(read_uncommitted(any_kafka.bootstrap_servers, topic)) == 1_000
