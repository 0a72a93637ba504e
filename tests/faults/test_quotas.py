"""Writes above a real quota of the broker (KIP-219): it responds at once, and then reads nothing from the connection for a while."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from kafka_eos_sink.client.config import ClientConfig
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.client.node import Node
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.protocol import messages as m
from kafka_testing import commit_as_driver, started_producer, unique_topic
from quotas import Quota, client_quota

from .bench import TASKS, Bench, numbered, write_whole
from .test_lost_responses import pieces, seen

BATCH_BYTES = 300_000
BATCHES = 10
QUOTA = 150_000
"""Bytes per second. Kafka measures over eleven seconds: about six batches pass, and each further one costs two seconds."""
REQUEST_TIMEOUT_MS = 4_000
"""Shorter than the last of five requests in flight waits in a throttled broker, far longer than a broker takes otherwise."""


@pytest.mark.feature("quotas")
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


@pytest.mark.parametrize(("key", "value"), [("producer_byte_rate", 60.0), ("request_percentage", 0.1)])
def test_whole_write_succeeds_above_its_quota(
    bench_of: Callable[[int], Bench], monkeypatch: pytest.MonkeyPatch, key: Quota, value: float
) -> None:
    """Planner, tasks and committer, each with the quota for itself."""
    throttled: list[int] = []
    throttle = Node.throttle

    def noted(node: Node, ms: int, now: int) -> None:
        throttled.append(ms)
        throttle(node, ms, now)

    monkeypatch.setattr(Node, "throttle", noted)
    bench = bench_of(2)
    topic = bench.topic()
    settings = bench.write_settings(topic)
    names = ["planner", "committer", *(f"task-{task}" for task in range(TASKS))]
    ids = [f"{settings.client.client_id}-{name}" for name in names]
    with client_quota(bench.kafka.bootstrap_servers, key, value, *ids):
        if key == "request_percentage":
            use_up(replace(settings.client, client_id=ids[0]))
            throttled.clear()
        write_whole(settings)
    assert throttled
    bench.assert_exactly_once(topic)
    bench.assert_nothing_open(topic)


def use_up(config: ClientConfig) -> None:
    """Send requests until the broker throttles: a quick one spends less than the quota on a whole write.

    It measures over eleven seconds, so a write that begins now is throttled too.
    """
    with NetworkClient(config) as client:
        until = client.clock() + 60_000
        assert client.wait_for_metadata(until)
        while not client.throttling(0)[0]:
            assert client.clock() < until
            client.call(client.any_node(until), m.ListTransactionsRequest(), deadline_ms=until)
