"""What a broker's own answers to Produce lead to where they say more than yes or no."""

from __future__ import annotations

import sys
import time
import types
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pyarrow as pa
import pytest

from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.errors import InvalidRowError
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.producer.producer import Producer
from kafka_eos_sink.producer.rows import Rows
from kafka_eos_sink.protocol import messages as m
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.record_columns import RecordColumns
from kafka_testing import commit_as_driver, create_topic, read_committed, started_producer, unique_topic

from .bench import Bench
from .fault_proxy import Change, Rule

SMALL = 2_000


@pytest.fixture(params=(2, 0))
def bench(request: pytest.FixtureRequest, bench_of: Callable[[int], Bench]) -> Bench:
    """Runs a test against both transaction protocols."""
    return bench_of(request.param)


@contextmanager
def started(bench: Bench, transactional_id: str | None, **settings: Any) -> Iterator[Producer]:
    with (
        NetworkClient(bench.client_config()) as client,
        closing(started_producer(client, transactional_id, ProducerConfig(**settings))) as producer,
    ):
        yield producer


def end(producer: Producer) -> None:
    if producer._transactions.transactional:
        commit_as_driver(producer._client, producer)


def rows_of(topic: str, values: list[bytes]) -> Rows:
    return Rows(topic=topic, partition=None, columns=RecordColumns(value=pa.array(values)))


def codes_of_answers(bench: Bench) -> list[dict[str, ErrorCode]]:
    """Fills with the codes by topic of each Produce answer that names several topics."""
    seen: list[dict[str, ErrorCode]] = []

    def note(answer: m.ProduceResponse) -> m.ProduceResponse:
        if len(answer.responses) > 1:
            seen.append(
                {
                    topic.name: ErrorCode.of(partition.error_code)
                    for topic in answer.responses
                    for partition in topic.partition_responses
                }
            )
        return answer

    bench.proxy.inject(Rule(m.ProduceRequest, Change(note), count=None))
    return seen


def topics_of(bench: Bench) -> tuple[str, str]:
    """One takes small batches only, the other any; both on one broker."""
    servers = bench.kafka.bootstrap_servers
    small = create_topic(servers, partitions=1, configs={"max.message.bytes": str(SMALL)})
    return small, create_topic(servers, partitions=1)


@pytest.mark.feature("results per partition")
@pytest.mark.parametrize("transactional_id", ["of-the-test", None])
def test_response_acknowledges_one_topic_and_splits_the_other(bench: Bench, transactional_id: str | None) -> None:
    small, any_size = topics_of(bench)
    values = [b"%d" % number for number in range(1_000)]
    answers = codes_of_answers(bench)
    with started(bench, unique_topic(transactional_id) if transactional_id else None) as producer:
        producer.write(rows_of(small, values))
        producer.write(rows_of(any_size, values))
        producer.flush()
        end(producer)
    assert answers[0] == {small: ErrorCode.MESSAGE_TOO_LARGE, any_size: ErrorCode.NONE}
    first, *later = [seen.request for seen in bench.proxy.requests if seen.api is m.ProduceRequest]
    assert {topic.name for topic in first.topic_data} == {small, any_size}
    assert {topic.name for request in later for topic in request.topic_data} == {small}
    for topic in (small, any_size):
        assert [each.value for each in read_committed(bench.kafka.bootstrap_servers, topic)] == values


@pytest.mark.feature("results per partition")
def test_response_acknowledges_one_topic_and_names_a_bad_row(bench: Bench) -> None:
    small, any_size = topics_of(bench)
    answers = codes_of_answers(bench)
    with started(bench, None) as producer:
        producer.write(rows_of(any_size, [b"any"]))
        producer.write(rows_of(small, [b"x" * (2 * SMALL)]))
        with pytest.raises(InvalidRowError, match=rf"RECORD_TOO_LARGE\] topic {small} .*row 1 of the task"):
            producer.flush()
        assert set(producer.acknowledged) == {(any_size, 0)}
    assert answers == [{small: ErrorCode.MESSAGE_TOO_LARGE, any_size: ErrorCode.NONE}]
    assert [each.value for each in read_committed(bench.kafka.bootstrap_servers, any_size)] == [b"any"]
    assert read_committed(bench.kafka.bootstrap_servers, small) == []


@pytest.mark.feature("results per partition")
def test_interceptors_receive_the_log_append_time(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    servers = bench.kafka.bootstrap_servers
    by_the_broker = create_topic(servers, partitions=1, configs={"message.timestamp.type": "LogAppendTime"})
    by_us = create_topic(servers, partitions=1)
    told: dict[str, int] = {}

    class Clock:
        def on_acknowledgement(self, topic: str, *_others: Any, log_append_time_ms: int) -> None:
            told[topic] = log_append_time_ms

    module = types.ModuleType("interceptors_with_a_clock")
    module.Clock = Clock  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    own = pa.array([1_500_000_000_000, 1_500_000_000_001], pa.int64())
    columns = RecordColumns(value=pa.array([b"a", b"b"]), timestamp=own)
    with started(bench, unique_topic("tx"), interceptors=(f"{module.__name__}:Clock",)) as producer:
        producer.write(Rows(topic=by_the_broker, partition=None, columns=columns))
        producer.write(Rows(topic=by_us, partition=None, columns=columns))
        end(producer)
    assert abs(told[by_the_broker] - time.time() * 1_000) < 60_000
    assert told[by_us] == -1
    assert {each.timestamp for each in read_committed(servers, by_the_broker)} == {told[by_the_broker]}
    assert [each.timestamp for each in read_committed(servers, by_us)] == own.to_pylist()
