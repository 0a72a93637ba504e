"""Copies the records of aborted transactions from the log into new transactions."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from kafka_eos_sink.client.topics_admin import EARLIEST
from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.values import OffsetRange
from kafka_eos_sink.errors import BrokerUnavailableError, KafkaEosError, ProtocolError
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.producer.producer import Producer
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import TopicPartition
from kafka_eos_sink.protocol.record_batch import RecordsBlock, is_commit_marker, read_blocks
from kafka_eos_sink.protocol.record_reader import BatchHeader
from kafka_eos_sink.runtime import failpoints
from kafka_eos_sink.runtime.data_proofs import FETCH_BYTES, TIERED_FETCH_WAIT_MS, DataTopics
from kafka_eos_sink.runtime.part_producer import begin, flush_and_prove, part_offset

TURN_MS = 10


@dataclass(slots=True)
class _OpenCopy:
    copy: steps.Copy
    producer: Producer
    gone: steps.Gone | None = None


@dataclass(frozen=True, slots=True)
class _Fetched:
    batches: list[tuple[BatchHeader, RecordsBlock]]
    next_offset: int
    high_watermark: int


class RecordCopier:
    """Performs `AreCommitted`, and `CopyRecords` within buffer.memory.

    Received bytes, a response and the copies of its batches need a piece of that memory each.

    Args:
        where: The partition of the commit log for the part records.
    """

    def __init__(self, topics: DataTopics, where: TopicPartition, config: ProducerConfig) -> None:
        self._topics = topics
        self._client = topics.admin.client
        self._where = where
        # The rows passed interceptors and the dead letter topic when they were written.
        self._config = replace(config, interceptors=(), dead_letter_topic=None, partitioner="default")
        self._piece_bytes = min(FETCH_BYTES, config.buffer_memory // 4)

    def copy(self, step: steps.CopyRecords) -> tuple[steps.Copied | steps.Gone, ...]:
        opened = [_OpenCopy(copy, begin(self._topics.admin, self._config, copy.identity)) for copy in step.copies]
        is_done = False
        try:
            for where in sorted({(part.topic, part.partition) for copy in step.copies for part in copy.ranges}):
                self._copy_partition(where, opened)
            self._take_turns(opened, 0)
            written = [each.gone or flush_and_prove(each.producer) for each in opened]
            for each in opened:
                if each.gone is None:
                    each.producer.append_record(*self._where, each.copy.part.key, each.copy.part.value)
            self._take_turns(opened, 0)
            is_done = True
            return tuple(
                one
                if isinstance(one, steps.Gone)
                else steps.Copied(written=one, part_offset=part_offset(each.producer, self._where))
                for each, one in zip(opened, written, strict=True)
            )
        finally:
            deadline = self._client.clock() + self._client.config.request_timeout_ms
            for each in opened:
                if not is_done or each.gone is not None:
                    # The producer waits for its requests in flight: a late one would open a transaction after the ABORT marker.
                    with suppress(KafkaEosError):
                        each.producer.abort(deadline)
                each.producer.close()

    def are_committed(self, step: steps.AreCommitted) -> tuple[bool | None, ...]:
        """Perform `AreCommitted`: read each partition once, from its first range on.

        Raises:
            BrokerUnavailableError: REQUEST_DEADLINE if a partition takes longer than delivery.timeout.ms.
        """
        found: dict[tuple[int, OffsetRange], bool] = {}
        for where in {(part.topic, part.partition) for _, part in step.written}:
            # Decisions of two query ids can name transactions of one producer id.
            wanted = {
                (identity.producer_id, part) for identity, part in step.written if (part.topic, part.partition) == where
            }
            offset = min(part.last_offset for _, part in wanted) + 1
            end: int | None = None
            give_up_at = self._client.clock() + self._config.delivery_timeout_ms
            # Other producers append all the time, so the end is fixed at the first response.
            while wanted:
                fetched = self._fetch(where, offset)
                if isinstance(fetched, steps.Gone):
                    # Retention may have removed the range and left its marker.
                    start = self._start(where)
                    if start <= offset:
                        break
                    offset = start
                    continue
                end = fetched.high_watermark if end is None else end
                for header, block in (each for each in fetched.batches if each[0].control):
                    behind = {one for one in wanted if one[1].last_offset < header.base_offset}
                    ended = {one for one in behind if one[0] == header.producer_id}
                    # The cleaner can remove a marker and leave its batch, which shows no end.
                    if ended and header.record_count:
                        found |= dict.fromkeys(ended, is_commit_marker(header, block))
                    wanted -= ended
                if fetched.next_offset == offset or fetched.next_offset >= end:
                    break
                offset = fetched.next_offset
                # A marker that was not read must not look like one that is missing.
                if wanted and self._client.clock() > give_up_at:
                    raise BrokerUnavailableError(
                        "REQUEST_DEADLINE",
                        f"{where[0]}-{where[1]} was read to offset {offset} of {end} in {self._config.delivery_timeout_ms} ms, and does "
                        "not show how a transaction ended; raise kafka.delivery.timeout.ms",
                    )
        return tuple(found.get((identity.producer_id, part)) for identity, part in step.written)

    def _start(self, where: TopicPartition) -> int:
        """Return the first offset that a partition holds, -1 for a deleted topic."""
        earliest = partial(self._topics.admin.list_offsets, [where], isolation="read_uncommitted", timestamp=EARLIEST)
        try:
            return self._topics.query(where[:1], lambda deadline_ms: earliest(deadline_ms))[where]
        except steps.DataTopicGoneError:
            return -1

    def _copy_partition(self, where: TopicPartition, opened: Sequence[_OpenCopy]) -> None:
        """Copy a partition's records of all sources in one pass: tasks interleave."""
        wanted = {
            each.copy.source.carrier: (part, each)
            for each in opened
            for part in each.copy.ranges
            if (part.topic, part.partition) == where and each.gone is None
        }
        offset = waited_ms = 0
        while wanted:
            offset = max(offset, min(part.first_offset for part, _ in wanted.values()))
            self._take_turns(opened, self._config.buffer_memory - 3 * self._piece_bytes)
            # Only the time of Fetches counts: slow acknowledgements of the copies prove nothing about the source.
            started = self._client.clock()
            # During the Fetch, the client also sends the producers' batches and receives their acknowledgements.
            fetched = self._fetch(where, offset)
            waited_ms += self._client.clock() - started
            if isinstance(fetched, _Fetched):
                self._append(fetched, offset, wanted)
                if fetched.next_offset > offset:
                    offset, waited_ms = fetched.next_offset, 0
                    wanted = {source: one for source, one in wanted.items() if one[0].last_offset >= offset}
                elif waited_ms > self._config.max_block_ms:
                    fetched = steps.Gone(f"its leader returns nothing from offset {offset} on (brokers down?)")
            if isinstance(fetched, steps.Gone):
                # A later range may still exist.
                for source, (part, each) in list(wanted.items()):
                    if part.first_offset <= offset:
                        each.gone = replace(fetched, why=f"{part}: {fetched.why}")
                        del wanted[source]
                waited_ms = 0

    def _append(
        self, fetched: _Fetched, offset: int, wanted: dict[tuple[int, int], tuple[OffsetRange, _OpenCopy]]
    ) -> None:
        for header, block in fetched.batches:
            one = wanted.get((header.producer_id, header.producer_epoch))
            if one is None or header.control:
                continue
            part, each = one
            inside = max(offset, part.first_offset) <= header.base_offset and header.last_offset <= part.last_offset
            # The cleaner can remove records from a batch and leave the others, or an empty batch.
            if inside and header.record_count == header.last_offset_delta + 1:
                # A view would keep the whole response in memory until the batch is acknowledged.
                each.producer.append_block(part.topic, part.partition, replace(block, pieces=[bytes(block.records)]))
                failpoints.reached("restore.copying")

    def _take_turns(self, opened: Sequence[_OpenCopy], most_bytes: int) -> None:
        """Send and receive until at most ``most_bytes`` are unacknowledged."""
        producers = [each.producer for each in opened if each.gone is None]
        while True:
            for producer in producers:
                producer.advance(0)
            if sum(producer.unacknowledged_bytes for producer in producers) <= most_bytes:
                return
            self._client.pump(TURN_MS)

    def _fetch(self, where: TopicPartition, offset: int) -> _Fetched | steps.Gone:
        fetch = partial(
            self._topics.admin.fetch,
            where,
            offset,
            isolation="read_uncommitted",
            max_wait_ms=TIERED_FETCH_WAIT_MS,
            max_bytes=self._piece_bytes,
        )
        try:
            fetched = self._topics.query(where[:1], lambda deadline_ms: fetch(deadline_ms=deadline_ms))
            if fetched.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                return steps.Gone("the partition does not hold these offsets any more")
            found = list(read_blocks(fetched.records or b""))
        except (ProtocolError, steps.DataTopicGoneError) as failure:
            return steps.Gone(failure.message)
        return _Fetched(found, max([offset, *(header.last_offset + 1 for header, _ in found)]), fetched.high_watermark)
