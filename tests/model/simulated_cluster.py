"""A Kafka cluster as a value: transaction coordinators, logs, markers. A request maps one cluster to the next and an answer.

What is modelled is what the commit protocol can see: the coordinator's states and epochs under transaction versions 0 and 2
(KIP-360, KIP-890), markers that are written after EndTxn was answered and on one partition at a time, the last stable
offset, aborted transactions, sequence numbers, and compaction. Brokers do not fail here: a request that meets a dead
broker is one that was not processed, or whose answer was lost, and both belong to whoever sends requests.

Everything is an immutable tuple, so that clusters can be hashed, shared and compared. Producer ids are a function of the
transactional id and of how often it expired, instead of a counter: producer ids are opaque to the protocol, and two orders of
the same allocations are then one state.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

LOG = 0
"""The partition of the commit log; data partitions follow."""

NONE = 0
INVALID_PRODUCER_EPOCH = 47
INVALID_TXN_STATE = 48
INVALID_PRODUCER_ID_MAPPING = 49
OUT_OF_ORDER_SEQUENCE_NUMBER = 45
UNSUPPORTED_VERSION = 35
PRODUCER_FENCED = 90
TRANSACTION_ABORTABLE = 120

EMPTY, ONGOING = "Empty", "Ongoing"
PREPARE_COMMIT, PREPARE_ABORT = "PrepareCommit", "PrepareAbort"
COMPLETE_COMMIT, COMPLETE_ABORT = "CompleteCommit", "CompleteAbort"
PREPARING = (PREPARE_COMMIT, PREPARE_ABORT)

SEQUENCES = 2**31
"""Sequence numbers run from 0 to 2147483647 and then start at 0 again."""


class Blocked:
    """The broker answers with a retriable code (CONCURRENT_TRANSACTIONS): whoever asked repeats the identical request."""

    def __repr__(self) -> str:
        return "CONCURRENT_TRANSACTIONS"


BLOCKED = Blocked()


class Identity(NamedTuple):
    """Who writes; the transactional id is empty for a producer that is only idempotent."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    version: int


class Transaction(NamedTuple):
    """The coordinator's entry of a transactional id; ``missing`` are partitions whose marker is still to be written."""

    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    partitions: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    ended_version: int = 0
    """EndTxn version that prepared the end; -1 where the coordinator did it itself."""


class Data(NamedTuple):
    """A record of a log. ``gone``: compaction removed it."""

    producer_id: int
    producer_epoch: int
    sequence: int
    transactional: bool
    key: Any
    value: Any
    gone: bool = False


class Control(NamedTuple):
    """A control batch. ``kept``: "record" as written, "batch" without its record, "no" for removed."""

    producer_id: int
    producer_epoch: int
    commit: bool
    kept: str = "record"


class Cluster(NamedTuple):
    version: int
    """The finalized feature transaction.version."""
    transactions: tuple[tuple[str, Transaction], ...]
    logs: tuple[tuple[Data | Control, ...], ...]
    expired: tuple[tuple[str, int], ...] = ()
    verifies: bool = True
    """Whether leaders ask the coordinator before they begin a transaction (KIP-890 part 1, Kafka 3.6); they always do from version 2."""

    def transaction(self, transactional_id: str) -> Transaction | None:
        return next((found for name, found in self.transactions if name == transactional_id), None)

    def with_transaction(self, transactional_id: str, changed: Transaction | None) -> Cluster:
        kept = [entry for entry in self.transactions if entry[0] != transactional_id]
        if changed is not None:
            kept.append((transactional_id, changed))
        return self._replace(transactions=tuple(sorted(kept)))

    def with_appended(self, partition: int, *entries: Data | Control) -> Cluster:
        logs = list(self.logs)
        logs[partition] = logs[partition] + entries
        return self._replace(logs=tuple(logs))


def empty_cluster(version: int, data_partitions: int, verifies: bool = True) -> Cluster:
    return Cluster(version, (), ((),) * (1 + data_partitions), verifies=verifies)


_TASK_ID = re.compile(r"^(.*)\.(\d+)\.(\d+)$")


def producer_id_of(transactional_id: str, generation: int) -> int:
    """A readable, collision-free number for the handful of ids of a simulation."""
    found = _TASK_ID.match(transactional_id)
    owner = found[1] if found else transactional_id.rsplit(".", 1)[0]
    base = 10_000 * (sum(map(ord, owner)) % 89)
    base += 1_000 * (1 + int(found[2])) + 10 * int(found[3]) if found else 10
    return base + generation


# Logs


def open_transactions(cluster: Cluster, partition: int) -> dict[int, tuple[int, int]]:
    """Producer id to (first offset, epoch) of transactions without a marker in this partition."""
    found: dict[int, tuple[int, int]] = {}
    for offset, entry in enumerate(cluster.logs[partition]):
        if isinstance(entry, Control):
            found.pop(entry.producer_id, None)
        elif entry.transactional:
            found.setdefault(entry.producer_id, (offset, entry.producer_epoch))
    return found


def last_stable_offset(cluster: Cluster, partition: int) -> int:
    return min(
        (first for first, _ in open_transactions(cluster, partition).values()), default=len(cluster.logs[partition])
    )


def aborted_transactions(cluster: Cluster, partition: int, from_offset: int) -> tuple[tuple[int, int], ...]:
    """(producer id, first offset) of aborted transactions whose marker lies at or above an offset."""
    first: dict[int, int] = {}
    found = []
    for offset, entry in enumerate(cluster.logs[partition]):
        if isinstance(entry, Control):
            start = first.pop(entry.producer_id, None)
            if start is not None and not entry.commit and offset >= from_offset:
                found.append((entry.producer_id, start))
        elif entry.transactional:
            first.setdefault(entry.producer_id, offset)
    return tuple(found)


def outcomes(cluster: Cluster, partition: int) -> tuple[bool | None, ...]:
    """Per entry: True where a marker committed it (or it needs none), False where one aborted it, None while open."""
    log = cluster.logs[partition]
    found: list[bool | None] = [None] * len(log)
    waiting: dict[int, list[int]] = {}
    for offset, entry in enumerate(log):
        if isinstance(entry, Control):
            found[offset] = True
            for held in waiting.pop(entry.producer_id, ()):
                found[held] = entry.commit
        elif entry.transactional:
            waiting.setdefault(entry.producer_id, []).append(offset)
        else:
            found[offset] = True
    return tuple(found)


def _producer_state(cluster: Cluster, partition: int, producer_id: int) -> tuple[int, int]:
    """(epoch, next sequence) that the partition's leader remembers of a producer id; epoch -1 for none."""
    epoch, following = -1, 0
    for entry in cluster.logs[partition]:
        if entry.producer_id != producer_id:
            continue
        if isinstance(entry, Control):
            if entry.producer_epoch > epoch:
                epoch, following = entry.producer_epoch, 0
        else:
            epoch, following = entry.producer_epoch, (entry.sequence + 1) % SEQUENCES
    return epoch, following


# Requests: (cluster, ...) -> (cluster, answer)


def init_producer_id(cluster: Cluster, transactional_id: str, timeout_ms: int) -> tuple[Cluster, Any]:
    """Unconditional InitProducerId. Answer: (producer id, epoch), or BLOCKED while a transaction is being ended."""
    found = cluster.transaction(transactional_id)
    if found is None:
        generation = dict(cluster.expired).get(transactional_id, 0)
        created = Transaction(EMPTY, producer_id_of(transactional_id, generation), 0, timeout_ms)
        return cluster.with_transaction(transactional_id, created), (created.producer_id, 0)
    if found.state in PREPARING:
        return cluster, BLOCKED
    if found.state == ONGOING:
        return fence(cluster, transactional_id), BLOCKED
    bumped = Transaction(EMPTY, found.producer_id, found.producer_epoch + 1, timeout_ms)
    return cluster.with_transaction(transactional_id, bumped), (bumped.producer_id, bumped.producer_epoch)


def fence(cluster: Cluster, transactional_id: str) -> Cluster:
    """The coordinator ends an open transaction itself: another InitProducerId, or the timeout. Bumps the epoch once."""
    found = cluster.transaction(transactional_id)
    assert found is not None
    assert found.state == ONGOING
    return _prepare(cluster, transactional_id, found, PREPARE_ABORT, found.producer_epoch + 1, -1)


def _prepare(
    cluster: Cluster, transactional_id: str, found: Transaction, state: str, epoch: int, ended_version: int
) -> Cluster:
    prepared = found._replace(state=state, producer_epoch=epoch, missing=found.partitions, ended_version=ended_version)
    if not prepared.missing:
        prepared = prepared._replace(state=COMPLETE_COMMIT if state == PREPARE_COMMIT else COMPLETE_ABORT)
    return cluster.with_transaction(transactional_id, prepared)


def _check_add(cluster: Cluster, identity: Identity) -> int | Blocked:
    found = cluster.transaction(identity.transactional_id)
    if found is None or found.producer_id != identity.producer_id:
        return INVALID_PRODUCER_ID_MAPPING
    if found.producer_epoch != identity.producer_epoch:
        return PRODUCER_FENCED
    if found.state in PREPARING:
        return BLOCKED
    return NONE


def _add(cluster: Cluster, transactional_id: str, partition: int) -> Cluster:
    found = cluster.transaction(transactional_id)
    assert found is not None
    partitions = found.partitions if found.state == ONGOING else ()
    if found.state == ONGOING and partition in partitions:
        return cluster
    added = found._replace(
        state=ONGOING, partitions=tuple(sorted({*partitions, partition})), missing=(), ended_version=0
    )
    return cluster.with_transaction(transactional_id, added)


def add_partition(cluster: Cluster, identity: Identity, partition: int) -> tuple[Cluster, Any]:
    """AddPartitionsToTxn v3: opens the transaction, or re-opens an ended one under the same epoch. Answer: error code or BLOCKED."""
    error = _check_add(cluster, identity)
    if error != NONE:
        return cluster, error
    return _add(cluster, identity.transactional_id, partition), NONE


def produce(
    cluster: Cluster, identity: Identity | None, partition: int, sequence: int, records: tuple[tuple[Any, Any], ...]
) -> tuple[Cluster, Any]:
    """Append a batch. Answer: (error code, base offset), or BLOCKED.

    From version 2 the leader adds its partition to the transaction; below, it asks the coordinator whether that was done.
    Either is left out where the transaction is already open in this partition.
    """
    log = cluster.logs[partition]
    if identity is None:
        entries = tuple(Data(-1, -1, -1, False, key, value) for key, value in records)
        return cluster.with_appended(partition, *entries), (NONE, len(log))
    producer_id, epoch = identity.producer_id, identity.producer_epoch
    transactional = bool(identity.transactional_id)
    opened = open_transactions(cluster, partition).get(producer_id)
    begins = opened is None or opened[1] != epoch
    if transactional and begins and (identity.version >= 2 or cluster.verifies):
        error = _check_add(cluster, identity)
        if error == BLOCKED:
            return cluster, BLOCKED
        if error != NONE:
            return cluster, (INVALID_PRODUCER_EPOCH if error == PRODUCER_FENCED else error, -1)
        if identity.version >= 2:
            cluster = _add(cluster, identity.transactional_id, partition)
        else:
            found = cluster.transaction(identity.transactional_id)
            assert found is not None
            if found.state != ONGOING or partition not in found.partitions:
                return cluster, (TRANSACTION_ABORTABLE, -1)
    last_epoch, following = _producer_state(cluster, partition, producer_id)
    if epoch < last_epoch:
        return cluster, (INVALID_PRODUCER_EPOCH, -1)
    if epoch == last_epoch:
        for offset, entry in enumerate(log):
            same = isinstance(entry, Data) and entry.producer_id == producer_id and entry.producer_epoch == epoch
            if same and entry.sequence == sequence:  # type: ignore[union-attr]
                return cluster, (NONE, offset)  # the bytes are not compared: the first wins
    # Below version 2 a leader that knows nothing of a producer id takes any sequence number.
    if (last_epoch >= 0 or identity.version >= 2) and sequence != (following if epoch == last_epoch else 0):
        return cluster, (OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    entries = tuple(
        Data(producer_id, epoch, (sequence + index) % SEQUENCES, transactional, key, value)
        for index, (key, value) in enumerate(records)
    )
    return cluster.with_appended(partition, *entries), (NONE, len(log))


def end_txn(cluster: Cluster, identity: Identity, commit: bool, version: int) -> tuple[Cluster, Any]:
    """EndTxn in an API version. Answer: (error code, producer id, epoch), or BLOCKED (TransactionCoordinator.endTransaction)."""
    bumps = version >= 5
    if bumps and cluster.version < 2:
        return cluster, (UNSUPPORTED_VERSION, -1, -1)
    found = cluster.transaction(identity.transactional_id)
    if found is None or found.producer_id != identity.producer_id:
        return cluster, (INVALID_PRODUCER_ID_MAPPING, -1, -1)
    epoch, current, state = identity.producer_epoch, found.producer_epoch, found.state
    prepare = PREPARE_COMMIT if commit else PREPARE_ABORT
    complete = COMPLETE_COMMIT if commit else COMPLETE_ABORT
    repeated = bumps and current == epoch + 1
    if bumps and state in PREPARING:
        valid = repeated
    elif bumps and state in (COMPLETE_COMMIT, COMPLETE_ABORT):
        valid = repeated or epoch == current
    else:
        valid = epoch == current
    if not valid:
        return cluster, (PRODUCER_FENCED, -1, -1)
    if state == ONGOING:
        after = _prepare(cluster, identity.transactional_id, found, prepare, current + 1 if bumps else current, version)
        return after, _ended(found.producer_id, current + 1, bumps)
    if state == prepare:
        return cluster, BLOCKED
    if state == complete and (repeated or not bumps):
        return cluster, _ended(found.producer_id, current, bumps)
    if bumps and not commit and not repeated and state not in PREPARING:
        # KIP-890: an abort of a transaction to which nothing was added still bumps the epoch.
        idle = found._replace(partitions=())
        return (
            _prepare(cluster, identity.transactional_id, idle, PREPARE_ABORT, current + 1, version),
            _ended(found.producer_id, current + 1, True),
        )
    return cluster, (INVALID_TXN_STATE, -1, -1)


def _ended(producer_id: int, producer_epoch: int, bumps: bool) -> tuple[int, int, int]:
    return (NONE, producer_id, producer_epoch) if bumps else (NONE, -1, -1)


# What the cluster does on its own, and what others do to it


def write_marker(cluster: Cluster, transactional_id: str, partition: int, skipped: bool = False) -> Cluster:
    """The coordinator's marker reaches one partition. ``skipped``: KAFKA-20734, the partition has no leader and gets no marker."""
    found = cluster.transaction(transactional_id)
    assert found is not None
    assert partition in found.missing
    if not skipped:
        cluster = cluster.with_appended(
            partition, Control(found.producer_id, found.producer_epoch, found.state == PREPARE_COMMIT)
        )
    missing = tuple(other for other in found.missing if other != partition)
    state = found.state
    if not missing:
        state = COMPLETE_COMMIT if state == PREPARE_COMMIT else COMPLETE_ABORT
    return cluster.with_transaction(transactional_id, found._replace(missing=missing, state=state))


def write_marker_by_hand(cluster: Cluster, partition: int, producer_id: int, commit: bool) -> Cluster:
    """WriteTxnMarkers by an administrator, who read the epoch from DescribeProducers; the coordinator knows nothing of it."""
    _, epoch = open_transactions(cluster, partition)[producer_id]
    return cluster.with_appended(partition, Control(producer_id, epoch + (1 if cluster.version >= 2 else 0), commit))


def expire(cluster: Cluster, transactional_id: str) -> Cluster:
    """transactional.id.expiration.ms passed: the coordinator forgets an id that carries no transaction."""
    generations = dict(cluster.expired)
    generations[transactional_id] = generations.get(transactional_id, 0) + 1
    return cluster.with_transaction(transactional_id, None)._replace(expired=tuple(sorted(generations.items())))


def compact(cluster: Cluster, markers: str) -> Cluster:
    """The cleaner passes over the commit log up to the last stable offset (the newest entry is in the active segment).

    Drops aborted records and those under a newer committed one of their key; ``markers`` says what becomes of control batches
    whose transaction has no record left: "record" (stay), "batch" (stay empty), "no" (gone).
    """
    log = cluster.logs[LOG]
    ended = outcomes(cluster, LOG)
    end = min(last_stable_offset(cluster, LOG), len(log) - 1)
    newest = {
        entry.key: offset
        for offset, entry in enumerate(log[:end])
        if isinstance(entry, Data) and ended[offset] and not entry.gone
    }
    cleaned: list[Data | Control] = list(log)
    for offset, entry in enumerate(log[:end]):
        if isinstance(entry, Data) and (not ended[offset] or newest.get(entry.key) != offset):
            cleaned[offset] = entry._replace(gone=True)
    records_left: dict[int, bool] = {}
    for offset, entry in enumerate(cleaned[:end]):
        if isinstance(entry, Control):
            if not records_left.pop(entry.producer_id, False) and entry.kept == "record":
                cleaned[offset] = entry._replace(kept=markers)
        elif not entry.gone:
            records_left[entry.producer_id] = True
    return cluster._replace(logs=(tuple(cleaned), *cluster.logs[1:]))


def clean(cluster: Cluster) -> Cluster:
    """The cleaner passes over the data partitions: aborted records below the last stable offset are gone."""
    logs = [cluster.logs[LOG]]
    for partition in range(1, len(cluster.logs)):
        ended = outcomes(cluster, partition)
        end = last_stable_offset(cluster, partition)
        logs.append(
            tuple(
                entry._replace(gone=True)
                if isinstance(entry, Data) and offset < end and ended[offset] is False
                else entry
                for offset, entry in enumerate(cluster.logs[partition])
            )
        )
    return cluster._replace(logs=tuple(logs))
