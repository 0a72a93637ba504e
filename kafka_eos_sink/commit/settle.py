"""Settle a decision: commit its transactions, and judge each range.

The same code finishes a batch in `commit` and a dead driver's batch in `take_over`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from kafka_eos_sink.commit.decide import DriverTransaction, decide_again
from kafka_eos_sink.commit.evidence import Judged, judged, those, verify_visible
from kafka_eos_sink.commit.log_view import LoggedDecision
from kafka_eos_sink.commit.outcome import Do
from kafka_eos_sink.commit.refusals import describe_ranges, held_open, refused, text
from kafka_eos_sink.commit.steps import (
    AddPartitions,
    DataTopicGoneError,
    End,
    EndTransactions,
    Now,
    Procedure,
    Warn,
    code_name,
)
from kafka_eos_sink.commit.transactions import fresh_identity, still_holds
from kafka_eos_sink.commit.values import Decision, Hanging, OffsetRange, PreparedTransaction, Run, Write
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import ProducerIdentity
from kafka_eos_sink.protocol.reactions import END_TXN_REJECTED

MOST_DISCARDS = 3
"""Limit on the rounds of discards: a broker may omit their markers as well."""
PROMPT_MS = 10_000
"""A commit that takes longer judges its ranges. PAUSE: a person may have aborted by hand what waited for a driver that sleeps."""
VISIBLE = (Do.NOTHING, Do.SEEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """A decision's outcome: readers see every row that is not in ``lost``.

    A transaction with ranges of each kind is in ``kept`` and in ``lost``, with those ranges only. ``gone`` says which topic of the others
    was deleted, if some are lost; then it is not proven that readers see the others.
    """

    logged: LoggedDecision
    kept: tuple[PreparedTransaction, ...]
    lost: tuple[PreparedTransaction, ...] = ()
    gone: str = ""


def settle(
    run: Run,
    logged: LoggedDecision,
    driver: DriverTransaction,
    *,
    losers: Collection[ProducerIdentity] = (),
    recovering: bool,
) -> Procedure[Settled]:
    """Commit every transaction that the decision lists, and judge each of its ranges.

    Args:
        losers: Open transactions of the batch that the decision does not list. The same step aborts them, because they block
            readers, and the proofs wait until nothing blocks readers.
        recovering: Judge also if every commit is accepted and readers pass soon: this driver has not seen what happened before.
            Below version 2 that is always so (LATE ADD), and if it takes longer than `PROMPT_MS` (PAUSE).

    Raises:
        DecisionPendingError: DECIDED_NOT_FINISHED if an EndTxn failed or a proof was late. UNRESOLVED if ranges are gone and nothing
            proves how their transactions ended. TOPIC_GONE if a data topic was deleted, and nothing is lost.
    """
    write, decision = run.write, logged.decision
    started = yield from Now()
    deadline = started + run.within_ms
    named = _unproven(decision.transactions)
    accepted = yield from _end(write, decision, named, losers)
    is_plain = not recovering and all(each.identity.bumps_epoch and each.identity in accepted for each in named)
    settled = Settled(logged=logged, kept=decision.transactions)
    try:
        is_plain = is_plain and (yield from verify_visible(write, decision, named, deadline, briefly=True))
        is_plain = is_plain and (yield from still_holds(driver.identity, named))
        now = yield from Now()
        if is_plain and now - started <= PROMPT_MS:
            return settled
        settled = yield from _judged(run, logged, accepted, driver, deadline)
        yield from verify_visible(write, decision, _unproven(settled.kept), deadline)
    except DataTopicGoneError as gone:
        if not settled.lost:
            raise refused("TOPIC_GONE", write=write, decision=decision, why=gone.message) from gone
        # First copy the lost rows of the other topics. The decision of the copies is settled without this topic, or finds it gone again.
        return replace(settled, gone=gone.message)
    return settled


def _end(
    write: Write, decision: Decision, named: Sequence[PreparedTransaction], losers: Collection[ProducerIdentity]
) -> Procedure[frozenset[ProducerIdentity]]:
    """Commit the transactions and abort the losers; return whose commit was accepted."""
    named = [prepared for prepared in named if prepared.ended is None]
    ends = tuple(End(identity=prepared.identity, commit=True) for prepared in named)
    aborts = tuple(End(identity=identity, commit=False) for identity in losers)
    results = (yield from EndTransactions(ends + aborts)) if ends or aborts else ()
    for prepared, result in zip(named, results, strict=False):
        if result.error != ErrorCode.NONE and result.error not in END_TXN_REJECTED:
            failed = "; ".join(filter(None, (code_name(result.error), result.detail)))
            raise refused(
                "DECIDED_NOT_FINISHED.unconfirmed", write=write, decision=decision, prepared=prepared, failed=failed
            )
    return frozenset(
        prepared.identity for prepared, result in zip(named, results, strict=False) if result.error == ErrorCode.NONE
    )


def _unproven(transactions: Iterable[PreparedTransaction]) -> list[PreparedTransaction]:
    return [prepared for prepared in transactions if not prepared.proven]


def _judged(
    run: Run, logged: LoggedDecision, accepted: Collection[ProducerIdentity], driver: DriverTransaction, deadline: int
) -> Procedure[Settled]:
    """Discard what hangs, and judge every range."""
    for _ in range(MOST_DISCARDS):
        decision = logged.decision
        named = _unproven(decision.transactions)
        todo = yield from judged(run, decision, named, accepted, deadline)
        hanging = [
            Hanging(
                transactional_id=prepared.identity.transactional_id,
                producer_id=prepared.identity.producer_id,
                partitions=tuple((part.topic, part.partition) for part in those(prepared, each, Do.DISCARD)),
            )
            for prepared, each in zip(named, todo, strict=True)
            if Do.DISCARD in each
        ]
        if not hanging:
            if Do.ASK in chain.from_iterable(todo):
                raise _unresolved(run.write, decision, named, todo)
            # BLIND and JOIN: a newer driver may have discarded what is gone.
            if Do.SEEN in chain.from_iterable(todo) and not (yield from still_holds(driver.identity)):
                raise refused("DECIDED_NOT_FINISHED.replaced", write=run.write, decision=decision)
            kept = [prepared for prepared in decision.transactions if prepared.proven]
            lost: list[PreparedTransaction] = []
            for prepared, each in zip(named, todo, strict=True):
                seen, unseen = _divided(run.write, decision, prepared, each, VISIBLE, (Do.COPY, Do.MISS))
                if seen is not None:
                    kept.append(seen)
                if unseen is not None:
                    lost.append(unseen)
            return Settled(logged=logged, kept=tuple(kept), lost=tuple(lost))
        logged = yield from _noted(run, logged, todo, driver)
        if left := (yield from discard(run, driver.identity, hanging)):
            if codes := sorted({*left.values()} - {""}):
                held, failed = held_open([each for each, code in left.items() if code]), ", ".join(codes)
                raise refused(
                    "DECIDED_NOT_FINISHED.not_aborted", write=run.write, decision=decision, held=held, failed=failed
                )
            raise refused("DECIDED_NOT_FINISHED.hangs", write=run.write, decision=decision, held=held_open(tuple(left)))
        yield from Warn(text("discarded", decision=decision, held=held_open(hanging)))
        now = yield from Now()
        deadline = max(deadline, now + run.within_ms)
    raise refused("DECIDED_NOT_FINISHED.still_hangs", write=run.write, decision=decision, held=held_open(hanging))


def _divided(
    write: Write, decision: Decision, prepared: PreparedTransaction, todo: Sequence[Do], *kinds: tuple[Do, ...]
) -> list[PreparedTransaction | None]:
    """Return the transaction with the ranges of each kind; None for an absent kind."""
    groups = [those(prepared, todo, *each) for each in kinds]
    first, *others = [ranges for ranges in groups if ranges] or [()]
    if not others:
        return [prepared if ranges else None for ranges in groups]
    later = tuple(chain.from_iterable(others))
    if None in [part.rows for part in later]:
        raise refused(
            "UNRESOLVED.without_rows",
            write=write,
            decision=decision,
            transactional_id=prepared.identity.transactional_id,
            ranges=describe_ranges([replace(prepared, offsets=later)]),
        )
    # Dead letters and bytes stay with the first group, so that their sums stay right.
    rest = replace(prepared, dead_letters=(), written_bytes=0)
    divided = [replace(rest, offsets=ranges, rows=_rows(ranges)) if ranges else None for ranges in groups]
    divided[groups.index(first)] = replace(prepared, offsets=first, rows=prepared.rows - _rows(later))
    return divided


def _rows(ranges: Iterable[OffsetRange]) -> int:
    return sum(part.rows or 0 for part in ranges)


def _noted(run: Run, logged: LoggedDecision, todo: Judged, driver: DriverTransaction) -> Procedure[LoggedDecision]:
    """Write down what is known of each range, before a discard.

    BLIND: the discard erases what coordinators report, and lets retention and the cleaner remove the rows. Nothing would show then that no
    reader saw them.
    """
    decision = logged.decision
    known = dict(zip(_unproven(decision.transactions), todo, strict=True))
    entries: list[PreparedTransaction] = []
    for prepared in decision.transactions:
        each = known.get(prepared)
        if each is None or prepared.ended is not None:
            entries.append(prepared)
            continue
        parts = _divided(run.write, decision, prepared, each, VISIBLE, (Do.COPY, Do.MISS, Do.DISCARD), (Do.ASK,))
        ends = ("committed", "aborted", None)
        entries += [replace(part, ended=end) for part, end in zip(parts, ends, strict=True) if part is not None]
    if tuple(entries) == decision.transactions:
        return logged
    noted = replace(logged, decision=replace(decision, transactions=tuple(entries)))
    return (yield from decide_again(run, noted, driver, proven=False))


def _unresolved(write: Write, decision: Decision, named: Sequence[PreparedTransaction], todo: Judged) -> Exception:
    asked = [prepared for prepared, each in zip(named, todo, strict=True) if Do.ASK in each]
    lost = [
        replace(prepared, offsets=ranges)
        for prepared, each in zip(named, todo, strict=True)
        if (ranges := those(prepared, each, Do.COPY))
    ]
    return refused(
        "UNRESOLVED",
        write=write,
        decision=decision,
        asked=len(asked),
        transactions=len(decision.transactions),
        first=asked[0].identity.transactional_id,
        ranges=describe_ranges(asked),
        not_copied=f"; aborted and not copied: {describe_ranges(lost)}" if lost else "",
    )


def discard(run: Run, driver: ProducerIdentity, hanging: Sequence[Hanging]) -> Procedure[Mapping[Hanging, str]]:
    """Abort what hangs; return what could not be aborted, with the error code.

    A partition holds the transaction open, and no coordinator ends it any more: its marker is missing (JOIN). The leader ends what is open
    under a producer id by the next marker of that id, of any newer epoch. So the next transaction of its transactional id ends it:
    InitProducerId, AddPartitionsToTxn and EndTxn(abort), without a record. Never a commit: what is open may also hold the rows of an
    earlier attempt.

    The caller holds W.driver, and reads the partitions again. If the coordinator has forgotten the id, it gives it another producer id, and
    then no transaction of it can end what hangs: its code is empty.

    Raises:
        FencedError: A newer driver holds W.driver. Nothing was aborted.
    """
    begun: dict[Hanging, ProducerIdentity] = {}
    for each in hanging:
        parsed = run.write.parse(each.transactional_id)
        assert parsed is not None
        # Another attempt may use the id, and may be decided, so it must have no open transaction.
        identity = yield from fresh_identity(run.write, parsed.partition, (parsed.slot,), run.transaction_timeout_ms)
        if identity.producer_id == each.producer_id:
            begun[each] = identity
    # PAUSE: after InitProducerId, because a newer driver may have committed a transaction under one of these ids, whose marker is missing.
    if not (yield from still_holds(driver)):
        raise refused("FENCED", write=run.write, why=f"it holds {driver.transactional_id}")
    ends: list[End] = []
    left = dict.fromkeys(hanging, "")
    for each, identity in begun.items():
        added = yield from AddPartitions(identity, each.partitions)
        if added.error == ErrorCode.NONE:
            ends.append(End(identity=identity, commit=False))
            del left[each]
        else:
            left[each] = added.code
    if ends:
        yield from EndTransactions(tuple(ends))
    return left
