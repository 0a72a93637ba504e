"""Performs the steps of the procedures in ``commit/`` on a real cluster.

Each step becomes one or a few requests. The client's engine resends requests with identical bytes, by the reaction table. A
procedure sees results, errors for the user, and None for an unknown outcome.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.topics_admin import EARLIEST
from kafka_eos_sink.client.transactions_admin import EndTransaction
from kafka_eos_sink.commit import log_standing, steps
from kafka_eos_sink.commit.log_records import LARGEST_BATCH_BYTES, LARGEST_BATCH_RECORDS
from kafka_eos_sink.commit.refusals import text
from kafka_eos_sink.commit.steps import Marker, MarkerType, Procedure, ReadRecord, Step
from kafka_eos_sink.errors import (
    AuthorizationError,
    BrokerRefusedError,
    BrokerUnavailableError,
    KafkaEosError,
    ProtocolError,
    printable,
)
from kafka_eos_sink.logs import warn_once
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import ProducerIdentity, TopicPartition
from kafka_eos_sink.protocol.messages import ProduceRequest
from kafka_eos_sink.protocol.reactions import in_words, refusal
from kafka_eos_sink.protocol.record_batch import RecordBatch, read_each_batch
from kafka_eos_sink.runtime import driver_requests, failpoints, step_log
from kafka_eos_sink.runtime.data_proofs import DataProofs, DataTopics
from kafka_eos_sink.runtime.history_reading import read_history, warn_of_unread
from kafka_eos_sink.runtime.record_copier import RecordCopier
from kafka_eos_sink.runtime.stopwatch import Stopwatch

R = TypeVar("R")
T = TypeVar("T")
log = logging.getLogger(__name__)

HISTORY_WITHIN_MS = 5_000
"""How long a plan may search the history for a write id that the log lacks."""
LOG_FETCH_WAIT_MS = 100
LOG_CHUNK_BYTES, ENTRY_BYTES = 8 << 20, 256
"""Memory limit of a chunk of the commit log, and memory of a record without its key and value."""
SMALLER_TIMEOUTS_MS = (900_000, 600_000, 300_000, 120_000, 60_000)
"""Tried in this order if the user set no timeout and DescribeConfigs is not permitted."""
MARKER_TYPES = {0: MarkerType.ABORT, 1: MarkerType.COMMIT}


class Executor:
    """Performs the steps of driver procedures. `TaskExecutor` adds the steps of tasks.

    Args:
        where: The partition of the commit log that holds the records of the write id.
        config: ``delivery_timeout_ms`` bounds each step. For ``max_block_ms``, a data topic may be unknown to the cluster, or its
            log may end before acknowledged records.
        history_topic: Empty for none.
    """

    def __init__(self, admin: Admin, where: TopicPartition, config: ProducerConfig, history_topic: str = "") -> None:
        self.client = admin.client
        self.admin = admin
        self.where = where
        self.config = config
        self.timeout_ms = timeout_ms = config.delivery_timeout_ms
        self.history_topic = history_topic
        self.ended: list[tuple[steps.End, steps.EndResult]] = []
        """Every EndTxn that the procedures requested, and its result."""
        self.first_batch = False
        """Whether the batch is a query's first; see `driver_requests.commit_group_offsets`."""
        self.stopwatch = Stopwatch()
        topics = DataTopics(admin, timeout_ms=timeout_ms, max_block_ms=config.max_block_ms)
        proofs, copier = DataProofs(topics), RecordCopier(topics, where, config)
        self._performers: dict[object, Callable[[Any], Any]] = {}
        self._on(steps.ListOpenTransactions, self._list_open)
        self._on(steps.DescribeTransactions, self._describe)
        self._on(steps.InitProducerId, self._init_producer_id)
        self._on(steps.Append, self._append)
        self._on(
            steps.AddPartitions,
            lambda step: driver_requests.add_partitions(
                admin, step.identity, step.partitions or (where,), self._deadline
            ),
        )
        self._on(steps.AppendInTransaction, lambda step: driver_requests.append(admin, step, where, timeout_ms))
        self._on(
            steps.CommitGroupOffsets,
            lambda step: driver_requests.commit_group_offsets(
                admin, step, self._deadline, first_batch=self.first_batch
            ),
        )
        self._on(steps.EndTransactions, self._end_transactions)
        self._on(steps.ReadLog, self._read_log)
        self._on(log_standing.ReadHistory, self._read_history)
        self._on(steps.LastStableOffsets, proofs.last_stable_offsets)
        self._on(steps.DescribeProducers, proofs.describe_producers)
        self._on(steps.AbortedTransactions, proofs.aborted_transactions)
        self._on(steps.AreCommitted, copier.are_committed)
        self._on(steps.CopyRecords, copier.copy)
        self._on(steps.Now, lambda _: admin.client.clock())
        self._on(steps.WallClock, lambda _: time.time_ns() // 1_000_000)
        self._on(steps.Wait, lambda step: time.sleep(step.ms / 1000))
        self._on(steps.Warn, self._warn)
        self._on(steps.Reached, lambda step: failpoints.reached(step.point))

    def _on(self, kind: Callable[..., Step[R]], performer: Callable[[Any], R]) -> None:
        """Set what performs a kind of step; mypy checks that its result is the step's."""
        self._performers[kind] = performer

    def run(self, procedure: Procedure[T]) -> T:
        """Run a procedure to its end. Errors of steps are thrown into it."""
        result: Any = None
        failure: Exception | None = None
        while True:
            try:
                step = procedure.send(result) if failure is None else procedure.throw(failure)
            except StopIteration as stop:
                returned: T = stop.value
                return returned
            result, failure = None, None
            began = time.perf_counter()
            try:
                result = self._performers[type(step)](step)
            except Exception as error:
                # The procedure may handle the error: if an EndTxn is in doubt, it reads the commit log.
                failure = error
            if log.isEnabledFor(logging.DEBUG):
                self._log_step(step, began, result, failure)
            self.stopwatch.saw(step, result)

    def _read_history(self, step: log_standing.ReadHistory) -> tuple[log_standing.InHistory, ...]:
        if not self.history_topic:
            return ()
        within_ms = min(HISTORY_WITHIN_MS, self.timeout_ms)
        try:
            found = read_history(
                self.admin, self.history_topic, step.write_id, limit=log_standing.MOST_SHOWN, timeout_ms=within_ms
            )
        except KafkaEosError as error:
            # It is the second witness of a lost commit log. The first write on a cluster has none.
            if isinstance(error, AuthorizationError):
                warn_of_unread(self.client.config, self.history_topic)
            elif error.code != "NO_HISTORY":
                log.warning(text("unread_history", topic=self.history_topic, why=error.code, write_id=step.write_id))
            return ()
        return tuple(
            log_standing.InHistory(
                version=each.version, finished_ms=each.finished_ms, application_id=each.application_id
            )
            for each in found
        )

    @property
    def attempts_aborted(self) -> int:
        """How many transactions the procedures have aborted."""
        return sum(not end.commit and result.error == ErrorCode.NONE for end, result in self.ended)

    def _log_step(self, step: Step[Any], began: float, result: Any, failure: Exception | None) -> None:
        log.debug(
            "[%s] step %s: %s; commit log %s-%d; %.1f ms: %s",
            self.client.config.client_id,
            type(step).__name__,
            step_log.shown(step),
            *self.where,
            (time.perf_counter() - began) * 1000,
            # An error's message may quote a row, so only its code is logged.
            step_log.shown(result) if failure is None else getattr(failure, "code", type(failure).__name__),
        )

    @property
    def _deadline(self) -> int:
        return self.client.clock() + self.timeout_ms

    def _within(self, within_ms: int | None) -> int:
        return self._deadline if within_ms is None else self.client.clock() + within_ms

    def _warn(self, step: steps.Warn) -> None:
        if step.about is None:
            log.warning("%s", printable(step.message))
        else:
            warn_once(partial(self._text_of, step), about=step.about)

    def _text_of(self, step: steps.Warn) -> str:
        found = ""
        if step.blocked_by is not None:
            found = self.admin.transaction_of(step.blocked_by) or step.if_unlisted
        return "; ".join(filter(None, (step.message, found)))

    # transactions

    def _list_open(self, step: steps.ListOpenTransactions) -> tuple[str, ...]:
        prefix = _re2_quote(step.write_id)
        listed = self.admin.list_transactions(
            states=("Ongoing",),
            id_pattern=rf"{prefix}\.[0-9]+\.[0-9]+",
            deadline_ms=self._within(step.within_ms),
            partial=step.within_ms is not None,
        )
        return tuple(entry.transactional_id for entry in listed)

    def _describe(self, step: steps.DescribeTransactions) -> Mapping[str, steps.TransactionDescription | None]:
        found = self.admin.describe_transactions(step.transactional_ids, self._within(step.within_ms))
        return {
            transactional_id: None
            if state is None
            else steps.TransactionDescription(
                state=state.transaction_state,
                producer_id=state.producer_id,
                producer_epoch=state.producer_epoch,
                timeout_ms=state.transaction_timeout_ms,
                start_time_ms=state.transaction_start_time_ms,
                partitions=frozenset(state.partitions),
            )
            for transactional_id, state in found.items()
        }

    def _init_producer_id(self, step: steps.InitProducerId) -> ProducerIdentity:
        version = self.admin.transaction_version(self._deadline)
        producer_id, epoch = self._init_with_timeout(step)
        return ProducerIdentity(
            transactional_id=step.transactional_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            transaction_version=version,
        )

    def _init_with_timeout(self, step: steps.InitProducerId) -> tuple[int, int]:
        timeouts = [step.timeout_ms]
        if self.config.transaction_timeout_ms is None:
            timeouts += [timeout for timeout in SMALLER_TIMEOUTS_MS if timeout < step.timeout_ms]
        while True:
            timeout = timeouts.pop(0)
            try:
                return self.admin.init_producer_id(step.transactional_id, timeout, self._within(step.within_ms))
            except BrokerRefusedError as rejected:
                if rejected.code != "INVALID_TRANSACTION_TIMEOUT" or not timeouts:
                    raise

    def _end_transactions(self, step: steps.EndTransactions) -> tuple[steps.EndResult, ...]:
        passes = [step.ends]
        # A decision's step may also abort losing attempts.
        point = "commit.between_ends" if sum(end.commit for end in step.ends) > 1 else "abort.between_ends"
        if len(step.ends) > 1 and failpoints.is_set(point):
            passes = [step.ends[:1], step.ends[1:]]
        results: tuple[steps.EndResult, ...] = ()
        for ends in passes:
            if results:
                failpoints.reached(point)
            results += self._end(ends)
        self.ended += zip(step.ends, results, strict=True)
        return results

    def _end(self, ends: tuple[steps.End, ...]) -> tuple[steps.EndResult, ...]:
        results = self.admin.end_transactions(
            [EndTransaction(end.identity, end.commit) for end in ends], self._deadline
        )
        details = ["" for _ in results]
        for at, result in enumerate(results):
            # The deadline often cuts the last try short. The code of the try before describes the cluster better.
            if result.error_code is None and result.earlier_code is not None:
                details[at] = f"an earlier try returned {ErrorCode.of(result.earlier_code).name}"
            if ErrorCode.CONCURRENT_TRANSACTIONS in (result.error_code, result.earlier_code):
                blocker = self.admin.holder(ends[at].identity.transactional_id)
                details[at] = "; ".join(filter(None, (details[at], blocker)))
                # An error shows only the first transaction, and each query for a blocker takes time after the deadline.
                break
        return tuple(
            steps.EndResult(
                error=result.error_code,
                producer_id=-1 if result.value is None else result.value.producer_id,
                producer_epoch=-1 if result.value is None else result.value.producer_epoch,
                has_lost_response=result.has_lost_response,
                detail=detail,
            )
            for result, detail in zip(results, details, strict=True)
        )

    # the commit log

    def _append(self, step: steps.Append) -> int:
        plain = steps.AppendInTransaction(driver_requests.NO_PRODUCER, 0, step.records)
        appended = driver_requests.append(self.admin, plain, self.where, self.timeout_ms)
        if appended.error != ErrorCode.NONE:
            where = "{}-{}".format(*self.where)
            if appended.error is None or ErrorCode.of(appended.error).retriable:
                took = f"did not acknowledge a record in {self.timeout_ms} ms; last result: {appended.code}"
                raise BrokerUnavailableError("COMMIT_LOG_UNAVAILABLE", f"the commit log's partition {where} {took}")
            raise refusal(ProduceRequest, appended.error, in_words(ProduceRequest, f"commit log {where}"))
        return appended.offset

    def _read_log(self, step: steps.ReadLog) -> steps.LogChunk:
        topic_id, fetched = self.admin.fetch_each(
            {self.where: step.offset},
            self._deadline,
            isolation="read_uncommitted",
            max_wait_ms=LOG_FETCH_WAIT_MS if step.wait else 0,
            max_bytes=4 << 20,
        )[self.where]
        if fetched.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return self._skip_to_log_start(step.offset, fetched.high_watermark, topic_id)
        entries: list[ReadRecord | Marker] = []
        next_offset, held = step.offset, 0
        batches = read_each_batch(
            fetched.records or b"", max_bytes=LARGEST_BATCH_BYTES, max_records=LARGEST_BATCH_RECORDS
        )
        for header, batch in batches:
            # A batch whose records compaction removed still moves the position.
            next_offset = max(next_offset, header.last_offset + 1)
            if isinstance(batch, ProtocolError):
                self._warn_of_foreign_batch(header.base_offset, batch)
                continue
            found = _entries(batch)
            entries += found
            # Batches that are small in the log can be large in memory. The next chunk begins after this one.
            held += sum(
                ENTRY_BYTES + len(one.key) + len(one.value or b"") for one in found if isinstance(one, ReadRecord)
            )
            if held > LOG_CHUNK_BYTES:
                break
        return steps.LogChunk(
            entries=tuple(entries),
            next_offset=next_offset,
            log_start_offset=fetched.log_start_offset,
            end_offset=fetched.high_watermark,
            topic_id=topic_id,
        )

    def _warn_of_foreign_batch(self, offset: int, unreadable: ProtocolError) -> None:
        where = "{}-{}".format(*self.where)
        # A driver acts only on records that it has read back, so no driver has acted on an unreadable batch.
        warning = text("foreign_batch", where=where, offset=offset, why=unreadable.message)
        warn_once(warning, about=f"unreadable {where}")

    def _skip_to_log_start(self, offset: int, high_watermark: int, topic_id: UUID) -> steps.LogChunk:
        """Return an empty chunk that continues at the log start."""
        topic, partition = self.where
        where = (self.where,)
        starts = self.admin.list_offsets(where, self._deadline, isolation="read_uncommitted", timestamp=EARLIEST)
        start = starts[self.where]
        if offset >= start:
            raise BrokerRefusedError(
                "COMMIT_LOG_TRUNCATED",
                f"offset {offset} of the commit log's partition {topic}-{partition} is beyond its end: the topic was deleted and "
                "created again, or an unclean leader election lost records",
                "Find out which before anything runs again. If the topic was created again, the next run shows how to record what is in "
                "the topics. After an unclean leader election, it may write lost versions twice: first record them, as the page of this "
                "code shows",
            )
        # The log start may have moved past the high watermark that the Fetch returned.
        end = max(start, high_watermark)
        return steps.LogChunk(entries=(), next_offset=start, log_start_offset=start, end_offset=end, topic_id=topic_id)


def _entries(batch: RecordBatch) -> list[ReadRecord | Marker]:
    producer = {"producer_id": batch.producer_id, "producer_epoch": batch.producer_epoch}
    if batch.control:
        # Compaction may remove a marker and leave its empty batch.
        kinds = [(control.offset, MARKER_TYPES.get(control.type)) for control in batch.control_records]
        ends = kinds or [(batch.last_offset, MarkerType.EMPTY)]
        return [Marker(offset=offset, type=kind, **producer) for offset, kind in ends if kind is not None]
    return [
        ReadRecord(
            offset=record.offset,
            transactional=batch.transactional,
            key=record.key,
            value=record.value,
            **producer,
        )
        for record in batch.records
        if record.key is not None
    ]


def _re2_quote(text: str) -> str:
    """Quote a text for the broker's RE2."""
    # Escape every ASCII character but letters, digits and underscore. Other characters are literal in RE2.
    return "".join(c if c.isalnum() or c == "_" or ord(c) > 127 else f"\\{c}" for c in text)
