"""What the commit protocol asks of the world: one value per step, answered by whoever runs the procedure.

The procedures of this package are generators that yield steps and receive answers. They hold no socket and no clock, so
the very same code runs against a cluster (`executor.py`) and against a simulated one (`tests/model`). Whoever performs a
step may raise a `KafkaEosError` into the procedure; a retriable error is repeated by the performer with identical bytes
and never seen here. Doubt is a value: `EndResult.error is None` means that no answer came.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from kafka_eos_sink.commit.prepared_transaction import OffsetRange
from kafka_eos_sink.errors import BrokerRefusedError
from kafka_eos_sink.protocol.identity import ProducerIdentity

T = TypeVar("T")

FREE_STATES = ("Empty", "CompleteCommit", "CompleteAbort")
POLL_MS = 20
"""Between two looks at something that another machine is about to finish."""


class DataTopicGoneError(BrokerRefusedError):
    """A topic that was written to is not there any more, or not with those records: ``UNKNOWN_TOPIC``. By the steps on data partitions."""


@dataclass(frozen=True, slots=True)
class ListOpenTransactions:
    """Ongoing transactions whose id begins with ``write_id + '.'``, of all brokers. Answer: tuple of transactional ids."""

    write_id: str


@dataclass(frozen=True, slots=True)
class DescribeTransactions:
    """Answer: dict from transactional id to `TransactionDescription`, or None where the coordinator does not know the id.

    Given up after ``within_ms`` instead of the usual deadline, where that is given.
    """

    transactional_ids: tuple[str, ...]
    within_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionDescription:
    """A coordinator's view of a transactional id; ``partitions`` are those of the open transaction: (topic, partition)."""

    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_time_ms: int
    partitions: frozenset[tuple[str, int]]

    def is_of(self, identity: ProducerIdentity, later: int = 0) -> bool:
        """Whether it names the identity, with an epoch that is ``later`` higher."""
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
        """Whether the id carries no transaction. The sink does not touch an id in a state that it does not know."""
        return self.state in FREE_STATES


@dataclass(frozen=True, slots=True)
class InitProducerId:
    """Unconditional: bumps the epoch, fences the former owner, aborts what it left open. Answer: `ProducerIdentity`."""

    transactional_id: str
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A record for the commit log, encoded."""

    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Append:
    """Plain, acks=all, no transaction: barrier and done records. Answer: offset of the first record."""

    records: tuple[LogRecord, ...]


@dataclass(frozen=True, slots=True)
class AddPartition:
    """AddPartitionsToTxn for the commit log's partition, below transaction version 2. Answer: error code."""

    identity: ProducerIdentity


@dataclass(frozen=True, slots=True)
class AppendInTransaction:
    """Records of one transaction of the driver. Answer: `Appended`."""

    identity: ProducerIdentity
    base_sequence: int
    records: tuple[LogRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """``error`` 0 and the offset of the first record, or the code that ended the attempt, or None for no answer."""

    error: int | None
    offset: int = -1


@dataclass(frozen=True, slots=True)
class CommitGroupOffsets:
    """AddOffsetsToTxn and TxnOffsetCommit in the driver's transaction. Answer: error code, None for no answer."""

    identity: ProducerIdentity
    group_id: str
    offsets: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """One EndTxn, in the API version of its transaction."""

    identity: ProducerIdentity
    commit: bool


@dataclass(frozen=True, slots=True)
class EndTransactions:
    """One pipelined pass per coordinator. Answer: tuple of `EndResult` in the same order."""

    ends: tuple[End, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndResult:
    """``error`` 0 for success, None where no answer came before the deadline. From version 2 the bumped identity.

    ``detail`` is half a sentence for whoever reads the error; nothing is decided by it.
    """

    error: int | None
    producer_id: int = -1
    producer_epoch: int = -1
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ReadLog:
    """Read the commit log's partition, read_uncommitted, from an offset; may wait briefly for data if asked to. Answer: `LogChunk`."""

    offset: int
    wait: bool = True


class MarkerType(Enum):
    COMMIT = "COMMIT"
    ABORT = "ABORT"
    EMPTY = "EMPTY"
    """A control batch without its record: compaction took the marker (of an aborted transaction) and left the batch."""


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
    """Records and markers in offset order, where to read on, and where the partition starts and ends (its high watermark) now."""

    entries: tuple[ReadRecord | Marker, ...]
    next_offset: int
    log_start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class LogPolicy:
    """The commit log topic's ``cleanup.policy``. Answer: str, or None where it may not be read."""


@dataclass(frozen=True, slots=True)
class LastStableOffsets:
    """Answer: dict from (topic, partition) to the last stable offset; a partition that cannot be asked now is missing.

    ``last_offsets`` are our last ones there.
    """

    partitions: tuple[tuple[str, int], ...]
    last_offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DescribeProducers:
    """Answer: dict from (topic, partition) to a dict from producer id to (epoch, current transaction's start offset or -1);
    None in its place where the principal lacks Read on the topic, missing where the partition could not be asked now."""

    partitions: tuple[tuple[str, int], ...]


class Unseen(Enum):
    """Why readers are not shown a range of offsets."""

    GONE = "gone"
    """Nothing of it is left: deleted by retention or with the topic, or taken by the cleaner."""
    HELD = "held"
    """An open transaction stands before it, or its leader does not show it yet: later they may be."""


Listed = tuple[tuple[int, int], ...] | Unseen
"""What a partition calls aborted in a range: producer ids and first offsets."""


@dataclass(frozen=True, slots=True)
class AbortedTransactions:
    """Fetch read_committed what is left of each range. Answer: dict from range to the tuple of (producer id, first offset) that the
    broker calls aborted from there on, or to `Unseen`; or None for the whole answer where the principal lacks Read on a topic.
    ``producer_ids``, where given one for each range: what is asked for is what is left of its batches, since the cleaner forgets an
    aborted transaction together with its records."""

    ranges: tuple[OffsetRange, ...]
    producer_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Now:
    """Answer: wall clock of this process, milliseconds."""


@dataclass(frozen=True, slots=True)
class Wait:
    ms: int


@dataclass(frozen=True, slots=True)
class Warn:
    """Something the user should know that is no error."""

    message: str


@dataclass(frozen=True, slots=True)
class Reached:
    """A named point of the protocol. Nothing happens, except where a test has a process die here."""

    point: str


@dataclass(frozen=True, slots=True)
class HasRows:
    """Task: is there at least one row? Answer: bool."""


@dataclass(frozen=True, slots=True)
class WriteRows:
    """Task: encode, produce and flush all rows in the transaction of this identity.

    Result: `Written`; or None if it is time to check for lost siblings, after which the same step writes the other rows. Raises if a row
    cannot be written, a Produce failed for good, or a request was abandoned without a response.
    """

    identity: ProducerIdentity
    digest: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    rows: int
    digest: int | None
    offsets: tuple[OffsetRange, ...]


@dataclass(frozen=True, slots=True)
class AppendPart:
    """Task: the part record, in the same transaction, acknowledged. Answer: its offset."""

    identity: ProducerIdentity
    record: LogRecord


Step = (
    ListOpenTransactions
    | DescribeTransactions
    | InitProducerId
    | Append
    | AddPartition
    | AppendInTransaction
    | CommitGroupOffsets
    | EndTransactions
    | ReadLog
    | LogPolicy
    | LastStableOffsets
    | DescribeProducers
    | AbortedTransactions
    | Now
    | Wait
    | Warn
    | Reached
    | HasRows
    | WriteRows
    | AppendPart
)

Procedure = Generator[Step, Any, T]
