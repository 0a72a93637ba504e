"""The readers and checks that other tests rely on, against transactions of a producer that is not ours."""

from __future__ import annotations

import confluent_kafka
import pytest

from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_testing import READERS, assert_nothing_open, create_topic, read_committed, unique_topic


def producer(kafka: EmbeddedKafka) -> confluent_kafka.Producer:
    made = confluent_kafka.Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": unique_topic("id")}
    )
    made.init_transactions(30)
    return made


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
