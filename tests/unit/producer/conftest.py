"""A clock that tests drive, and a client whose answers they write by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kafka_eos_sink.client.config import ExponentialBackoff
from kafka_eos_sink.client.connection import Completion, ConnectionLost, PendingRequest
from kafka_eos_sink.client.metadata import Broker, Metadata, PartitionMetadata, TopicMetadata
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.producer.interceptors import Interceptors
from kafka_eos_sink.producer.record_accumulator import ProducerBatch, RecordAccumulator
from kafka_eos_sink.producer.rows import OpenRows
from kafka_eos_sink.producer.sender import Sender
from kafka_eos_sink.producer.transaction_manager import TransactionManager
from kafka_eos_sink.protocol.compression import Codec
from kafka_eos_sink.protocol.messages import LeaderIdAndEpoch, ProduceResponse
from kafka_eos_sink.protocol.record_batch import read_record_batches
from kafka_eos_sink.protocol.record_columns import RecordColumns, record_sizes

NOW_MS = 1_700_000_000_000


class HandDrivenClient:
    """Keeps what is sent; the test answers it. One broker, 1, leads partitions 0 to 3 of topic ``t``."""

    def __init__(self) -> None:
        self.now = 0
        self.config = SimpleNamespace(request_timeout_ms=30_000, retry_backoff_ms=100, retry_backoff_max_ms=1_000)
        self.sent: list[PendingRequest] = []
        self.completions: list[Completion] = []
        self.updates_asked = 0
        self.leaders_learned: list[tuple[str, int, int, int]] = []
        self.unready: set[int] = set()
        self.versions: list[tuple[int | None, int | None]] = []
        self.lead({("t", partition): 1 for partition in range(4)})

    def lead(self, leaders: dict[tuple[str, int], int]) -> None:
        topics = {
            name: TopicMetadata(
                error_code=0,
                name=name,
                partitions=tuple(
                    PartitionMetadata(
                        error_code=0,
                        partition_index=p,
                        leader_id=leader,
                        leader_epoch=0,
                        replica_nodes=(),
                        isr_nodes=(),
                        offline_replicas=(),
                    )
                    for (topic, p), leader in sorted(leaders.items())
                    if topic == name
                ),
            )
            for name, _ in leaders
        }
        brokers = {node: Broker(node_id=node, host="h", port=node) for node in (1, 2)}
        self.metadata = Metadata(version=1, brokers=brokers, topics=topics)

    def clock(self) -> int:
        return self.now

    def ready(self, node_id: int) -> bool:
        return node_id not in self.unready

    def in_flight(self, node_id: int) -> int:
        return sum(pending.node_id == node_id for pending in self.sent)

    def least_loaded_node(self) -> int:
        return 1

    def request_metadata_update(self) -> None:
        self.updates_asked += 1

    def want_topics(self, topics: Iterable[str], *, allow_auto_creation: bool = False) -> None:
        pass

    def learn_leader(self, topic: str, partition: int, leader: int, epoch: int, endpoints: Any = ()) -> bool:
        self.leaders_learned.append((topic, partition, leader, epoch))
        self.lead({(topic, p): leader if p == partition else 1 for p in range(4)})
        return True

    def learn_broker(self, node_id: int, host: str, port: int) -> None:
        pass

    def send(
        self, node_id: int, request: Any, *, max_version: int | None = None, min_version: int | None = None
    ) -> PendingRequest:
        self.versions.append((min_version, max_version))
        pending = PendingRequest(
            node_id=node_id,
            request=request,
            version=max_version or 0,
            correlation_id=len(self.versions),
            sent_at=self.now,
            expires_at=self.now + 30_000,
        )
        self.sent.append(pending)
        return pending

    def poll(self, timeout_ms: int) -> tuple[Completion, ...]:
        done, self.completions = tuple(self.completions), []
        return done

    # what the test does

    def answer(self, response: Any, which: int = 0) -> None:
        self.completions.append(Completion(pending=self.sent.pop(which), response=response))

    def lose(self, which: int = 0) -> None:
        self.completions.append(
            Completion(pending=self.sent.pop(which), error=ConnectionLost("CONNECTION_LOST", "gone"))
        )

    def bytes_of(self, which: int = 0) -> dict[tuple[str, int], bytes]:
        return {
            (topic.name, data.index): b"".join(bytes(part) for part in data.records)
            for topic in self.sent[which].request.topic_data
            for data in topic.partition_data
        }

    def sequences_of(self, which: int = 0) -> dict[int, tuple[int, int, int]]:
        """Partition to (producer epoch, base sequence, number of records)."""
        found = {}
        for (_, partition), octets in self.bytes_of(which).items():
            (batch,) = read_record_batches(octets)
            found[partition] = batch.producer_epoch, batch.base_sequence, len(batch.records)
        return found


def produced(
    codes: dict[int, int] | int = 0,
    *,
    topic: str = "t",
    base_offset: int = 0,
    leader: tuple[int, int] = (-1, -1),
    message: str | None = None,
    record_errors: tuple[Any, ...] = (),
) -> ProduceResponse:
    """A Produce answer: a code for partition 0, or partition to code."""
    answers = {0: codes} if isinstance(codes, int) else codes
    return ProduceResponse(
        responses=(
            ProduceResponse.Topic(
                name=topic,
                partition_responses=tuple(
                    ProduceResponse.Topic.Partition(
                        index=partition,
                        error_code=code,
                        base_offset=-1 if code else base_offset,
                        error_message=message,
                        record_errors=record_errors,
                        current_leader=LeaderIdAndEpoch(leader_id=leader[0], leader_epoch=leader[1]),
                    )
                    for partition, code in answers.items()
                ),
            ),
        )
    )


def open_rows(count: int, size: int = 10, first: int = 0) -> OpenRows:
    columns = RecordColumns(
        value=pa.array([b"%0*d" % (size, row) for row in range(first, first + count)], pa.binary()),
        key=None,
        headers=None,
        timestamp=None,
    )
    return OpenRows(columns=columns, sizes=record_sizes(columns), row_numbers=np.arange(first, first + count))


class Bench:
    """A sender over a hand-driven client, with short ways to give it batches."""

    def __init__(self, transactional_id: str | None = "tx", transaction_version: int = 2, **settings: Any) -> None:
        self.client = HandDrivenClient()
        self.config = ProducerConfig(**settings)
        backoff = ExponentialBackoff(100, 1_000, jitter=0)
        self.accumulator = RecordAccumulator(batch_size=10_000, linger_ms=0, codec=Codec.NONE)
        self.transactions = TransactionManager(
            transactional_id, transaction_version=transaction_version, backoff=backoff
        )
        self.transactions.initialized(7, 3)
        if transactional_id is not None:
            self.transactions.begin()
        client: Any = self.client
        self.sender = Sender(client, self.config, self.accumulator, self.transactions, Interceptors((), {}), backoff)

    def batch(self, partition: int = 0, count: int = 10, first: int = 0) -> ProducerBatch:
        queue = self.accumulator.queue("t", partition)
        return self.accumulator.close(queue, open_rows(count, first=first), self.client.now, NOW_MS)

    def turn(self, ms: int = 0) -> None:
        """One turn to read what came, and one to act on it, ``ms`` later."""
        self.sender.run_once(0)
        self.client.now += ms
        self.sender.run_once(0)


@pytest.fixture
def bench() -> Callable[..., Bench]:
    return Bench


@pytest.fixture
def answer() -> Callable[..., ProduceResponse]:
    return produced


@pytest.fixture
def rows_of() -> Callable[..., OpenRows]:
    return open_rows
