"""The transactional producer's state machine, and its requests to the coordinator.

The client's request engine sends them, with its retries. A call blocks until the response or its deadline.

A task's transaction stays PREPARED: the leaders have acknowledged every batch, and only the driver may end it. Other
exits of IN_TRANSACTION are an abort and the two error states.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from kafka_eos_sink.client.connection import Versions
from kafka_eos_sink.client.requests import KeyResult
from kafka_eos_sink.client.transactions_admin import INT32_MAX, EndTransaction, TransactionsAdmin
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import ProducerIdAndEpoch, ProducerIdentity, TopicPartition, bumps_epoch
from kafka_eos_sink.protocol.messages import AddPartitionsToTxnRequest, EndTxnResponse
from kafka_eos_sink.protocol.reactions import RETRIES, Reaction, in_words, reaction, refusal

log = logging.getLogger(__name__)

MAX_PRODUCER_EPOCH: Final = 2**15 - 1
FIRST_PRODUCE_OF_KIP_890: Final = 12
"""From this version on, Produce adds its partitions to the transaction."""
_ABORTABLE: Final = (Reaction.ABORT, Reaction.ABORT_CONFIGURATION)


class State(Enum):
    """A producer's states (Java: ``TransactionManager.State``)."""

    UNINITIALIZED = auto()
    READY = auto()
    IN_TRANSACTION = auto()
    PREPARED = auto()
    ABORTING = auto()
    ABORTED = auto()
    ABORTABLE_ERROR = auto()
    FATAL_ERROR = auto()


S = State
TRANSITIONS: Final[Mapping[State, frozenset[State]]] = {
    S.UNINITIALIZED: frozenset({S.READY, S.FATAL_ERROR}),
    # An idempotent producer whose epochs are exhausted gets another producer id.
    S.READY: frozenset({S.READY, S.IN_TRANSACTION, S.FATAL_ERROR}),
    S.IN_TRANSACTION: frozenset({S.PREPARED, S.ABORTING, S.ABORTABLE_ERROR, S.FATAL_ERROR}),
    S.ABORTABLE_ERROR: frozenset({S.ABORTING, S.FATAL_ERROR}),
    S.ABORTING: frozenset({S.ABORTED, S.FATAL_ERROR}),
    # The driver may already have decided the transaction, so this process must not end it.
    S.PREPARED: frozenset(),
    # Below transaction version 2, a second transaction would have the same epoch, so a late request could become part of it.
    S.ABORTED: frozenset(),
    S.FATAL_ERROR: frozenset(),
}


class IllegalTransition(RuntimeError):
    """The state forbids the call: a bug of the caller, never the effect of a response."""


class TransactionManager:
    """One producer's identity and its only transaction.

    Without a transactional id, the manager only keeps the producer id and epoch of the idempotent producer.
    ``transaction_version`` is the cluster's finalized feature (KIP-890). From 2 on, Produce adds its partitions itself.
    """

    def __init__(self, admin: TransactionsAdmin, transactional_id: str | None, *, transaction_version: int = 0) -> None:
        self.transactional_id = transactional_id
        self.transaction_version = transaction_version
        self.state = State.UNINITIALIZED
        self.producer_id = -1
        self.producer_epoch = -1
        self.partitions: set[TopicPartition] = set()
        """Partitions of the transaction, in version 2 also a lost Produce's."""
        self.pending: set[TopicPartition] = set()
        """Partitions that AddPartitionsToTxn must add before Produce (below version 2)."""
        self.in_doubt: set[TopicPartition] = set()
        """Partitions that an unresolved AddPartitionsToTxn may have added."""
        self._admin = admin

    @property
    def transactional(self) -> bool:
        return self.transactional_id is not None

    @property
    def implicit_partitions(self) -> bool:
        """True if Produce itself adds its partitions to the transaction (KIP-890)."""
        return bumps_epoch(self.transaction_version)

    @property
    def identity(self) -> ProducerIdAndEpoch:
        """(producer id, producer epoch)."""
        return self.producer_id, self.producer_epoch

    @property
    def full_identity(self) -> ProducerIdentity:
        """The identity of a producer with a transactional id."""
        assert self.transactional_id is not None
        return ProducerIdentity(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            transaction_version=self.transaction_version,
        )

    @property
    def may_produce(self) -> bool:
        """True if the state allows Produce requests."""
        return self.state is (State.IN_TRANSACTION if self.transactional else State.READY)

    @property
    def produce_versions(self) -> Versions:
        """The bounds of the API version of Produce.

        The leader derives the transaction's protocol from it, so it never changes within a transaction.
        """
        if not self.transactional:
            return None, FIRST_PRODUCE_OF_KIP_890
        if self.implicit_partitions:
            return FIRST_PRODUCE_OF_KIP_890, FIRST_PRODUCE_OF_KIP_890
        return None, FIRST_PRODUCE_OF_KIP_890 - 1

    def initialized(self, producer_id: int, producer_epoch: int) -> None:
        """Use a producer id and epoch that the caller got from InitProducerId."""
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self._move(State.READY)

    def request_identity(self, deadline_ms: int) -> None:
        """Request the producer id and epoch of an idempotent producer, from any broker.

        Raises:
            BrokerUnavailableError: No response before the deadline.
            KafkaEosError: The broker rejected the request.
        """
        if self.transactional:
            raise IllegalTransition("request_identity with a transactional id: the caller requests its identity")
        self.initialized(*self._admin.init_producer_id(None, INT32_MAX, deadline_ms))

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

    def add_pending(self, deadline_ms: int) -> None:
        """Add the pending partitions to the transaction, until the deadline.

        Raises:
            KafkaEosError: The coordinator rejected a partition. The state allows an abort unless the producer is fenced.
        """
        added = self._add(self.pending, deadline_ms)
        code = added.error_code
        if code is None or reaction(AddPartitionsToTxnRequest, code) in RETRIES:
            return
        self.pending.clear()
        if code != ErrorCode.NONE:
            self.fail(fatal=reaction(AddPartitionsToTxnRequest, code) not in _ABORTABLE)
            about = f"transactional id {self.transactional_id!r}"
            if added.value is not None:
                about += f" for topic {added.value[0]} partition {added.value[1]}"
            raise refusal(AddPartitionsToTxnRequest, code, in_words(AddPartitionsToTxnRequest, about))

    def _add(self, partitions: set[TopicPartition], deadline_ms: int) -> KeyResult[TopicPartition | None]:
        # A rejected login at another broker interrupts the call, and the request in flight may still add them.
        unasked = partitions - self.in_doubt
        self.in_doubt |= unasked
        added, may_be_added = self._admin.add_partitions(self.full_identity, sorted(partitions), deadline_ms)
        if added.error_code == ErrorCode.NONE:
            self.partitions |= partitions
            self.in_doubt -= partitions
        elif not may_be_added:
            self.in_doubt -= unasked
        return added

    def prepare(self) -> ProducerIdentity:
        """Prepare the transaction: from now on, only the driver may end it."""
        if self.pending or self.in_doubt:
            raise IllegalTransition("prepare while a request to the coordinator is pending")
        self._move(State.PREPARED)
        return self.full_identity

    def abort(self, deadline_ms: int) -> KeyResult[EndTxnResponse]:
        """Abort the transaction under its own epoch (EndTxn, every retry identical).

        Returns:
            The last response. Its code is None if none came by the deadline, or an error prevents the request.
        """
        self._move(State.ABORTING)
        # Retry AddPartitionsToTxn for partitions in doubt until a response arrives. Below version 2, a request that
        # arrives after EndTxn would open a hanging transaction (KAFKA-17754).
        if self.in_doubt:
            code = self._add(self.in_doubt, deadline_ms).error_code
            # Such a rejection settles the doubt only for this try. EndTxn ends what an earlier one added.
            if code is None or (code != ErrorCode.NONE and reaction(AddPartitionsToTxnRequest, code) not in _ABORTABLE):
                return KeyResult()
        if self.partitions or self.in_doubt:
            end = EndTransaction(self.full_identity, committed=False)
            (ended,) = self._admin.end_transactions([end], deadline_ms)
        else:
            # The coordinator does not know an empty transaction: EndTxn would fail with INVALID_TXN_STATE.
            ended = KeyResult(error_code=ErrorCode.NONE.value)
        # Any other code proves neither commit nor abort.
        if ended.error_code == ErrorCode.NONE:
            self._move(State.ABORTED)
        return ended

    def fail(self, *, fatal: bool = False) -> None:
        """End the attempt; only an abort may follow, and none after a fatal failure."""
        if fatal or not self.transactional:
            # In PREPARED the driver owns the transaction, so no failure here may change the state.
            if State.FATAL_ERROR in TRANSITIONS[self.state]:
                self._move(State.FATAL_ERROR)
        elif self.state is State.IN_TRANSACTION:
            self._move(State.ABORTABLE_ERROR)

    def bump_epoch(self) -> None:
        """Bump the idempotent producer's epoch after an unresolved sequence (KIP-360).

        No other producer has this id, so the next epoch is free. After the last epoch, the producer needs a new id.
        """
        if self.transactional:
            raise IllegalTransition("bump_epoch with a transactional id: only the coordinator bumps its epoch")
        if self.producer_epoch < MAX_PRODUCER_EPOCH:
            self.producer_epoch += 1
            log.debug("producer id %d: epoch bumped to %d", self.producer_id, self.producer_epoch)
        else:
            log.info("producer id %d: epochs exhausted, requesting a new producer id", self.producer_id)
            self.producer_id = self.producer_epoch = -1

    def _move(self, target: State) -> None:
        if target not in TRANSITIONS[self.state]:
            raise IllegalTransition(f"{self.state.name} -> {target.name}")
        name = self.transactional_id or "an idempotent producer"
        log.debug("%s: %s -> %s", name, self.state.name, target.name)
        self.state = target
