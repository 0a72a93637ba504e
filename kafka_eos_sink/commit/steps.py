"""The steps of the commit protocol, and the procedures that yield them.

A procedure is a generator over steps; each step has a result of a known type. It performs a step with
``described = yield from DescribeTransactions(ids)`` and another procedure in the same way, so mypy knows both results. Procedures hold no
socket and no clock, so the same code runs on a cluster (``runtime/executor.py``, ``task_executor.py``) and on a simulated one
(``tests/model``). The executor may raise a `KafkaEosError` into the procedure. It resends retriable requests with identical bytes, so a
procedure never sees those errors. A lost response is a value: ``EndResult.error is None``.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar
from uuid import UUID

from kafka_eos_sink.commit.values import DeadLetters, OffsetRange
from kafka_eos_sink.errors import AuthorizationError, BrokerRefusedError
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import ProducerIdentity
from kafka_eos_sink.protocol.wire_types import ZERO_UUID

R = TypeVar("R")
T = TypeVar("T")

FREE_STATES = ("Empty", "CompleteCommit", "CompleteAbort")
POLL_MS = 20
"""Pause between two requests for a state that a broker is about to change."""


class Step(Generic[R]):
    """A request of a procedure, with a result of type ``R``."""

    __slots__ = ()

    def __iter__(self) -> Generator[Step[Any], Any, R]:
        result: R = yield self
        return result


Procedure = Generator[Step[Any], Any, T]
"""A generator that yields steps to its executor, and returns a ``T``."""


def code_name(error: int | None) -> str:
    """Name the result of a request; None stands for a lost response."""
    return "no response" if error is None else ErrorCode.of(error).name


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The result of a request in the driver's transaction.

    ``error`` is 0 for success, None for a lost response. ``earlier_error`` is the code before a lost response, for error messages only.
    """

    error: int | None
    earlier_error: int | None = None

    @property
    def code(self) -> str:
        """The result in words, with the code of an earlier try."""
        # A deadline often cuts the last try short. The code before it describes the cluster better.
        before = "" if self.earlier_error is None else f", and before that {ErrorCode.of(self.earlier_error).name}"
        return code_name(self.error) + before


class DataTopicGoneError(BrokerRefusedError):
    """``UNKNOWN_TOPIC`` of a data partition: the topic or its records no longer exist."""


class ReadDeniedError(AuthorizationError):
    """Read on these data topics is missing."""

    def __init__(self, message: str, topics: Sequence[str]) -> None:
        super().__init__("TOPIC_AUTHORIZATION_FAILED", message)
        self.topics = topics


@dataclass(frozen=True, slots=True)
class ListOpenTransactions(Step[tuple[str, ...]]):
    """List the open transactions of all brokers with id prefix ``write_id + '.'``.

    ``within_ms`` replaces the usual deadline. The transactions of a broker that does not respond by then are missing from the result,
    and a warning shows the broker.
    """

    write_id: str
    within_ms: int | None = None


@dataclass(frozen=True, slots=True)
class DescribeTransactions(Step[Mapping[str, "TransactionDescription | None"]]):
    """Describe transactional ids at their coordinators.

    The result has None for an unknown id. ``within_ms`` replaces the usual deadline.
    """

    transactional_ids: tuple[str, ...]
    within_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionDescription:
    """A transactional id's state; ``partitions`` belong to its open transaction."""

    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_time_ms: int
    partitions: frozenset[tuple[str, int]]

    def is_of(self, identity: ProducerIdentity, later: int = 0) -> bool:
        """Whether it shows the identity, with an epoch that is ``later`` higher."""
        return (self.producer_id, self.producer_epoch) == (identity.producer_id, identity.producer_epoch + later)

    @property
    def is_open(self) -> bool:
        return self.state == "Ongoing"

    @property
    def is_ending(self) -> bool:
        """Whether the coordinator is about to write the markers itself."""
        return self.state in ("PrepareCommit", "PrepareAbort", "PrepareEpochFence")

    @property
    def is_free(self) -> bool:
        """Whether the id has no transaction. An unknown state counts as not free."""
        return self.state in FREE_STATES


@dataclass(frozen=True, slots=True)
class InitProducerId(Step[ProducerIdentity]):
    """Bump the epoch, fence the former owner and abort its open transaction.

    ``within_ms`` replaces the usual deadline.
    """

    transactional_id: str
    timeout_ms: int
    within_ms: int | None = None


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A record for the commit log, encoded."""

    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Append(Step[int]):
    """Append barrier or done records outside a transaction. Result: the first offset."""

    records: tuple[LogRecord, ...]


@dataclass(frozen=True, slots=True)
class AddPartitions(Step[Answered]):
    """Add partitions to a transaction, which begins by it (AddPartitionsToTxn).

    ``partitions`` is None for the commit log's.
    """

    identity: ProducerIdentity
    partitions: tuple[tuple[str, int], ...] | None = None


@dataclass(frozen=True, slots=True)
class AppendInTransaction(Step["Appended"]):
    """Append records in a transaction of the driver."""

    identity: ProducerIdentity
    base_sequence: int
    records: tuple[LogRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended(Answered):
    """The result of `AppendInTransaction`; ``offset`` is the first record's."""

    offset: int = -1


@dataclass(frozen=True, slots=True)
class CommitGroupOffsets(Step[Answered]):
    """Commit offsets in the driver's transaction."""

    identity: ProducerIdentity
    group_id: str
    offsets: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """One EndTxn, in the API version of its transaction."""

    identity: ProducerIdentity
    commit: bool


@dataclass(frozen=True, slots=True)
class EndTransactions(Step[tuple["EndResult", ...]]):
    """Pipeline EndTxns per coordinator; the results are in their order."""

    ends: tuple[End, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndResult(Answered):
    """The result of an EndTxn; from version 2 on with the new producer id and epoch.

    ``detail`` is for error messages only. ``has_lost_response`` is true if any try had no response: the coordinator may still receive that
    request.
    """

    producer_id: int = -1
    producer_epoch: int = -1
    has_lost_response: bool = False
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ReadLog(Step["LogChunk"]):
    """Read the log (read_uncommitted); ``wait`` briefly for data."""

    offset: int
    wait: bool = True


class MarkerType(Enum):
    COMMIT = "COMMIT"
    ABORT = "ABORT"
    EMPTY = "EMPTY"
    """An empty control batch: compaction removed the marker of an aborted transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """A control batch of the commit log's partition."""

    offset: int
    producer_id: int
    producer_epoch: int
    type: MarkerType


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRecord:
    """A data record of the commit log's partition."""

    offset: int
    producer_id: int
    producer_epoch: int
    transactional: bool
    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChunk:
    """Records and markers in offset order; ``end_offset`` is the high watermark.

    ``topic_id`` changes if the log is deleted and created again. It is zero if the cluster has no topic ids.
    """

    entries: tuple[ReadRecord | Marker, ...]
    next_offset: int
    log_start_offset: int
    end_offset: int
    topic_id: UUID = ZERO_UUID


@dataclass(frozen=True, slots=True)
class LastStableOffsets(Step[Mapping[tuple[str, int], int | None]]):
    """Read last stable offsets.

    The offset is None for a deleted topic. A partition that does not respond is missing. ``last_offsets`` are the batch's last offsets.
    """

    partitions: tuple[tuple[str, int], ...]
    last_offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DescribeProducers(Step[Mapping[tuple[str, int], Mapping[int, tuple[int, int]]]]):
    """Describe the producers that the partitions' leaders remember.

    Result: dict from (topic, partition) to a dict from producer id to (epoch, start offset); -1 without a transaction. A partition that
    does not respond is missing. Raises ReadDeniedError without Read on a topic.
    """

    partitions: tuple[tuple[str, int], ...]


class Unseen(Enum):
    """Why readers do not see a range of offsets."""

    GONE = "gone"
    """BLIND: retention, compaction or the deletion of the topic removed all of it."""
    BLOCKED = "blocked"
    """An open transaction blocks it, or its leader does not show it yet."""


Listed = tuple[tuple[int, int], ...] | Unseen
"""(producer id, first offset) of each aborted transaction that a Fetch response lists for a range."""


@dataclass(frozen=True, slots=True)
class AbortedTransactions(Step["Mapping[OffsetRange, Listed]"]):
    """Fetch each range under read_committed.

    Only data batches of the range's producer id count, because the log cleaner removes an aborted transaction from the list together with
    its records. Raises AuthorizationError without Read on a topic.
    """

    ranges: tuple[OffsetRange, ...]
    producer_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AreCommitted(Step[tuple[bool | None, ...]]):
    """Find each producer id's first marker after its range, under read_uncommitted.

    Result: for each, True for COMMIT, False for ABORT, None without a marker.
    """

    written: tuple[tuple[ProducerIdentity, OffsetRange], ...]


@dataclass(frozen=True, slots=True)
class Now(Step[int]):
    """Result: ms of this process's monotonic clock, for deadlines."""


@dataclass(frozen=True, slots=True)
class WallClock(Step[int]):
    """Result: ms since 1970, to compare with clocks of other processes and brokers."""


@dataclass(frozen=True, slots=True)
class Wait(Step[None]):
    ms: int


@dataclass(frozen=True, slots=True)
class Warn(Step[None]):
    """Warn the user; with ``about``, once a minute per ``about``.

    With ``blocked_by``, a producer id, the warning also describes the transaction of that producer, or ends with ``if_unlisted``.
    """

    message: str
    about: str | None = None
    blocked_by: int | None = None
    if_unlisted: str = ""


@dataclass(frozen=True, slots=True)
class Reached(Step[None]):
    """A named point of the protocol, at which a test may kill the process."""

    point: str


@dataclass(frozen=True, slots=True)
class HasRows(Step[bool]):
    """Task: whether there is at least one row."""


@dataclass(frozen=True, slots=True)
class WriteRows(Step["WrittenRows | None"]):
    """Task: encode, produce and flush all rows in the transaction of this identity.

    The result is None if it is time to check the other tasks' transactions. After None, the same step writes the other rows.
    Raises if a row cannot be written, a Produce failed permanently, or a request was abandoned without a response.
    """

    identity: ProducerIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenRows:
    """The rows of a transaction, dead letters included, and their record batches.

    ``written_bytes`` is the size of the record batches as sent.
    """

    rows: int
    offsets: tuple[OffsetRange, ...]
    written_bytes: int = 0
    dead_letters: tuple[DeadLetters, ...] = ()


@dataclass(frozen=True, slots=True)
class AppendPart(Step[int]):
    """Task: append the part record in the same transaction. Result: its offset."""

    identity: ProducerIdentity
    record: LogRecord


@dataclass(frozen=True, slots=True)
class Copy:
    """Records of the aborted ``source``, to append in ``identity``'s transaction."""

    identity: ProducerIdentity
    source: ProducerIdentity
    ranges: tuple[OffsetRange, ...]
    part: LogRecord


@dataclass(frozen=True, slots=True)
class CopyRecords(Step[tuple["Copied | Gone", ...]]):
    """Append the records of each copy in its transaction, and then the part records.

    Result: `Copied` or `Gone` of each copy, in their order, after every acknowledgement. Only records of the source's producer id and epoch
    are copied, after a check of their CRC. Each partition is read once for all sources. Raises as `WriteRows`.
    """

    copies: tuple[Copy, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """What was written, and the offset of the part record."""

    written: WrittenRows
    part_offset: int


@dataclass(frozen=True, slots=True)
class Gone:
    """A range no longer holds the records."""

    why: str
