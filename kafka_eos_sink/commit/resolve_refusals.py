"""The error texts and warnings of `resolve`, with the layout of `refusals`."""

from __future__ import annotations

from collections.abc import Sequence

from kafka_eos_sink.commit import refusals
from kafka_eos_sink.commit.log_view import QueryState
from kafka_eos_sink.commit.procedure import Answered
from kafka_eos_sink.commit.refusals import job_of, run_again, some, version_of
from kafka_eos_sink.commit.transactional_id import BATCH_QUERY_ID, if_transactional_id
from kafka_eos_sink.commit.values import Decision, OffsetRange, PreparedTransaction, ResolveRequest, Write
from kafka_eos_sink.commit.version_state import VersionState
from kafka_eos_sink.errors import FencedError, Job, KafkaEosError, TransactionAbortedError, WriteRefusedError
from kafka_eos_sink.protocol.identity import ProducerIdentity
from kafka_eos_sink.protocol.reactions import FENCED_BY_NEWER_OWNER

# before the fence: nothing was changed


def unknown_write_id(request: ResolveRequest) -> WriteRefusedError:
    """The commit log holds nothing of the write id, and the request has no query id."""
    if request.resolution == "rewrite":
        return refusals.unknown_write_id(
            request.run.write, "Nothing needs to be rewritten: its next run writes all rows, even if the topic has them"
        )
    return refusals.unknown_write_id(
        request.run.write,
        "If its commit log was lost, and the topic holds every row of the version, record that under its query id: "
        + _begin(request),
    )


def query_id_needed(request: ResolveRequest, known: Sequence[str]) -> WriteRefusedError:
    write, version = request.run.write, request.version
    if known:
        has = f"has {len(known)} query ids: {', '.join(map(repr, known))}"
        do = f"Name the one that wrote version {version}: " + "; or ".join(
            request.command(each, version) for each in known
        )
    else:
        has = "has no decided query id yet"
        do = (
            f"{_next_run(write, f'{run_again(write.id).capitalize()}: it writes what is not in the commit log')}. Only if the topic holds "
            f"every row of version {version} already, record that under its query id: {_begin(request)}"
        )
    return WriteRefusedError(
        "QUERY_ID_NEEDED", f"the commit log {has} for write id {write.id!r}. Nothing was changed", do
    )


def _next_run(write: Write, writes: str) -> str:
    """Return what the next run writes of a version that the commit log does not know."""
    return f"{refusals.FINISHED_OR_NOT_BEGUN}. {refusals.READ_TOPIC}" if write.is_random else writes


def impossible_query_id(request: ResolveRequest, query_id: str) -> WriteRefusedError:
    return WriteRefusedError(
        "QUERY_ID_NEEDED",
        f"write id {request.run.write.id!r} is that of a batch write, whose query id is {BATCH_QUERY_ID!r}, not {query_id!r}. Nothing was "
        "changed",
        f"Name that one: {_begin(request)}",
    )


def _begin(request: ResolveRequest) -> str:
    """Return the command for a query id that the commit log does not know."""
    if job_of(request.run.write.id) is Job.STREAM:
        return request.command("Q", request.version) + "; Q is the id in the checkpoint's file metadata"
    return request.command(BATCH_QUERY_ID, request.version)


def nothing_to_resolve(request: ResolveRequest, query: QueryState, others: Sequence[str]) -> WriteRefusedError:
    """The request's version is not the newest decided one of the query id."""
    write_id, newest, undecided = request.run.write.id, query.newest, query.undecided
    if newest is None:
        found = "the commit log holds no decision of it"
        found += f" (it holds some of {some([*map(repr, others)])})" if others else ""
    else:
        state = query.state_of(newest.decision).value
        found = f"it is not the newest decided version, which is version {newest.decision.version}, {state}"
    if undecided:
        found += (
            f"; the decision at offset {undecided[0].offset} of the commit log has no marker, so it counts for nothing: the next "
            "run writes its version again"
        )
    return WriteRefusedError(
        "NOTHING_TO_RESOLVE",
        f"version {request.version} of write id {write_id!r}, query id {query.query_id!r}, cannot be resolved as {request.resolution}: "
        f"{found}. Nothing was changed",
        f"See what the commit log holds: {request.run.write.command('status')}; "
        + _instead(request, query, None if newest is None else newest.decision),
    )


def _instead(request: ResolveRequest, query: QueryState, newest: Decision | None) -> str:
    """Return what to do about a version that is not the newest."""
    write, version = request.run.write, request.version
    writes_it = f"version {version} needs no resolution, because its next run writes it"
    if newest is None:
        return _next_run(write, writes_it)
    if query.query_id == BATCH_QUERY_ID and not newest.foreach_query:
        floor = newest.written_versions.floor
        if version >= floor and version not in newest.written_versions:
            return f"{writes_it}. If the topic holds its rows, do not run it"
        above = f", from {floor} on" if floor else ""
        return f"to correct version {version}, or to add rows that it lacks, write them with a new txnVersion{above}"
    if version < newest.version:
        return f"to correct batch {version}, or to add rows that it lacks, write them with a batch job under another txnAppId"
    if query.query_id == BATCH_QUERY_ID or request.resolution == "rewrite":
        return writes_it
    return _to_continue_above(request, query, newest)


def _to_continue_above(request: ResolveRequest, query: QueryState, newest: Decision) -> str:
    write, state = request.run.write, query.state_of(newest)
    if state.is_settled:
        # Any program with the right to write to the log can choose the query id.
        command = request.command(query.query_id, request.version)
        return f"to let the stream continue above version {request.version}: {command}"
    if state.needs_run:
        give_up = refusals.resolve_command(write, query.query_id, newest.version, "committed")
        return f"first {run_again(write.id)}, which writes version {newest.version}, or give its rows up: {give_up}"
    return f"first finish version {newest.version}: {write.command('recover')}; then run this command again"


def still_open(request: ResolveRequest, query_id: str, opened: Sequence[ProducerIdentity]) -> WriteRefusedError:
    """Reject open transactions: their batch would count as written, and be aborted."""
    write = request.run.write
    runs, stop = ("job", "the job") if query_id == BATCH_QUERY_ID else ("query", "the query")
    what = f"transactions of write id {write.id!r} are open (first: {opened[0].transactional_id}): its {runs} runs, or has died"
    do = f"Stop {stop}, and end what is open: {write.command('recover')}; then "
    if query_id == BATCH_QUERY_ID:
        do += (
            f"{run_again(write.id)}, which writes the rows of version {request.version} unless the commit log has it. Only if the topic "
            f"holds all of them already: {request.command(query_id, request.version)}"
        )
    else:
        do += f"start it. If it fails with COMMIT_LOG_LOST, run this command again: {request.command(query_id, request.version)}"
    return WriteRefusedError("NOTHING_TO_RESOLVE", what, do)


def begins_warning(request: ResolveRequest, query_id: str, others: Sequence[str], *, lacks_write: bool) -> str:
    """Warn of a version of which the commit log holds nothing: the query id begins."""
    write, version = request.run.write, request.version
    holds = f"NOTHING of write id {write.id!r}" if lacks_write else f"no decision of query id {query_id!r}"
    known = f" It holds query ids {some([*map(repr, others)])} of this write id." if others else ""
    hint = if_transactional_id(write.id) if lacks_write else ""
    return (
        f"The commit log holds {holds}.{known} Version {version}, and every version below it, would count as written: no run would "
        f"write their rows. Go on only if the commit log was lost, or another one holds them, and the topic holds every row. {hint}If an "
        f"id is mistyped, see those that the commit log holds: {write.status_of_all}"
    )


def settled_warning(decision: Decision, state: VersionState) -> str:
    return (
        f"{version_of(decision.version, decision.write_id)} is {state.value}, so it needs no record unless DIFFERENT_BATCH or "
        "DIFFERENT_QUERY names this command. With the record, its next run is skipped whatever rows and query it has, and "
        "kafka-eos status does not show its rows any more"
    )


def void_version_warning(decision: Decision) -> str:
    state = (
        "was resolved as rewrite, and no run has written it since: only rows that readers saw before are in the topic"
        if decision.resolution
        else "is VOID: readers see none of its rows, and nothing can copy them"
    )
    return (
        f"{version_of(decision.version, decision.write_id)} {state}. As committed, all other rows of it are given up. To write them "
        f"instead, {run_again(decision.write_id)}"
    )


# after the fence


def found_void(write: Write, decision: Decision) -> TransactionAbortedError:
    """`resolve --as committed`, and no row of the version is left."""
    give_up = refusals.resolve_command(write, decision.query_id, decision.version, "committed")
    return TransactionAbortedError(
        "NOT_RESOLVED",
        f"{version_of(decision.version, write.id)} is void now: readers see none of its rows, and recovery cannot copy them",
        f"To write them, {run_again(write.id)}. To give up all of its rows: {give_up}",
    )


def given_up_warning(decision: Decision, failure: KafkaEosError, aborted: Sequence[OffsetRange]) -> str:
    """``aborted`` holds the ranges of aborted records that the log still has."""
    rows = f", with the aborted rows in {some([*map(str, aborted)])} given up" if aborted else ""
    return (
        f"{version_of(decision.version, decision.write_id)} will count as written, and its next run will skip it{rows}, in spite of this "
        f"error of recovery: {failure.brief}"
    )


def counts_as_written(write: Write, decision: Decision, why: str) -> WriteRefusedError:
    return WriteRefusedError(
        "ROWS_ARE_VISIBLE",
        f"{version_of(decision.version, decision.write_id)} is not void: {why}",
        "Its next run skips it. To write the whole batch again, with its visible rows twice, run this, "
        f"{refusals.write_all_again(write, decision)} --allow-duplicates",
    )


def is_visible(write: Write, decision: Decision, visible: Sequence[PreparedTransaction]) -> WriteRefusedError:
    count = f"{len(visible)} of its {len(decision.transactions)} transactions are committed"
    return _not_void(write, decision, f"{count} ({refusals.describe_ranges(visible)})")


def may_be_visible(write: Write, decision: Decision, unproven: Sequence[PreparedTransaction]) -> WriteRefusedError:
    return _not_void(
        write,
        decision,
        f"nothing proves that {refusals.describe_ranges(unproven)} were aborted: readers may see these rows later, or have seen them",
        f"First discard what partitions hold open, if this prints commands for it: {write.command('recover')}; if you have looked then, "
        "and no row is visible, writing the whole batch doubles none. ",
    )


def _not_void(write: Write, decision: Decision, why: str, first: str = "") -> WriteRefusedError:
    return WriteRefusedError(
        "ROWS_ARE_VISIBLE",
        f"{version_of(decision.version, decision.write_id)} is not proven void: {why}",
        first + refusals.keep_or_rewrite(write, decision),
    )


def unrecorded(write: Write, decision: Decision, failed: Answered) -> FencedError | TransactionAbortedError:
    if failed.error in FENCED_BY_NEWER_OWNER:
        return FencedError(
            "FENCED",
            f"a job or query of write id {decision.write_id!r} has begun meanwhile and replaced this command",
            "Stop the job or query, and run this command again",
        )
    return TransactionAbortedError(
        "NOT_RESOLVED",
        f"whether {version_of(decision.version, decision.write_id)} is now resolved is not known ({failed.code}, no marker)",
        f"Run this command again, unless this one shows the version as resolved: {write.command('status')}",
    )


def not_resolved(decision: Decision, why: str, way_out: str = "Run the command again") -> TransactionAbortedError:
    return TransactionAbortedError(
        "NOT_RESOLVED",
        f"{version_of(decision.version, decision.write_id)} was not resolved, and nothing was recorded: {why}",
        way_out,
    )
