"""Notice that the commit log of a write id was lost (NEW LOG).

The first plan of a write id appends its barrier before its first InitProducerId. From then on the coordinator knows W.driver only if the
log has a record of the write, unless that log was deleted or is another one. The history of finished batches is the second witness, for
ids that the coordinator has forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kafka_eos_sink.commit import refusals
from kafka_eos_sink.commit.procedure import Procedure, Step
from kafka_eos_sink.commit.steps import DescribeTransactions, TransactionDescription
from kafka_eos_sink.commit.transactional_id import BATCH_QUERY_ID
from kafka_eos_sink.commit.values import BatchIdentity, Decision, Write, iso_utc
from kafka_eos_sink.errors import Job, WriteRefusedError

MOST_SHOWN = 8
"""Records of the history that are read and named."""


@dataclass(frozen=True, slots=True)
class ReadHistory(Step[tuple["InHistory", ...]]):
    """Read the newest records of a write id in the history topic.

    Result: the newest first. It is empty without a history, and if the history cannot be read in a few seconds.
    """

    write_id: str

    def subject(self) -> str:
        return self.write_id


@dataclass(frozen=True, slots=True, kw_only=True)
class InHistory:
    """A version that was finished once, by the history."""

    version: int
    finished_ms: int
    application_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """What its coordinator and the history know of a write id; false if nothing."""

    known: TransactionDescription | None = None
    history: Sequence[InHistory] = ()

    def __bool__(self) -> bool:
        return self.known is not None or bool(self.history)


def was_used(write: Write) -> Procedure[Used]:
    """Ask the coordinator and the history for a write id that the log lacks."""
    described = yield from DescribeTransactions((write.driver_id,))
    history = yield from ReadHistory(write.id)
    return Used(known=described.get(write.driver_id), history=history)


def commit_log_lost(write: Write, batch: BatchIdentity | None, by: Used) -> WriteRefusedError:
    """The coordinator or the history knows the id that the log lacks."""
    known, history = by.known, by.history
    used = [
        "its coordinator knows its driver"
        + (f", whose last transaction began at {iso_utc(known.start_time_ms)}" if known.start_time_ms > 0 else "")
        if known is not None
        else "",
        "the history shows version "
        + refusals.some(
            [f"{each.version} (finished {iso_utc(each.finished_ms)}, {each.application_id})" for each in history]
        )
        if history
        else "",
    ]
    found = f"holds nothing of write id {write.id!r}, which has been used before: {', and '.join(filter(None, used))}"
    if batch is not None and batch.streaming and batch.version > 0:
        return not_the_next_version(write, batch, None, f"{found}. The log was deleted, or is another one")
    begin_again = write.command("recover", "--abort-unknown")
    is_stream = refusals.job_of(write.id) is Job.STREAM if batch is None else batch.streaming
    if not is_stream:
        # The history may hold more records than were read, and versions above the recorded one would be written again.
        highest: int | str = "N" if len(history) >= MOST_SHOWN else max((each.version for each in history), default="N")
        of_batch = f"--query-id {BATCH_QUERY_ID}"
        count = refusals.resolve_command(write, BATCH_QUERY_ID, highest, "committed")
        do = (
            "Otherwise find the highest version in the topic (isolation.level=read_committed). To record that it and all lower ones are "
            f"written{', with its number as N' if highest == 'N' else ''}: {count} {of_batch}; "
            "write the rows of lower versions that the topic lacks with a new txnVersion; to begin from nothing instead, so that a "
            f"version is written once more if its job runs again: {begin_again}"
        )
    else:
        first = ""
        if batch is not None and batch.query_id:
            count = refusals.resolve_command(write, batch.query_id, batch.version, "committed")
            first = (
                "If the query has run before from this checkpoint, and the topic (isolation.level=read_committed) holds all rows of its "
                f"first batch (offsets/0 in the checkpoint): {count}; if it holds none of them: {begin_again}; "
            )
        do = (
            f"{first}{'a' if first else 'A'} query that is new needs another transactional.id.prefix. If the checkpoint was lost together "
            "with the log, find out up to where the topic holds the source's rows (with source.offsets.group=G, run: "
            f"{write.offsets_command('G')}; it shows where the decided rows end). Begin behind them (startingOffsets), after this "
            f"command: {begin_again}"
        )
    return WriteRefusedError(
        "COMMIT_LOG_LOST",
        f"this run wrote nothing: the commit log {write.log_topic!r} {found}. The log was deleted, or is another one",
        "If kafka.bootstrap.servers, commit.log.topic or transactional.id.prefix has changed, change it back and run again. "
        + do,
    )


def not_the_next_version(
    write: Write, batch: BatchIdentity, newest: Decision | None, found: str = ""
) -> WriteRefusedError:
    """The log lacks a stream's previous batch, so nothing proves if this was written.

    Args:
        newest: The newest decision of the query; None if the log has none.
        found: What proves that the log was lost; empty if nothing does. Then most queries wrote with another sink.
    """
    before, this = batch.version - 1, batch.version
    if newest is not None:
        found = (
            f"of write id {write.id!r} ends at batch {newest.version} of query {batch.query_id}. Another sink, or "
            f"delivery.guarantee=at-least-once, has written the batches up to {before}, or this log is an older copy or another one"
        )
    is_unknown = not found
    found = found or (
        f"has no batch of query {batch.query_id} under write id {write.id!r}. This query wrote with another sink until now, the file "
        "metadata of its checkpoint was lost or replaced, or the log was lost or is another one"
    )
    changed = "If kafka.bootstrap.servers, commit.log.topic or transactional.id.prefix has changed, change it back and restart the query"
    up_to = [refusals.resolve_command(write, batch.query_id, version, "committed") for version in (before, this)]
    compare = (
        f"compare the topic (isolation.level=read_committed) with the source offsets in the checkpoint's files offsets/{before} "
        f"and offsets/{this}. With source.offsets.group=G, run: {write.offsets_command('G')}; it shows the offsets at which the last "
        f"decided batch ends. Then run one command, and restart the query. All rows of batch {before} and none of batch {this} are there, "
        f"as if the query was idle when it stopped: {up_to[0]}; all of both are there, as after a crash between commit and checkpoint: "
        f"{up_to[1]}; in any other case the commands would lose or double rows, so write what is missing by hand first"
    )
    return WriteRefusedError(
        "COMMIT_LOG_LOST",
        f"this run wrote nothing of batch {this}: the commit log {found}",
        f"After another sink, {compare}. If metadata was lost or replaced, restore it. {changed}"
        if is_unknown
        else f"{changed}. Otherwise {compare}",
    )
