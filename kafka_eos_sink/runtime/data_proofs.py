"""Queries the leaders of data partitions to prove what readers see."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.topics_admin import EARLIEST, FetchedPartition
from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.prepared_transaction import OffsetRange
from kafka_eos_sink.errors import AuthorizationError, BrokerRefusedError, BrokerUnavailableError
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import TopicPartition
from kafka_eos_sink.protocol.record_batch import first_batch_of

T = TypeVar("T")

TIERED_FETCH_WAIT_MS = 500
"""How long a Fetch waits for records from tiered storage (KIP-405). Without a wait the broker returns none of them."""
CHECK_ENDS_EVERY_MS = 1_000
"""Readers that are blocked for longer than a marker takes may wait for records that are gone."""


class DataProofs:
    """Performs the steps that query data partitions.

    Args:
        timeout_ms: Bounds each step.
        max_block_ms: For how long a topic may be unknown to the cluster, or end before records that it acknowledged. After that it
            counts as deleted.
    """

    def __init__(self, admin: Admin, *, timeout_ms: int, max_block_ms: int) -> None:
        self._admin = admin
        self._clock = admin.client.clock
        self._timeout_ms = timeout_ms
        self._max_block_ms = max_block_ms
        self._next_check_of_ends_ms = self._clock() + CHECK_ENDS_EVERY_MS
        self._short_since: dict[TopicPartition, int] = {}

    def last_stable_offsets(self, step: steps.LastStableOffsets) -> Mapping[TopicPartition, int | None]:
        stable: dict[TopicPartition, int | None] = dict.fromkeys(step.partitions)
        try:
            stable |= self._stable(step.partitions)
        except steps.DataTopicGoneError:
            deadline_ms = self._clock() + self._timeout_ms
            topics = {topic for topic, _ in step.partitions}
            left = {topic for topic in topics if self._admin.topic(topic, deadline_ms) is not None}
            if not left or left == topics:
                raise
            stable |= self._stable([where for where in step.partitions if where[0] in left])
        blocked = {
            where: last
            for where, last in zip(step.partitions, step.last_offsets, strict=True)
            if (offset := stable[where]) is not None and offset <= last
        }
        if blocked and self._clock() >= self._next_check_of_ends_ms:
            self._require_whole(blocked)
        return stable

    def _stable(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return self.query(partial(self._admin.list_offsets, partitions, isolation="read_committed"))

    def describe_producers(
        self, step: steps.DescribeProducers
    ) -> Mapping[TopicPartition, Mapping[int, tuple[int, int]] | None]:
        found: dict[TopicPartition, dict[int, tuple[int, int]] | None] = {}
        # One query per topic: a missing right on one topic must not hide the others.
        for topic in sorted({topic for topic, _ in step.partitions}):
            where = [partition for partition in step.partitions if partition[0] == topic]
            try:
                producers = self.query(partial(self._admin.describe_producers, where))
            except AuthorizationError:
                found.update(dict.fromkeys(where))
                continue
            for partition, remembered in producers.items():
                found[partition] = {
                    producer.producer_id: (producer.producer_epoch, producer.current_txn_start_offset)
                    for producer in remembered
                }
        return found

    def aborted_transactions(self, step: steps.AbortedTransactions) -> Mapping[OffsetRange, steps.Listed] | None:
        found: dict[OffsetRange, steps.Listed] = {}
        gone: set[str] = set()
        owners: tuple[int | None, ...] = step.producer_ids or (None,) * len(step.ranges)
        for part, owner in zip(step.ranges, owners, strict=True):
            found[part] = steps.Unseen.GONE
            # A deleted topic costs max.block.ms once, not once per range.
            if part.topic in gone:
                continue
            try:
                found[part] = self._aborted_in(part, owner)
            except AuthorizationError:
                return None
            except steps.DataTopicGoneError:
                gone.add(part.topic)
        return found

    def _aborted_in(self, part: OffsetRange, owner: int | None) -> steps.Listed:
        where, offset, wait_ms = (part.topic, part.partition), part.first_offset, 0
        give_up_at = self._clock() + self._timeout_ms
        while offset <= part.last_offset:
            fetched = self.query(partial(self._fetch_one_batch, where, offset, wait_ms))
            if fetched.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                earliest = partial(self._admin.list_offsets, (where,), isolation="read_uncommitted", timestamp=EARLIEST)
                start = self.query(earliest)[where]
                if start <= offset:
                    # The offset lies behind the end of the log.
                    return steps.Unseen.GONE
                offset = start
                continue
            if fetched.last_stable_offset <= offset or self._clock() > give_up_at:
                return steps.Unseen.HELD
            first = first_batch_of(fetched.records or b"")
            if first is None:
                # The cleaner removed all records up to the last stable offset, or they are in tiered storage.
                if wait_ms:
                    return steps.Unseen.HELD
                wait_ms = TIERED_FETCH_WAIT_MS
                continue
            if owner is None or (first.producer_id == owner and first.base_offset <= part.last_offset):
                return tuple((each.producer_id, each.first_offset) for each in fetched.aborted_transactions or ())
            offset, wait_ms = first.last_offset + 1, 0
        return steps.Unseen.GONE

    def _fetch_one_batch(self, where: TopicPartition, offset: int, wait_ms: int, deadline_ms: int) -> FetchedPartition:
        # The first batch always comes whole (KIP-74), and with it the transactions aborted from there on.
        return self._admin.fetch(
            where, offset, isolation="read_committed", max_wait_ms=wait_ms, max_bytes=1, deadline_ms=deadline_ms
        )

    def _require_whole(self, last_offsets: Mapping[TopicPartition, int]) -> None:
        """Raise if a partition ends too early for max.block.ms."""
        ends = self.query(partial(self._admin.list_offsets, last_offsets, isolation="read_uncommitted"))
        now = self._clock()
        self._next_check_of_ends_ms = now + CHECK_ENDS_EVERY_MS
        # A new leader's high watermark may lag for a moment, so one short end proves nothing.
        self._short_since = {
            where: self._short_since.get(where, now) for where, last in last_offsets.items() if ends[where] <= last
        }
        for (topic, partition), since in self._short_since.items():
            if now - since >= self._max_block_ms:
                last = last_offsets[topic, partition]
                raise steps.DataTopicGoneError(
                    "UNKNOWN_TOPIC",
                    f"{topic}-{partition} ends at offset {ends[topic, partition]}, before offset {last} that it acknowledged: the "
                    "topic was deleted and created again, or an unclean leader election lost records",
                )

    def query(self, query: Callable[[int], T]) -> T:
        """Run a query, given its deadline.

        Raises:
            DataTopicGoneError: The cluster did not know the topic for max.block.ms.
        """
        deadline_ms = self._clock() + self._timeout_ms
        for until in (min(deadline_ms, self._clock() + self._max_block_ms), deadline_ms):
            try:
                return query(until)
            except BrokerRefusedError as refused:
                if refused.code != "UNKNOWN_TOPIC":
                    raise
                raise steps.DataTopicGoneError(refused.code, refused.message) from None
            except BrokerUnavailableError:
                if until == deadline_ms:
                    raise
        raise AssertionError("unreachable: the deadline returns or raises")
