"""The invariants of the protocol as checks on what the simulation does.

Each check returns what is wrong as a sentence, or None. Those that look at a cluster alone run once per distinct cluster; those that
look at a request run once per distinct (cluster, request). I5 (a message leaves only when every produce is acknowledged), I13 and I14 have
no check of their own: the performer cannot hand over earlier, compaction and other query ids are part of the
simulation, and a wait that depends on a later step is a state that never succeeds (`World.recover_from`).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.log_records import LogKey, parse_key
from kafka_eos_sink.commit.steps import FREE_STATES
from kafka_eos_sink.commit.transactional_id import driver_transactional_id, parse

from . import simulated_cluster as kafka
from .simulated_cluster import LOG, Cluster, Control, Data


@lru_cache(maxsize=100_000)
def _key(key: bytes) -> LogKey | None:
    return parse_key(key)


@lru_cache(maxsize=100_000)
def _decision(*pieces: bytes) -> dict[str, Any]:
    return dict(json.loads("".join(json.loads(piece)["body"] for piece in pieces)))


class _Torn(Exception):
    """A decision of which some pieces are committed, and not all."""


class Decided:
    """A decision in the log whose transaction was committed, as the log's truth has it (compaction or not)."""

    __slots__ = ("fields", "offset", "query_id", "write_id")

    def __init__(self, key: LogKey, fields: dict[str, Any], offset: int) -> None:
        self.write_id, self.query_id, self.fields, self.offset = key.write_id, key.query_id, fields, offset

    @property
    def version(self) -> int:
        return int(self.fields["version"])

    def identities(self) -> dict[tuple[str, int, int], list[dict[str, Any]]]:
        """The entries of each transaction: one of them may be proven, and another one noted."""
        found: dict[tuple[str, int, int], list[dict[str, Any]]] = defaultdict(list)
        for entry in self.fields["transactions"]:
            identity = entry["identity"]
            found[identity["transactional_id"], identity["producer_id"], identity["producer_epoch"]].append(entry)
        return dict(found)


def decisions(cluster: Cluster) -> tuple[Decided, ...]:
    """All decisions ever committed, in log order; tombstones are not decisions.

    Raises `_Torn`, which `check_cluster` has found before anybody else could meet it.
    """
    ended = kafka.outcomes(cluster, LOG)
    found = []
    for offset, entry in enumerate(cluster.logs[LOG]):
        if not isinstance(entry, Data) or not ended[offset] or not entry.transactional or entry.value is None:
            continue
        if not _ended_by_its_own(cluster, offset, entry):
            continue  # its marker is missing and a later transaction's closed it: it must not count as decided
        key = _key(entry.key)
        if key is None or key.kind != "decision" or key.rest != (0,):
            continue
        fields = json.loads(entry.value)
        pieces = [
            each.value
            for each in cluster.logs[LOG][offset:]
            if isinstance(each, Data)
            and each.value is not None
            and (each.producer_id, each.producer_epoch) == (entry.producer_id, entry.producer_epoch)
            and fields["nonce"] == json.loads(each.value).get("nonce")
            and _key(each.key).kind == "decision"
        ]
        if len(pieces) < fields["count"]:
            raise _Torn(
                f"I12: of the decision at offset {offset} {len(pieces)} of {fields['count']} records are committed"
            )
        # Below version 2 the same driver may decide it again under the same nonce.
        found.append(Decided(key, _decision(*pieces[: fields["count"]]), offset))
    return tuple(found)


def _ended_by_its_own(cluster: Cluster, offset: int, entry: Data) -> bool:
    marker = next(
        each
        for each in cluster.logs[LOG][offset:]
        if isinstance(each, Control) and each.producer_id == entry.producer_id
    )
    return marker.producer_epoch == entry.producer_epoch + (1 if cluster.version >= 2 else 0)


def _name(entry: dict[str, Any]) -> tuple[str, int, int]:
    identity = entry["identity"]
    return identity["transactional_id"], identity["producer_id"], identity["producer_epoch"]


def _range_outcomes(cluster: Cluster, entry: dict[str, Any]) -> dict[tuple[int, int], bool | None]:
    """Data partition and first offset of each range of a named transaction, and what became of its rows."""
    return {
        (1 + partition, first): kafka.outcomes(cluster, 1 + partition)[first]
        for _, partition, first, *_ in entry["offsets"]
    }


def _is_to_commit(cluster: Cluster, name: tuple[str, int, int], naming: Sequence[Decided]) -> bool:
    """Whether a transaction that these decisions name is open in a range, and was not noted before a discard.

    What is noted, nobody commits: a LATE ADD may have opened it again, and an ABORT must end that.
    """
    entries = [entry for found in naming for entry in found.identities()[name]]
    is_open = any(None in _range_outcomes(cluster, entry).values() for entry in entries)
    return is_open and all(entry.get("ended") is None for entry in entries)


def counts_as_written(cluster: Cluster, write_id: str, query_id: str, version: int) -> bool:
    """Whether an operator has resolved a version as committed."""
    return any(
        (each.write_id, each.query_id, each.version, each.fields["resolution"])
        == (write_id, query_id, version, "committed")
        for each in decisions(cluster)
    )


def check_cluster(cluster: Cluster, rewrite: bool = False, streaming: bool = False) -> str | None:
    """As `_check_cluster`, and no part of a decision is committed without the rest (I12)."""
    try:
        return _check_cluster(cluster, rewrite, streaming)
    except _Torn as torn:
        return str(torn)


def _check_cluster(cluster: Cluster, rewrite: bool, streaming: bool) -> str | None:
    """At most once (I6), the chain of decisions (I2), decisions and parts only where they belong (I12), and none above a gap (I16)."""
    seen: set[Any] = set()
    for partition in range(1, len(cluster.logs)):
        ended = kafka.outcomes(cluster, partition)
        for offset, entry in enumerate(cluster.logs[partition]):
            if isinstance(entry, Control) or not ended[offset] or not _is_row(entry.key):
                continue
            if entry.key in seen and not rewrite:
                return f"at most once: row {entry.key} is visible twice (again in data partition {partition} at offset {offset})"
            seen.add(entry.key)
    chain: dict[tuple[str, str, int], Decided] = {}
    newest: dict[tuple[str, str], int] = {}
    for found in decisions(cluster):
        before = newest.get((found.write_id, found.query_id), -1)
        newest[found.write_id, found.query_id] = found.version
        if streaming and found.version > before + 1:
            return f"I16: the decision at offset {found.offset} is of version {found.version}, and the one before it of {before}"
        name = (found.write_id, found.query_id, found.version)
        earlier = chain.get(name)
        chain[name] = found
        if earlier is None or rewrite or found.fields["resolution"]:
            continue  # what an operator may replace is checked where the command ends
        mine = {
            where: entry["proven"]
            for entry in found.fields["transactions"]
            for where in _range_outcomes(cluster, entry)
        }
        for entry in earlier.fields["transactions"]:
            for where, truth in _range_outcomes(cluster, entry).items():
                if mine.get(where) and not truth:
                    return f"I2: the decision at offset {found.offset} calls the rows at {where} proven, which are not visible"
                if where not in mine and truth is not False:
                    return (
                        f"I2: the decision at offset {found.offset} replaces the rows at {where} of the one at offset {earlier.offset}, "
                        f"which are {'visible' if truth else 'not ended'}"
                    )
    return None


def _is_row(key: Any) -> bool:
    return isinstance(key, tuple) and key[0] == "row"


def check_request(
    cluster: Cluster, request: tuple[Any, ...], after: Cluster, write_ids: tuple[str, ...], *, voids: bool = False
) -> str | None:
    """I1, I3, I9, I11, I12 and foreign transactions, at the moment a request is processed.

    ``voids``: an operator may abort what a decision names, to make its version void.
    """
    match request:
        case ("end", identity, commit, version):
            owner = owner_of(identity.transactional_id, write_ids)
            if owner is None:
                return f"foreign: EndTxn of {identity.transactional_id}, which is no id of {write_ids}"
            if version != (5 if identity.version >= 2 else 4):
                return f"I9: EndTxn v{version} of {identity.transactional_id}, whose transaction has version {identity.version}"
            if owner == "driver":
                return None
            name = (identity.transactional_id, identity.producer_id, identity.producer_epoch)
            naming = [found for found in decisions(cluster) if name in found.identities()]
            if commit and not naming:
                return f"I1: EndTxn(commit) of {name}, which no decision with a COMMIT marker names"
            if not commit and _is_to_commit(cluster, name, naming) and after is not cluster and not voids:
                return f"I3: EndTxn(abort) of {name}, which the decision at offset {naming[-1].offset} names"
        case ("init", transactional_id, _):
            if owner_of(transactional_id, write_ids) is None:
                return f"foreign: InitProducerId of {transactional_id}, which is no id of {write_ids}"
        case ("produce", identity, partition, _, records) if partition == LOG:
            for key, value in records:
                parsed = _key(key)
                if parsed is None:
                    return f"a record with the key {key!r} in the commit log is none of ours"
                in_driver = identity is not None and identity.transactional_id == driver_transactional_id(
                    parsed.write_id
                )
                if parsed.kind == "decision" and not in_driver:
                    return f"I12: a decision key written by {identity}"
                if parsed.kind == "decision" and value is not None and "body" not in json.loads(value):
                    return "I12: a record that is no decision under a decision's key"
                if parsed.kind == "part" and value is not None and (identity is None or in_driver):
                    return f"I12: a part record that is not in its task's transaction, but written by {identity}"
    return None


def initialises_named(cluster: Cluster, request: tuple[Any, ...]) -> str | None:
    """I3 for InitProducerId: allowed only to an attempt that was paused between the two requests of its second step."""
    found = cluster.transaction(request[1])
    if found is None or found.state != kafka.ONGOING:
        return None
    name = (request[1], found.producer_id, found.producer_epoch)
    if _is_to_commit(cluster, name, [decided for decided in decisions(cluster) if name in decided.identities()]):
        return f"I3: InitProducerId of {request[1]}, whose open transaction a decision names"
    return None


DECIDING = ("commit", "plan", "abort", "resolve")
"""Procedures that write decisions: the batch's own, or that of copies."""


def remember(kind: str, memory: Any, step: Any, answer: Any) -> Any:
    """What `initialises_named` and `decides_unchecked` need of a procedure's past.

    The ids that it was told last carry a transaction, until it has an identity; and of one that decides, the identities that it saw
    open, until its decision is written.
    """
    if isinstance(step, steps.DescribeTransactions) and isinstance(answer, dict):
        busy = frozenset(name for name, found in answer.items() if found is not None and found.state not in FREE_STATES)
        if kind == "task":
            return busy
        if kind in DECIDING:
            shown = {
                (name, found.producer_id, found.producer_epoch)
                for name, found in answer.items()
                if found is not None and found.state == kafka.ONGOING
            }
            before = {each for each in memory or () if isinstance(each, tuple)}
            return frozenset(shown | before) | busy
    if isinstance(step, (steps.InitProducerId, steps.AppendInTransaction)):
        return None
    return memory


def decides_unchecked(cluster: Cluster, records: tuple[tuple[bytes, bytes | None], ...], memory: Any) -> str | None:
    """Commit 2: whoever decides has seen every transaction that it lists open under its own identity, or repeats a decision."""
    decided = {_name(entry) for each in decisions(cluster) for entry in each.fields["transactions"]}
    for key, value in records:
        parsed = _key(key)
        if value is None or parsed is None or parsed.kind != "decision" or json.loads(value)["count"] > 1:
            continue
        for entry in _decision(value)["transactions"]:
            if not entry["proven"] and _name(entry) not in (memory or ()) and _name(entry) not in decided:
                return f"check: the decision names {entry['identity']}, which its driver did not see open"
    return None


def owner_of(transactional_id: str, write_ids: tuple[str, ...]) -> str | None:
    for write_id in write_ids:
        if transactional_id == driver_transactional_id(write_id):
            return "driver"
        if parse(transactional_id, write_id) is not None:
            return "task"
    return None


def visible_rows(cluster: Cluster, ignoring: frozenset[int] = frozenset()) -> dict[Any, int]:
    """How often a read_committed consumer meets each row; ``ignoring``: others' open transactions do not hold it up."""
    seen: dict[Any, int] = {}
    for partition in range(1, len(cluster.logs)):
        ended = kafka.outcomes(cluster, partition)
        opened = kafka.open_transactions(cluster, partition)
        stable = min(
            (first for producer_id, (first, _) in opened.items() if producer_id not in ignoring),
            default=len(cluster.logs[partition]),
        )
        for offset, entry in enumerate(cluster.logs[partition][:stable]):
            if isinstance(entry, Data) and ended[offset] and _is_row(entry.key):
                seen[entry.key] = seen.get(entry.key, 0) + 1
    return seen


def committed_rows(cluster: Cluster) -> set[Any]:
    """Rows whose transaction has its COMMIT marker, whoever else holds up the readers before them."""
    seen = set()
    for partition in range(1, len(cluster.logs)):
        ended = kafka.outcomes(cluster, partition)
        for offset, entry in enumerate(cluster.logs[partition]):
            if isinstance(entry, Data) and ended[offset] and _is_row(entry.key):
                seen.add(entry.key)
    return seen


def held_rows(cluster: Cluster) -> set[Any]:
    """Rows of which a partition holds a record that a decision lists, however it ended; no later run knows of other records."""
    entries = (
        cluster.logs[1 + partition][offset]
        for found in decisions(cluster)
        for listed in found.fields["transactions"]
        for _, partition, first, last, *_ in listed["offsets"]
        for offset in range(first, last + 1)
    )
    return {entry.key for entry in entries if isinstance(entry, Data) and not entry.gone}


def hanging_ids(cluster: Cluster, write_ids: tuple[str, ...]) -> tuple[str, ...]:
    """Transactional ids of ours that a partition holds open although their coordinator has ended them."""
    ended = {
        found.producer_id: name
        for name, found in cluster.transactions
        if found.state not in (kafka.ONGOING, *kafka.PREPARING) and owner_of(name, write_ids) is not None
    }
    held = {each for partition in range(len(cluster.logs)) for each in kafka.open_transactions(cluster, partition)}
    return tuple(sorted(ended[producer_id] for producer_id in held & ended.keys()))


def open_ids(cluster: Cluster, write_ids: tuple[str, ...]) -> tuple[str, ...]:
    """Transactional ids of ours that carry a transaction."""
    return tuple(
        name
        for name, found in cluster.transactions
        if found.state in (kafka.ONGOING, *kafka.PREPARING) and owner_of(name, write_ids) is not None
    )
