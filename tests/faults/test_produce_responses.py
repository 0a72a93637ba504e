"""What a broker's own answers to Produce lead to where they say more than yes or no."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pyarrow as pa
import pytest

from kafka_eos_sink.client.network_client import NetworkClient
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
