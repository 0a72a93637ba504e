"""Queries the leaders of data partitions to prove what readers see."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.topics_admin import EARLIEST, FetchedPartition
from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.values import OffsetRange, merged
from kafka_eos_sink.errors import AuthorizationError, BrokerRefusedError, BrokerUnavailableError
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import TopicPartition
from kafka_eos_sink.protocol.messages import ProducerState
from kafka_eos_sink.protocol.record_batch import headers_of
from kafka_eos_sink.protocol.record_reader import BatchHeader

T = TypeVar("T")

TIERED_FETCH_WAIT_MS = 500
"""Wait of a Fetch in ms: without it the broker returns no record of tiered storage (KIP-405)."""
FETCH_BYTES, PARTITION_BYTES = 4 << 20, 32 << 10
"""Bytes of one Fetch, and of each partition in it: some batches of default size."""
CHECK_ENDS_EVERY_MS = 1_000
"""Readers that are blocked for longer than a marker takes may wait for records that are gone."""


@dataclass(slots=True)
class _Search:
    """Searches one range for the first batch of a producer id that readers see."""

    part: OffsetRange
    owner: int
    offset: int
    wait_ms: int = 0
    found: steps.Listed | None = None

    def read(
        self, fetched: FetchedPartition, log_start: int, by_owner: Mapping[int, Sequence[_Search]], *, is_late: bool
    ) -> None:
        """Read the response to a Fetch from this search's offset.

        Args:
            by_owner: Producer id to all searches of the partition. They find their batches also in this response.
        """
        if fetched.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            # Or the offset lies after the end of the log.
            self._continue_at(log_start if log_start > self.offset else self.part.last_offset + 1)
            return
        if fetched.last_stable_offset <= self.offset or is_late:
            self.found = steps.Unseen.BLOCKED
            return
        aborted = [(each.producer_id, each.first_offset) for each in fetched.aborted_transactions or ()]
        last_offset: int | None = None
        for header in headers_of(fetched.records or b""):
            last_offset = header.last_offset
            # The marker of an open transaction can land in a topic that was deleted and created again.
            if header.control:
                ended = header.producer_id
                aborted = [(each, first) for each, first in aborted if each != ended or first > header.base_offset]
                continue
            for search in by_owner.get(header.producer_id, ()):
                if search.found is None and search._holds(header):
                    search.found = tuple(aborted)
        if self.found is None and last_offset is not None:
            self._continue_at(last_offset + 1)
        elif self.found is None:
            # The cleaner removed all records up to the last stable offset, or they are in tiered storage.
            if self.wait_ms:
                self.found = steps.Unseen.BLOCKED
            self.wait_ms = TIERED_FETCH_WAIT_MS

    def _holds(self, header: BatchHeader) -> bool:
        return self.offset <= header.last_offset and header.base_offset <= self.part.last_offset

    def _continue_at(self, offset: int) -> None:
        self.offset, self.wait_ms = offset, 0
        if offset > self.part.last_offset:
            self.found = steps.Unseen.GONE


class DataTopics:
    """Sends the queries of one procedure to the leaders of data partitions.

    Args:
        timeout_ms: Bounds each query.
        max_block_ms: How long a topic may be unknown to the cluster, or end before acknowledged records, until it counts as
            deleted. If a query of it alone has waited for so long, further queries do not.
    """

    def __init__(self, admin: Admin, *, timeout_ms: int, max_block_ms: int) -> None:
        self.admin = admin
        self.clock = admin.client.clock
        self.timeout_ms = timeout_ms
        self.max_block_ms = max_block_ms
        self.gone: dict[str, str] = {}
        """Topics that were unknown for ``max_block_ms``, with the brokers' message."""

    def query(self, topics: Collection[str], query: Callable[[int], T]) -> T:
        """Run a query of these topics' partitions, given its deadline.

        Raises:
            DataTopicGoneError: The cluster did not know one of the topics for max.block.ms.
        """
        if known := self.gone.keys() & topics:
            raise steps.DataTopicGoneError("UNKNOWN_TOPIC", self.gone[min(known)])
        deadline_ms = self.clock() + self.timeout_ms
        for until in (min(deadline_ms, self.clock() + self.max_block_ms), deadline_ms):
            try:
                return query(until)
            except BrokerRefusedError as refused:
                if refused.code != "UNKNOWN_TOPIC":
                    raise
                if len(topics) == 1:  # of several, the others were not unknown for so long
                    self.gone |= dict.fromkeys(topics, refused.message)
                raise steps.DataTopicGoneError(refused.code, refused.message) from None
            except BrokerUnavailableError:
                if until == deadline_ms:
                    raise
        raise AssertionError("unreachable: the deadline returns or raises")


class DataProofs:
    """Performs the steps that query data partitions."""

    def __init__(self, topics: DataTopics) -> None:
        self._topics = topics
        self._admin = topics.admin
        self._clock = topics.clock
        self._next_check_of_ends_ms = self._clock() + CHECK_ENDS_EVERY_MS
        self._short_since: dict[TopicPartition, int] = {}

    def last_stable_offsets(self, step: steps.LastStableOffsets) -> Mapping[TopicPartition, int | None]:
        stable: dict[TopicPartition, int | None] = dict.fromkeys(step.partitions)
        try:
            stable |= self._stable(step.partitions)
        except steps.DataTopicGoneError:
            deadline_ms = self._clock() + self._topics.timeout_ms
            known = {topic for topic, _ in step.partitions if self._admin.topic(topic, deadline_ms) is not None}
            left = [where for where in step.partitions if where[0] in known]
            if not left or len(left) == len(step.partitions):
                raise
            stable |= self._stable(left)
        blocked = {
            where: last
            for where, last in zip(step.partitions, step.last_offsets, strict=True)
            if (offset := stable[where]) is not None and offset <= last
        }
        self._require_whole(blocked)
        return stable

    def _stable(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return self._query(partitions, partial(self._admin.list_offsets, partitions, isolation="read_committed"))

    def describe_producers(
        self, step: steps.DescribeProducers
    ) -> Mapping[TopicPartition, Mapping[int, tuple[int, int]]]:
        try:
            described = self._describe_producers(step.partitions)
        except AuthorizationError as denied:
            raise steps.ReadDeniedError(denied.message, self._unreadable(step.partitions)) from None
        return {
            where: {each.producer_id: (each.producer_epoch, each.current_txn_start_offset) for each in remembered}
            for where, remembered in described.items()
        }

    def _describe_producers(
        self, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, Sequence[ProducerState]]:
        return self._query(partitions, partial(self._admin.describe_producers, partitions))

    def _unreadable(self, partitions: Sequence[TopicPartition]) -> tuple[str, ...]:
        """Return all topics that may not be read: a leader's refusal shows one."""
        found = []
        for topic in sorted({topic for topic, _ in partitions}):
            try:
                self._describe_producers([where for where in partitions if where[0] == topic])
            except AuthorizationError:
                found.append(topic)
        return tuple(found)

    def aborted_transactions(self, step: steps.AbortedTransactions) -> Mapping[OffsetRange, steps.Listed]:
        searches = [
            _Search(part, owner, part.first_offset) for part, owner in zip(step.ranges, step.producer_ids, strict=True)
        ]
        for topic in sorted({part.topic for part in step.ranges}):
            try:
                self._search([search for search in searches if search.part.topic == topic])
            except steps.DataTopicGoneError:
                continue
        blocked = [search.part for search in searches if search.found is steps.Unseen.BLOCKED]
        # In a topic that was created again, no marker will ever follow.
        self._require_whole({(each.topic, each.partition): each.last_offset for each in merged(blocked)})
        return {search.part: steps.Unseen.GONE if search.found is None else search.found for search in searches}

    def _search(self, searches: Sequence[_Search]) -> None:
        """Fetch one range per partition at a time, in one request per leader and round."""
        give_up_at = self._clock() + self._topics.timeout_ms
        by_partition: dict[TopicPartition, dict[int, list[_Search]]] = {}
        waiting: dict[TopicPartition, list[_Search]] = {}
        for search in sorted(searches, key=lambda search: search.offset):
            where = (search.part.topic, search.part.partition)
            waiting.setdefault(where, []).append(search)
            by_partition.setdefault(where, {}).setdefault(search.owner, []).append(search)
        while waiting:
            looks = {where: of_partition[0] for where, of_partition in waiting.items()}
            # With other partitions in the request, one may get no batch at all.
            alone = [where for where, look in looks.items() if look.wait_ms][:1]
            looks = {where: looks[where] for where in alone or looks}
            fetched = self._query(looks, partial(self._fetch_batches, looks))
            behind = [where for where, found in fetched.items() if found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE]
            earliest = partial(self._admin.list_offsets, behind, isolation="read_uncommitted", timestamp=EARLIEST)
            starts = self._query(behind, earliest) if behind else {}
            for where, look in looks.items():
                is_late = self._clock() > give_up_at
                look.read(fetched[where], starts.get(where, -1), by_partition[where], is_late=is_late)
                waiting[where] = [search for search in waiting[where] if search.found is None]
            waiting = {where: of_partition for where, of_partition in waiting.items() if of_partition}

    def _fetch_batches(
        self, looks: Mapping[TopicPartition, _Search], deadline_ms: int
    ) -> Mapping[TopicPartition, FetchedPartition]:
        fetched = self._admin.fetch_each(
            {where: look.offset for where, look in looks.items()},
            deadline_ms,
            isolation="read_committed",
            max_wait_ms=max(look.wait_ms for look in looks.values()),
            max_bytes=FETCH_BYTES,
            partition_max_bytes=PARTITION_BYTES,
        )
        return {where: found for where, (_, found) in fetched.items()}

    def _require_whole(self, last_offsets: Mapping[TopicPartition, int]) -> None:
        """Raise if a partition ends too early for max.block.ms; ask once a second."""
        if not last_offsets or self._clock() < self._next_check_of_ends_ms:
            return
        query = partial(self._admin.list_offsets, last_offsets, isolation="read_uncommitted")
        ends = self._query(last_offsets, query)
        now = self._clock()
        self._next_check_of_ends_ms = now + CHECK_ENDS_EVERY_MS
        # A new leader's high watermark may lag for a moment, so one short end proves nothing.
        self._short_since = {
            where: self._short_since.get(where, now) for where, last in last_offsets.items() if ends[where] <= last
        }
        for (topic, partition), since in self._short_since.items():
            if now - since >= self._topics.max_block_ms:
                last = last_offsets[topic, partition]
                raise steps.DataTopicGoneError(
                    "UNKNOWN_TOPIC",
                    f"{topic}-{partition} ends at offset {ends[topic, partition]}, before offset {last} that it acknowledged: too "
                    "few replicas are in sync, the topic was deleted and created again, or an unclean leader election lost records",
                )

    def _query(self, partitions: Iterable[TopicPartition], query: Callable[[int], T]) -> T:
        return self._topics.query({topic for topic, _ in partitions}, query)
