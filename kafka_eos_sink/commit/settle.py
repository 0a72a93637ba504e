"""Settle a decision: commit its transactions, and prove each outcome.

The same code finishes a batch in `commit` and a dead driver's batch in `take_over`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from kafka_eos_sink.commit import refusals
from kafka_eos_sink.commit.evidence import of_doubtful
from kafka_eos_sink.commit.log_view import LoggedDecision
from kafka_eos_sink.commit.outcome import Facts, Outcome, Shown, outcome_of
from kafka_eos_sink.commit.procedure import Procedure, code_name
from kafka_eos_sink.commit.proofs import verify_markers, verify_no_foreign_abort, verify_visible
from kafka_eos_sink.commit.steps import DataTopicGoneError, End, EndResult, EndTransactions, Now
from kafka_eos_sink.commit.values import Decision, PreparedTransaction, Run, Write
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import ProducerIdentity
from kafka_eos_sink.protocol.reactions import END_TXN_REJECTED


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """A decision's outcome: ``lost`` transactions are aborted, the others committed.

    ``marked`` is False if a COMMIT marker is missing in the commit log. ``gone`` says which topic of the committed ones was deleted, if
    some are lost; then it is not proven that readers see the committed ones.
    """

    logged: LoggedDecision
    lost: tuple[PreparedTransaction, ...]
    marked: bool
    gone: str = ""


def settle(
    run: Run, logged: LoggedDecision, *, losers: Collection[ProducerIdentity] = (), recovering: bool
) -> Procedure[Settled]:
    """Commit every transaction that the decision lists and prove each outcome.

    Args:
        losers: Open transactions of the batch that the decision does not list. The same step aborts them, because they block
            readers, and the proofs wait until nothing blocks readers.
        recovering: Also check for markers written by hand. Below version 2 that check always runs (LATE ADD).

    Raises:
        DecisionPendingError: DECIDED_NOT_FINISHED if an EndTxn failed or a proof was late. UNRESOLVED if neither the commit log nor
            the data topics prove an outcome. TOPIC_GONE if a data topic was deleted, and nothing is lost.
    """
    write, decision = run.write, logged.decision
    started = yield from Now()
    deadline = started + run.within_ms
    named = [prepared for prepared in decision.transactions if not prepared.proven]
    ends = tuple(End(identity=prepared.identity, commit=True) for prepared in named)
    aborts = tuple(End(identity=identity, commit=False) for identity in losers)
    results: tuple[EndResult, ...] = ()
    if ends or aborts:
        results = yield from EndTransactions(ends + aborts)
    ended, doubtful = _sort_results(write, decision, named, results)
    lost: list[PreparedTransaction] = []
    try:
        if doubtful:
            facts = yield from of_doubtful(run, logged, doubtful, deadline)
            committed, lost = _sort_facts(write, decision, doubtful, facts)
            ended += committed
        # First visibility, then markers: visible rows let `verify_markers` accept a missing marker in the commit log.
        yield from verify_visible(write, decision, ended, deadline)
        # LATE ADD concerns every commit, markers written by hand only those that take long.
        if recovering or not all(each.identity.bumps_epoch for each in ended):
            yield from verify_no_foreign_abort(write, decision, ended)
        marked = yield from verify_markers(write, decision, ended, deadline)
    except DataTopicGoneError as gone:
        if not lost:
            raise refusals.topic_gone(write, decision, gone.message) from gone
        # First copy the lost rows of the other topics. The decision of the copies is settled without this topic, or finds it gone again.
        return Settled(logged=logged, lost=tuple(lost), marked=True, gone=gone.message)
    return Settled(logged=logged, lost=tuple(lost), marked=marked)


def _sort_facts(
    write: Write, decision: Decision, doubtful: Sequence[PreparedTransaction], facts: Sequence[Facts]
) -> tuple[list[PreparedTransaction], list[PreparedTransaction]]:
    """Return the committed and the aborted transactions; raise if any is unresolved."""
    sorts: dict[Outcome, list[PreparedTransaction]] = {outcome: [] for outcome in Outcome}
    unproven: set[Shown] = set()
    for prepared, found in zip(doubtful, facts, strict=True):
        outcome = outcome_of(found)
        sorts[outcome].append(prepared)
        if outcome in (Outcome.OPEN, Outcome.UNRESOLVED):
            unproven.update(found.ranges)
        name = prepared.identity.transactional_id
        if outcome is Outcome.NOT_SHOWN:
            part = prepared.offsets[found.ranges.index(Shown.UNSHOWN)]
            raise refusals.pending(
                write,
                decision,
                f"{part.topic}-{part.partition} does not show how {name} ended, whose records begin at offset {part.first_offset}",
            )
        if outcome is Outcome.UNRESOLVED and Shown.COMMITTED in found.ranges:
            part = prepared.offsets[found.ranges.index(Shown.COMMITTED)]
            raise refusals.unresolved(
                write,
                decision,
                f"{part.topic}-{part.partition} shows the records of {name} from offset {part.first_offset} on as committed, but neither "
                "the commit log nor its other partitions show a commit",
            )
    lost = sorts[Outcome.ABORTED]
    if unresolved := sorts[Outcome.OPEN] + sorts[Outcome.UNRESOLVED]:
        raise refusals.unresolved(
            write,
            decision,
            f"{len(unresolved)} of {len(decision.transactions)} transactions left no proof of their end in the commit log or the data "
            f"topics (first: {unresolved[0].identity.transactional_id}), with their records in {refusals.describe_ranges(unresolved)}"
            + (f"; aborted and not copied: {refusals.describe_ranges(lost)}" if lost else ""),
            unproven,
        )
    return sorts[Outcome.COMMITTED], lost


def _sort_results(
    write: Write, decision: Decision, named: Sequence[PreparedTransaction], results: Sequence[EndResult]
) -> tuple[list[PreparedTransaction], list[PreparedTransaction]]:
    ended: list[PreparedTransaction] = []
    doubtful: list[PreparedTransaction] = []
    for prepared, result in zip(named, results, strict=False):
        if result.error == ErrorCode.NONE:
            ended.append(prepared)
        elif result.error in END_TXN_REJECTED:
            doubtful.append(prepared)
        else:
            code = code_name(result.error)
            detail = f"; {result.detail}" if result.detail else ""
            raise refusals.pending(
                write,
                decision,
                f"the coordinator has not confirmed the commit of {prepared.identity.transactional_id} in time ({code}{detail})",
            )
    return ended, doubtful
