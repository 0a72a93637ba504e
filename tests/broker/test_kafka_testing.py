"""The readers and checks that other tests rely on, against transactions of a producer that is not ours."""

from __future__ import annotations

import confluent_kafka
import pytest

from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_testing import READERS, assert_nothing_open, create_topic, read_committed, read_uncommitted, unique_topic


def producer(kafka: EmbeddedKafka) -> confluent_kafka.Producer:
    made = confluent_kafka.Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": unique_topic("id")}
    )
    made.init_transactions(30)
    return made


@pytest.mark.parametrize("reader", READERS)
def test_readers_return_only_committed_records(any_kafka: EmbeddedKafka, reader: str) -> None:
    topic = create_topic(any_kafka.bootstrap_servers, partitions=3)
    transactions = producer(any_kafka)
    for committed in (True, False, True, False):
        transactions.begin_transaction()
        for partition in range(3):
            transactions.produce(
                topic, b"" if committed else None, b"k", partition, timestamp=5_000, headers=[("h", b"1"), ("n", None)]
            )
        transactions.flush(30)
        (transactions.commit_transaction if committed else transactions.abort_transaction)(30)
    assert_nothing_open(any_kafka.bootstrap_servers, [topic])

    seen = read_committed(any_kafka.bootstrap_servers, topic, reader=reader)
    assert [record.partition for record in seen] == [0, 0, 1, 1, 2, 2]
    assert {(record.key, record.value, record.timestamp) for record in seen} == {(b"k", b"", 5_000)}
    assert {record.headers for record in seen} == {(("h", b"1"), ("n", None))}
    assert len(read_uncommitted(any_kafka.bootstrap_servers, topic, reader=reader)) == 12


@pytest.mark.feature("readers")
@pytest.mark.parametrize("reader", READERS)
def test_an_open_transaction_is_found_and_holds_back_its_readers(kafka: EmbeddedKafka, reader: str) -> None:
    topic = create_topic(kafka.bootstrap_servers, partitions=1)
    transactions = producer(kafka)
    transactions.begin_transaction()
    transactions.produce(topic, b"open")
    transactions.flush(30)
    with pytest.raises(AssertionError, match=rf"is Ongoing; {topic}-0 is stable up to 0 of 1"):
        assert_nothing_open(kafka.bootstrap_servers, [topic], patience_s=0)
    assert read_committed(kafka.bootstrap_servers, topic, reader=reader) == []
    transactions.abort_transaction(30)
    assert_nothing_open(kafka.bootstrap_servers, [topic])
