"""Reads the writes in the commit log, and sorts out those at rest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.commit.log_access import read_to_end
from kafka_eos_sink.commit.log_view import LogView
from kafka_eos_sink.commit.refusals import refused
from kafka_eos_sink.commit.transactional_id import write_id_of
from kafka_eos_sink.commit.values import DEFAULT_TOPIC, LOG_PARTITIONS, iso_utc, log_partition_of
from kafka_eos_sink.commit.write_states import ENDED, FOREIGN_SHOWN, CommittedWrite, QueryIds, Writes, writes_by_query
from kafka_eos_sink.operations.transactions import open_transactions
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.protocol.identity import TopicPartition
from kafka_eos_sink.runtime.executor import Executor


class CommitLogWatch:
    """Reads the commit log once, and from then on only what was appended to it.

    Args:
        timeout_ms: Bounds each request.
        write_id: None for all.
    """

    def __init__(
        self, admin: Admin, topic: str = DEFAULT_TOPIC, *, timeout_ms: int, write_id: str | None = None
    ) -> None:
        self._admin = admin
        self._topic = topic
        self._timeout_ms = timeout_ms
        partitions = range(LOG_PARTITIONS) if write_id is None else [log_partition_of(write_id)]
        self._views = {(topic, partition): LogView(write_id) for partition in partitions}
        self._known: dict[TopicPartition, dict[QueryIds, Writes]] = {where: {} for where in self._views}
        self.knows_write = False
        """Whether the log holds a decision or a run's begin of the write id, of any without one."""
        self.producer_ids: set[int] = set()
        """Of the tasks in the log; only with a write id."""
        self._is_of_one = write_id is not None

    def writes(self) -> tuple[CommittedWrite, ...]:
        """Return the writes in the commit log, the last finished ones last.

        Raises:
            BrokerRefusedError: NO_COMMIT_LOG if the topic does not exist.
            BrokerUnavailableError: REQUEST_DEADLINE if a partition cannot be read.
        """
        deadline = self._admin.client.clock() + self._timeout_ms
        if self._admin.topic(self._topic, deadline) is None:
            raise refused("NO_COMMIT_LOG", topic=self._topic)
        ends = self._admin.list_offsets(self._views, deadline, isolation="read_uncommitted")
        config = ProducerConfig(delivery_timeout_ms=self._timeout_ms)
        found: list[CommittedWrite] = []
        for where, view in self._views.items():
            # NEW LOG: it may be shorter than the old position.
            if ends[where] < view.next_offset:
                view.restart()
            if view.next_offset < ends[where]:
                Executor(self._admin, where, config).run(read_to_end(view))
                if view.next_offset < ends[where]:
                    read = f"{view.next_offset} of {ends[where]}"
                    raise refused("REQUEST_DEADLINE.log", topic=self._topic, partition=where[1], read=read)
            self._known[where] = known = writes_by_query(view, self._known[where])
            writes = [write for of_query in known.values() for write in of_query]
            # Now, because a view forgets the barriers and the parts.
            self.knows_write |= not view.lacks_write
            if self._is_of_one:
                self.producer_ids |= view.producer_ids
            found += writes
            # A watch may run for weeks. Only a write in progress still needs its parts, and no other write keeps them for it.
            in_progress = {
                (write.write_id, write.query_id) for write in writes if write.state not in (*ENDED, "unreadable")
            }
            view.forget_superseded(in_progress, FOREIGN_SHOWN)
        return tuple(
            sorted(found, key=lambda write: (write.finished_ms is None, write.finished_ms or 0, write.write_id))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OldWrites:
    """What ``forget --prefix`` finds.

    at_rest  the versions of the write ids that it would forget
    left     write id to the reason why it is left
    """

    at_rest: tuple[CommittedWrite, ...]
    left: dict[str, str]

    @property
    def write_ids(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(write.write_id for write in self.at_rest))


def find_old_writes(admin: Admin, commit_log_topic: str, prefix: str, before_ms: int, *, timeout_ms: int) -> OldWrites:
    """Sort out the writes whose ids begin with a text, as `sort_out`.

    Raises:
        BrokerRefusedError: NO_COMMIT_LOG.
        AuthorizationError, BrokerUnavailableError.
    """
    # In this order: a transaction that begins later belongs to a run, which the fence of the forgetting finds.
    writes = CommitLogWatch(admin, commit_log_topic, timeout_ms=timeout_ms).writes()
    opened = {write_id_of(each.transactional_id) for each in open_transactions(admin, timeout_ms)}
    return sort_out((each for each in writes if each.write_id.startswith(prefix)), opened, before_ms)


def sort_out(writes: Iterable[CommittedWrite], opened: set[str | None], before_ms: int) -> OldWrites:
    """Separate the writes that finished before a time (ms since 1970) from others."""
    by_id: dict[str, list[CommittedWrite]] = {}
    for write in writes:
        by_id.setdefault(write.write_id, []).append(write)
    reasons = {write_id: _reason(found, write_id in opened, before_ms) for write_id, found in by_id.items()}
    at_rest = tuple(write for write_id, found in by_id.items() if not reasons[write_id] for write in found)
    return OldWrites(at_rest=at_rest, left={write_id: reason for write_id, reason in reasons.items() if reason})


def _reason(writes: Iterable[CommittedWrite], is_open: bool, before_ms: int) -> str:
    """Return what keeps a write id, empty for nothing."""
    if is_open:
        return "a transaction is open"
    for write in writes:
        if write.state not in ENDED or write.needs_run:
            return f"{'a version' if write.version is None else f'version {write.version}'} is {write.state}"
        if write.finished_ms is None:
            return f"the commit log does not hold when version {write.version} ended"
    newest = max(write.finished_ms or 0 for write in writes)
    return f"finished at {iso_utc(newest, 'seconds')}" if newest >= before_ms else ""
