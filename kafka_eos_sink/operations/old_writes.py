"""Find the writes of a prefix that are at rest, and what keeps the others."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from kafka_eos_sink.client.admin import connected
from kafka_eos_sink.commit.transactional_id import write_id_of
from kafka_eos_sink.commit.values import iso_utc
from kafka_eos_sink.commit.write_states import ENDED, CommittedWrite
from kafka_eos_sink.operations.operator import OperatorSettings
from kafka_eos_sink.operations.transactions import open_transactions
from kafka_eos_sink.operations.write_status import CommitLogWatch


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


def find_old_writes(settings: OperatorSettings, prefix: str, older_than_ms: int) -> OldWrites:
    """Sort out the writes of a prefix, from commit log and open transactions.

    Raises:
        BrokerRefusedError: NO_COMMIT_LOG.
        AuthorizationError, BrokerUnavailableError.
    """
    with connected(settings.client) as admin:
        # In this order: a transaction that begins later belongs to a run, which the fence of the forgetting finds.
        writes = CommitLogWatch(admin, settings.commit_log_topic, timeout_ms=settings.timeout_ms).writes()
        opened = {write_id_of(each.transactional_id) for each in open_transactions(admin, settings.timeout_ms)}
    before_ms = time.time_ns() // 1_000_000 - older_than_ms
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
