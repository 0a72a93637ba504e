"""Writes above a real quota of the broker (KIP-219): it responds at once, and then reads nothing from the connection for a while."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.protocol import messages as m
from kafka_testing import commit_as_driver, started_producer, unique_topic
from quotas import client_quota

from .bench import Bench, numbered
from .test_lost_responses import pieces, seen

BATCH_BYTES = 300_000
BATCHES = 10
QUOTA = 150_000
"""Bytes per second. Kafka measures over eleven seconds: about six batches pass, and each further one costs two seconds."""
REQUEST_TIMEOUT_MS = 4_000
"""Shorter than the last of five requests in flight waits in a throttled broker, far longer than a broker takes otherwise."""


@pytest.mark.parametrize("transactional_id", ["", None], ids=["transactional", "at-least-once"])
def test_request_that_waits_for_a_quota_is_not_sent_again(
    bench_of: Callable[[int], Bench], transactional_id: str | None
) -> None:
    bench = bench_of(2)
    topic = bench.topic()
    config = bench.client_config(request_timeout_ms=REQUEST_TIMEOUT_MS)
    with (
        client_quota(bench.kafka.bootstrap_servers, "producer_byte_rate", QUOTA, config.client_id),
        NetworkClient(config) as client,
    ):
        named = unique_topic("quota") if transactional_id is not None else None
        producer = started_producer(client, named, ProducerConfig(batch_size=BATCH_BYTES))
        began = client.clock()
        for batch in range(BATCHES):
            producer.write(numbered(topic, batch * 30, 30, partition=0, size=BATCH_BYTES // 30))
        producer.flush()
        throttled_ms, text = client.throttling(began)
        if transactional_id is not None:
            commit_as_driver(client, producer)
        producer.close()
    assert throttled_ms > REQUEST_TIMEOUT_MS
    assert repr(config.client_id) in text
    sent = Counter(piece for each in seen(bench, m.ProduceRequest) for piece in pieces(each))
    assert max(sent.values()) == 1
    assert len({each.connection for each in seen(bench, m.ProduceRequest)}) == 1
    assert [len(rows) for rows in bench.read(topic)] == [BATCHES * 30, 0]
    bench.assert_nothing_open(topic)
