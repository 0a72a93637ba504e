"""What an operator does with a dead or stuck write from outside Spark: recover, resolve and repair, on a real cluster.

Each opens its own client, needs no option of the write but its id and commit log, and returns what it found and did as values.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ..client.admin import Admin
from ..client.config import ClientConfig
from ..client.network_client import NetworkClient
from ..errors import BrokerRefusedError, BrokerUnavailableError
from ..protocol.error_codes import ErrorCode
from .commit_log import parse_key
from .executor import Executor
from .missing_markers import Evidence, Finding, Verdict, gather, judge, rounds
from .prepared_transaction import SettledDecision
from .recovery import POLL_MS, SettleLimits
from .required_topics import ensure_commit_log
from .resolve import Answer, Resolved, ResolveRequest, resolve
from .steps import Append, EndResult, EndTransactions
from .take_over import TakeOver, take_over
from .write import DEFAULT_TRANSACTION_TIMEOUT_MS, log_partition_of


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSettings:
    """Which write, on which cluster; ``timeout_ms`` bounds each step and the wait for proofs (delivery.timeout.ms)."""

    write_id: str
    commit_log_topic: str
    client: ClientConfig
    timeout_ms: int = 120_000

    @property
    def log_partition(self) -> int:
        return log_partition_of(self.write_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedTransaction:
    """An EndTxn and its answer; ``error`` 0 for success, None where no answer came."""

    transactional_id: str
    committed: bool
    error: int | None

    @property
    def succeeded(self) -> bool:
        return self.error == ErrorCode.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """Every query id's newest decision as it is now, which of them were finished just now, and all that was ended."""

    decisions: tuple[SettledDecision, ...]
    finished_now: frozenset[str]
    ended: tuple[EndedTransaction, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired:
    """What is open although it is decided; ``written``: the missing markers were written and are in effect."""

    findings: tuple[Finding, ...]
    written: bool


class NotingExecutor(Executor):
    """Notes what a procedure ends, and the query ids whose newest decision it calls done."""

    def __init__(self, admin: Admin, settings: OperatorSettings) -> None:
        super().__init__(
            admin.client,
            admin,
            log_topic=settings.commit_log_topic,
            log_partition=settings.log_partition,
            timeout_ms=settings.timeout_ms,
        )
        self.ended: list[EndedTransaction] = []
        self.finished: set[str] = set()
        self._performers |= {EndTransactions: self._note_ends, Append: self._note_done}

    def _note_ends(self, step: EndTransactions) -> tuple[EndResult, ...]:
        results = self._end_transactions(step)
        self.ended += [
            EndedTransaction(transactional_id=end.identity.transactional_id, committed=end.commit, error=result.error)
            for end, result in zip(step.ends, results, strict=True)
        ]
        return results

    def _note_done(self, step: Append) -> int:
        offset = self._append(step)
        keys = (parse_key(record.key) for record in step.records)
        self.finished |= {key.query_id for key in keys if key is not None and key.kind == "done"}
        return offset


@contextmanager
def _connected(settings: OperatorSettings) -> Iterator[tuple[Admin, NotingExecutor]]:
    """An executor on an existing, proper commit log.

    Raises `BrokerRefusedError` ``NO_COMMIT_LOG``; `ConfigurationError` ``COMMIT_LOG_TOPIC``, before anything is written to it.
    """
    with NetworkClient(settings.client) as client:
        admin = Admin(client)
        topic = settings.commit_log_topic
        deadline = client.clock() + settings.timeout_ms
        if admin.topic(topic, deadline) is None:
            raise BrokerRefusedError(
                "NO_COMMIT_LOG",
                f"there is no commit log topic {topic!r} on this cluster: correct the servers, or name the write's commit.log.topic "
                "with --commit-log-topic",
            )
        ensure_commit_log(admin, topic, None, deadline)
        yield admin, NotingExecutor(admin, settings)


def recover(settings: OperatorSettings) -> Recovered:
    """Take a write id over from whoever holds it: finish what is decided, end what is not.

    Raises what `take_over` raises: `DecisionPendingError` where a decision can neither be finished nor called void.
    """
    with _connected(settings) as (admin, executor):
        version = admin.transaction_version(admin.client.clock() + settings.timeout_ms)
        request = TakeOver(
            write_id=settings.write_id,
            nonce=uuid.uuid4().hex,
            transaction_timeout_ms=DEFAULT_TRANSACTION_TIMEOUT_MS,
            limits=SettleLimits(deadline_ms=settings.timeout_ms),
        )
        plan = executor.run(take_over(request, version))
        # A transaction that was open at first is asked to abort although its decision was finished meanwhile; that is refused.
        over = {each.transactional_id for each in executor.ended if each.succeeded}
        ended = tuple(each for each in executor.ended if each.succeeded or each.transactional_id not in over)
        return Recovered(decisions=plan.decisions, finished_now=frozenset(executor.finished), ended=ended)


def resolve_version(settings: OperatorSettings, *, query_id: str | None, version: int, answer: Answer) -> Resolved:
    """Record the operator's answer for one version; see `resolve` for what it does and raises."""
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
    """Find decided transactions whose markers are missing; with ``write``, write those that are proven committed.

    Raises `AuthorizationError` without Read on a topic or, to write, without Alter or ClusterAction on the cluster.
    """
    with _connected(settings) as (admin, executor):
        deadline = admin.client.clock() + settings.timeout_ms
        gathering = gather(settings.write_id, uuid.uuid4().hex, settings.commit_log_topic, settings.log_partition)
        evidence = executor.run(gathering)
        findings = _findings(admin, evidence, deadline)
        missing = [finding for finding in findings if finding.verdict is Verdict.MISSING]
        if not write or not missing:
            return Repaired(findings=findings, written=False)
        for markers in rounds(missing):
            admin.write_txn_markers(markers, deadline)
        while left := [each for each in _findings(admin, evidence, deadline) if each.verdict is Verdict.MISSING]:
            if admin.client.clock() >= deadline:
                topic, partition = left[0].part.where
                raise BrokerUnavailableError(
                    "REQUEST_DEADLINE",
                    f"{topic}-{partition} took the marker of {left[0].part.identity.transactional_id} and still holds it open; look "
                    "at its leader",
                )
            admin.client.wait(POLL_MS, deadline)
        return Repaired(findings=findings, written=True)


def _findings(admin: Admin, evidence: Evidence, deadline: int) -> tuple[Finding, ...]:
    where = dict.fromkeys(part.where for part in evidence.parts)
    return judge(evidence, admin.describe_producers(where, deadline) if where else {})
