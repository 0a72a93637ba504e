"""Recovers, resolves and repairs a dead or stuck write from outside Spark.

Each opens its own client. Of the write's options it needs only the write id and the commit log. It returns what it found and did.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.config import ClientConfig
from kafka_eos_sink.client.metadata import partition_of
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.commit.log_reading import read_to_end
from kafka_eos_sink.commit.log_view import LogView
from kafka_eos_sink.commit.operator.missing_markers import (
    Evidence,
    Finding,
    Part,
    Verdict,
    gather,
    holder_of,
    judge,
    rounds,
)
from kafka_eos_sink.commit.operator.resolve import Answer, Resolved, ResolveRequest, resolve
from kafka_eos_sink.commit.prepared_transaction import DecisionStatus, SettledDecision
from kafka_eos_sink.commit.proofs import Look, look_at
from kafka_eos_sink.commit.settle import SettleLimits
from kafka_eos_sink.commit.steps import POLL_MS
from kafka_eos_sink.commit.take_over import TakeOver, UnknownId, take_over
from kafka_eos_sink.errors import AuthorizationError, BrokerRefusedError, BrokerUnavailableError
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import ProducerIdentity, TopicPartition
from kafka_eos_sink.protocol.messages import ProducerState
from kafka_eos_sink.protocol.reactions import END_TXN_REJECTED
from kafka_eos_sink.protocol.record_batch import first_batch_of
from kafka_eos_sink.runtime.executor import Executor
from kafka_eos_sink.runtime.session import DEFAULT_TRANSACTION_TIMEOUT_MS, log_partition_of
from kafka_eos_sink.runtime.topics import ensure_commit_log

LEADER_MS = 10_000
PARTITION_MS = 1_000
"""For how long repair waits for a leader, and for one partition, before it continues without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSettings:
    """Which write on which cluster.

    ``timeout_ms`` bounds each step and the wait for proofs (delivery.timeout.ms).
    """

    write_id: str
    commit_log_topic: str
    client: ClientConfig
    timeout_ms: int = 120_000

    @property
    def commit_log(self) -> TopicPartition:
        return self.commit_log_topic, log_partition_of(self.write_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedTransaction:
    """An EndTxn and its result.

    ``error`` is 0 for success, None if the response was lost.
    """

    identity: ProducerIdentity
    committed: bool
    error: int | None

    @property
    def succeeded(self) -> bool:
        return self.error == ErrorCode.NONE

    @property
    def had_ended(self) -> bool:
        """True if the broker rejected EndTxn because this transaction had already ended."""
        return self.error in END_TXN_REJECTED

    @property
    def is_over(self) -> bool:
        return self.succeeded or self.had_ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What recover found and did.

    decisions      the newest decision of every query id, as it is now
    finished_now   the query ids whose decision this run finished
    ended          the transactions that this run tried to end
    left_open      open transactions under ids that a decision names whose outcome cannot be proven
    """

    decisions: tuple[SettledDecision, ...]
    finished_now: frozenset[str]
    ended: tuple[EndedTransaction, ...]
    left_open: tuple[ProducerIdentity, ...] = ()

    @property
    def all_ended(self) -> bool:
        """Whether every transaction that was found open is known to have ended."""
        return not self.left_open and all(each.is_over for each in self.ended)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired:
    """What repair found and did.

    findings     transactions that are open although they are decided
    written      whether the missing markers were written and are in effect
    unasked      partitions (topic-partition) whose leaders did not respond
    unreadable   topics without the Read permission
    nowhere      query ids whose partitions cannot be determined
    """

    findings: tuple[Finding, ...]
    written: bool
    knows_decisions: bool
    unasked: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    nowhere: tuple[str, ...] = ()


class ProducerQueries:
    """Describes the producers of partitions whose leaders may be slow, lost, or closed to the principal."""

    def __init__(self, admin: Admin, timeout_ms: int) -> None:
        self._admin = admin
        self._timeout_ms = timeout_ms
        self.unreadable: set[str] = set()
        """Topics whose producers may not be described: the Read permission is missing."""

    def producers_on(
        self, partitions: Collection[TopicPartition], topics: Collection[str] = ()
    ) -> tuple[dict[TopicPartition, tuple[ProducerState, ...]], tuple[TopicPartition, ...]]:
        """Describe the producers of partitions and of whole topics that exist.

        A partition that does not respond must neither stop the query of the others nor use up their time.

        Returns:
            The producers per partition, and the partitions that did not respond.
        """
        by_leader: dict[int, list[TopicPartition]] = {}
        unasked: list[TopicPartition] = []
        for topic in sorted({*topics, *(topic for topic, _ in partitions)}):
            wanted = [each for each in partitions if each[0] == topic]
            try:
                known = self._admin.topic(topic, self._admin.client.clock() + self._timeout_ms)
            except AuthorizationError:
                self.unreadable.add(topic)
                unasked += wanted
                continue
            if known is None:
                continue
            if topic in topics:
                wanted = list(dict.fromkeys([*wanted, *((topic, each.partition_index) for each in known.partitions)]))
            for each in wanted:
                found = partition_of(known, each[1])
                if found is not None:
                    (unasked if found.leader_id < 0 else by_leader.setdefault(found.leader_id, [])).append(each)
        producers: dict[TopicPartition, tuple[ProducerState, ...]] = {}
        for of_leader in by_leader.values():
            producers |= self._of_leader(of_leader)
            unasked += [each for each in of_leader if each not in producers]
        return producers, tuple(unasked)

    def _of_leader(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, tuple[ProducerState, ...]]:
        """Query all partitions of a leader at once, or one by one if that fails."""
        topics = dict.fromkeys(topic for topic, _ in partitions)
        try:
            together = self._asked(partitions, LEADER_MS)
        except AuthorizationError:
            if len(topics) == 1:
                self.unreadable.update(topics)
                return {}
            each_alone = [self._of_leader([each for each in partitions if each[0] == topic]) for topic in topics]
            return {where: states for alone in each_alone for where, states in alone.items()}
        if together is not None:
            return together
        found: dict[TopicPartition, tuple[ProducerState, ...]] = {}
        give_up_at = self._admin.client.clock() + LEADER_MS
        for each in partitions:
            if self._admin.client.clock() < give_up_at and each[0] not in self.unreadable:
                try:
                    found |= self._asked([each], PARTITION_MS) or {}
                except AuthorizationError:
                    self.unreadable.add(each[0])
        return found

    def _asked(
        self, partitions: Sequence[TopicPartition], within_ms: int
    ) -> dict[TopicPartition, tuple[ProducerState, ...]] | None:
        try:
            return self._admin.describe_producers(partitions, self._admin.client.clock() + within_ms)
        except BrokerUnavailableError:
            return None
        except BrokerRefusedError as refused:
            # The topic may have been deleted since its metadata was read.
            if refused.code != "UNKNOWN_TOPIC":
                raise
            return None


@contextmanager
def _connected(settings: OperatorSettings) -> Iterator[tuple[Admin, Executor]]:
    """Yield an executor on an existing, checked commit log.

    Raises:
        BrokerRefusedError: NO_COMMIT_LOG.
        ConfigurationError: COMMIT_LOG_TOPIC, before anything is written to it.
    """
    with NetworkClient(settings.client) as client:
        admin = Admin(client)
        topic = settings.commit_log_topic
        deadline = client.clock() + settings.timeout_ms
        if admin.topic(topic, deadline) is None:
            raise BrokerRefusedError(
                "NO_COMMIT_LOG",
                f"there is no commit log topic {topic!r} on this cluster; correct --bootstrap-servers, or name the write's "
                "commit.log.topic with --commit-log-topic",
            )
        # On a log that is not compacted alone, a missing record would prove nothing.
        ensure_commit_log(admin, topic, None, deadline)
        yield admin, Executor(admin, settings.commit_log, ProducerConfig(delivery_timeout_ms=settings.timeout_ms))


def recover(settings: OperatorSettings, *, abort_unknown: bool = False) -> Recovered:
    """Fence the driver of a write id, finish its decided version, and abort the rest.

    Args:
        abort_unknown: Continue even if the commit log holds nothing of the write id.

    Raises:
        DecisionPendingError: A decision can be neither finished nor proven void.
        WriteRefusedError: The commit log holds nothing of the write id; nothing was changed.
    """
    with _connected(settings) as (admin, executor):
        version = admin.transaction_version(admin.client.clock() + settings.timeout_ms)
        # take_over writes done records, and reads the log again after it has copied transactions.
        before = LogView(settings.write_id)
        executor.run(read_to_end(before))
        request = TakeOver(
            write_id=settings.write_id,
            nonce=uuid.uuid4().hex,
            transaction_timeout_ms=DEFAULT_TRANSACTION_TIMEOUT_MS,
            limits=SettleLimits(deadline_ms=settings.timeout_ms),
            unknown_id=UnknownId.ABORT if abort_unknown else UnknownId.REFUSE,
        )
        plan = executor.run(take_over(request, version))
        tried = [
            EndedTransaction(identity=end.identity, committed=end.commit, error=result.error)
            for end, result in executor.ended
        ]
        # The list of open transactions is older than the settling. An abort of one that was committed meanwhile is rejected.
        done = {_without_version(each.identity) for each in tried if each.succeeded}
        ended = tuple(each for each in tried if each.succeeded or _without_version(each.identity) not in done)
        over = {_without_version(each.identity) for each in ended if each.is_over}
        left_open = tuple(identity for identity in plan.left_open if _without_version(identity) not in over)
        return Recovered(
            decisions=plan.decisions,
            finished_now=frozenset(each.query_id for each in plan.decisions if _is_finished_now(before, each)),
            ended=ended,
            left_open=left_open,
        )


def _is_finished_now(before: LogView, decision: SettledDecision) -> bool:
    """Whether this run finished a decision; ``before`` is the log as the run found it."""
    if decision.status is not DecisionStatus.FINISHED or not decision.proven:
        return False
    done = before.query(decision.query_id).done
    return done is None or done.get("nonce") != decision.nonce


def _without_version(identity: ProducerIdentity) -> ProducerIdentity:
    """Make a listed and a named transaction comparable."""
    # The version of a listed one is the cluster's, that of a named one the decision's.
    return replace(identity, transaction_version=0)


def resolve_version(settings: OperatorSettings, *, query_id: str | None, version: int, answer: Answer) -> Resolved:
    """Record the operator's decision for one version, as `resolve`."""
    with _connected(settings) as (admin, executor):
        transaction_version = admin.transaction_version(admin.client.clock() + settings.timeout_ms)
        request = ResolveRequest(
            write_id=settings.write_id,
            query_id=query_id,
            version=version,
            answer=answer,
            nonce=uuid.uuid4().hex,
            limits=SettleLimits(deadline_ms=settings.timeout_ms),
        )
        return executor.run(resolve(request, transaction_version))


def repair(settings: OperatorSettings, *, write: bool) -> Repaired:
    """Find transactions whose markers are missing.

    Args:
        write: Write the markers whose outcome is proven.

    Raises:
        AuthorizationError: Read on the commit log is missing or, to write, Alter or ClusterAction on the cluster.
    """
    with _connected(settings) as (admin, executor):
        version = admin.transaction_version(admin.client.clock() + settings.timeout_ms)
        where = settings.commit_log
        evidence = executor.run(gather(settings.write_id, uuid.uuid4().hex, *where, version))
        # An attempt that no newest decision names can block the readers of any partition of a topic.
        partitions = dict.fromkeys([*(part.where for part in evidence.parts), *([where] if evidence.described else [])])
        queries = ProducerQueries(admin, settings.timeout_ms)
        producers, unasked = queries.producers_on(partitions, evidence.topics)
        judged = judge(evidence, producers)
        findings = tuple(_doubted(executor, evidence, judged, finding, producers, unasked) for finding in judged)
        missing = [finding for finding in findings if finding.verdict is Verdict.MISSING]
        found = Repaired(
            findings=findings,
            written=False,
            knows_decisions=evidence.knows_decisions,
            unasked=tuple(f"{topic}-{partition}" for topic, partition in unasked if topic not in queries.unreadable),
            unreadable=tuple(sorted(queries.unreadable)),
            nowhere=evidence.nowhere,
        )
        if not write or not missing:
            return found
        deadline = admin.client.clock() + settings.timeout_ms
        # At most one marker per partition and request: the response could not be matched to two.
        for markers in rounds(missing):
            admin.write_txn_markers(markers, deadline)
        _await_ends(admin, [finding.part for finding in missing], deadline)
        return replace(found, written=True)


def _await_ends(admin: Admin, parts: Sequence[Part], deadline: int) -> None:
    """Wait until the leaders hold none of the transactions open."""
    # A leader responds to WriteTxnMarkers before the marker is in effect.
    while True:
        producers = admin.describe_producers(dict.fromkeys(part.where for part in parts), deadline)
        left = [part for part in parts if holder_of(part, producers[part.where]) is not None]
        if not left:
            return
        if admin.client.clock() >= deadline:
            topic, partition = left[0].where
            raise BrokerUnavailableError(
                "REQUEST_DEADLINE",
                f"{topic}-{partition} took the marker of {left[0].identity.transactional_id} and still holds its transaction open; check "
                "the log of its leader",
            )
        admin.client.wait(POLL_MS, deadline)


def _doubted(
    executor: Executor,
    evidence: Evidence,
    judged: Sequence[Finding],
    finding: Finding,
    asked: Collection[TopicPartition],
    unasked: Collection[TopicPartition],
) -> Finding:
    """Call a finding unproven if its ABORT could discard committed records."""
    part = finding.part
    if finding.marker is None or finding.marker.committed:
        return finding
    why = None
    if part.version is None:
        try:
            begins = _begins_here(executor.admin, part, executor.client.clock() + LEADER_MS)
            if begins is None:
                why = "its first batch is gone (deleted), so nobody can tell whether it has joined an older open transaction"
            elif not begins:
                why = "it has joined an older open transaction"
        except (AuthorizationError, BrokerUnavailableError, BrokerRefusedError):
            why = "its leader does not show now whether it has joined an older open transaction"
    elif part.identity.transaction_version < 2:
        # Below version 2 the ABORT in the log may belong to a transaction that a late request began again, or to an attempt that
        # joined it. Then readers see the rows elsewhere. From version 2 on the epoch belongs to exactly one end.
        held = {each.part.where for each in judged if each.part.identity == part.identity}
        elsewhere = [
            each
            for each in evidence.parts
            if each.identity == part.identity
            and each.where[0] != executor.where[0]
            and each.where not in held
            # Deleted topics are in neither.
            and (each.where in asked or each.where in unasked)
        ]
        why = _visible_elsewhere(executor, elsewhere, unasked)
    return finding if why is None else replace(finding, verdict=Verdict.UNPROVEN, marker=None, reason=why)


def _visible_elsewhere(executor: Executor, parts: Sequence[Part], unasked: Collection[TopicPartition]) -> str | None:
    """Return why the transaction may be committed, None if it cannot be."""
    where = next((each.where for each in parts if each.where in unasked), None)
    if where is None:
        written = tuple((each.identity, each.offsets) for each in parts)
        try:
            look: Look = executor.run(look_at(written))
        except BrokerUnavailableError:
            look = Look(untold=written)
        if look.seen:
            return f"the commit log says aborted, but readers see its rows on {look.seen[0][1].topic}-{look.seen[0][1].partition}"
        if not look.untold:
            return None
        where = look.untold[0][1].topic, look.untold[0][1].partition
    return f"the commit log says aborted, but nobody can tell now whether readers will see its rows on {where[0]}-{where[1]}"


def _begins_here(admin: Admin, part: Part, deadline: int) -> bool | None:
    """Whether the open transaction began with this attempt, None if unknown.

    An attempt that joined an older transaction would discard that one's rows with its ABORT.
    """
    where, offset = part.where, part.first_offset
    fetched = admin.fetch(where, offset, isolation="read_uncommitted", max_wait_ms=0, max_bytes=1, deadline_ms=deadline)
    if fetched.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
        return None
    first, identity = first_batch_of(fetched.records or b""), part.identity
    return first is not None and (first.base_offset, first.producer_id, first.producer_epoch) == (
        offset,
        identity.producer_id,
        identity.producer_epoch,
    )
