"""Turn checked rows into batches: partition, sort, cut, encode, compress.

This module waits for memory; ``TopicDirectory`` waits for metadata, and ``Producer.flush`` for responses. During these waits,
the sender serves the sockets. It also serves them between batches, so the brokers work while the batcher encodes.
"""

from __future__ import annotations

import time
from typing import Final

import numpy as np

from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.errors import KafkaEosError
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.producer.partition_queue import PartitionQueue, ProducerBatch
from kafka_eos_sink.producer.partitioner import grouped_by, load_partitioner, partitions_of
from kafka_eos_sink.producer.produce_errors import health_or_quota, undelivered_reason
from kafka_eos_sink.producer.record_accumulator import RecordAccumulator
from kafka_eos_sink.producer.row_checks import TopicRows
from kafka_eos_sink.producer.sender import WAIT_MS, Sender
from kafka_eos_sink.protocol.record_batch import RecordsBlock
from kafka_eos_sink.protocol.record_columns import encode_sections

PUMP_EVERY_BYTES: Final = 128 * 1024
"""Encoded bytes after which the sender serves the sockets again."""


class Batcher:
    """Make the batches of all partitions, and let the sender send them."""

    def __init__(
        self,
        client: NetworkClient,
        config: ProducerConfig,
        accumulator: RecordAccumulator,
        sender: Sender,
    ) -> None:
        self._client = client
        self._config = config
        self._accumulator = accumulator
        self._sender = sender
        self._partitioner = load_partitioner(config)
        self._bytes_since_pump = 0

    def add(self, group: TopicRows) -> None:
        """Encode a topic's rows into its partitions' open batches; close full batches."""
        columns, numbers, sizes = group.rows.columns, group.rows.row_numbers, group.sizes
        order, runs = grouped_by(partitions_of(group.rows, sizes, group.topic, self._partitioner))
        if order is not None:
            numbers, sizes = numbers[order], sizes[order]
        ends = np.cumsum(sizes)
        own = None if columns.timestamp is None else columns.timestamp.is_valid().to_numpy(zero_copy_only=False)
        own = own if own is None or order is None else own[order]
        now = self._client.clock()
        accumulator, topic = self._accumulator, group.topic.topic
        cuts = [
            cut
            for partition, start, stop in runs
            for cut in accumulator.cut(
                accumulator.queue(topic, partition), ends, start, stop, now, has_timestamps=own is not None
            )
        ]
        encoded = encode_sections(columns, order, [cut.section for cut in cuts], time.time_ns() // 1_000_000)
        for (queue, section, begins), records in zip(cuts, encoded, strict=True):
            if begins:
                self.close(queue)
            where = slice(section.start, section.end)
            accumulator.append(queue, records, numbers[where], now, own_timestamps=None if own is None else own[where])
            if queue.open_bytes >= accumulator.batch_size(topic):
                self.close(queue)

    def add_block(self, topic: str, partition: int, block: RecordsBlock, *, own_timestamps: bool) -> None:
        """Append encoded records as one batch; wait while buffer.memory is full."""
        # The caller wrote the open rows of this partition before the block, so close their batch first.
        self.close(self._accumulator.queue(topic, partition))
        self._await_memory(block.records_bytes)
        batch = ProducerBatch(
            topic=topic,
            partition=partition,
            block=block,
            created_ms=self._client.clock(),
            own_timestamps=np.ones(block.record_count, np.bool_) if own_timestamps else None,
        )
        self._accumulator.add(batch)
        self._pump_if_due(batch)

    def close(self, queue: PartitionQueue) -> None:
        """Close a partition's open batch, if any; wait while buffer.memory is full."""
        if queue.open is not None:
            self._await_memory(queue.open.size + sum(numbers.nbytes for numbers in queue.open.row_numbers))
            self._pump_if_due(self._accumulator.close(queue, self._client.clock()))

    def close_all(self) -> None:
        for queue in list(self._accumulator.queues.values()):
            self.close(queue)

    def close_lingered(self) -> None:
        """Close rows after linger.ms, and send the batches closed since the last pump."""
        for queue in self._accumulator.lingered(self._client.clock()):
            self.close(queue)
        if self._bytes_since_pump:
            self._pump()

    def limit_open_rows(self) -> None:
        """Close the fullest partitions until open rows fit a quarter of buffer.memory."""
        # With many partitions, the open rows can exceed the memory although no batch is full.
        excess = self._accumulator.open_bytes - self._config.buffer_memory // 4
        for queue in self._accumulator.fullest(excess):
            self.close(queue)

    def _pump_if_due(self, batch: ProducerBatch) -> None:
        self._bytes_since_pump += batch.size_bytes
        if self._bytes_since_pump >= PUMP_EVERY_BYTES:
            self._pump()

    def _pump(self) -> None:
        self._bytes_since_pump = 0
        self._sender.pump(0)

    def _await_memory(self, size: int) -> None:
        # Only an acknowledgement frees memory. If none is outstanding, accept even a batch that is larger than buffer.memory.
        started = self._client.clock()
        while not self._accumulator.idle and self._accumulator.used_bytes + size > self._config.buffer_memory:
            left = self._config.max_block_ms - (self._client.clock() - started)
            if left <= 0:
                oldest = self._accumulator.expired(self._client.clock())
                why = f" ({undelivered_reason(oldest, self._client)})" if oldest else ""
                raise KafkaEosError(
                    "BUFFER_EXHAUSTED",
                    f"no memory became free within {self._config.max_block_ms} ms (kafka.max.block.ms): the brokers have not "
                    f"acknowledged {self._accumulator.used_bytes} of {self._config.buffer_memory} bytes "
                    f"(kafka.buffer.memory){why}. {health_or_quota(self._client, started)}, or raise "
                    "kafka.buffer.memory or kafka.max.block.ms",
                )
            self._sender.pump(min(left, WAIT_MS))
