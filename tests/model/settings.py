"""What is explored: how many tasks, attempts, drivers and batches, and how much of each fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any
from uuid import UUID

from kafka_eos_sink.commit.log_records import MAX_RECORD_BYTES
from kafka_eos_sink.commit.transactional_id import random_write_id
from kafka_eos_sink.commit.transactions import NEVER_TIMES_OUT_MS
from kafka_eos_sink.commit.values import Resolution
from kafka_eos_sink.commit.versions import MOST_RANGES

WRITE_ID = "w"
START_MS = 1_000_000
JUMP_MS = 200_000
"""A pause: longer than every deadline of the protocol, shorter than the transaction timeout of most settings."""

FAULTS = (
    "kill_task",  # a running task dies and Spark starts another attempt
    "speculate",  # Spark starts another attempt beside a live one, or of a finished task (stage attempt)
    "drop_message",  # a task is done, but its executor dies before the driver hears of it
    "lost",  # a request is processed, its answer is lost: repeated identically
    "unavailable",  # a step gets no answer before its deadline, whether it was processed or not
    "float",  # a copy of a request stays in the network and is processed at any later time
    "timeout",  # the coordinator ends an open transaction by its timeout
    "pause",  # everybody's clock jumps
    "compact",  # the cleaner passes over the commit log
    "clean",  # the cleaner removes aborted records from the data partitions
    "retain",  # retention removes ended records of a data partition
    "expire",  # the coordinator forgets an id without transaction
    "skip_marker",  # KAFKA-20734
    "hand_marker",  # somebody writes an ABORT marker by hand
    "foreign_abort",  # somebody ends an open transaction through its coordinator
    "foreign_init",  # a zombie's InitProducerId of a task's id
    "resolve",  # an operator runs `kafka-eos resolve` on the newest decided version, beside whatever runs
)


Rows = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One small world.

    ``rows(driver, version)`` are the row numbers of each Spark partition; a row's data partition is its number modulo
    ``data_partitions``. ``query_id(driver)`` and ``offsets_hash(driver, version)`` say what batch a driver believes to write.
    """

    name: str
    version: int = 2
    drivers: int = 2
    batches: int = 1
    first_batch: int = 0
    attempts: int = 2
    data_partitions: int = 1
    restart: str = "beside"
    """When the next driver may start: "beside" the last one, which lives on (or is dead, if it never moves again); after a
    "crash" of it; or only when the last one has "failed"."""
    zombie_tasks: bool = True
    """With "crash": whether the tasks of a crashed driver may live on."""
    faults: MappingProxyType[str, int] = field(default_factory=lambda: MappingProxyType({}))
    timeout_ms: int = 900_000
    streaming: bool = True
    random_write_id: bool = False
    foreign: bool = False
    sweeps: bool = False
    """Whether a commit is followed by a sweep, as an abort always is. It lives on beside the next batches."""
    same_slot: bool = True
    """Attempts of a partition begin at the same slot, as they do at the ninth attempt or in another application."""
    verifies: bool = True
    """Whether leaders verify transactional appends (Kafka 3.6)."""
    piece_bytes: int = MAX_RECORD_BYTES
    """Bytes of a decision's record. A larger decision is cut into pieces, each in a Produce request of its own."""
    most_ranges: int = MOST_RANGES
    """Ranges of versions that a decision carries."""
    eager_markers: bool = False
    """Markers are written with the EndTxn that asks for them: fewer states, for what does not turn on the time between."""
    rows: Callable[[int, int], Rows] = field(default=lambda driver, version: ((0,), (1,)))
    query_id: Callable[[int], str] = field(default=lambda driver: "q")
    offsets_hash: Callable[[int, int], str | None] = field(default=lambda driver, version: f"hash-{version}")
    topic: Callable[[int], str] = field(default=lambda driver: "t")
    foreach_call: Callable[[int], str | None] = field(default=lambda driver: None)
    """The call of a `foreachBatch` function in which a driver writes its batches."""
    foreach_query: Callable[[int], str] = field(default=lambda driver: "query")
    """The streaming query that calls the function."""
    rollback: str = "fail"
    resolution: Resolution = "committed"
    """What the operator of the fault ``resolve`` records."""
    remembers: Callable[[int], int] = field(default=lambda driver: -1)
    """Whose last plan a driver's planner process remembers, as after a restart of a query in one Spark session; -1 for a new process."""
    start_version: Callable[[int], int] | None = None
    """Where a driver begins, instead of after what Spark recorded."""
    loud: frozenset[str] = frozenset()
    """Error codes that a fault-free run after the faults may end with, besides success."""
    recover_from_every: int = 1
    """One in so many distinct clusters is left to a further, fault-free driver; 0 for none."""

    @property
    def may_time_out(self) -> bool:
        return self.timeout_ms != NEVER_TIMES_OUT_MS

    def write_id(self, driver: int) -> str:
        return random_write_id(None, str(UUID(int=driver))) if self.random_write_id else WRITE_ID

    @property
    def write_ids(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.write_id(driver) for driver in range(self.drivers + 1)))

    def fault(self, name: str) -> int:
        return self.faults.get(name, 0)


def faults(**counts: int) -> MappingProxyType[str, int]:
    unknown = set(counts) - set(FAULTS)
    assert not unknown, unknown
    return MappingProxyType(counts)


def named(settings: tuple[Setting, ...]) -> dict[str, Setting]:
    return {setting.name: setting for setting in settings}


__all__ = ["FAULTS", "JUMP_MS", "START_MS", "WRITE_ID", "Any", "Setting", "faults", "named"]
