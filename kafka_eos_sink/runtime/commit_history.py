"""Reads past and running writes from the commit log, for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.commit.log_reading import read_on
from kafka_eos_sink.commit.log_records import DEFAULT_TOPIC, LOG_PARTITIONS
from kafka_eos_sink.commit.log_view import LogView, Outcome, QueryState
from kafka_eos_sink.commit.values import Decision, OffsetRange
from kafka_eos_sink.errors import BrokerRefusedError, BrokerUnavailableError, WriteRefusedError
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.protocol.identity import TopicPartition
from kafka_eos_sink.runtime.batch_record import iso_utc, merged
from kafka_eos_sink.runtime.executor import Executor
from kafka_eos_sink.runtime.write_settings import log_partition_of

WriteState = Literal["finished", "decided", "undecided", "prepared", "void", "resolved", "unreadable"]
"""finished   every row is visible, and the log has its done record
decided    the log lacks its done record; the next run of the same id or `kafka-eos recover` finishes it
undecided  a decision was written and its transaction has not ended
prepared   tasks have written and wait for a decision; the write runs, or it died before its decision
void       all its transactions were aborted and cannot be copied; it may be written again
resolved   an operator has decided it (`kafka-eos resolve`)
unreadable another program wrote into its records, or some are gone; ``problem`` names which"""
FOREIGN_SHOWN = 4
"""Offsets of another program's records that a problem names."""
ENDED: tuple[WriteState, ...] = ("finished", "void", "resolved")
"""The states in which no transaction of a write is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedWrite:
    """One version of a write.

    The commit log keeps the newest version of every write id and query id.

    committed         how many of the named transactions have their COMMIT marker in the log
    aborted           how many have an ABORT marker there: recovery copies their rows
    finished_ms       wall clock of the driver that finished it, None if it is not recorded
    offsets           one range per topic-partition over all transactions, possibly with other records in it
    """

    write_id: str
    query_id: str
    version: int | None
    state: WriteState
    topic: str | None = None
    rows: int | None = None
    transactions: int = 0
    committed: int = 0
    aborted: int = 0
    finished_ms: int | None = None
    offsets: tuple[OffsetRange, ...] = ()
    resolution: str | None = None
    problem: str | None = None

    @property
    def finished_at(self) -> str | None:
        """The finish time as ISO 8601, UTC, to the millisecond."""
        return None if self.finished_ms is None else iso_utc(self.finished_ms)

    def as_json(self) -> dict[str, Any]:
        return {
            "write_id": self.write_id,
            "query_id": self.query_id,
            "version": self.version,
            "state": self.state,
            "finished_at": self.finished_at,
            "topic": self.topic,
            "rows": self.rows,
            "transactions": self.transactions,
            "committed_transactions": self.committed,
            "aborted_transactions": self.aborted,
            "resolution": self.resolution,
            "problem": self.problem,
            "offsets": [asdict(part) for part in self.offsets],
        }


def writes_in(view: LogView) -> tuple[CommittedWrite, ...]:
    """Return the newest decision of each query id, and what began after it."""
    return tuple(write for query in view.queries("decision", "part", "done", "foreign") for write in _writes(query))


def _writes(query: QueryState) -> Iterable[CommittedWrite]:
    of_query = partial(CommittedWrite, write_id=query.write_id, query_id=query.query_id)
    try:
        found = query.newest
    except WriteRefusedError as broken:
        yield of_query(version=None, state="unreadable", problem=broken.message)
        return
    decision = None if found is None else found.decision
    if decision is not None:
        yield _decided(query, decision)
    if query.foreign:
        offsets = ", ".join(str(record.offset) for record in query.foreign[-FOREIGN_SHOWN:])
        problem = f"another program wrote records under its keys, the newest of them at offsets {offsets}"
        yield of_query(version=None, state="unreadable", problem=problem)
    if query.undecided:
        yield of_query(version=None, state="undecided")
        return
    named = set() if decision is None else {prepared.part_offset for prepared in decision.transactions}
    waiting = Counter(
        part.value["version"]
        for part in query.newest_parts.values()
        if part.outcome is Outcome.OPEN and part.value and "version" in part.value and part.offset not in named
    )
    for version, transactions in sorted(waiting.items()):
        yield of_query(version=version, state="prepared", transactions=transactions)


def _decided(query: QueryState, decision: Decision) -> CommittedWrite:
    # The newest done record may be of an earlier version.
    done = query.done if query.has_done_record(decision) else None
    committed = aborted = 0
    for prepared in decision.transactions:
        part = query.part_at(prepared.partition, prepared.part_offset)
        outcome = Outcome.COMMITTED if prepared.proven else None if part is None else part.outcome
        committed += outcome is Outcome.COMMITTED
        aborted += outcome is Outcome.ABORTED
    state: WriteState = "decided" if done is None else "finished"
    if decision.resolution or decision.is_void:
        state = "resolved" if decision.resolution else "void"
    return CommittedWrite(
        write_id=decision.write_id,
        query_id=decision.query_id,
        version=decision.version,
        state=state,
        topic=decision.topic,
        rows=sum(prepared.rows for prepared in decision.transactions),
        transactions=len(decision.transactions),
        committed=committed,
        aborted=aborted,
        finished_ms=None if done is None else done.get("finished_ms"),
        offsets=merged(part for prepared in decision.transactions for part in prepared.offsets),
        resolution=decision.resolution,
    )


class CommitLogWatch:
    """Reads the commit log once, and from then on only what was appended to it.

    Args:
        timeout_ms: Bounds each reading, up to the ends that the partitions have at its start.
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
        self.knows_write = False
        """Whether the log holds a decision or a run's begin of the write id, of any without one."""

    def writes(self) -> tuple[CommittedWrite, ...]:
        """Return the writes in the commit log, the last finished ones last.

        A later reading may count fewer ``committed`` and ``aborted`` transactions of a write that has ended.

        Raises:
            BrokerRefusedError: NO_COMMIT_LOG if the topic does not exist.
            BrokerUnavailableError: COMMIT_LOG_UNAVAILABLE if a partition is not read in time.
        """
        deadline = self._admin.client.clock() + self._timeout_ms
        if self._admin.topic(self._topic, deadline) is None:
            raise BrokerRefusedError(
                "NO_COMMIT_LOG",
                f"there is no commit log topic {self._topic!r}: no write has run on this cluster yet, or the writes use another "
                "commit.log.topic; name it with --commit-log-topic",
            )
        # The ends are fixed now: a log that other writes extend would never be read to its end.
        ends = self._admin.list_offsets(self._views, deadline, isolation="read_uncommitted")
        found: list[CommittedWrite] = []
        for where, view in self._views.items():
            self._read_to(where, view, ends[where], deadline)
            writes = writes_in(view)
            # Now, because a view forgets the barriers.
            self.knows_write |= not view.lacks_write
            found += writes
            # A watch may run for weeks. Only a write in progress still needs its parts, and no other write keeps them for it.
            in_progress = {
                (write.write_id, write.query_id) for write in writes if write.state not in (*ENDED, "unreadable")
            }
            view.forget_superseded(in_progress, FOREIGN_SHOWN)
        return tuple(
            sorted(found, key=lambda write: (write.finished_ms is None, write.finished_ms or 0, write.write_id))
        )

    def _read_to(self, where: TopicPartition, view: LogView, end: int, deadline: int) -> None:
        # A log that was deleted and created again may be shorter than the old position.
        if end < view.next_offset:
            view.restart()
        executor = Executor(self._admin, where, ProducerConfig(delivery_timeout_ms=self._timeout_ms))
        while view.next_offset < end:
            before = view.next_offset
            executor.run(read_on(view))
            if view.next_offset == before and self._admin.client.clock() > deadline:
                raise BrokerUnavailableError(
                    "COMMIT_LOG_UNAVAILABLE",
                    f"{where[0]}-{where[1]} could not be read from offset {before} to its end {end} in {self._timeout_ms} ms",
                )
