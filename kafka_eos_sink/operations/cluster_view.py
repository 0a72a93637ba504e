"""What ``status``, ``top`` and ``metrics`` show, read from Kafka."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeVar

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.commit.refusals import some
from kafka_eos_sink.commit.transactional_id import write_id_of
from kafka_eos_sink.commit.values import iso_utc
from kafka_eos_sink.commit.write_states import ENDED, CommittedWrite
from kafka_eos_sink.errors import (
    AuthorizationError,
    BrokerRefusedError,
    BrokerUnavailableError,
    KafkaEosError,
    one_line,
)
from kafka_eos_sink.operations.hanging import NO_READ, producers_on
from kafka_eos_sink.operations.transactions import open_transactions, transaction_json
from kafka_eos_sink.operations.write_status import CommitLogWatch
from kafka_eos_sink.protocol.identity import TopicPartition
from kafka_eos_sink.protocol.messages import TransactionState
from kafka_eos_sink.runtime.batch_record import BatchRecord
from kafka_eos_sink.runtime.history_reading import HistoryTail

PARTS = ("writes", "history", "transactions", "hidden offsets")
RATE_BATCHES = 10
"""Newest batches of a write that give its rate."""
_UNLISTED = "hidden offsets of transactions that no coordinator lists"
_GROUP_OFFSETS = "__consumer_offsets"
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteLine:
    """A version of a write.

    rows_per_second  over its newest batches, from plan to verify; None without a measured batch
    record           of this version; None if the history does not hold it, and for a resolved one
    """

    write: CommittedWrite
    rows_per_second: int | None
    record: BatchRecord | None

    @property
    def transactions_copied(self) -> int | None:
        return None if self.record is None else self.record.transactions_copied

    def as_json(self) -> dict[str, Any]:
        return self.write.as_json() | {
            "rows_per_second": self.rows_per_second,
            "transactions_copied": self.transactions_copied,
        }


@dataclass(frozen=True, slots=True)
class HangingTransaction:
    """A transaction that a leader holds open and no coordinator does (KIP-664)."""

    start_offset: int
    producer_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockedPartition:
    """A partition with open transactions.

    hidden_offsets  from the last stable offset to the high watermark: read_committed consumers do not see them; None if unknown
    blocked_by      transactional ids, the oldest transaction first; empty if no coordinator lists one
    since_ms        when the oldest began, in ms since 1970; -1 if unknown
    hanging         the oldest transaction that no coordinator lists; None without one
    """

    topic: str
    partition: int
    hidden_offsets: int | None
    blocked_by: tuple[str, ...]
    since_ms: int
    hanging: HangingTransaction | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """One reading.

    batches   records of the history that no earlier reading of the same watch returned
    not_read  a line for each part that the cluster rejected; it begins with the part's name, one of `PARTS`
    """

    now_ms: int
    writes: tuple[WriteLine, ...] = ()
    transactions: tuple[TransactionState, ...] = ()
    blocked: tuple[BlockedPartition, ...] = ()
    batches: tuple[BatchRecord, ...] = ()
    not_read: tuple[str, ...] = ()

    @property
    def read_at(self) -> str:
        return iso_utc(self.now_ms, "seconds")

    def was_read(self, part: str) -> bool:
        """Return False if the cluster refused the part, whose fields are empty then."""
        return not any(line.startswith(part) for line in self.not_read)

    def as_json(self) -> dict[str, Any]:
        return {
            "read_at": self.read_at,
            "transactions": [transaction_json(each, self.now_ms) for each in self.transactions],
            "blocked": self.blocked,
            "writes": self.writes,
            "not_read": self.not_read,
        }


class ClusterWatch:
    """Reads the view repeatedly; of commit log and history only the appended records.

    Args:
        timeout_ms: Bounds each part of a reading.
        prefix: Only writes and transactions whose id begins with it.
        write_id: Only this write and its transactions; None for all.
    """

    def __init__(
        self,
        admin: Admin,
        commit_log_topic: str,
        history_topic: str,
        *,
        timeout_ms: int,
        prefix: str | None = None,
        write_id: str | None = None,
    ) -> None:
        self._admin = admin
        self._internal = {commit_log_topic, _GROUP_OFFSETS}
        self._timeout_ms = timeout_ms
        self._prefix = prefix or ""
        self._write_id = write_id
        self.log = CommitLogWatch(admin, commit_log_topic, timeout_ms=timeout_ms, write_id=write_id)
        self._history = HistoryTail(admin, history_topic, timeout_ms=timeout_ms)

    def look(self, *, hanging: bool = False) -> ClusterView:
        """Read everything; ``not_read`` lists the parts that could not be read.

        Args:
            hanging: Search the topics of the writes for transactions without a marker (KAFKA-20734); their leaders list all producers.

        Raises:
            BrokerUnavailableError, AuthenticationError.
        """
        not_read: list[str] = []
        refusals: tuple[type[KafkaEosError], ...] = AuthorizationError, BrokerRefusedError
        or_silent = (*refusals, BrokerUnavailableError)

        def part(name: str, read: Callable[[], Sequence[T]], caught: tuple[type[KafkaEosError], ...]) -> Sequence[T]:
            try:
                return read()
            except caught as refused:
                not_read.append(one_line(f"{name}: {refused}"))
                return ()

        # Read the history first: the driver appends to it last. The commit log then holds each of its writes, except forgotten
        # writes and finished writes with a random id.
        records = part("history", self._history.read, refusals)
        writes = part("writes", self.log.writes, refusals)
        topics = {each.topic for write in writes for each in write.offsets} if hanging else set()
        before = part(_UNLISTED, lambda: [*self._open_on(topics)], or_silent)
        # All of them: another program may block the same partitions.
        opened = partial(open_transactions, self._admin, self._timeout_ms)
        states = part("transactions", opened, or_silent)
        unlisted_on: dict[TopicPartition, HangingTransaction] = {}
        if not any(each.startswith("transactions") for each in not_read):
            unlisted_on |= part(_UNLISTED, lambda: [*self._hanging(before, states).items()], or_silent)
        ours = tuple(filter(self._is_ours, states))
        # The oldest transaction's first. The sink reads its commit log with read_uncommitted.
        held = (where for state in ours for where in sorted(state.partitions) if where[0] not in self._internal)
        blockers = blocking(states, [*held, *unlisted_on])
        hidden: dict[TopicPartition, int] = {}
        for topic, where in groupby(sorted(blockers), itemgetter(0)):
            hidden |= part(f"hidden offsets of {topic}", partial(self._hidden, list(where)), refusals)
        blocked = tuple(
            BlockedPartition(
                topic=each[0],
                partition=each[1],
                hidden_offsets=hidden.get(each),
                blocked_by=tuple(state.transactional_id for state in found),
                since_ms=found[0].transaction_start_time_ms if found else -1,
                hanging=unlisted_on.get(each),
            )
            for each, found in blockers.items()
        )
        return ClusterView(
            now_ms=time.time_ns() // 1_000_000,
            writes=write_lines(filter(self._is_shown, writes), records),
            transactions=ours,
            blocked=blocked,
            batches=tuple(each for each in self._history.take_appended() if self._is_shown(each)),
            not_read=tuple(not_read),
        )

    def _open_on(self, topics: Collection[str]) -> set[tuple[TopicPartition, HangingTransaction]]:
        """Return the transactions that the leaders of these topics hold open."""
        producers, missing = producers_on(self._admin, (), topics, self._timeout_ms)
        if denied := missing[NO_READ]:
            raise AuthorizationError("TOPIC_AUTHORIZATION_FAILED", f"Read on {some(denied)} is missing", "Grant it")
        return {
            (where, HangingTransaction(each.current_txn_start_offset, each.producer_id))
            for where, found in producers.items()
            for each in found
            if each.current_txn_start_offset >= 0
        }

    def _hanging(
        self, before: Iterable[tuple[TopicPartition, HangingTransaction]], states: Iterable[TransactionState]
    ) -> dict[TopicPartition, HangingTransaction]:
        """Return the oldest transaction of each partition that no coordinator lists.

        It was open before and after ``states`` were listed, so also meanwhile.
        """
        listed = {state.producer_id for state in states}
        doubtful = {each for each in before if each[1].producer_id not in listed}
        hanging = doubtful & self._open_on({topic for (topic, _), _ in doubtful})
        # The oldest comes last, and stays.
        return dict(sorted(hanging, key=lambda each: -each[1].start_offset))

    def _is_shown(self, of: CommittedWrite | BatchRecord) -> bool:
        return self._write_id in (None, of.write_id) and of.write_id.startswith(self._prefix)

    def _is_ours(self, state: TransactionState) -> bool:
        is_of_write = self._write_id in (None, write_id_of(state.transactional_id))
        return is_of_write and state.transactional_id.startswith(self._prefix)

    def _hidden(self, where: Sequence[TopicPartition]) -> list[tuple[TopicPartition, int]]:
        deadline = self._admin.client.clock() + self._timeout_ms
        # Partitions of a deleted topic stay in open transactions. A query of their offsets would wait until the deadline.
        topic = self._admin.topic(where[0][0], deadline)
        led = {each.partition_index for each in topic.partitions if each.leader_id >= 0} if topic is not None else set()
        present = [each for each in where if each[1] in led]
        stable = self._admin.list_offsets(present, deadline, isolation="read_committed")
        ends = self._admin.list_offsets(present, deadline, isolation="read_uncommitted")
        return [(each, max(0, ends[each] - stable[each])) for each in present]


def blocking(
    states: Iterable[TransactionState], partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, list[TransactionState]]:
    """Return the transactions with rows in each partition, in the order of ``states``."""
    found: dict[TopicPartition, list[TransactionState]] = {where: [] for where in partitions}
    for state in states:
        for where in found.keys() & set(state.partitions):
            found[where].append(state)
    return found


def write_lines(writes: Iterable[CommittedWrite], records: Iterable[BatchRecord] = ()) -> tuple[WriteLine, ...]:
    """Join writes and history: first those that need action, then the prepared ones.

    Args:
        records: The newest first.
    """
    by_query: dict[tuple[str, str], list[BatchRecord]] = {}
    for record in records:
        by_query.setdefault((record.write_id, record.query_id), []).append(record)

    def line(write: CommittedWrite) -> WriteLine:
        batches = by_query.get((write.write_id, write.query_id), [])
        # A resolution has no rows; the history holds another run of the version.
        record = None if write.resolution else next((each for each in batches if each.version == write.version), None)
        rate = rows_per_second(batches[:RATE_BATCHES]) if write.rows is not None else None
        return WriteLine(write=write, rows_per_second=rate, record=record)

    def order(write: CommittedWrite) -> tuple[int, int, str]:
        # The rows of a void version, also of one that an operator has resolved as rewrite, wait for its next run.
        rank = 2 if write.state in ENDED and not write.needs_run else write.state == "prepared"
        return rank, -(write.finished_ms or 0), write.write_id

    return tuple(map(line, sorted(writes, key=order)))


def rows_per_second(records: Iterable[BatchRecord]) -> int | None:
    """Return rows per second of the batches' time; None if no time was measured."""
    measured = [record for record in records if record.phases_ms]
    if not measured:
        return None
    # Integer division: large integers overflow a float.
    took_ms = sum(sum(record.phases_ms.values()) for record in measured)
    return sum(record.rows for record in measured) * 1000 // max(1, took_ms)
