"""The simulated cluster for tests that run one procedure after the other."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from kafka_eos_sink.commit import log_standing, steps
from kafka_eos_sink.commit.commit_batch import CommitRequest, commit
from kafka_eos_sink.commit.log_records import decision_records, parse_key
from kafka_eos_sink.commit.log_view import LoggedDecision, LogView
from kafka_eos_sink.commit.steps import Procedure, Step
from kafka_eos_sink.commit.take_over import TakeOver, fence_only, take_over
from kafka_eos_sink.commit.task import write_attempt
from kafka_eos_sink.commit.values import BatchIdentity, Decision, Plan, TaskIdentity, TaskMessage
from kafka_eos_sink.errors import BrokerUnavailableError, DecisionPendingError
from kafka_eos_sink.protocol.identity import ProducerIdentity
from tests.runs import WRITE, drive, run_of

from . import performer
from . import simulated_cluster as kafka
from .procedures import Throw

T = TypeVar("T")

BATCH = BatchIdentity(query_id="batch", version=1, topic="t", schema="value string", offsets_hash=None)
TIMEOUT_MS = 900_000
FETCH_WAIT_MS = 500
"""How long a Fetch waits for records."""
ROWS = 10
"""Of each task, all in the data partition of its number."""


class ScriptedCluster:
    """A cluster that answers every step; ``own`` replaces the answer to a kind of step by that of a test.

    An own answer is a function of the step. It may raise, and it may call `perform` for the cluster's answer.
    """

    def __init__(self, partitions: int = 1, version: int = 2) -> None:
        self.kafka = kafka.empty_cluster(version, partitions)
        self.own: dict[type[Step[Any]], Callable[[Any], Any]] = {}
        self.now = 1_000
        self.rows: Sequence[tuple[Any, int]] = ()
        """(row, data partition) of the task that runs."""
        self.steps: list[Step[Any]] = []
        self.warnings: list[str] = []
        self.ends: list[tuple[ProducerIdentity, bool]] = []
        """What coordinators were asked to end, and whether to commit it."""
        self.log_id = uuid.uuid4()
        """The topic id of the commit log."""
        self.history: tuple[log_standing.InHistory, ...] = ()

    def run(self, procedure: Procedure[T]) -> T:
        def answer(step: Step[Any]) -> Any:
            self.steps.append(step)
            return self.own.get(type(step), self.perform)(step)

        return drive(procedure, answer)

    def perform(self, step: Step[Any]) -> Any:
        match step:
            case steps.Now() | steps.WallClock():
                return self.now
            case steps.Wait():
                self.now += step.ms
                return None
            case steps.Warn():
                self.warnings.append(step.message)
                return None
            case steps.Reached():
                return None
            case log_standing.ReadHistory():
                return self.history
            case steps.HasRows():
                return bool(self.rows)
            case steps.ReadLog():
                chunk: steps.LogChunk = self._requested(step)
                self.now += FETCH_WAIT_MS if step.wait and not chunk.entries else 0
                return replace(chunk, topic_id=self.log_id)
            case steps.EndTransactions():
                self.ends += [(end.identity, end.commit) for end in step.ends]
        return self._requested(step)

    def _requested(self, step: Step[Any]) -> Any:
        requests = performer.requests_of(step, tuple(self.rows))
        answers: list[Any] = []
        for request in requests:
            answers.append(self.send(request))
            if performer.refused(step, request, answers[-1]):
                break
        result = performer.answer_of(step, requests, tuple(answers), self.kafka.version)
        if isinstance(result, Throw):
            raise result.error
        return result

    def send(self, request: performer.Request) -> Any:
        """Send a request until it is accepted; coordinators write their markers at once."""
        while True:
            self.kafka, answer = performer.process(self.kafka, request)
            self.write_markers()
            if answer is not performer.BLOCKED:
                return answer

    def write_markers(self) -> None:
        for name, entry in self.kafka.transactions:
            for partition in entry.missing:
                self.kafka = kafka.write_marker(self.kafka, name, partition)

    def open(self, transactional_id: str, part: steps.LogRecord | None = None, into: int = 0) -> ProducerIdentity:
        """Write a row, and the part record if there is one, in a transaction of this id, and leave it open."""
        identity: ProducerIdentity = self.perform(steps.InitProducerId(transactional_id, TIMEOUT_MS))
        self.rows = [("left", 1 + into)]
        self.perform(steps.WriteRows(identity))
        if part is not None:
            self.perform(steps.AppendPart(identity, part))
        return identity

    # a write

    def plan(self, nonce: str = "mine", write_id: str = "w") -> Plan:
        run = run_of(nonce, write=replace(WRITE, id=write_id), version=self.kafka.version)
        return self.run(take_over(TakeOver(run=run)))

    def fence(self, nonce: str) -> Plan:
        """Return the plan of a newer driver, which has not finished what older ones have decided."""
        return self.run(fence_only(run_of(nonce, version=self.kafka.version)))

    def attempt(
        self, plan: Plan, partition: int = 0, slot: int = 0, batch: BatchIdentity = BATCH, into: Sequence[int] = ()
    ) -> TaskMessage:
        """Write a task's rows in the transaction ``<write id>.<partition>.<slot>``; ``ROWS`` into each data partition of ``into``."""
        where = into or (partition,)
        self.rows = [(f"{partition}.{each}.{row}", 1 + each) for each in where for row in range(ROWS)]
        task = TaskIdentity(partition=partition, attempt_number=0, task_attempt_id=slot)
        return self.run(write_attempt(plan, batch, task))

    def commit(self, messages: Sequence[TaskMessage | None], **changes: Any) -> Decision | None:
        """Commit a batch; ``changes`` are fields of its `CommitRequest`."""
        plan = next((message.plan for message in messages if message is not None), None) or self.plan()
        run = run_of(write=plan.write, version=self.kafka.version)
        request = CommitRequest(run=run, plan=plan, batch=BATCH)
        return self.run(commit(replace(request, **changes), messages))

    def decide(self, messages: Sequence[TaskMessage | None], **changes: Any) -> LoggedDecision:
        """Commit as far as the decision: the driver dies before it ends the tasks' transactions."""
        driver = next(message.plan.driver for message in messages if message is not None)

        def die(step: steps.EndTransactions) -> Any:
            if step.ends[0].identity == driver:
                return self.perform(step)
            raise BrokerUnavailableError("REQUEST_DEADLINE", "EndTxn was not done in time")

        own, self.own = self.own, {**self.own, steps.EndTransactions: die}
        with contextlib.suppress(DecisionPendingError):
            self.commit(messages, **changes)
        self.own = own
        self.ends.clear()
        self.steps.clear()
        return self.newest_logged(changes.get("batch", BATCH).query_id)

    # what happens to a transaction beside the driver

    def end(self, identity: ProducerIdentity, *, commit: bool) -> None:
        """Somebody else ends it, or its timeout does."""
        ended = performer.identity_of(identity)
        self.send(("end", ended, commit, performer.end_version(ended)))

    def end_without_marker(self, identity: ProducerIdentity, *, commit: bool, partition: int) -> None:
        """As `end`. The broker omits its marker in one partition (KAFKA-20734)."""
        ended = performer.identity_of(identity)
        self.kafka, _ = kafka.end_txn(self.kafka, ended, commit, performer.end_version(ended))
        self.kafka = kafka.write_marker(self.kafka, identity.transactional_id, partition, skipped=True)
        self.write_markers()

    def forget(self, transactional_id: str) -> None:
        """The coordinator removes an id that has no transaction (transactional.id.expiration.ms)."""
        self.kafka = kafka.expire(self.kafka, transactional_id)

    # the commit log

    def change(self, partition: int, offset: int, **fields: Any) -> None:
        """Change a record of a partition, as compaction (``gone``) and forgers do."""
        logs = [list(log) for log in self.kafka.logs]
        logs[partition][offset] = logs[partition][offset]._replace(**fields)
        self.kafka = self.kafka._replace(logs=tuple(map(tuple, logs)))

    def delete_log(self) -> None:
        """Somebody deletes the commit log and creates it again."""
        self.log_id = uuid.uuid4()
        self.kafka = self.kafka._replace(logs=((), *self.kafka.logs[1:]))

    def view(self) -> LogView:
        view = LogView("w", topic_id=self.log_id)
        chunk = self.perform(steps.ReadLog(0))
        view.feed(chunk.entries, chunk.next_offset, 0)
        return view

    def newest_logged(self, query_id: str = "batch") -> LoggedDecision:
        found = self.view().query(query_id).newest
        assert found is not None
        return found

    def newest(self, query_id: str = "batch") -> Decision:
        return self.newest_logged(query_id).decision

    def append_decision(self, decision: Decision) -> LoggedDecision:
        """Append this decision as a new driver would, and commit it."""
        driver: ProducerIdentity = self.perform(steps.InitProducerId("w.driver", TIMEOUT_MS))
        decision = replace(decision, driver=driver)
        appended = self.perform(steps.AppendInTransaction(driver, 0, decision_records(decision)))
        self.end(driver, commit=True)
        return LoggedDecision(decision, appended.offset, self.log_id)

    def records(self, kind: str) -> list[dict[str, Any]]:
        """The values of the commit log's records of a kind."""
        entries = [each for each in self.perform(steps.ReadLog(0)).entries if isinstance(each, steps.ReadRecord)]
        keys = [(parse_key(each.key), each.value) for each in entries]
        return [json.loads(value) for key, value in keys if key is not None and key.kind == kind and value]


def written(
    partitions: int = 1, version: int = 2, write_id: str = WRITE.id, **changes: Any
) -> tuple[ScriptedCluster, list[TaskMessage]]:
    """Return a cluster on which each partition's task has written its rows; ``changes`` are fields of the batch."""
    cluster = ScriptedCluster(partitions, version)
    plan = cluster.plan(write_id=write_id)
    batch = replace(BATCH, **changes)
    return cluster, [cluster.attempt(plan, partition, batch=batch) for partition in range(partitions)]


def decided(partitions: int = 1, version: int = 2) -> tuple[ScriptedCluster, LoggedDecision]:
    """Return a cluster on which the batch of `written` is decided, and its transactions are open."""
    cluster, messages = written(partitions, version)
    return cluster, cluster.decide(messages)
