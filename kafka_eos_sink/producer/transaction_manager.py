"""The transactional producer's state machine. No I/O, no clock, no threads.

    next_request()   the next request to the coordinator, derived from the state, so that a retry is identical
    receive()        the response
    lost()           no response will arrive, but the coordinator may have processed the request

A task's transaction stays PREPARED: the leaders have acknowledged every batch, and only the driver may end it. Other
exits of IN_TRANSACTION are an abort and the two error states.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from kafka_eos_sink.client.config import ExponentialBackoff
from kafka_eos_sink.client.connection import LostResponse, Versions
from kafka_eos_sink.client.requests import KeyResult
from kafka_eos_sink.errors import BrokerRefusedError, KafkaEosError, ProtocolError
from kafka_eos_sink.producer.config import INT32_MAX
from kafka_eos_sink.producer.transaction_states import TRANSITIONS, IllegalTransition, State
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import TopicPartition, bumps_epoch
from kafka_eos_sink.protocol.messages import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    EndTxnResponse,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    ProduceRequest,
)
from kafka_eos_sink.protocol.reactions import RETRIES, Reaction, in_words, reaction, refusal
from kafka_eos_sink.protocol.schema import Request

log = logging.getLogger(__name__)

MAX_PRODUCER_EPOCH: Final = 2**15 - 1
NO_RESPONSE: Final = "no response"
TRANSACTION: Final = 1
"""The key type of FindCoordinator for a transactional id."""
FIRST_OF_KIP_890: Final[dict[type[Request[Any]], int]] = {ProduceRequest: 12, EndTxnRequest: 5}
"""From these versions on, Produce adds its partitions to the transaction, and EndTxn bumps the epoch and returns the new one."""
FIRST_RETRY_OF_A_BUSY_TRANSACTION_MS: Final = 20
"""Short as in Java: the last transaction's markers take only milliseconds."""
_ABORTABLE: Final = (State.IN_TRANSACTION, State.ABORTABLE_ERROR)


class TransactionManager:
    """One producer's identity and its only transaction.

    Without a transactional id, the manager only keeps the producer id and epoch of the idempotent producer.
    ``transaction_version`` is the cluster's finalized feature (KIP-890). From 2 on, Produce adds its partitions itself.
    """

    def __init__(
        self,
        transactional_id: str | None,
        *,
        transaction_version: int = 0,
        backoff: ExponentialBackoff,
    ) -> None:
        self.transactional_id = transactional_id
        self.transaction_version = transaction_version
        self.state = State.UNINITIALIZED
        self.error: KafkaEosError | None = None
        self.producer_id = -1
        self.producer_epoch = -1
        self.coordinator: int | None = None
        self.partitions: set[TopicPartition] = set()
        """Partitions of the transaction, in version 2 also a lost Produce's."""
        self.pending: set[TopicPartition] = set()
        """Partitions that AddPartitionsToTxn must add before Produce (below version 2)."""
        self.in_doubt: set[TopicPartition] = set()
        """Partitions that an unresolved AddPartitionsToTxn may have added."""
        self.end_result: KeyResult[EndTxnResponse] | None = None
        self.next_at = 0
        """Clock ms before which the manager sends no request (backoff)."""
        self.last_problem = NO_RESPONSE
        """The last error, for messages only."""
        self._unsettled: set[TopicPartition] = set()
        """The part of ``in_doubt`` that stays in doubt if the coordinator rejects a retry."""
        self._in_flight: Request[Any] | None = None
        self._backoff = backoff
        self._failures = 0

    @property
    def transactional(self) -> bool:
        return self.transactional_id is not None

    @property
    def implicit_partitions(self) -> bool:
        """True if Produce itself adds its partitions to the transaction (KIP-890)."""
        return bumps_epoch(self.transaction_version)

    @property
    def identity(self) -> tuple[int, int]:
        """(producer id, producer epoch)."""
        return self.producer_id, self.producer_epoch

    @property
    def may_produce(self) -> bool:
        """True if the state allows Produce requests."""
        return self.state is (State.IN_TRANSACTION if self.transactional else State.READY)

    @property
    def may_be_open(self) -> bool:
        """True if the coordinator may have an open transaction of this producer."""
        return bool(self.partitions or self.in_doubt)

    @property
    def awaits_end(self) -> bool:
        """True if a response to EndTxn may still arrive; after a fatal error none will."""
        return self.end_result is None and self.state is State.ABORTING

    # calls of the producer

    def initialize(self) -> None:
        """Request the producer id and epoch of an idempotent producer."""
        if self.transactional:
            raise IllegalTransition("initialize with a transactional id: the caller requests its identity")
        self._move(State.INITIALIZING)

    def initialized(self, producer_id: int, producer_epoch: int) -> None:
        """Use a producer id and epoch that the caller got from InitProducerId."""
        self._identify(producer_id, producer_epoch)
        self._move(State.READY)

    def begin(self) -> None:
        """Start the transaction locally."""
        self._move(State.IN_TRANSACTION)

    def add_partition(self, partition: TopicPartition) -> bool:
        """Return True if Produce to ``partition`` is allowed, else make it pending."""
        if not self.may_produce:
            raise IllegalTransition(f"produce in state {self.state.name}")
        if not self.transactional or self.implicit_partitions or partition in self.partitions:
            return True
        self.pending.add(partition)
        return False

    def produced_to(self, partition: TopicPartition) -> None:
        """Record that a Produce request to ``partition`` is in flight."""
        # In version 2, the leader adds the partition before it appends (KIP-890). So the transaction may be open even if
        # the append failed or the response was lost, and an abort must send EndTxn.
        if self.transactional and self.implicit_partitions:
            self.partitions.add(partition)

    def prepare(self) -> None:
        """Prepare the transaction: from now on, only the driver may end it."""
        if self.pending or self.in_doubt:
            raise IllegalTransition("prepare while a request to the coordinator is pending")
        self._move(State.PREPARED)

    def abort(self) -> None:
        self._move(State.ABORTING)
        # Retry AddPartitionsToTxn for partitions in doubt until a response arrives. Below version 2, a request that
        # arrives after EndTxn would open a hanging transaction (KAFKA-17754).
        self.pending &= self.in_doubt
        self._finish_if_empty()

    def fail(self, error: KafkaEosError, *, fatal: bool = False) -> None:
        """Fail the attempt; only the first error counts."""
        if self.error is None:
            self.error = error
        if fatal or not self.transactional:
            # In PREPARED the driver owns the transaction, so no failure here may change the state.
            if State.FATAL_ERROR in TRANSITIONS[self.state]:
                self._move(State.FATAL_ERROR)
        elif self.state is State.IN_TRANSACTION:
            self._move(State.ABORTABLE_ERROR)

    def bump_epoch(self) -> None:
        """Bump the idempotent producer's epoch after an unresolved sequence (KIP-360).

        No other producer has this id, so the next epoch is free. After the last epoch, the manager requests a new id.
        """
        if self.transactional:
            raise IllegalTransition("bump_epoch with a transactional id: only the coordinator bumps its epoch")
        if self.producer_epoch < MAX_PRODUCER_EPOCH:
            self.producer_epoch += 1
            log.debug("producer id %d: epoch bumped to %d", self.producer_id, self.producer_epoch)
        else:
            log.info("producer id %d: epochs exhausted, requesting a new producer id", self.producer_id)
            self.producer_id = self.producer_epoch = -1
            self._move(State.INITIALIZING)

    # requests to the coordinator

    def next_request(self, now: int) -> Request[Any] | None:
        """Return the request to send at clock ms ``now``; at most one is in flight.

        Send it to the coordinator; while ``coordinator`` is None, to any broker.
        """
        if self._in_flight is not None or now < self.next_at:
            return None
        if self.state not in (State.INITIALIZING, State.IN_TRANSACTION, State.ABORTING):
            return None
        if self.transactional_id is None:
            return InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=INT32_MAX)
        if self.state is State.IN_TRANSACTION and not self.pending:
            return None
        if self.coordinator is None:
            return FindCoordinatorRequest(key_type=TRANSACTION, coordinator_keys=(self.transactional_id,))
        # Before EndTxn, an abort must settle whether partitions in doubt belong to the transaction.
        if self.pending:
            by_topic: dict[str, list[int]] = {}
            for topic, partition in sorted(self.pending):
                by_topic.setdefault(topic, []).append(partition)
            return AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.transactional_id,
                v3_and_below_producer_id=self.producer_id,
                v3_and_below_producer_epoch=self.producer_epoch,
                v3_and_below_topics=tuple(
                    AddPartitionsToTxnRequest.Topic(name=topic, partitions=tuple(indexes))
                    for topic, indexes in by_topic.items()
                ),
            )
        return EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            committed=False,
        )

    def versions(self, request: type[Request[Any]]) -> Versions:
        """Return the bounds of a request's API version."""
        first = FIRST_OF_KIP_890.get(request)
        if first is None or not self.transactional:
            return None, first
        # Leader and coordinator derive the transaction's protocol from the version. It never changes within a transaction:
        # EndTxn v5 bumps the epoch, and the coordinator fences a retry in v4, which carries the old epoch (KIP-890).
        return (first, first) if self.implicit_partitions else (None, first - 1)

    def sent(self, request: Request[Any]) -> None:
        """Record that ``request`` is in flight."""
        self._in_flight = request
        if isinstance(request, AddPartitionsToTxnRequest):
            self.in_doubt |= self.pending

    def forget_coordinator(self) -> None:
        """Forget an unreachable coordinator: its role may have moved to another broker."""
        self.coordinator = None

    # responses

    def lost(self, error: LostResponse, now: int) -> None:
        """Retry the request in flight, which the coordinator may already have processed."""
        request = self._take_in_flight()
        log.debug("%s: %s got no response: %s", self._name(), type(request).__name__, error.message)
        if isinstance(request, AddPartitionsToTxnRequest):
            self._unsettled |= self.in_doubt
        self.forget_coordinator()
        self.last_problem = error.message
        self._wait(now)

    def receive(self, response: Any, now: int) -> None:
        """Process the response to the request in flight."""
        failures = self._failures
        match self._take_in_flight():
            case FindCoordinatorRequest() as request:
                self._found(request, response, now)
            case InitProducerIdRequest() as request:
                what = in_words(InitProducerIdRequest, self._name())
                if self._ok(request, response.error_code, now, what) and self._fits(
                    response.producer_id >= 0 and response.producer_epoch >= 0, what
                ):
                    self._identify(response.producer_id, response.producer_epoch)
                    self._move(State.READY)
            case AddPartitionsToTxnRequest() as request:
                self._added(request, response, now)
            case EndTxnRequest() as request:
                self._ended(request, response, now)
        if self._failures == failures:
            self._failures = 0

    def _found(self, request: FindCoordinatorRequest, response: Any, now: int) -> None:
        what, found = in_words(FindCoordinatorRequest, self._name()), {each.key: each for each in response.coordinators}
        each = found.get(request.coordinator_keys[0])
        if each is None:
            self._fits(False, what)
        elif self._ok(request, each.error_code, now, what, each.error_message):
            self.coordinator = each.node_id

    def _added(self, request: AddPartitionsToTxnRequest, response: Any, now: int) -> None:
        results = {
            (topic.name, result.partition_index): result.partition_error_code
            for topic in response.results_by_topic_v3_and_below
            for result in topic.results_by_partition
        }
        requested = {(topic.name, index) for topic in request.v3_and_below_topics for index in topic.partitions}
        if not self._fits(results.keys() == requested, in_words(AddPartitionsToTxnRequest, self._name())):
            return
        added = {partition for partition, code in results.items() if code == ErrorCode.NONE}
        self.partitions |= added
        self.pending -= added
        self._unsettled -= added
        rejected = {partition: code for partition, code in results.items() if code != ErrorCode.NONE}
        # A coordinator that moved, or timed out during replication, may still have added the partition.
        self._unsettled |= {p for p, code in rejected.items() if reaction(type(request), code) in RETRIES}
        self.in_doubt -= results.keys() - self._unsettled
        # If a coordinator rejects one partition, the others return OPERATION_NOT_ATTEMPTED, which is not the reason.
        reasons = {p: c for p, c in rejected.items() if c != ErrorCode.OPERATION_NOT_ATTEMPTED} or rejected
        for (topic, partition), code in sorted(reasons.items()):
            what = f"{in_words(AddPartitionsToTxnRequest, self._name())} for topic {topic} partition {partition}"
            self._ok(request, code, now, what)
            break

    def _ended(self, request: EndTxnRequest, response: Any, now: int) -> None:
        code = response.error_code
        if code == ErrorCode.NONE:
            self._finish(KeyResult(error_code=code, value=response))
            return
        # An error code proves neither commit nor abort: the caller reads the outcome from the log.
        if not self._ok(request, code, now, in_words(EndTxnRequest, self._name())) and self.state is State.FATAL_ERROR:
            self.end_result = KeyResult(error_code=code, value=response)

    def _fits(self, fits: bool, what: str) -> bool:
        """Fail permanently if a response does not fit its request: it proves nothing."""
        if not fits:
            self.fail(ProtocolError(f"{what} got a response that does not fit the request"), fatal=True)
        return fits

    def _ok(self, request: Any, code: int, now: int, what: str, message: str | None = None) -> bool:
        if code == ErrorCode.NONE:
            self.last_problem = NO_RESPONSE
            return True
        self.last_problem = f"{what} failed with {ErrorCode.of(code).name}"
        log.debug("%s", self.last_problem)
        match reaction(type(request), code):
            case Reaction.SUCCESS:
                return True
            case Reaction.RETRY | Reaction.REFRESH_METADATA:
                busy = code == ErrorCode.CONCURRENT_TRANSACTIONS and isinstance(request, AddPartitionsToTxnRequest)
                soon = busy and self._failures == 0
                self._wait(now, FIRST_RETRY_OF_A_BUSY_TRANSACTION_MS if soon else None)
            case Reaction.FIND_COORDINATOR:
                self.coordinator = None
                self._wait(now)
            case Reaction.ABORT | Reaction.ABORT_CONFIGURATION if self.state in _ABORTABLE:
                self.fail(refusal(type(request), code, what, message))
            case Reaction.ABORT | Reaction.ABORT_CONFIGURATION if self.state is State.ABORTING and not isinstance(
                request, EndTxnRequest
            ):
                # During an abort, the retry only settles the doubt. EndTxn ends what an earlier request added.
                self.pending.clear()
                self._finish_if_empty()
            case _:
                self.fail(refusal(type(request), code, what, message), fatal=True)
        return False

    def _wait(self, now: int, wait_ms: int | None = None) -> None:
        self.next_at = now + (self._backoff.delay_ms(self._failures) if wait_ms is None else wait_ms)
        self._failures += 1

    def _take_in_flight(self) -> Any:
        if self._in_flight is None:
            raise BrokerRefusedError("PROTOCOL", "the coordinator sent a response without a request in flight")
        request, self._in_flight = self._in_flight, None
        return request

    def _identify(self, producer_id: int, producer_epoch: int) -> None:
        self.producer_id, self.producer_epoch = producer_id, producer_epoch

    def _name(self) -> str:
        return (
            "an idempotent producer" if self.transactional_id is None else f"transactional id {self.transactional_id!r}"
        )

    def _finish_if_empty(self) -> None:
        # The coordinator does not know an empty transaction: EndTxn would fail with INVALID_TXN_STATE.
        if not self.may_be_open and not self.pending:
            self._finish(KeyResult(error_code=ErrorCode.NONE.value))

    def _finish(self, result: KeyResult[EndTxnResponse]) -> None:
        self.end_result = result
        self._move(State.ABORTED)

    def _move(self, target: State) -> None:
        if target not in TRANSITIONS[self.state]:
            raise IllegalTransition(f"{self.state.name} -> {target.name}")
        log.debug("%s: %s -> %s", self._name(), self.state.name, target.name)
        self.state = target
