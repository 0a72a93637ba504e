"""Runs the procedures of this package against a real cluster: the thin shell around the protocol.

Each step becomes one or a few requests. Retriable errors are repeated here with identical bytes, by the reaction table; what is
left is an answer, an error for the user, or doubt (None).
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from kafka_eos_sink.client.admin import EARLIEST, Admin, EndTransaction, FetchResult
from kafka_eos_sink.client.network_client import LostAnswer, NetworkClient
from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.commit_log import DEFAULT_TOPIC
from kafka_eos_sink.commit.prepared_transaction import OffsetRange
from kafka_eos_sink.commit.steps import Marker, MarkerType, Procedure, ReadRecord
from kafka_eos_sink.errors import AuthorizationError, BrokerRefusedError, BrokerUnavailableError, KafkaEosError
from kafka_eos_sink.protocol import messages
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import ProducerIdentity
from kafka_eos_sink.protocol.reactions import Reaction, reaction, refusal
from kafka_eos_sink.protocol.record_batch import encode_rows, first_batch_of, read_record_batches, seal
from kafka_eos_sink.runtime import failpoints

T = TypeVar("T")
log = logging.getLogger("kafka_eos_sink")

LOG_FETCH_WAIT_MS = 100
LOG_FETCH_BYTES = 4 << 20
BACKOFF_MS = 20
EMPTY_FETCH_WAITS_MS = 500
"""What another tier holds comes with a fetch that waits."""
MARKER_TYPES = {0: MarkerType.ABORT, 1: MarkerType.COMMIT}
MAX_BLOCK_MS = 60_000
LOOK_AT_ENDS_EVERY_MS = 1_000
"""Readers who are held up for longer than a marker takes may wait for records that are gone."""
_COMMAND = re.compile(r"kafka-eos (?:recover|resolve|repair) (?:--bootstrap-servers \.\.\. )?(?=--write-id )")
NO_PRODUCER = ProducerIdentity(transactional_id="", producer_id=-1, producer_epoch=-1, transaction_version=0)


def end_txn_version(identity: ProducerIdentity) -> int:
    """EndTxn 5 bumps the epoch (KIP-890) and belongs to transaction version 2; a repeat must use the version of the first."""
    return 5 if identity.transaction_version >= 2 else 4


class Executor:
    """Performs the steps of driver procedures; tasks add theirs in `task_executor`.

    ``log_topic`` and ``log_partition`` say where the write id's records lie; ``timeout_ms`` bounds each step, ``max_block_ms`` how
    long a data topic may be unknown to the cluster, or end before records that it had acknowledged.
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
        self.max_block_ms = max_block_ms
        self._next_look_at_ends_ms = client.clock() + LOOK_AT_ENDS_EVERY_MS
        self._short_since: dict[tuple[str, int], int] = {}
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
            steps.LastStableOffsets: self._last_stable_offsets,
            steps.DescribeProducers: self._describe_producers,
            steps.AbortedTransactions: self._aborted_transactions,
            steps.Now: lambda _: time.time_ns() // 1_000_000,
            steps.Wait: lambda step: time.sleep(step.ms / 1000),
            steps.Warn: lambda step: log.warning("%s", with_commit_log(step.message, log_topic)),
            steps.Reached: lambda step: failpoints.reached(step.point),
        }

    def run(self, procedure: Procedure[T]) -> T:
        """Run a procedure to its end; errors of steps are thrown into it."""
        try:
            return self._run(procedure)
        except KafkaEosError as error:
            error.message = with_commit_log(error.message, self.log_topic)
            raise

    def _run(self, procedure: Procedure[T]) -> T:
        answer: Any = None
        failure: Exception | None = None
        while True:
            try:
                step = procedure.send(answer) if failure is None else procedure.throw(failure)
            except StopIteration as stop:
                result: T = stop.value
                return result
            answer, failure = None, None
            try:
                answer = self._performers[type(step)](step)
            except Exception as error:
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
                state=state.state,
                producer_id=state.producer_id,
                producer_epoch=state.producer_epoch,
                timeout_ms=state.timeout_ms,
                start_time_ms=state.start_time_ms,
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
            # The deadline often cuts the last try short: what was answered until then is what is worth saying.
            if result.error_code is None and result.earlier_code is not None:
                details[at] = f"{ErrorCode.of(result.earlier_code).name} was answered before"
            if ErrorCode.CONCURRENT_TRANSACTIONS in (result.error_code, result.earlier_code):
                held_by = self.admin.holder(ends[at].identity.transactional_id)
                details[at] = "; ".join(filter(None, (details[at], held_by)))
                break  # an error names the first one, and one takes a moment whatever the number of transactions
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
        appended = self._produce(NO_PRODUCER, 0, step.records)
        if appended.error != ErrorCode.NONE:
            where = f"{self.log_topic}-{self.log_partition}"
            if appended.error is None or ErrorCode.of(appended.error).retriable:
                last = "no answer" if appended.error is None else ErrorCode.of(appended.error).name
                raise BrokerUnavailableError(
                    "COMMIT_LOG_UNAVAILABLE",
                    f"the commit log's partition {where} did not acknowledge a record in {self.timeout_ms} ms; last: {last}",
                )
            raise refusal(messages.ProduceRequest, appended.error, f"commit log {where}")
        return appended.offset

    def _add_partition(self, step: steps.AddPartition) -> int | None:
        identity = step.identity
        topic = messages.AddPartitionsToTxnRequest.Topic(name=self.log_topic, partitions=(self.log_partition,))
        request = messages.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=identity.transactional_id,
            v3_and_below_producer_id=identity.producer_id,
            v3_and_below_producer_epoch=identity.producer_epoch,
            v3_and_below_topics=(topic,),
        )

        def code(response: messages.AddPartitionsToTxnResponse) -> int:
            return response.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code

        return self._ask_coordinator(identity, request, code)

    def _append_in_transaction(self, step: steps.AppendInTransaction) -> steps.Appended:
        return self._produce(step.identity, step.base_sequence, step.records)

    def _commit_group_offsets(self, step: steps.CommitGroupOffsets) -> int | None:
        identity, group = step.identity, step.group_id
        if identity.transaction_version < 2:
            add = messages.AddOffsetsToTxnRequest(
                transactional_id=identity.transactional_id,
                producer_id=identity.producer_id,
                producer_epoch=identity.producer_epoch,
                group_id=group,
            )
            error = self._ask_coordinator(identity, add, lambda response: int(response.error_code))
            if error != ErrorCode.NONE:
                return error
        topics: dict[str, list[messages.TxnOffsetCommitRequest.Topic.Partition]] = {}
        for topic, partition, offset in step.offsets:
            topics.setdefault(topic, []).append(
                messages.TxnOffsetCommitRequest.Topic.Partition(partition_index=partition, committed_offset=offset)
            )
        request = messages.TxnOffsetCommitRequest(
            transactional_id=identity.transactional_id,
            group_id=group,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            topics=tuple(
                messages.TxnOffsetCommitRequest.Topic(name=topic, partitions=tuple(partitions))
                for topic, partitions in topics.items()
            ),
        )

        def worst(response: messages.TxnOffsetCommitResponse) -> int:
            codes = [part.error_code for topic in response.topics for part in topic.partitions]
            return next((code for code in codes if code), int(ErrorCode.NONE))

        found: dict[str, int] = {}

        def group_coordinator(deadline: int) -> int:
            if group not in found:
                found[group] = self.admin.find_group_coordinator(group, deadline)
            return found[group]

        return self._repeat(
            request,
            worst,
            find=group_coordinator,
            forget=found.clear,
            about=f"consumer group {group!r} (source.offsets.group)",
            # From version 5 on it adds the group by itself, and belongs to transaction version 2.
            max_version=5 if identity.transaction_version >= 2 else 4,
        )

    def _ask_coordinator(self, identity: ProducerIdentity, request: Any, code_of: Callable[[Any], int]) -> int | None:
        """Repeat an identical request at the id's coordinator by the reaction table; the code left over, None for no answer."""
        transactional_id = identity.transactional_id
        return self._repeat(
            request,
            code_of,
            find=lambda deadline: self.admin.find_coordinators((transactional_id,), deadline)[transactional_id],
            forget=lambda: self.admin.forget((transactional_id,)),
            about=f"transactional id {transactional_id}",
        )

    def _repeat(
        self,
        request: Any,
        code_of: Callable[[Any], int],
        *,
        find: Callable[[int], int],
        forget: Callable[[], None],
        about: str,
        max_version: int | None = None,
    ) -> int | None:
        """Repeat an identical request at the coordinator that `find` names, until the reaction table calls it the last try."""
        deadline = self._deadline
        last: int | None = None
        while True:
            try:
                node = find(deadline)
                last = code_of(self.client.call(node, request, deadline_ms=deadline, max_version=max_version))
            except (LostAnswer, BrokerUnavailableError):
                last = None
                forget()
            if last == ErrorCode.NONE:
                return last
            if last is not None:
                match reaction(type(request), last):
                    case Reaction.FIND_COORDINATOR:
                        forget()
                    case Reaction.RETRY | Reaction.REFRESH_METADATA:
                        pass
                    case Reaction.CONFIGURATION | Reaction.ABORT_CONFIGURATION:
                        raise refusal(type(request), last, about)
                    case Reaction.FENCED if last == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
                        # A right that was taken away, not another owner: a new run meets the same.
                        raise refusal(type(request), last, about)
                    case _:
                        return last
            if self.client.clock() >= deadline:
                return last
            self.client.wait(BACKOFF_MS, deadline)

    def _produce(
        self, identity: ProducerIdentity, base_sequence: int, records: tuple[steps.LogRecord, ...]
    ) -> steps.Appended:
        """One batch per record, so that a large decision's pieces each fit a message; acknowledged in order."""
        first = -1
        batches = (
            [records] if sum(len(record.value or b"") for record in records) < 500_000 else [(r,) for r in records]
        )
        sequence = base_sequence
        for batch in batches:
            appended = self._produce_batch(identity, sequence, batch)
            if appended.error != ErrorCode.NONE:
                return appended
            first = appended.offset if first < 0 else first
            sequence += len(batch)
        return steps.Appended(error=ErrorCode.NONE, offset=first)

    def _produce_batch(
        self, identity: ProducerIdentity, base_sequence: int, records: tuple[steps.LogRecord, ...]
    ) -> steps.Appended:
        deadline = self._deadline
        transactional = identity is not NO_PRODUCER
        block = encode_rows(
            [(record.key, record.value, ()) for record in records], timestamp_ms=time.time_ns() // 1_000_000
        )
        sealed = b"".join(
            seal(
                block,
                producer_id=identity.producer_id,
                producer_epoch=identity.producer_epoch,
                base_sequence=base_sequence if transactional else -1,
                transactional=transactional,
            )
        )
        request = messages.ProduceRequest(
            transactional_id=identity.transactional_id if transactional else None,
            acks=-1,
            timeout_ms=min(self.timeout_ms, 30_000),
            topic_data=(
                messages.ProduceRequest.Topic(
                    name=self.log_topic,
                    partition_data=(messages.ProduceRequest.Topic.Partition(index=self.log_partition, records=sealed),),
                ),
            ),
        )
        max_version = 12 if identity.transaction_version >= 2 else 11
        where = (self.log_topic, self.log_partition)
        answer: steps.Appended = steps.Appended(error=None)
        while True:
            try:
                node = self.admin.leaders((where,), deadline)[where]
                response = self.client.call(node, request, deadline_ms=deadline, max_version=max_version)
                result = response.responses[0].partition_responses[0]
                answer = steps.Appended(error=result.error_code, offset=result.base_offset)
            except BrokerUnavailableError:
                self.client.request_metadata_update()  # nothing was sent: what was answered before still holds
            except LostAnswer:
                answer = steps.Appended(error=None)
                self.client.request_metadata_update()
            if answer.error == ErrorCode.NONE:
                return answer
            if answer.error is not None:
                match reaction(messages.ProduceRequest, answer.error):
                    case Reaction.REFRESH_METADATA:
                        self.client.request_metadata_update()
                    case Reaction.RETRY:
                        pass
                    case Reaction.CONFIGURATION:
                        raise refusal(messages.ProduceRequest, answer.error, f"commit log topic {self.log_topic}")
                    case _:
                        return answer
            if self.client.clock() >= deadline:
                return answer
            self.client.wait(BACKOFF_MS, deadline)

    def _fetch(
        self,
        where: tuple[str, int],
        offset: int,
        isolation: Any,
        wait_ms: int,
        max_bytes: int = LOG_FETCH_BYTES,
        deadline: int | None = None,
    ) -> FetchResult:
        deadline = self._deadline if deadline is None else deadline
        return self.admin.fetch(
            *where, offset, isolation=isolation, max_wait_ms=wait_ms, max_bytes=max_bytes, deadline_ms=deadline
        )

    def require_readable_log(self) -> None:
        """Raises `AuthorizationError` where the principal may not Read the commit log."""
        self._fetch((self.log_topic, self.log_partition), 0, "read_uncommitted", 0, max_bytes=1)

    def _read_log(self, step: steps.ReadLog) -> steps.LogChunk:
        where = (self.log_topic, self.log_partition)
        result = self._fetch(where, step.offset, "read_uncommitted", LOG_FETCH_WAIT_MS if step.wait else 0)
        if result.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            start = self.admin.list_offsets((where,), self._deadline, isolation="read_uncommitted", timestamp=EARLIEST)[
                where
            ]
            if step.offset >= start:
                raise BrokerRefusedError(
                    "COMMIT_LOG_TRUNCATED",
                    f"offset {step.offset} of the commit log's partition {where[0]}-{where[1]} is beyond its end: the topic was "
                    "deleted and created anew, or an unclean leader election lost records",
                )
            end = max(start, result.high_watermark)
            return steps.LogChunk(entries=(), next_offset=start, log_start_offset=start, end_offset=end)
        entries: list[ReadRecord | Marker] = []
        next_offset = step.offset
        for batch in read_record_batches(result.records):
            next_offset = max(next_offset, batch.last_offset + 1)
            if batch.control:
                kinds = [(control.offset, MARKER_TYPES.get(control.type)) for control in batch.control_records]
                for offset, kind in kinds or [(batch.last_offset, MarkerType.EMPTY)]:
                    if kind is not None:
                        entries.append(
                            Marker(
                                offset=offset,
                                producer_id=batch.producer_id,
                                producer_epoch=batch.producer_epoch,
                                type=kind,
                            )
                        )
                continue
            for record in batch.records:
                if record.key is not None:
                    entries.append(
                        ReadRecord(
                            offset=record.offset,
                            producer_id=batch.producer_id,
                            producer_epoch=batch.producer_epoch,
                            transactional=batch.transactional,
                            key=record.key,
                            value=record.value,
                        )
                    )
        return steps.LogChunk(
            entries=tuple(entries),
            next_offset=next_offset,
            log_start_offset=result.log_start_offset,
            end_offset=result.high_watermark,
        )

    def _log_policy(self, _: steps.LogPolicy) -> str | None:
        try:
            found = self.admin.describe_configs("topic", self.log_topic, ("cleanup.policy",), self._deadline)
        except AuthorizationError:
            return None
        return found.get("cleanup.policy")

    # proofs on the data partitions

    def _of_data(self, ask: Callable[[int], T]) -> T:
        """Ask leaders of data partitions, which takes a deadline. One that the cluster does not know for max.block.ms was deleted."""
        deadline = self._deadline
        for until in (min(deadline, self.client.clock() + self.max_block_ms), deadline):
            try:
                return ask(until)
            except BrokerRefusedError as refused:
                if refused.code != "UNKNOWN_TOPIC":
                    raise
                raise steps.DataTopicGoneError(refused.code, refused.message) from None
            except BrokerUnavailableError:
                if until == deadline:
                    raise
        raise AssertionError("unreachable: the deadline returns or raises")

    def _last_stable_offsets(self, step: steps.LastStableOffsets) -> Mapping[tuple[str, int], int]:
        stable = self._of_data(
            lambda deadline: self.admin.list_offsets(step.partitions, deadline, isolation="read_committed")
        )
        held = {
            where: last for where, last in zip(step.partitions, step.last_offsets, strict=True) if stable[where] <= last
        }
        if held and self.client.clock() >= self._next_look_at_ends_ms:
            self._require_whole(held)
        return stable

    def _require_whole(self, last_offsets: Mapping[tuple[str, int], int]) -> None:
        """Raises where a partition ends before what it had acknowledged, for max.block.ms."""
        ends = self._of_data(
            lambda deadline: self.admin.list_offsets(last_offsets, deadline, isolation="read_uncommitted")
        )
        now = self.client.clock()
        self._next_look_at_ends_ms = now + LOOK_AT_ENDS_EVERY_MS
        self._short_since = {
            where: self._short_since.get(where, now) for where, last in last_offsets.items() if ends[where] <= last
        }
        for (topic, partition), since in self._short_since.items():
            if now - since >= self.max_block_ms:
                last = last_offsets[topic, partition]
                raise steps.DataTopicGoneError(
                    "UNKNOWN_TOPIC",
                    f"{topic}-{partition} ends at offset {ends[topic, partition]}, before offset {last} that it acknowledged: the topic "
                    "was deleted and created anew, or an unclean leader election lost records",
                )

    def _describe_producers(
        self, step: steps.DescribeProducers
    ) -> Mapping[tuple[str, int], Mapping[int, tuple[int, int]] | None]:
        found: dict[tuple[str, int], dict[int, tuple[int, int]] | None] = {}
        for topic in sorted({topic for topic, _ in step.partitions}):
            where = [partition for partition in step.partitions if partition[0] == topic]
            try:
                producers = self._of_data(partial(self.admin.describe_producers, where))
            except AuthorizationError:
                found.update(dict.fromkeys(where))
                continue
            for partition, remembered in producers.items():
                found[partition] = {
                    producer.producer_id: (producer.producer_epoch, producer.current_txn_start_offset)
                    for producer in remembered
                }
        return found

    def _aborted_transactions(self, step: steps.AbortedTransactions) -> Mapping[OffsetRange, steps.Listed] | None:
        found: dict[OffsetRange, steps.Listed] = {}
        gone: set[str] = set()
        owners: tuple[int | None, ...] = step.producer_ids or (None,) * len(step.ranges)
        for part, owner in zip(step.ranges, owners, strict=True):
            found[part] = steps.Unseen.GONE
            if part.topic in gone:
                continue
            try:
                found[part] = self._aborted_in(part, owner)
            except AuthorizationError:
                return None
            except steps.DataTopicGoneError:
                gone.add(part.topic)
        return found

    def _aborted_in(self, part: OffsetRange, owner: int | None) -> steps.Listed:
        where, offset, wait_ms = (part.topic, part.partition), part.first_offset, 0
        give_up_at = self._deadline
        while offset <= part.last_offset:
            # The first batch always comes whole (KIP-74), and with it the transactions aborted from there on.
            result = self._of_data(partial(self._fetch, where, offset, "read_committed", wait_ms, 1))
            if result.error == ErrorCode.OFFSET_OUT_OF_RANGE:
                start = self._of_data(
                    partial(self.admin.list_offsets, (where,), isolation="read_uncommitted", timestamp=EARLIEST)
                )[where]
                if start <= offset:
                    return steps.Unseen.GONE  # the log ends before it
                offset = start
                continue
            if result.last_stable_offset <= offset or self.client.clock() > give_up_at:
                return steps.Unseen.HELD
            first = first_batch_of(result.records)
            if first is None:
                # The cleaner took all up to the last stable offset, or what is there comes from another tier.
                if wait_ms:
                    return steps.Unseen.HELD
                wait_ms = EMPTY_FETCH_WAITS_MS
                continue
            if owner is None or (first.producer_id == owner and first.base_offset <= part.last_offset):
                return tuple((entry.producer_id, entry.first_offset) for entry in result.aborted_transactions)
            offset, wait_ms = first.last_offset + 1, 0
        return steps.Unseen.GONE


def with_commit_log(message: str, log_topic: str) -> str:
    """The commands that a message asks for, complete: a procedure knows its write id, but not on which commit log it runs, and on
    another one the same command would take the write's decisions for none."""
    if log_topic == DEFAULT_TOPIC:
        return message
    return _COMMAND.sub(lambda found: f"{found[0]}--commit-log-topic '{log_topic}' ", message)


def _re2_quote(text: str) -> str:
    """Quote for the broker's RE2: everything outside ASCII letters, digits and underscore is escaped, bytes beyond ASCII are literal."""
    return "".join(c if c.isalnum() or c == "_" or ord(c) > 127 else f"\\{c}" for c in text)
