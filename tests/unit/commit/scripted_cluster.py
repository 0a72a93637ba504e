"""The model's simulated cluster (`tests/model/simulated_cluster.py`) for tests that run one procedure after the other."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.commit_batch import CommitRequest, commit
from kafka_eos_sink.commit.log_records import parse_key
from kafka_eos_sink.commit.log_view import LogView
from kafka_eos_sink.commit.procedure import Procedure, Step
from kafka_eos_sink.commit.take_over import TakeOver, take_over
from kafka_eos_sink.commit.task import write_attempt
from kafka_eos_sink.commit.values import BatchIdentity, Decision, Plan, TaskIdentity, TaskMessage
from kafka_eos_sink.protocol.identity import ProducerIdentity
from tests.model import performer
from tests.model import simulated_cluster as kafka
from tests.model.procedures import Throw

T = TypeVar("T")

BATCH = BatchIdentity(query_id="batch", version=1, topic="t", schema="value string", offsets_hash=None)
TIMEOUT_MS = 900_000
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

    def run(self, procedure: Procedure[T]) -> T:
        result: Any = None
        failure: Exception | None = None
        while True:
            try:
                step = procedure.send(result) if failure is None else procedure.throw(failure)
            except StopIteration as stop:
                returned: T = stop.value
                return returned
            self.steps.append(step)
            result, failure = None, None
            try:
                result = self.own.get(type(step), self.perform)(step)
            except Exception as error:
                failure = error

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
            case steps.HasRows():
                return bool(self.rows)
            case steps.EndTransactions():
                self.ends += [(end.identity, end.commit) for end in step.ends]
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

    def open(self, transactional_id: str) -> ProducerIdentity:
        """Write a row in a transaction of this id, and leave it open."""
        identity: ProducerIdentity = self.perform(steps.InitProducerId(transactional_id, TIMEOUT_MS))
        self.rows = [("left", 1)]
        self.perform(steps.WriteRows(identity))
        return identity

    def end_without_marker(self, identity: ProducerIdentity, *, commit: bool, partition: int) -> None:
        """End a transaction. The broker omits its marker in one partition (KAFKA-20734)."""
        ended = performer.identity_of(identity)
        self.kafka, _ = kafka.end_txn(self.kafka, ended, commit, performer.end_version(ended))
        self.kafka = kafka.write_marker(self.kafka, identity.transactional_id, partition, skipped=True)
        self.write_markers()

    # a write

    def plan(self, nonce: str = "mine", write_id: str = "w") -> Plan:
        request = TakeOver(write_id=write_id, nonce=nonce, transaction_timeout_ms=TIMEOUT_MS)
        return self.run(take_over(request, self.kafka.version))

    def attempt(self, plan: Plan, partition: int = 0, slot: int = 0, batch: BatchIdentity = BATCH) -> TaskMessage:
        """Write the rows of a task, in the transaction ``<write id>.<partition>.<slot>``."""
        self.rows = [(f"{partition}.{row}", 1 + partition) for row in range(ROWS)]
        task = TaskIdentity(partition=partition, attempt_number=0, task_attempt_id=slot)
        return self.run(write_attempt(plan, batch, task))

    def commit(self, messages: Sequence[TaskMessage | None], **changes: Any) -> Decision | None:
        """Commit a batch; ``changes`` are fields of its `CommitRequest`."""
        plan = next((message.plan for message in messages if message is not None), None) or self.plan()
        request = CommitRequest(plan=plan, batch=BATCH, random_write_id=False, nonce="barrier")
        return self.run(commit(replace(request, **changes), messages))

    # the commit log

    def delete_log(self) -> None:
        self.kafka = self.kafka._replace(logs=((), *self.kafka.logs[1:]))

    def view(self) -> LogView:
        view = LogView("w")
        chunk = self.perform(steps.ReadLog(0))
        view.feed(chunk.entries, chunk.next_offset, 0)
        return view

    def newest(self) -> Decision:
        found = self.view().query("batch").newest
        assert found is not None
        return found.decision

    def records(self, kind: str) -> list[dict[str, Any]]:
        """The values of the commit log's records of a kind."""
        entries = [each for each in self.perform(steps.ReadLog(0)).entries if isinstance(each, steps.ReadRecord)]
        keys = [(parse_key(each.key), each.value) for each in entries]
        return [json.loads(value) for key, value in keys if key is not None and key.kind == kind and value]


def written(partitions: int = 1, **changes: Any) -> tuple[ScriptedCluster, list[TaskMessage]]:
    """Return a cluster on which each partition's task has written its rows; ``changes`` are fields of the batch."""
    cluster = ScriptedCluster(partitions)
    plan = cluster.plan()
    batch = replace(BATCH, **changes)
    return cluster, [cluster.attempt(plan, partition, batch=batch) for partition in range(partitions)]
