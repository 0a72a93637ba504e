"""Performs the steps of a task attempt on a real cluster, through the producer."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.refusals import refused
from kafka_eos_sink.commit.steps import Procedure
from kafka_eos_sink.commit.transactions import NEVER_TIMES_OUT_MS, timeout_margin_ms
from kafka_eos_sink.commit.values import Plan, TaskMessage
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.producer.producer import Producer
from kafka_eos_sink.producer.rows import Rows
from kafka_eos_sink.protocol.identity import TopicPartition
from kafka_eos_sink.runtime import failpoints
from kafka_eos_sink.runtime.executor import Executor
from kafka_eos_sink.runtime.part_producer import begin, flush_and_prove, part_offset

MIN_CHECK_INTERVAL_MS = 500


class TaskExecutor(Executor):
    """Performs the steps of `write_attempt` for one task attempt."""

    def __init__(
        self, admin: Admin, where: TopicPartition, config: ProducerConfig, plan: Plan, batches: Iterator[Rows]
    ) -> None:
        super().__init__(admin, where, config)
        self._transaction_timeout_ms = plan.transaction_timeout_ms
        self._batches = batches
        self._producer: Producer | None = None
        self._began_ms = 0
        self._next_check_ms = 0
        self._on(steps.HasRows, self._has_rows)
        self._on(steps.EndTransactions, self._end_own)
        self._on(steps.WriteRows, self._write_rows)
        self._on(steps.AppendPart, self._append_part)

    def write(self, attempt: Procedure[TaskMessage]) -> TaskMessage:
        """Run a task attempt, then prepare its transaction.

        Until the procedure's last step the attempt may abort its transaction. After `Producer.prepare` only the driver may end it.
        """
        message = self.run(attempt)
        if message.prepared is None:
            return message
        assert self._producer is not None
        return replace(
            message,
            prepared=replace(message.prepared, identity=self._producer.prepare()),
            write_ms=self.client.clock() - self._began_ms,
        )

    def close(self) -> None:
        """Close the producer, which abandons its requests in flight."""
        if self._producer is not None:
            self._producer.close()

    def _has_rows(self, _: steps.HasRows) -> bool:
        first = next((rows for rows in self._batches if rows.num_rows), None)
        if first is None:
            return False
        self._batches = itertools.chain((first,), self._batches)
        return True

    def _end_own(self, step: steps.EndTransactions) -> tuple[steps.EndResult, ...]:
        """End the attempt's own transaction through its producer."""
        # The producer first waits for its requests in flight. A Produce that arrives after the ABORT marker would open a
        # transaction that the coordinator does not know (KAFKA-17754).
        if self._producer is None:
            return self._end_transactions(step)
        result = self._producer.abort(self.client.clock() + self.client.config.request_timeout_ms)
        error = 0 if result is None else result.error_code
        return tuple(steps.EndResult(error=error) for _ in step.ends)

    def _write_rows(self, step: steps.WriteRows) -> steps.WrittenRows | None:
        """Write and flush all rows, or return None if other tasks must be checked first."""
        if self._producer is None:
            # `begin` sends nothing. So no request exists before `close` and `_end_own` know the producer.
            self._producer = begin(self.admin, self.config, step.identity)
            self._began_ms = self.client.clock()
        for rows in self._batches:
            self._producer.write(rows)
            failpoints.reached("task.writing")
            if self._must_check():
                return None
        return flush_and_prove(self._producer)

    def _append_part(self, step: steps.AppendPart) -> int:
        producer = self._producer
        assert producer is not None
        producer.append_record(*self.where, step.record.key, step.record.value)
        producer.flush()
        return part_offset(producer, self.where)

    def _must_check(self) -> bool:
        """Whether to check the other tasks' transactions; raise if its own is too old."""
        # Called only when rows arrive. Spark would not notice a failure sooner, because one thread waits for the rows and for the task
        # (docs/internals/spark-behaviour.md).
        timeout = self._transaction_timeout_ms
        now = self.client.clock()
        if timeout == NEVER_TIMES_OUT_MS or now < self._next_check_ms:
            return False
        self._next_check_ms = now + max(MIN_CHECK_INTERVAL_MS, timeout // 20)
        age = now - self._began_ms
        if age + timeout_margin_ms(timeout) >= timeout:
            why = "this task's own transaction has run too long"
            raise refused("TRANSACTION_TOO_OLD", elapsed=age / 1000, limit=timeout / 1000, why=why)
        return True
