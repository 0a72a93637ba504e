"""Who leads and who coordinates among two simulated brokers, what lies in their logs, and what can happen to them.

The truth behind `simulated_brokers.py`, which answers requests. Markers are written some time after EndTxn was answered.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from . import simulated_cluster as kafka
from .simulated_cluster import Data

TOPIC = "rows"
PARTITIONS = 2
ADDRESSES = {1: ("broker-1", 9001), 2: ("broker-2", 9002)}
MARKERS_AFTER_MS = 3
SLOW_MARKERS_AFTER_MS = 1_500
LAGS_FOR_MS = 150
RESTARTS_FOR_MS = 250


class Written(NamedTuple):
    """A batch that a leader appended."""

    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """A row as it lies in a partition; `committed` is None while its transaction has no marker there."""

    row: int
    offset: int
    identity: tuple[int, int]
    sequence: int
    committed: bool | None


@dataclass(slots=True)
class BrokerState:
    """See the module's text; `after` calls something when so many ms have passed."""

    version: int
    after: Callable[[int, Callable[[], None]], None]
    cluster: kafka.Cluster = field(init=False)
    leaders: list[tuple[int, int]] = field(default_factory=lambda: [(1, 0), (2, 0)])
    """(node, leader epoch) of each partition."""
    coordinators: dict[int, int] = field(default_factory=lambda: {0: 2, 1: 1})
    """Key type (0 group, 1 transaction) to node."""
    down: set[int] = field(default_factory=set)
    markers_after_ms: int = MARKERS_AFTER_MS
    taken_over: int = 0
    """How often somebody asked for the transactional id, or its transaction timed out: who owned it before may be refused."""
    on_down: Callable[[int], None] = field(default=lambda node: None)
    lagging: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    written: list[list[Written]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])
    idempotent_ids: Any = field(default_factory=lambda: itertools.count(900_000))
    _markers: set[tuple[str, int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.cluster = kafka.empty_cluster(self.version, PARTITIONS)

    # the truth

    def log(self, partition: int) -> list[LogEntry]:
        """The rows of a partition, those that nobody will see included."""
        committed = kafka.outcomes(self.cluster, partition)
        return [
            LogEntry(
                row=entry.value,
                offset=offset,
                identity=(entry.producer_id, entry.producer_epoch),
                sequence=entry.sequence,
                committed=committed[offset],
            )
            for offset, entry in enumerate(self.cluster.logs[partition])
            if isinstance(entry, Data)
        ]

    # what happens to brokers

    def move_leaders(self) -> None:
        """Every partition gets another leader; one of the two brokers goes on naming the old ones for a while."""
        self.lagging[1] = list(self.leaders)
        self.after(LAGS_FOR_MS, lambda: self.lagging.pop(1, None))
        self.leaders = [(3 - node, epoch + 1) for node, epoch in self.leaders]

    def move_coordinator(self, key_type: int) -> None:
        self.coordinators[key_type] = 3 - self.coordinators[key_type]

    def restart(self, node: int) -> None:
        """The broker goes away for a while, and the other one takes over what it led and coordinated."""
        if self.down:
            return
        self.down.add(node)
        self.on_down(node)
        self.leaders = [(3 - node, epoch + 1) if led == node else (led, epoch) for led, epoch in self.leaders]
        self.coordinators = dict.fromkeys(self.coordinators, 3 - node)
        self.after(RESTARTS_FOR_MS, lambda: self.down.discard(node))

    def time_out(self, transactional_id: str) -> None:
        """The coordinator ends an open transaction by its timeout."""
        found = self.cluster.transaction(transactional_id)
        if found is not None and found.state == kafka.ONGOING:
            self.taken_over += 1
            self.cluster = kafka.fence(self.cluster, transactional_id)
            self.write_markers_soon()

    def take_over(self, transactional_id: str) -> None:
        """Another process asks for a producer id under the same transactional id."""
        if self.cluster.transaction(transactional_id) is not None:
            self.taken_over += 1
            self.cluster, _ = kafka.init_producer_id(self.cluster, transactional_id, 60_000)
            self.write_markers_soon()

    def already_wrote(self, identity: tuple[int, int], partition: int, sequence: int, row: int) -> None:
        """As if the producer had written so much that `sequence` was the last one, without the two thousand million records."""
        log = self.cluster.logs[partition]
        # What lies a whole round of numbers back is not remembered by its number.
        older = tuple(
            each._replace(sequence=-1) if isinstance(each, Data) and each[:2] == identity else each for each in log
        )
        entry = Data(*identity, sequence, self.log(partition)[-1].committed is None, None, row)
        logs = list(self.cluster.logs)
        logs[partition] = (*older, entry)
        self.cluster = self.cluster._replace(logs=tuple(logs))
        self.written[partition] = [each for each in self.written[partition] if each[:2] != identity]

    # markers

    def write_markers_soon(self) -> None:
        for name, found in self.cluster.transactions:
            for partition in found.missing:
                marker = (name, found.producer_epoch, partition)
                if marker not in self._markers:
                    self._markers.add(marker)
                    self.after(self.markers_after_ms, lambda marker=marker: self._write_marker(*marker))  # type: ignore[misc]

    def _write_marker(self, transactional_id: str, producer_epoch: int, partition: int) -> None:
        self._markers.discard((transactional_id, producer_epoch, partition))
        found = self.cluster.transaction(transactional_id)
        if found is not None and found.producer_epoch == producer_epoch and partition in found.missing:
            self.cluster = kafka.write_marker(self.cluster, transactional_id, partition)
