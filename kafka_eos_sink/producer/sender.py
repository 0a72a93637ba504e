"""Send batches and process responses, one turn at a time (Java's Sender)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from kafka_eos_sink.client.config import ExponentialBackoff
from kafka_eos_sink.client.connection import Completion, ConnectionLost, LostResponse, PendingRequest
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.errors import BrokerUnavailableError, FencedError, KafkaEosError, peer_text
from kafka_eos_sink.producer import produce_errors
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.producer.interceptors import Interceptors
from kafka_eos_sink.producer.partition_queue import PartitionQueue, ProducerBatch
from kafka_eos_sink.producer.record_accumulator import RecordAccumulator
from kafka_eos_sink.producer.rows import BadRows
from kafka_eos_sink.producer.transaction_manager import TransactionManager
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import TopicPartition
from kafka_eos_sink.protocol.messages import ProduceRequest, ProduceResponse
from kafka_eos_sink.protocol.reactions import MAY_HAVE_BEEN_APPENDED, RESTARTS_SEQUENCES, Reaction, reaction

log = logging.getLogger(__name__)

EXPIRY_CHECK_MS: Final = 100
PAUSE_MS: Final = 1_000
"""A longer time between two turns is a pause: Spark was computing rows, and the sender could not send."""
WAIT_MS: Final = 100
"""Longest turn of a waiting caller, which checks its deadline between turns."""
IDLE_WAIT_MS: Final = 50
"""Longest turn while a batch waits for a leader or a backoff: no socket event ends these waits."""


class Acknowledged(NamedTuple):
    """A partition's acknowledged records: first and last offset, and their number.

    ``first_offset`` is -1 if the response to the first batch had no offset. The same holds for ``last_offset`` and the last batch.
    """

    first_offset: int
    last_offset: int
    record_count: int


class Sender:
    """Send batches until the first failure, which ``failure`` keeps."""

    def __init__(
        self,
        client: NetworkClient,
        config: ProducerConfig,
        accumulator: RecordAccumulator,
        transactions: TransactionManager,
        interceptors: Interceptors,
        backoff: ExponentialBackoff,
    ) -> None:
        self.failure: KafkaEosError | None = None
        self.tainted = False
        """True if a leader may still append the records of an abandoned Produce request."""
        self.acknowledged: dict[TopicPartition, Acknowledged] = {}
        self.rejected: list[BadRows] = []
        self._client = client
        self._config = config
        self._accumulator = accumulator
        self._transactions = transactions
        self._interceptors = interceptors
        self._backoff = backoff
        # All requests without a response; an abandoned one has no batches. `poll` returns only their completions, because producers share
        # the client.
        self._produces: dict[PendingRequest, list[ProducerBatch]] = {}
        self._next_expiry = 0
        self._waiting = False

    @property
    def produces_in_flight(self) -> int:
        return sum(bool(batches) for batches in self._produces.values())

    def pump(self, timeout_ms: int) -> None:
        """Run one turn, then raise the first failure if there is one."""
        self.run_once(timeout_ms)
        self.raise_failure()

    def raise_failure(self) -> None:
        if self.failure is not None:
            raise self.failure

    def run_once(self, timeout_ms: int) -> None:
        """Send requests, then process responses; wait for them at most ``timeout_ms``."""
        now = self._client.clock()
        # Discount the pause before processing responses, which may have arrived long ago.
        if now - self._next_expiry > PAUSE_MS:
            self._accumulator.discount_pause(now - self._next_expiry, now)
            self._next_expiry = now
        self._waiting = False
        if self.failure is None and self._transactions.may_produce:
            self._send_all(now)
        for completion in self._client.poll(
            min(timeout_ms, IDLE_WAIT_MS) if self._waiting else timeout_ms, self._produces
        ):
            self._completed(completion, self._client.clock())
        self._expire(self._client.clock())

    # sending

    def _send_all(self, now: int) -> None:
        """Send every batch that may go; first get what the coordinator must give."""
        transactions = self._transactions
        try:
            if transactions.producer_id < 0:
                transactions.request_identity(self._deadline())
            while self._send_batches(now):
                pass
            # As in Java's Sender, no batch is sent while a request to the coordinator is in flight.
            if transactions.pending and self.failure is None:
                transactions.add_pending(self._deadline())
                while not transactions.pending and self._send_batches(self._client.clock()):
                    pass
        except BrokerUnavailableError:
            self._waiting = True  # the deadline of a batch, which now fails
        except KafkaEosError as error:
            self.fail(error)

    def _deadline(self) -> int:
        """The clock ms at which the first batch that waits to be sent expires."""
        oldest = (queue.oldest for queue in self._accumulator.active.values())
        waiting = [batch.created_ms for batch in oldest if batch is not None and not batch.in_flight]
        return min(waiting, default=self._client.clock()) + self._config.delivery_timeout_ms

    def _send_batches(self, now: int) -> bool:
        """Send one request to each ready leader; return True if the sender sent any."""
        transactions, metadata = self._transactions, self._client.metadata
        requests: dict[int, list[tuple[PartitionQueue, ProducerBatch]]] = {}
        sizes: dict[int, int] = {}
        usable: dict[int, bool] = {}
        for partition, queue in self._accumulator.active.items():
            batch = queue.next_to_send(now, self._config.max_in_flight, transactions.identity)
            if batch is None:
                oldest = queue.oldest
                self._waiting |= oldest is not None and not oldest.in_flight
                continue
            # Below transaction version 2, AddPartitionsToTxn must precede Produce. Otherwise a crash leaves rows that no
            # EndTxn reaches: a hanging transaction.
            if not transactions.add_partition(partition):
                continue
            leader = metadata.leader(*partition)
            if leader is None:
                self._client.want_topics([partition[0]])
                self._client.request_metadata_update()
                self._waiting = True
                continue
            if leader not in usable:
                busy = self._client.in_flight(leader) >= self._config.max_in_flight
                usable[leader] = not busy and self._client.ready(leader)
                self._waiting |= not busy and not usable[leader]
            if not usable[leader]:
                continue
            # A batch above max.request.size goes alone: only the broker knows its limit (message.max.bytes).
            size = sizes.get(leader, 0) + batch.size_bytes
            if leader in sizes and size > self._config.max_request_size:
                continue
            sizes[leader] = size
            requests.setdefault(leader, []).append((queue, batch))
        for leader, batches in requests.items():
            self._produce(leader, batches)
        return bool(requests) and self.failure is None

    def _produce(self, leader: int, batches: list[tuple[PartitionQueue, ProducerBatch]]) -> None:
        transactions = self._transactions
        topics: dict[str, list[ProduceRequest.Topic.Partition]] = {}
        for queue, batch in batches:
            # Before the send: under version 2, a Produce without a response may have opened the transaction (KIP-890).
            queue.sent(batch, transactional=transactions.transactional)
            transactions.produced_to((batch.topic, batch.partition))
            self._accumulator.served(queue)
            data = ProduceRequest.Topic.Partition(index=batch.partition, records=batch.sealed)
            topics.setdefault(batch.topic, []).append(data)
        request = ProduceRequest(
            transactional_id=transactions.transactional_id,
            acks=-1,  # all in-sync replicas, which idempotence requires
            timeout_ms=self._client.config.request_timeout_ms,
            topic_data=tuple(
                ProduceRequest.Topic(name=topic, partition_data=tuple(data)) for topic, data in topics.items()
            ),
        )
        # While a quota holds the request up, delivery.timeout.ms alone ends it.
        delivered_by = min(batch.created_ms for _, batch in batches) + self._config.delivery_timeout_ms
        deadline_ms = max(delivered_by, self._client.clock() + self._client.config.request_timeout_ms)
        try:
            pending = self._client.send(
                leader, request, deadline_ms=deadline_ms, versions=transactions.produce_versions
            )
        except KafkaEosError as error:
            for _, batch in batches:
                batch.in_flight = False
            self.fail(error)
            return
        self._produces[pending] = [batch for _, batch in batches]

    # responses

    def _completed(self, completion: Completion, now: int) -> None:
        batches = self._produces.pop(completion.pending)
        if completion.error is not None:
            broken = isinstance(completion.error, ConnectionLost)
            size = sum(batch.size_bytes for batch in batches) if broken else 0
            for batch in batches:
                batch.lost_request_bytes = size
                self._lost(batch, completion.error, now)
        elif completion.response is not None:
            self._produced(completion.pending.node_id, batches, completion.response, now)

    def _lost(self, batch: ProducerBatch, error: LostResponse, now: int) -> None:
        # The leader may have appended the batch. It drops a resend as a duplicate only if the sequence is the same.
        batch.in_flight = False
        batch.in_doubt = True
        self._client.request_metadata_update()
        self._retry(batch, now, str(error))

    def _produced(self, node: int, batches: Iterable[ProducerBatch], response: ProduceResponse, now: int) -> None:
        results = {(topic.name, each.index): each for topic in response.responses for each in topic.partition_responses}
        for batch in batches:
            batch.in_flight, batch.lost_request_bytes = False, 0
            result = results.get((batch.topic, batch.partition))
            if result is None:
                batch.in_doubt = True
                self._retry(batch, now, f"the response of broker {node} lacks the partition")
                continue
            hint = result.current_leader
            leader_known = (
                hint.leader_id >= 0
                and result.error_code != ErrorCode.NONE
                and self._client.learn_leader(
                    batch.topic, batch.partition, hint.leader_id, hint.leader_epoch, response.node_endpoints
                )
            )
            self._react(batch, result, now, leader_known=leader_known)

    def _react(
        self, batch: ProducerBatch, result: ProduceResponse.Topic.Partition, now: int, *, leader_known: bool
    ) -> None:
        code = ErrorCode.of(result.error_code)
        if code is ErrorCode.NONE:
            self._acknowledge(batch, result.base_offset, result.log_append_time_ms)
            return
        batch.in_doubt |= code in MAY_HAVE_BEEN_APPENDED
        problem = (
            code.name if not result.error_message else f"{code.name}: {peer_text(result.error_message).rstrip('.')}"
        )
        queue = self._accumulator.queue(batch.topic, batch.partition)
        match reaction(ProduceRequest, result.error_code):
            case Reaction.SUCCESS if batch.attempts > 1:
                # DUPLICATE_SEQUENCE_NUMBER: the leader appended an earlier attempt, whose response was lost.
                self._acknowledge(batch, -1)
            case Reaction.SUCCESS:
                # The leader already has a sequence that this producer sends for the first time.
                sent_once = f"{problem}, although the producer sent it only once: another producer uses this identity"
                self.fail(produce_errors.transaction_aborted_error(batch, sent_once))
            case Reaction.RETRY | Reaction.FIND_COORDINATOR:
                self._retry(batch, now, problem)
            case Reaction.REFRESH_METADATA:
                self._leader_lost(batch, code, problem, now, leader_known)
            # After an unacknowledged batch, out of order only means that the earlier batch must be resent first. For the
            # oldest batch it means lost data, or another producer with this identity.
            case Reaction.RETRY_BEHIND_EARLIER_BATCH if queue.unacknowledged[0] is not batch:
                self._retry(batch, now, problem, at_once=True)
            case Reaction.SPLIT:
                self._too_large(batch, problem, now)
            case Reaction.CONFIGURATION | Reaction.ABORT_CONFIGURATION:
                error, records = produce_errors.rejected_batch_error(batch, result, self._client)
                self._rejected(batch, error, records, now)
            # A transactional producer must not bump its epoch. Its transaction aborts instead (KIP-360).
            case _ if not self._transactions.transactional and code in RESTARTS_SEQUENCES:
                self._restart_sequences(queue, problem)
            case _:
                self.fail(produce_errors.transaction_aborted_error(batch, problem))

    def _acknowledge(self, batch: ProducerBatch, base_offset: int, log_append_time_ms: int = -1) -> None:
        self._accumulator.acknowledged(batch)
        key = (batch.topic, batch.partition)
        first, last, count = self.acknowledged.get(key, Acknowledged(base_offset, -1, 0))
        # A partition's first batch is sent alone. A later batch at the same offset or below shows that the leader lost the first.
        if self._transactions.transactional and count and 0 <= base_offset <= first:
            self.fail(produce_errors.records_lost_error(batch, base_offset))
        last = max(last, base_offset + batch.record_count - 1) if base_offset >= 0 else -1
        self.acknowledged[key] = Acknowledged(first, last, count + batch.record_count)
        if self._interceptors and self.failure is None:
            self._interceptors.on_acknowledgement(
                batch.topic,
                batch.partition,
                base_offset,
                batch.record_count,
                None,
                log_append_time_ms=log_append_time_ms,
            )

    def _retry(self, batch: ProducerBatch, now: int, problem: str, *, at_once: bool = False) -> None:
        batch.last_problem = problem
        log.debug(
            "topic %s partition %d: retry of sequence %d after attempt %d%s: %s",
            batch.topic,
            batch.partition,
            batch.base_sequence,
            batch.attempts,
            " (in doubt)" if batch.in_doubt else "",
            problem,
        )
        if batch.attempts > self._config.retries:
            self._fail_undelivered(batch, f"{self._config.retries} retries", "remove kafka.retries")
            return
        batch.retry_at = now if at_once else now + self._backoff.delay_ms(max(0, batch.attempts - 1))

    def _leader_lost(self, batch: ProducerBatch, code: ErrorCode, problem: str, now: int, leader_known: bool) -> None:
        if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            since = batch.unknown_topic_since if batch.unknown_topic_since is not None else now
            batch.unknown_topic_since = since
            if now - since > self._config.max_block_ms:
                self.fail(produce_errors.unknown_topic_error(batch, now - since, self._config.max_block_ms))
                return
        else:
            batch.unknown_topic_since = None
        if not leader_known:
            self._client.request_metadata_update()
        # A response with the new leader (KIP-951) makes the backoff unnecessary.
        self._retry(batch, now, problem, at_once=leader_known)

    def _too_large(self, batch: ProducerBatch, problem: str, now: int) -> None:
        if self._accumulator.split(batch):
            log.info(
                "topic %s partition %d: split a batch of %d records and %d bytes in two (MESSAGE_TOO_LARGE)",
                batch.topic,
                batch.partition,
                batch.record_count,
                batch.size_bytes,
            )
            return
        self._rejected(batch, produce_errors.record_too_large_error(batch, problem), [0], now)

    def _rejected(self, batch: ProducerBatch, error: KafkaEosError, records: Sequence[int], now: int) -> None:
        """Make ``records`` dead letters and resend the other rows; fail if not possible."""
        unacknowledged = self._accumulator.queue(batch.topic, batch.partition).unacknowledged
        renumbered = unacknowledged[unacknowledged.index(batch) :]
        possible = self._config.dead_letter_topic is not None and batch.row_numbers is not None and records
        # A batch in doubt may be in the log with all of its rows. The batches after it get lower sequences. A late request with an old,
        # higher one could then fit after the resend: the leader would append it twice, and drop the next batch as its duplicate.
        if not possible or any(each.in_doubt for each in renumbered):
            self.fail(error)
        elif any(each.in_flight for each in renumbered):
            # The leader rejects this batch once more, after it has rejected the ones after it. A former leader may keep them for long.
            self._retry(batch, now, error.message, at_once=batch.attempts == 1)
        else:
            self.rejected.append(self._accumulator.remove(batch, records, error))

    def _restart_sequences(self, queue: PartitionQueue, problem: str) -> None:
        log.warning(
            "topic %s partition %d: %s; the producer resends unacknowledged batches under the next epoch, so Kafka may "
            "store them twice (at-least-once)",
            queue.topic,
            queue.partition,
            problem,
        )
        # Several partitions may fail under one epoch. Only the first failure bumps it; the others use the new epoch.
        if queue.identity == self._transactions.identity:
            self._transactions.bump_epoch()
        queue.needs_new_sequences = True

    def _expire(self, now: int) -> None:
        if now < self._next_expiry or self.failure is not None:
            return
        self._next_expiry = now + EXPIRY_CHECK_MS
        limit = self._config.delivery_timeout_ms
        if (oldest := self._accumulator.expired(now - limit)) is not None:
            self._fail_undelivered(
                oldest,
                f"{now - oldest.created_ms} ms (kafka.delivery.timeout.ms {limit})",
                "raise kafka.delivery.timeout.ms",
            )

    def _fail_undelivered(self, batch: ProducerBatch, after: str, otherwise: str) -> None:
        self.tainted |= batch.in_doubt
        reason = produce_errors.undelivered_reason(batch, self._client)
        # A batch that waits for AddPartitionsToTxn waits for the coordinator, which can be any broker.
        where = batch.topic, batch.partition
        nodes = None if where in self._transactions.pending else {self._client.metadata.leader(*where)}
        advice = produce_errors.health_or_quota(self._client, batch.created_ms, nodes)
        self.fail(produce_errors.delivery_timeout_error(batch, after, reason, f"{advice}, or {otherwise}"))

    def fail(self, error: KafkaEosError) -> None:
        """Send no more batches; only the first failure counts."""
        self._transactions.fail()
        self.give_up(error)

    def give_up(self, error: KafkaEosError) -> None:
        """Give up every unacknowledged record, unless an earlier failure did.

        Interceptors receive one call per partition, with the number of its records. They receive no later acknowledgement of these.
        """
        if self.failure is not None:
            return
        self.failure = error
        if isinstance(error, FencedError):
            log.info("producer fenced: %s", error.message)
        if self._interceptors:
            for queue in self._accumulator.queues.values():
                waiting = (*queue.unacknowledged, *queue.fresh, queue.open)
                count = sum(each.record_count for each in waiting if each is not None)
                if count:
                    self._interceptors.on_acknowledgement(queue.topic, queue.partition, -1, count, error)

    # leaving

    def drop_unsent(self) -> None:
        """Drop batches that are not in flight; an in-doubt batch taints the attempt."""
        numbered = self._accumulator.drop_unsent()
        # The lost request of an in-doubt batch may still arrive, and the leader may append it after EndTxn.
        self.tainted |= any(batch.in_doubt for batch in numbered)

    def abandon(self) -> None:
        """Abandon the requests in flight: a leader may still append their records."""
        self.tainted |= self.produces_in_flight > 0
        self._produces = {pending: [] for pending in self._produces}
