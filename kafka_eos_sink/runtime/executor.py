"""Performs the steps of the procedures in ``commit/`` on a real cluster.

Each step becomes one or a few requests. The client's engine resends requests with identical bytes, by the reaction table. A
procedure sees results, errors for the user, and None for an unknown outcome.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from kafka_eos_sink.client.admin import EARLIEST, Admin, EndTransaction, FetchedPartition
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.commit import refusals, steps
from kafka_eos_sink.commit.steps import Marker, MarkerType, Procedure, ReadRecord
from kafka_eos_sink.errors import AuthorizationError, BrokerRefusedError, BrokerUnavailableError, KafkaEosError
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import ProducerIdentity
from kafka_eos_sink.protocol.messages import ProduceRequest
from kafka_eos_sink.protocol.reactions import refusal
from kafka_eos_sink.protocol.record_batch import read_record_batches
from kafka_eos_sink.runtime import driver_requests, failpoints
from kafka_eos_sink.runtime.data_proofs import DataProofs

T = TypeVar("T")
log = logging.getLogger(__name__)

LOG_FETCH_WAIT_MS = 100
MAX_BLOCK_MS = 60_000
MARKER_TYPES = {0: MarkerType.ABORT, 1: MarkerType.COMMIT}


def end_txn_version(identity: ProducerIdentity) -> int:
    """Return the API version for every try of an EndTxn.

    Version 5 bumps the epoch (KIP-890) and belongs to transaction version 2.
    """
    return 5 if identity.transaction_version >= 2 else 4


class Executor:
    """Performs the steps of driver procedures. `TaskExecutor` adds those of tasks.

    Args:
        log_topic, log_partition: Where the commit log holds the records of the write id.
        timeout_ms: Bounds each step.
        max_block_ms: For how long a data topic may be unknown to the cluster, or end before records that it acknowledged.
    """

    def __init__(
        self,
        client: NetworkClient,
        admin: Admin,
        *,
        log_topic: str,
        log_partition: int,
        timeout_ms: int,
        max_block_ms: int = MAX_BLOCK_MS,
    ) -> None:
        self.client = client
        self.admin = admin
        self.log_topic = log_topic
        self.log_partition = log_partition
        self.timeout_ms = timeout_ms
        self._log = (log_topic, log_partition)
        proofs = DataProofs(admin, timeout_ms=timeout_ms, max_block_ms=max_block_ms)
        self._performers: dict[type[Any], Callable[[Any], Any]] = {
            steps.ListOpenTransactions: self._list_open,
            steps.DescribeTransactions: self._describe,
            steps.InitProducerId: self._init_producer_id,
            steps.Append: self._append,
            steps.AddPartition: self._add_partition,
            steps.AppendInTransaction: self._append_in_transaction,
            steps.CommitGroupOffsets: self._commit_group_offsets,
            steps.EndTransactions: self._end_transactions,
            steps.ReadLog: self._read_log,
            steps.LogPolicy: self._log_policy,
            steps.LastStableOffsets: proofs.last_stable_offsets,
            steps.DescribeProducers: proofs.describe_producers,
            steps.AbortedTransactions: proofs.aborted_transactions,
            steps.Now: lambda _: time.time_ns() // 1_000_000,
            steps.Wait: lambda step: time.sleep(step.ms / 1000),
            steps.Warn: lambda step: log.warning("%s", refusals.on_commit_log(step.message, log_topic)),
            steps.Reached: lambda step: failpoints.reached(step.point),
        }

    def run(self, procedure: Procedure[T]) -> T:
        """Run a procedure to its end. Errors of steps are thrown into it."""
        try:
            return self._run(procedure)
        except KafkaEosError as error:
            error.message = refusals.on_commit_log(error.message, self.log_topic)
            raise

    def _run(self, procedure: Procedure[T]) -> T:
        result: Any = None
        failure: Exception | None = None
        while True:
            try:
                step = procedure.send(result) if failure is None else procedure.throw(failure)
            except StopIteration as stop:
                returned: T = stop.value
                return returned
            result, failure = None, None
            try:
                result = self._performers[type(step)](step)
            except Exception as error:
                # Thrown into the procedure, which may know a way on: doubt about an end is settled by the log.
                failure = error

    @property
    def _deadline(self) -> int:
        return self.client.clock() + self.timeout_ms

    def _within(self, within_ms: int | None) -> int:
        return self._deadline if within_ms is None else self.client.clock() + within_ms

    # transactions

    def _list_open(self, step: steps.ListOpenTransactions) -> tuple[str, ...]:
        prefix = _re2_quote(step.write_id)
        listed = self.admin.list_transactions(
            states=("Ongoing",), id_pattern=rf"{prefix}\.[0-9]+\.[0-9]+", deadline_ms=self._deadline
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

    def _init_producer_id(self, step: steps.InitProducerId, within_ms: int | None = None) -> ProducerIdentity:
        version = self.admin.transaction_version(self._deadline)
        deadline = self._within(within_ms)
        producer_id, producer_epoch = self.admin.init_producer_id(step.transactional_id, step.timeout_ms, deadline)
        return ProducerIdentity(
            transactional_id=step.transactional_id,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transaction_version=version,
        )

    def _end_transactions(self, step: steps.EndTransactions) -> tuple[steps.EndResult, ...]:
        if len(step.ends) > 1 and failpoints.is_set("commit.between_ends"):
            first = self._end(step.ends[:1])
            failpoints.reached("commit.between_ends")
            return first + self._end(step.ends[1:])
        return self._end(step.ends)

    def _end(self, ends: tuple[steps.End, ...]) -> tuple[steps.EndResult, ...]:
        results = self.admin.end_transactions(
            [
                EndTransaction(
                    transactional_id=end.identity.transactional_id,
                    producer_id=end.identity.producer_id,
                    producer_epoch=end.identity.producer_epoch,
                    committed=end.commit,
                    version=end_txn_version(end.identity),
                )
                for end in ends
            ],
            self._deadline,
        )
        details = ["" for _ in results]
        for at, result in enumerate(results):
            # The deadline often cuts the last try short. The code before it tells the user more about the cluster.
            if result.error_code is None and result.earlier_code is not None:
                details[at] = f"an earlier try returned {ErrorCode.of(result.earlier_code).name}"
            if ErrorCode.CONCURRENT_TRANSACTIONS in (result.error_code, result.earlier_code):
                blocker = self.admin.holder(ends[at].identity.transactional_id)
                details[at] = "; ".join(filter(None, (details[at], blocker)))
                # An error names only the first transaction, and each query for a blocker takes time after the deadline.
                break
        return tuple(
            steps.EndResult(
                error=result.error_code,
                producer_id=result.producer_id,
                producer_epoch=result.producer_epoch,
                detail=detail,
            )
            for result, detail in zip(results, details, strict=True)
        )

    # the commit log

    def _append(self, step: steps.Append) -> int:
        appended = self._produce(driver_requests.NO_PRODUCER, 0, step.records)
        if appended.error != ErrorCode.NONE:
            where = f"{self.log_topic}-{self.log_partition}"
            if appended.error is None or ErrorCode.of(appended.error).retriable:
                last = "no response" if appended.error is None else ErrorCode.of(appended.error).name
                raise BrokerUnavailableError(
                    "COMMIT_LOG_UNAVAILABLE",
                    f"the commit log's partition {where} did not acknowledge a record in {self.timeout_ms} ms; last: {last}",
                )
            raise refusal(ProduceRequest, appended.error, f"Produce of commit log {where}")
        return appended.offset

    def _append_in_transaction(self, step: steps.AppendInTransaction) -> steps.Appended:
        return self._produce(step.identity, step.base_sequence, step.records)

    def _produce(
        self, identity: ProducerIdentity, base_sequence: int, records: tuple[steps.LogRecord, ...]
    ) -> steps.Appended:
        return driver_requests.append(self.admin, identity, base_sequence, records, self._log, self.timeout_ms)

    def _add_partition(self, step: steps.AddPartition) -> int | None:
        return driver_requests.add_partition(self.admin, step.identity, self._log, self._deadline)

    def _commit_group_offsets(self, step: steps.CommitGroupOffsets) -> int | None:
        return driver_requests.commit_group_offsets(
            self.admin, step.identity, step.group_id, step.offsets, self._deadline
        )

    def _fetch_log(self, offset: int, wait_ms: int, max_bytes: int = 4 << 20) -> FetchedPartition:
        return self.admin.fetch(
            *self._log,
            offset,
            isolation="read_uncommitted",
            max_wait_ms=wait_ms,
            max_bytes=max_bytes,
            deadline_ms=self._deadline,
        )

    def require_readable_log(self) -> None:
        """Raise `AuthorizationError` if the principal may not Read the commit log."""
        self._fetch_log(0, 0, max_bytes=1)

    def _read_log(self, step: steps.ReadLog) -> steps.LogChunk:
        fetched = self._fetch_log(step.offset, LOG_FETCH_WAIT_MS if step.wait else 0)
        if fetched.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return self._skip_to_log_start(step.offset, fetched.high_watermark)
        entries: list[ReadRecord | Marker] = []
        next_offset = step.offset
        for batch in read_record_batches(fetched.records or b""):
            # A batch whose records compaction removed still moves the position.
            next_offset = max(next_offset, batch.last_offset + 1)
            producer = {"producer_id": batch.producer_id, "producer_epoch": batch.producer_epoch}
            if batch.control:
                # Compaction may remove a marker and leave its empty batch.
                kinds = [(control.offset, MARKER_TYPES.get(control.type)) for control in batch.control_records]
                for offset, kind in kinds or [(batch.last_offset, MarkerType.EMPTY)]:
                    if kind is not None:
                        entries.append(Marker(offset=offset, type=kind, **producer))
                continue
            entries += [
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
        return steps.LogChunk(
            entries=tuple(entries),
            next_offset=next_offset,
            log_start_offset=fetched.log_start_offset,
            end_offset=fetched.high_watermark,
        )

    def _skip_to_log_start(self, offset: int, high_watermark: int) -> steps.LogChunk:
        """Return an empty chunk that continues at the log start."""
        topic, partition = self._log
        starts = self.admin.list_offsets((self._log,), self._deadline, isolation="read_uncommitted", timestamp=EARLIEST)
        start = starts[self._log]
        if offset >= start:
            raise BrokerRefusedError(
                "COMMIT_LOG_TRUNCATED",
                f"offset {offset} of the commit log's partition {topic}-{partition} is beyond its end: the topic was deleted and "
                "created again, or an unclean leader election lost records",
            )
        # The log start may have moved past the high watermark that the Fetch returned.
        end = max(start, high_watermark)
        return steps.LogChunk(entries=(), next_offset=start, log_start_offset=start, end_offset=end)

    def _log_policy(self, _: steps.LogPolicy) -> str | None:
        try:
            found = self.admin.describe_configs("topic", self.log_topic, ("cleanup.policy",), self._deadline)
        except AuthorizationError:
            return None
        return found.get("cleanup.policy")


def _re2_quote(text: str) -> str:
    """Quote a text for the broker's RE2."""
    # All but letters, digits and underscore is escaped. Bytes beyond ASCII are literal in RE2.
    return "".join(c if c.isalnum() or c == "_" or ord(c) > 127 else f"\\{c}" for c in text)
