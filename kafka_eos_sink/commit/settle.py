"""Settling a decision: end what it names, and prove what became of each transaction.

The same code finishes a batch in `commit` and a dead driver's batch in `take_over`. It never concludes anything from the
error code of an EndTxn, since those do not tell committed from aborted; the part record's control batch in the commit log
does (the witness).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from kafka_eos_sink.commit.commit_log import LoggedDecision, LogView, Outcome, barrier_record, outcome_of
from kafka_eos_sink.commit.log_reading import read_to
from kafka_eos_sink.commit.open_transactions import FREE_STATES, ONGOING
from kafka_eos_sink.commit.prepared_transaction import (
    Decision,
    DecisionStatus,
    OffsetRange,
    PreparedTransaction,
    SettledDecision,
)
from kafka_eos_sink.commit.steps import (
    AbortedTransactions,
    Append,
    DataTopicGoneError,
    DescribeProducers,
    DescribeTransactions,
    End,
    EndResult,
    EndTransactions,
    LastStableOffsets,
    Listed,
    LogChunk,
    LogPolicy,
    MarkerType,
    Now,
    Procedure,
    ReadLog,
    TransactionDescription,
    Unseen,
    Wait,
    Warn,
)
from kafka_eos_sink.errors import DecisionPendingError
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import ProducerIdentity
from kafka_eos_sink.protocol.reactions import END_TXN_REJECTED

Written = tuple[ProducerIdentity, OffsetRange]
"""What a transaction has in one data partition."""

HIDDEN_READERS_MS = 10_000
"""How long to wait for readers to pass our rows where the right to see who holds them up is missing."""
POLL_MS = 20
"""Between two looks at something that another machine is about to finish."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettleLimits:
    """``deadline_ms``: how long to wait for proofs, from the start of settling (delivery.timeout.ms)."""

    deadline_ms: int = 120_000


def pending_error(decision: Decision, what: str) -> DecisionPendingError:
    """The batch is decided: it must be finished and never written again."""
    return DecisionPendingError(
        "DECIDED_NOT_FINISHED",
        f"version {decision.version} of write id {decision.write_id!r} is decided but not finished: {what}. Its rows must not be "
        "written again under another id; the next run with the same id finishes it, or: "
        f"kafka-eos recover --bootstrap-servers ... --write-id '{decision.write_id}'",
    )


def unresolved_error(decision: Decision, what: str) -> DecisionPendingError:
    return DecisionPendingError(
        "UNRESOLVED",
        f"version {decision.version} of write id {decision.write_id!r}: {what}. Whether its rows are visible cannot be proven, so "
        "nothing was written; look at the topic and answer with: kafka-eos resolve --bootstrap-servers ... "
        f"--write-id '{decision.write_id}' --version {decision.version} --as committed|aborted|rewrite",
    )


def _topic_gone_error(decision: Decision, what: str) -> DecisionPendingError:
    return DecisionPendingError(
        "TOPIC_GONE",
        f"version {decision.version} of write id {decision.write_id!r} is decided, but rows of it are gone with their topic: {what}. To "
        f"leave it as it is: kafka-eos resolve --bootstrap-servers ... --write-id '{decision.write_id}' --version {decision.version} "
        "--as committed; or create the topic, and have all its rows written anew, those in other topics a second time: --as rewrite",
    )


def describe_ranges(prepared: Iterable[PreparedTransaction]) -> str:
    """`topic-partition [first..last]` of some transactions, for a person to look at."""
    ranges = [
        f"{part.topic}-{part.partition} [{part.first_offset}..{part.last_offset}]"
        for entry in prepared
        for part in entry.offsets
    ]
    shown = ", ".join(ranges[:8])
    return shown if len(ranges) <= 8 else f"{shown} and {len(ranges) - 8} more"


def settle(
    found: LoggedDecision,
    *,
    nonce: str,
    limits: SettleLimits,
    losers: Collection[ProducerIdentity] = (),
    recovering: bool,
) -> Procedure[SettledDecision]:
    """End every transaction that the decision names and prove each outcome.

    ``losers`` are open transactions of the same batch that are not named: they are aborted in the same pass, because they would
    hold up the readers that we wait for next. ``recovering`` adds the check for markers written by hand.

    Raises `DecisionPendingError`: ``DECIDED_NOT_FINISHED`` where a proof did not come in time, ``UNRESOLVED`` where there is none,
    ``TOPIC_GONE`` where a topic was deleted.
    """
    decision = found.decision
    started: int = yield Now()
    deadline = started + limits.deadline_ms
    if decision.resolution is not None:
        status = DecisionStatus.FINISHED if decision.resolution == "committed" else DecisionStatus.VOID
        return settled(found, status)
    named = [prepared for prepared in decision.transactions if not prepared.proven]
    ends = tuple(End(identity=prepared.identity, commit=True) for prepared in named)
    aborts = tuple(End(identity=identity, commit=False) for identity in losers)
    results: tuple[EndResult, ...] = ()
    if ends or aborts:
        results = yield EndTransactions(ends + aborts)
    answered, doubtful = _sort_answers(decision, named, results)

    lost: list[PreparedTransaction] = []
    if doubtful:
        outcomes = yield from ask_witnesses(decision, doubtful, nonce, deadline)
        lost = [prepared for prepared, outcome in zip(doubtful, outcomes, strict=True) if outcome is Outcome.ABORTED]
        answered += [
            prepared for prepared, outcome in zip(doubtful, outcomes, strict=True) if outcome is Outcome.COMMITTED
        ]
        unresolved = [
            prepared
            for prepared, outcome in zip(doubtful, outcomes, strict=True)
            if outcome not in (Outcome.ABORTED, Outcome.COMMITTED)
        ]
        if unresolved:
            raise unresolved_error(
                decision,
                f"{len(unresolved)} of {len(named)} transactions left no proof of their end in the commit log (first: "
                f"{unresolved[0].identity.transactional_id}, its records: {describe_ranges(unresolved)})",
            )
    try:
        yield from _require_not_readable(decision, lost)
        yield from _verify_markers(decision, answered, deadline)
        proven = yield from _verify_visible(decision, answered, deadline)
        if recovering:
            yield from _verify_no_foreign_abort(decision, answered, deadline)
    except DataTopicGoneError as gone:
        raise _topic_gone_error(decision, gone.message) from gone

    if not lost:
        return settled(found, DecisionStatus.FINISHED, proven=proven)
    if len(lost) == len(decision.transactions):
        return settled(found, DecisionStatus.VOID)
    lost_partitions = frozenset(prepared.partition for prepared in lost)
    return settled(
        found,
        DecisionStatus.LOST_PARTS,
        committed=frozenset(prepared.partition for prepared in decision.transactions) - lost_partitions,
        lost=lost_partitions,
        proven=proven,
    )


def settled(
    found: LoggedDecision,
    status: DecisionStatus,
    committed: frozenset[int] = frozenset(),
    lost: frozenset[int] = frozenset(),
    proven: bool = True,
) -> SettledDecision:
    decision = found.decision
    return SettledDecision(
        query_id=decision.query_id,
        version=decision.version,
        nonce=decision.nonce,
        offset=found.offset,
        status=status,
        topic=decision.topic,
        schema=decision.schema,
        offsets_hash=decision.offsets_hash,
        committed=committed,
        lost=lost,
        resolution=decision.resolution,
        proven=proven,
    )


def _sort_answers(
    decision: Decision, named: Sequence[PreparedTransaction], results: Sequence[EndResult]
) -> tuple[list[PreparedTransaction], list[PreparedTransaction]]:
    answered: list[PreparedTransaction] = []
    doubtful: list[PreparedTransaction] = []
    for prepared, result in zip(named, results, strict=False):
        if result.error == ErrorCode.NONE:
            answered.append(prepared)
        elif result.error in END_TXN_REJECTED:
            doubtful.append(prepared)
        else:
            code = "no answer" if result.error is None else ErrorCode.of(result.error).name
            detail = f"; {result.detail}" if result.detail else ""
            raise pending_error(
                decision,
                f"EndTxn of {prepared.identity.transactional_id} ended with {code} before the deadline{detail}",
            )
    return answered, doubtful


def ask_witnesses(
    decision: Decision, doubtful: Sequence[PreparedTransaction], nonce: str, deadline: int
) -> Procedure[list[Outcome]]:
    """What the commit log proves of each transaction, in the same order.

    The witness of a transaction is the first control batch with its producer id after its part record. It speaks once the
    coordinator is not about to write one (no Prepare state, nor one that we do not know), up to an end of the log that is known to be
    current (the barrier).
    """
    yield from _await_coordinators(decision, doubtful, deadline)
    barrier: int = yield Append((barrier_record(decision.write_id, nonce),))
    view = LogView(
        decision.write_id,
        next_offset=min(prepared.part_offset for prepared in doubtful),
        watched=frozenset(prepared.identity.producer_id for prepared in doubtful),
    )
    yield from read_to(view, barrier)
    policy: str | None = yield LogPolicy()
    return [witness_of(decision, prepared, view, policy) for prepared in doubtful]


def witness_of(decision: Decision, prepared: PreparedTransaction, view: LogView, policy: str | None) -> Outcome:
    """What the commit log proves of a transaction: ``view`` has read it from the part record on and watches its producer id; ``policy``
    is the log's cleanup.policy, None where it may not be asked."""
    identity = prepared.identity
    marker = view.first_marker(identity.producer_id, prepared.part_offset)
    part = view.part_at(decision.write_id, decision.query_id, prepared.partition, prepared.part_offset)
    if part is not None and (part.producer_id, part.producer_epoch) != (
        identity.producer_id,
        identity.producer_epoch,
    ):
        return Outcome.UNRESOLVED  # the topic was deleted and created anew: the offset is somebody else's now
    if marker is not None and marker.type is not MarkerType.EMPTY and part is not None:
        return outcome_of(identity.producer_epoch, identity.transaction_version, marker)
    # The record or its marker is gone. The cleaner keeps committed records, unless a newer committed one of that key stands, and
    # drops aborted ones. That holds only where nothing but compaction removes records.
    gone = part is None or (marker is not None and marker.type is MarkerType.EMPTY)
    removed_by_compaction = (
        policy is not None
        and policy.replace(" ", "") == "compact"
        and view.log_start_offset <= prepared.part_offset < view.next_offset
        and not view.newer_committed_part(
            decision.write_id, decision.query_id, prepared.partition, prepared.part_offset
        )
    )
    if gone and removed_by_compaction:
        if marker is None:
            return Outcome.ABORTED
        # A marker outlives its record by the cleaner's grace time; while it stands it must agree. One of a higher epoch
        # than it can have belongs to a later transaction of the id: its own went with the record.
        commit_without_bump = identity.transaction_version < 2 and marker.type is MarkerType.COMMIT
        if marker.producer_epoch > identity.producer_epoch + (0 if commit_without_bump else 1):
            return Outcome.ABORTED
        if marker.type is MarkerType.EMPTY:
            return Outcome.ABORTED
        outcome = outcome_of(identity.producer_epoch, identity.transaction_version, marker)
        return outcome if outcome is Outcome.ABORTED else Outcome.UNRESOLVED
    return Outcome.UNRESOLVED


def _await_coordinators(decision: Decision, doubtful: Sequence[PreparedTransaction], deadline: int) -> Procedure[None]:
    waiting = tuple(prepared.identity.transactional_id for prepared in doubtful)
    while True:
        described: Mapping[str, TransactionDescription | None] = yield DescribeTransactions(waiting)
        waiting = tuple(
            transactional_id
            for transactional_id, found in described.items()
            if found is not None and found.state not in (ONGOING, *FREE_STATES)
        )
        if not waiting:
            return
        now: int = yield Now()
        if now > deadline:
            raise pending_error(decision, f"the coordinator has not finished {waiting[0]} in time")
        yield Wait(POLL_MS)


def _verify_markers(decision: Decision, committed: Sequence[PreparedTransaction], deadline: int) -> Procedure[None]:
    """Read the COMMIT markers in the commit log: EndTxn answers before they are written."""
    if not committed:
        return
    view = LogView(
        decision.write_id,
        next_offset=min(prepared.part_offset for prepared in committed),
        watched=frozenset(prepared.identity.producer_id for prepared in committed),
    )
    while True:
        chunk: LogChunk = yield ReadLog(view.next_offset)
        view.feed(chunk.entries, chunk.next_offset, chunk.log_start_offset)
        missing = []
        for prepared in committed:
            marker = view.first_marker(prepared.identity.producer_id, prepared.part_offset)
            outcome = outcome_of(prepared.identity.producer_epoch, prepared.identity.transaction_version, marker)
            if outcome is Outcome.OPEN:
                missing.append(prepared)
            elif outcome is not Outcome.COMMITTED:
                raise unresolved_error(
                    decision,
                    f"the coordinator says that {prepared.identity.transactional_id} is committed, but the commit log holds "
                    f"{marker.type.value if marker else 'no'} marker for it; markers were written by hand",
                )
        if not missing:
            return
        now: int = yield Now()
        if now > deadline:
            raise pending_error(
                decision,
                f"the coordinator committed {missing[0].identity.transactional_id}, but its marker is missing in the commit log "
                f"(and of {len(missing) - 1} more). A partition without a leader may have been passed over (KAFKA-20734): "
                f"kafka-eos repair --bootstrap-servers ... --write-id '{decision.write_id}'. Do not use the stock "
                "kafka-transactions.sh abort: it would discard committed records",
            )


def _last_offsets(committed: Sequence[PreparedTransaction]) -> dict[tuple[str, int], int]:
    last: dict[tuple[str, int], int] = {}
    for prepared in committed:
        for part in prepared.offsets:
            where = (part.topic, part.partition)
            last[where] = max(last.get(where, -1), part.last_offset)
    return last


def _verify_visible(decision: Decision, committed: Sequence[PreparedTransaction], deadline: int) -> Procedure[bool]:
    """A read_committed reader can pass our last offset on every data partition, or only others hold it up.

    False where the right to see who holds it up is missing, and only the coordinators' word stands for the rest.
    """
    waiting = _last_offsets(committed)
    started: int = yield Now()
    looks = 0
    while waiting:
        stable: Mapping[tuple[str, int], int] = yield LastStableOffsets(tuple(waiting), tuple(waiting.values()))
        waiting = {where: last for where, last in waiting.items() if stable.get(where, -1) <= last}
        if not waiting:
            return True
        looks += 1
        now: int = yield Now()
        if looks > 1:  # the first time the marker is usually just on its way
            hidden, others = yield from _holders(committed, waiting, stable)
            for (topic, partition), producer_id in sorted(others.items()):
                yield Warn(
                    f"{topic}-{partition}: version {decision.version} of {decision.write_id!r} is committed, but an open transaction of "
                    f"producer id {producer_id} holds up read_committed readers there; see kafka-eos transactions, and where that shows "
                    f"none of it: kafka-eos repair --bootstrap-servers ... --write-id '{decision.write_id}'"
                )
            waiting = {where: last for where, last in waiting.items() if where not in others}
            if not waiting:
                return True
            if hidden.issuperset(waiting) and now - started > HIDDEN_READERS_MS:
                yield from _require_complete(decision, committed, deadline)
                return False
        if now > deadline:
            (topic, partition), last = next(iter(waiting.items()))
            holder = next(
                prepared
                for prepared in committed
                if any((part.topic, part.partition) == (topic, partition) for part in prepared.offsets)
            )
            raise pending_error(
                decision,
                f"partition {topic}-{partition} does not let readers past offset {last}: its replicas are behind, or the marker of "
                f"transaction {holder.identity.transactional_id} (producer id {holder.identity.producer_id}) is missing there "
                f"(KAFKA-20734), or the topic was deleted. Repair a marker: kafka-eos repair --bootstrap-servers ... --write-id "
                f"'{decision.write_id}'. Do not use the stock kafka-transactions.sh abort: it would discard committed records",
            )
        yield Wait(POLL_MS if looks < 10 else 10 * POLL_MS)
    return True


def _holders(
    committed: Sequence[PreparedTransaction],
    last_offsets: Mapping[tuple[str, int], int],
    stable: Mapping[tuple[str, int], int],
) -> Procedure[tuple[frozenset[tuple[str, int]], dict[tuple[str, int], int]]]:
    """Who still holds readers below our last offsets: partitions where that cannot be seen, and those that only others hold.

    Where nobody holds them the end of our transaction is not on all replicas yet: readers will pass, but do not yet. Without the right
    to look, readers who stand exactly where one of ours begins are held by that one, since that is where the first open one begins.
    """
    producers: Mapping[tuple[str, int], Mapping[int, tuple[int, int]] | None] = yield DescribeProducers(
        tuple(last_offsets)
    )
    own: dict[tuple[str, int], set[int]] = {}
    begins: dict[tuple[str, int], set[int]] = {}
    for prepared in committed:
        for part in prepared.offsets:
            own.setdefault((part.topic, part.partition), set()).add(prepared.identity.producer_id)
            begins.setdefault((part.topic, part.partition), set()).add(part.first_offset)
    hidden, others = set(), {}
    for where, last in last_offsets.items():
        if where not in producers or where not in stable:
            continue  # could not be asked now
        remembered = producers[where]
        if remembered is None:
            if stable[where] not in begins[where]:
                hidden.add(where)
            continue
        holding = {producer_id for producer_id, (_, start) in remembered.items() if 0 <= start <= last}
        if holding and not holding & own[where]:
            others[where] = min(holding)
    return frozenset(hidden), others


def _require_complete(decision: Decision, committed: Sequence[PreparedTransaction], deadline: int) -> Procedure[None]:
    yield from _await_coordinators(decision, committed, deadline)
    identities = {prepared.identity.transactional_id: prepared.identity for prepared in committed}
    described: Mapping[str, TransactionDescription | None] = yield DescribeTransactions(tuple(identities))
    for transactional_id, found in described.items():
        own = identities[transactional_id]
        # A higher epoch is a later transaction of the id, which somebody began after ours was complete.
        if (
            found is not None
            and found.state == ONGOING
            and (found.producer_id, found.producer_epoch) == (own.producer_id, own.producer_epoch)
        ):
            raise pending_error(decision, f"{transactional_id} is {found.state} at its coordinator")
    yield Warn(
        "without the right to Read the data topics it cannot be proven that readers see the committed rows; the coordinator "
        "calls every transaction complete"
    )


def _require_not_readable(decision: Decision, lost: Sequence[PreparedTransaction]) -> Procedure[None]:
    """What the witness calls aborted must not be readable in the data topics: a marker of the commit log that was passed over
    (KAFKA-20734) can be followed by that of a later transaction of the id, which speaks for ours as well."""
    look = yield from look_at(written_by(lost))
    for identity, part in look.seen:
        raise unresolved_error(
            decision,
            f"the commit log shows {identity.transactional_id} aborted, but readers of {part.topic}-{part.partition} see "
            f"its records from offset {part.first_offset} on",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Of transactions that no coordinator holds open: what readers see of them, and what nobody can tell now, since readers do not get
    there or there is no right to Read."""

    seen: tuple[Written, ...] = ()
    untold: tuple[Written, ...] = ()


def written_by(transactions: Iterable[PreparedTransaction]) -> tuple[Written, ...]:
    """What they have in the data partitions."""
    return tuple((prepared.identity, part) for prepared in transactions for part in prepared.offsets)


def look_at(written: Sequence[Written]) -> Procedure[Look]:
    """Ask the data partitions themselves, as a reader would."""
    if not written:
        return Look()
    aborted: Mapping[OffsetRange, Listed] | None = yield AbortedTransactions(
        tuple(part for _, part in written), tuple(identity.producer_id for identity, _ in written)
    )
    if aborted is None:
        return Look(untold=tuple(written))
    seen, untold = [], []
    for identity, part in written:
        listed = aborted[part]
        if listed is Unseen.HELD:
            untold.append((identity, part))
        elif listed is not Unseen.GONE and not _lists(listed, identity, part):
            seen.append((identity, part))
    return Look(seen=tuple(seen), untold=tuple(untold))


def _lists(listed: Listed, identity: ProducerIdentity, part: OffsetRange) -> bool:
    """Whether a partition's list of aborted transactions holds this one."""
    return not isinstance(listed, Unseen) and any(
        producer_id == identity.producer_id and part.first_offset <= first_offset <= part.last_offset
        for producer_id, first_offset in listed
    )


def _verify_no_foreign_abort(
    decision: Decision, committed: Sequence[PreparedTransaction], deadline: int
) -> Procedure[None]:
    """Markers can be written by hand (WriteTxnMarkers): a reader's own list of aborted transactions must not hold ours."""
    owners: dict[OffsetRange, PreparedTransaction] = {
        part: prepared for prepared in committed for part in prepared.offsets
    }
    if not owners:
        return
    aborted: Mapping[OffsetRange, Listed] | None = yield AbortedTransactions(tuple(owners))
    if aborted is None:
        yield from _require_complete(decision, committed, deadline)
        return
    for part, prepared in owners.items():
        if _lists(aborted[part], prepared.identity, part):
            raise unresolved_error(
                decision,
                f"{prepared.identity.transactional_id} is committed at its coordinator, but partition {part.topic}-"
                f"{part.partition} calls its records from offset {part.first_offset} aborted; a marker was written by hand",
            )
