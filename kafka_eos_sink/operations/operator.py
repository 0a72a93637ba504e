"""Recovers, resolves and forgets a write from outside Spark.

Each opens its own client. Of the write's options it needs only the write id and the commit log. It returns what it found and did.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from kafka_eos_sink.client.admin import Admin, connected
from kafka_eos_sink.client.config import ClientConfig
from kafka_eos_sink.client.topics_admin import EARLIEST
from kafka_eos_sink.commit.log_access import read_to_end
from kafka_eos_sink.commit.log_standing import UnknownId
from kafka_eos_sink.commit.log_view import LogView
from kafka_eos_sink.commit.refusals import job_of, refused
from kafka_eos_sink.commit.steps import (
    AbortedTransactions,
    Copied,
    Copy,
    CopyRecords,
    Gone,
    InitProducerId,
    Procedure,
    Unseen,
    Warn,
)
from kafka_eos_sink.commit.take_over import TakeOver, still_to_commit, take_over
from kafka_eos_sink.commit.transactions import LIST_WITHIN_MS, list_open
from kafka_eos_sink.commit.values import DecisionStatus, OffsetRange, Plan, Run, SettledDecision, Write
from kafka_eos_sink.commit.write_states import writes_in
from kafka_eos_sink.errors import (
    DecisionPendingError,
    FencedError,
    Job,
    KafkaEosError,
    counted,
    speaks_of_rows,
)
from kafka_eos_sink.operations.cluster_view import ClusterView, write_lines
from kafka_eos_sink.operations.hanging import (
    Found,
    HeldOpen,
    discard_attempts,
    discard_forgotten,
    find_hanging,
    lacks_note,
)
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import ProducerIdAndEpoch, ProducerIdentity
from kafka_eos_sink.protocol.reactions import END_TXN_REJECTED
from kafka_eos_sink.runtime import history
from kafka_eos_sink.runtime.executor import Executor
from kafka_eos_sink.runtime.topics import ensure_commit_log
from kafka_eos_sink.runtime.write_settings import new_run

log = logging.getLogger(__name__)

T = TypeVar("T")


class _OperatorExecutor(Executor):
    """An executor for an operator, who may read topics that the write's user may not."""

    def __init__(self, admin: Admin, write: Write, config: ProducerConfig) -> None:
        super().__init__(admin, write.commit_log, config)
        self._write = write
        self.copied: set[ProducerIdentity] = set()
        """The transactions that hold copies."""
        self.shown: Collection[str] = ()
        """Warnings that the command has printed already, before the user agreed."""
        self._copy = self._performers[CopyRecords]
        self._on(CopyRecords, self._copy_own)

    def _warn(self, step: Warn) -> None:
        if step.message not in self.shown:
            super()._warn(step)

    def _copy_own(self, step: CopyRecords) -> tuple[Copied | Gone, ...]:
        """Copy records, unless a decision has a producer that is not the write's own.

        A principal with Write on the commit log can forge such a decision, to see rows that another program has aborted.
        """
        held = self.admin.describe_transactions({copy.source.transactional_id for copy in step.copies}, self._deadline)
        # Each copy, not each id: a forged decision may name one id twice.
        unknown = [
            copy.source
            for copy in step.copies
            if (state := held[copy.source.transactional_id]) is None or state.producer_id != copy.source.producer_id
        ]
        if not unknown:
            self.copied.update(copy.identity for copy in step.copies)
            copied: tuple[Copied | Gone, ...] = self._copy(step)
            return copied
        gone = self._gone(step.copies)
        if any(gone):
            return tuple(each or Gone("not copied, because either all lost rows are or none") for each in gone)
        raise refused(
            "DECIDED_NOT_FINISHED.unknown_producer",
            write=self._write,
            transactional_id=unknown[0].transactional_id,
            producer_id=unknown[0].producer_id,
        )

    def _gone(self, copies: Sequence[Copy]) -> list[Gone | None]:
        """Find in each copy a range of which all records are gone, or the first ones."""
        ranges = tuple(part for copy in copies for part in copy.ranges)
        owners = tuple(copy.source.producer_id for copy in copies for _ in copy.ranges)
        found = self._performers[AbortedTransactions](AbortedTransactions(ranges, owners))
        left = {(part.topic, part.partition) for part in ranges if found[part] is not Unseen.GONE}
        starts = self.admin.list_offsets(left, self._deadline, isolation="read_uncommitted", timestamp=EARLIEST)

        def is_gone(part: OffsetRange) -> bool:
            return starts.get((part.topic, part.partition), part.last_offset + 1) > part.first_offset

        why = "the partition does not hold these offsets any more"
        return [next((Gone(f"{part}: {why}") for part in copy.ranges if is_gone(part)), None) for copy in copies]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSettings:
    """Which write on which cluster.

    ``timeout_ms`` bounds each step and the wait for proofs (delivery.timeout.ms).
    ``history_topic`` gets a record of each batch that ``command`` finishes, if the topic exists; empty for none.
    """

    write_id: str
    commit_log_topic: str
    client: ClientConfig
    timeout_ms: int = 120_000
    history_topic: str = ""
    command: str = ""

    @property
    def write(self) -> Write:
        return Write(self.write_id, self.commit_log_topic, self.client.command_options)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedTransaction:
    """A transaction that recovery tried to end.

    answer   the name of Kafka's error code; None if the response was lost
    is_over  whether it is not open any more: it ended now, or had ended before
    copies   whether recovery began it, for copies of lost rows
    """

    identity: ProducerIdentity
    end: Literal["commit", "abort"]
    answer: str | None
    is_over: bool
    copies: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredVersion:
    """What became of a version.

    state         as `status` shows it; aborted, if it was not decided and recovery ended its transactions
    finished_now  whether this run finished it
    has_copies    whether some of its rows are copies
    """

    query_id: str
    version: int
    state: str
    resolution: str | None = None
    finished_now: bool = False
    has_copies: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What recover found and did.

    versions   the newest decision of every query id, as it is now; then newer versions without a decision
    ended      the write's transactions, and the transactions of copies, that this run tried to end
    discarded  what hung on partitions, and was seen to end after this run aborted it
    hanging    what still hangs, and what was not checked
    """

    versions: tuple[RecoveredVersion, ...]
    ended: tuple[EndedTransaction, ...]
    discarded: tuple[HeldOpen, ...] = ()
    hanging: Found = field(default_factory=Found)

    @property
    def all_ended(self) -> bool:
        """Whether every open transaction was found and is known to have ended."""
        return self.hanging.all_ended and all(each.is_over for each in self.ended)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview(ClusterView):
    """What a command finds of a write, before any change.

    decided   how many of the open transactions a decided version lists
    warnings  of the command before its fence
    hanging   what partitions hold open and no coordinator ends; only `recover` searches for it
    """

    decided: int = 0
    warnings: tuple[str, ...] = ()
    hanging: Found = field(default_factory=Found)


@contextmanager
def connected_to_log(settings: OperatorSettings) -> Iterator[tuple[Admin, _OperatorExecutor, Run]]:
    """Yield admin, executor and a new run for an existing, checked log.

    Raises:
        BrokerRefusedError: NO_COMMIT_LOG.
        ConfigurationError: COMMIT_LOG_TOPIC, before anything is written to it.
    """
    with connected(settings.client) as admin:
        topic = settings.commit_log_topic
        deadline = admin.client.clock() + settings.timeout_ms
        if admin.topic(topic, deadline) is None:
            raise refused("NO_COMMIT_LOG", topic=topic)
        # On a log that is not compacted alone, a missing record would prove nothing.
        ensure_commit_log(admin, topic, deadline)
        write = settings.write
        executor = _OperatorExecutor(admin, write, ProducerConfig(delivery_timeout_ms=settings.timeout_ms))
        try:
            yield admin, executor, new_run(write, settings.timeout_ms, admin.transaction_version(deadline))
        except KafkaEosError as error:
            # Of other codes only the run of a job can say that nothing of it is visible.
            job = job_of(settings.write_id)
            if speaks_of_rows(error.code):
                error.concern(job, in_command=True)
            if job is Job.RANDOM and isinstance(error, FencedError):
                # A run is fenced before its decision, and may start again. This command may have found a decided batch.
                error.way_out = "Run this command again: it shows what became of the batch"
            # The error may be of another query id.
            _report_recovered(settings, executor)
            raise
        _report_recovered(settings, executor)


def _report_recovered(settings: OperatorSettings, executor: Executor) -> None:
    """Write the history records of the batches that the command finished; best effort."""
    if not settings.history_topic or not executor.stopwatch.finished:
        return
    try:
        # Recovery may have decided copies since it read the log.
        view = read_log(executor, settings.write_id)
        history.report_recovered(executor, settings.history_topic, view, settings.command, create=False)
    except KafkaEosError as failure:
        log.warning("kafka-eos: the history lacks the batch that %s has finished: %s", settings.command, failure)


def read_log(executor: Executor, write_id: str) -> LogView:
    """Return the whole commit log of a write."""
    view = LogView(write_id)
    executor.run(read_to_end(view))
    return view


def perform(settings: OperatorSettings, procedure: Callable[[Run], Procedure[T]], shown: Collection[str] = ()) -> T:
    """Run a procedure, given its run; leave out the warnings that are ``shown``."""
    with connected_to_log(settings) as (_, executor, run):
        executor.shown = shown
        return executor.run(procedure(run))


def preview(settings: OperatorSettings, procedure: Callable[[Run], Procedure[Any]], *, search: bool = False) -> Preview:
    """Run the read-only start of a procedure, with its errors; return the state.

    Args:
        search: Also search the partitions for what hangs.
    """
    with connected_to_log(settings) as (admin, executor, run):
        warnings: list[str] = []
        executor.run(up_to_fence(procedure(run), warnings))
        view = read_log(executor, settings.write_id)
        # As the procedure does that it shows: a list that no broker can send must not stop the commands that repair.
        found = executor.run(list_open(run, LIST_WITHIN_MS))
        ids = [each.transactional_id for each in found]
        described = admin.describe_transactions(ids, admin.client.clock() + settings.timeout_ms)
        hanging = find_hanging(admin, executor, run, view, settings.timeout_ms) if search else Found()
    opened = tuple(each for each in described.values() if each is not None)
    named = still_to_commit(view)
    return Preview(
        now_ms=time.time_ns() // 1_000_000,
        writes=write_lines(writes_in(view)),
        transactions=opened,
        decided=sum((each.producer_id, each.producer_epoch) in named for each in opened),
        warnings=tuple(warnings),
        hanging=hanging,
    )


def up_to_fence(procedure: Procedure[Any], warnings: list[str]) -> Procedure[None]:
    """Run a procedure up to its fence, and collect its warnings."""
    # A procedure changes nothing before it fences the driver of its write id.
    result: Any = None
    while True:
        step = procedure.send(result)
        if isinstance(step, InitProducerId):
            procedure.close()
            return
        if isinstance(step, Warn):
            warnings.append(step.message)
            result = None
        else:
            result = yield step


def recovery(run: Run, *, abort_unknown: bool, view: LogView | None = None) -> Procedure[Plan]:
    """The procedure of `recover`; ``view`` receives what it reads of the log."""
    unknown_id = UnknownId.ABORT if abort_unknown else UnknownId.REFUSE
    return take_over(TakeOver(run=run, unknown_id=unknown_id, view=view))


def recover(settings: OperatorSettings, *, abort_unknown: bool = False, discard: bool = False) -> Recovered:
    """Fence the driver of a write id, finish its decided version, and abort the rest.

    Args:
        abort_unknown: Continue even if the commit log holds nothing of the write id.
        discard: Also abort what hangs under forgotten ids, by markers.

    Raises:
        DecisionPendingError: A decision can be neither finished nor proven void.
        WriteRefusedError: The commit log holds nothing of the write id; nothing was changed.
    """
    with connected_to_log(settings) as (admin, executor, run):
        # take_over writes done records, and reads the log again after it has copied transactions.
        before = read_log(executor, settings.write_id)
        by_marker: tuple[HeldOpen, ...] = ()
        if discard and (forgotten := find_hanging(admin, executor, run, before, settings.timeout_ms).forgotten):
            # BLIND: the decision notes what no reader has seen, before it is discarded. Recovery fails while this still hangs.
            try:
                executor.run(recovery(run, abort_unknown=abort_unknown))
            except DecisionPendingError:
                if lacks_note(read_log(executor, settings.write_id), forgotten):
                    raise
            by_marker = discard_forgotten(admin, forgotten, settings.timeout_ms)
            # Now, because the recovery that follows may fail.
            log.warning("kafka-eos: aborted by a marker: %s", counted(len(by_marker), "transaction"))
        view = LogView(settings.write_id)
        plan = executor.run(recovery(run, abort_unknown=abort_unknown, view=view))
        # Recovery may have decided copies since it read the log.
        executor.run(read_to_end(view))
        attempts: tuple[HeldOpen, ...] = ()
        try:
            attempts, hanging = discard_attempts(admin, executor, run, plan.driver, view, settings.timeout_ms)
        except KafkaEosError as failure:
            # The decisions are finished, and the user must see that.
            hanging = Found(not_checked=(f"attempts that may hang on partitions. {failure.brief}",))
        if admin.unlisted:
            silent = f"open transactions ({admin.unlisted}). Run the command again when all brokers respond."
            hanging = replace(hanging, not_checked=(*hanging.not_checked, silent))
        ended = _ended(executor, settings.write.driver_id)
        over = {each.identity.carrier for each in ended if each.is_over}
        aborted = sorted(_undecided_versions(view, plan, over))
        return Recovered(
            versions=(
                *(_recovered(before, each) for each in plan.decisions),
                *(RecoveredVersion(query_id=of, version=version, state="aborted") for of, version in aborted),
            ),
            ended=ended,
            discarded=(*by_marker, *attempts),
            hanging=hanging,
        )


def _ended(executor: _OperatorExecutor, driver_id: str) -> tuple[EndedTransaction, ...]:
    """Return the end of each transaction that this run tried to end."""
    done = {end.identity.carrier for end, result in executor.ended if result.error == ErrorCode.NONE}
    found = []
    for end, result in executor.ended:
        is_done = result.error == ErrorCode.NONE
        is_over = is_done or result.error in END_TXN_REJECTED
        # The list of open transactions is older than the settling. An abort of one that was committed meanwhile is rejected.
        is_late = not is_done and end.identity.carrier in done
        # W.driver's transaction carries this command's own records.
        if not is_late and not (is_over and end.identity.transactional_id == driver_id):
            found.append(
                EndedTransaction(
                    identity=end.identity,
                    end="commit" if end.commit else "abort",
                    answer=None if result.error is None else ErrorCode.of(result.error).name,
                    is_over=is_over,
                    copies=end.identity in executor.copied,
                )
            )
    # Once each, because recovery may have run twice.
    return tuple(dict.fromkeys(found))


def _recovered(before: LogView, settled: SettledDecision) -> RecoveredVersion:
    """Describe a decision; ``before`` is the log as the run found it."""
    decision, is_finished = settled.decision, settled.status is DecisionStatus.FINISHED
    return RecoveredVersion(
        query_id=decision.query_id,
        version=decision.version,
        state="resolved" if decision.resolution else settled.status.value,
        resolution=decision.resolution,
        finished_now=is_finished and not before.query(decision.query_id).has_done_record(decision),
        has_copies=bool(decision.copies),
    )


def _undecided_versions(view: LogView, plan: Plan, over: Collection[ProducerIdAndEpoch]) -> set[tuple[str, int]]:
    """Return query id and version of transactions that no decision will list."""
    newest = {each.decision.query_id: each.decision.version for each in plan.decisions}
    return {
        (query.query_id, part.value["version"])
        for query in view.queries("part")
        for part in query.newest_parts.values()
        # A losing attempt of a decided version also has a part.
        if part.carrier in over and part.value and part.value.get("version", -1) > newest.get(query.query_id, -1)
    }
