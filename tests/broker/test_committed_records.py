"""What this package's client shows of a partition under read_committed, against librdkafka and kafka-python."""

from __future__ import annotations

import uuid

import confluent_kafka
import pytest

from kafka_eos_sink.client.admin import connected
from kafka_eos_sink.client.committed_records import read_committed
from kafka_eos_sink.client.pump import monotonic_ms
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_testing import READERS, await_markers, create_topic
from kafka_testing import read_committed as read_with_another_client


def write(bootstrap_servers: str, topic: str, ends: str, *, records: int = 200) -> None:
    """One transaction per letter, (c)ommitted or (a)borted, and non-transactional records for (n)."""
    transactional = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "transactional.id": f"test-{uuid.uuid4()}",
            "compression.type": "lz4",
            # Small batches, so that the answers to Fetch begin and end within transactions.
            "batch.num.messages": 40,
        }
    )
    plain = confluent_kafka.Producer({"bootstrap.servers": bootstrap_servers})
    transactional.init_transactions(60)
    for number, end in enumerate(ends):
        producer = plain if end == "n" else transactional
        if end != "n":
            producer.begin_transaction()
        for record in range(records):
            headers = [("number", str(number)), ("none", None)] if record % 2 else None
            producer.produce(topic, f"{end}{number}-{record}", str(record % 7), partition=0, headers=headers)
        producer.flush(60)
        if end == "c":
            producer.commit_transaction(60)
        if end == "a":
            producer.abort_transaction(60)
    await_markers(bootstrap_servers)


@pytest.mark.parametrize("fetch_bytes", [1, 3_000, 1 << 20])
def test_read_committed_matches_other_clients(
    any_kafka: EmbeddedKafka, fetch_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafka_eos_sink.client.committed_records._FETCH_BYTES", fetch_bytes)
    topic = create_topic(any_kafka.bootstrap_servers, partitions=1)
    write(any_kafka.bootstrap_servers, topic, "cacnaacnac")
    with connected(any_kafka.bootstrap_servers) as admin:
        (end,) = admin.list_offsets([(topic, 0)], monotonic_ms() + 60_000, isolation="read_committed").values()
        found = [
            (record.offset, record.timestamp, record.key, record.value, record.headers)
            for batch in read_committed(admin, (topic, 0), 0, end)
            for record in batch.records
        ]
    assert len(found) == 200 * 6
    for reader in READERS:
        others = read_with_another_client(any_kafka.bootstrap_servers, topic, reader=reader)
        assert found == [
            (record.offset, record.timestamp, record.key, record.value, record.headers) for record in others
        ]
