"""The transactional producer's state machine. No I/O, no clock, no threads.

    next_request()   what the coordinator has to be asked now: derived from the state, so a repeat is only asking again
    receive()        its answer
    lost()           the answer will not come: what was asked may have happened

A task's transaction ends its life here as PREPARED: everything is acknowledged, nothing is ended, and from then on only
the driver decides. The other ways out of IN_TRANSACTION are an abort, or, for the driver's own transactions, a commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, Literal

from kafka_eos_sink.client.admin import EndTxnResult
from kafka_eos_sink.client.backoff import ExponentialBackoff
from kafka_eos_sink.client.network_client import LostAnswer
from kafka_eos_sink.errors import BrokerRefusedError, KafkaEosError
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import TopicPartition
from kafka_eos_sink.protocol.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)
from kafka_eos_sink.protocol.reactions import Reaction, reaction, refusal

GROUP: Final = 0
TRANSACTION: Final = 1
MAX_PRODUCER_EPOCH: Final = 2**15 - 1
TRY_AGAIN: Final = (Reaction.RETRY, Reaction.REFRESH_METADATA, Reaction.FIND_COORDINATOR)
NO_ANSWER: Final = "no answer"
FIRST_RETRY_OF_A_BUSY_TRANSACTION_MS: Final = 20
"""A coordinator that still writes the markers of the last transaction is done within milliseconds (as in Java)."""


class State(Enum):
    UNINITIALIZED = auto()
    INITIALIZING = auto()
    READY = auto()
    IN_TRANSACTION = auto()
    PREPARED = auto()
    COMMITTING = auto()
    ABORTING = auto()
    ABORTABLE_ERROR = auto()
    FATAL_ERROR = auto()


S = State
TRANSITIONS: Final[Mapping[State, frozenset[State]]] = {
    S.UNINITIALIZED: frozenset({S.INITIALIZING, S.READY, S.FATAL_ERROR}),
    S.INITIALIZING: frozenset({S.READY, S.FATAL_ERROR}),
    S.READY: frozenset({S.INITIALIZING, S.IN_TRANSACTION, S.FATAL_ERROR}),
    S.IN_TRANSACTION: frozenset({S.PREPARED, S.COMMITTING, S.ABORTING, S.ABORTABLE_ERROR, S.FATAL_ERROR}),
    S.ABORTABLE_ERROR: frozenset({S.ABORTING, S.FATAL_ERROR}),
    S.COMMITTING: frozenset({S.READY, S.FATAL_ERROR}),
    S.ABORTING: frozenset({S.READY, S.FATAL_ERROR}),
    # Handed over: whoever holds the message may have decided already, so nothing here may end it any more.
    S.PREPARED: frozenset(),
    S.FATAL_ERROR: frozenset(),
}

_ABORTABLE: Final = (S.IN_TRANSACTION, S.ABORTABLE_ERROR)


class IllegalTransition(RuntimeError):
    """A call that the state does not allow: a bug in the caller, never a broker's doing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorRequest:
    """A request, the broker it is for, and the API versions that it may be sent in."""

    request: Any
    to: Literal["any", "transaction", "group"]
    max_version: int | None = None
    min_version: int | None = None


class TransactionManager:
    """One producer's identity and its transaction.

    Without a transactional id only the producer id and epoch are kept, for the idempotent producer.
    ``transaction_version`` is the cluster's finalized feature (KIP-890): from 2 on, Produce and TxnOffsetCommit add
    partitions by themselves and EndTxn returns the next epoch. It is chosen once and never changes in a transaction.
    """

    def __init__(
        self,
        transactional_id: str | None,
        *,
        transaction_version: int = 0,
        transaction_timeout_ms: int = 60_000,
        backoff: ExponentialBackoff,
    ) -> None:
        self.transactional_id = transactional_id
        self.transaction_version = transaction_version
        self.transaction_timeout_ms = transaction_timeout_ms
        self.state = State.UNINITIALIZED
        self.error: KafkaEosError | None = None
        self.producer_id = -1
        self.producer_epoch = -1
        self.coordinator: int | None = None
        self.group_coordinator: int | None = None
        self.partitions: set[TopicPartition] = set()
        """What the transaction holds, or may hold: in version 2 a partition to which a Produce request was sent."""
        self.pending: set[TopicPartition] = set()
        """Partitions that have to be added before anything is produced to them (below version 2)."""
        self.in_doubt: set[TopicPartition] = set()
        """Partitions asked for that may have been added without an answer that says so."""
        self.group: str | None = None
        self.group_may_be_added = False
        self.offsets: dict[TopicPartition, int] = {}
        self.end_in_doubt = False
        self.end_result: EndTxnResult | None = None
        self.spent = False
        """Something of this identity was lost on its way, or was given a sequence and never written.

        Below version 2 the epoch outlives its transaction: what arrives late would be taken for the next one's, and a
        sequence that was not written would be missed there.
        """
        self.next_at = 0
        """Clock ms before which the coordinator is left in peace."""
        self.last_problem = NO_ANSWER
        """What kept the coordinator last from what it is asked for; for messages only."""
        self.busy = False
        """That was CONCURRENT_TRANSACTIONS: it is about to end a transaction of this id."""
        self._group_added = False
        self._unsettled: set[TopicPartition] = set()
        """Those of ``in_doubt`` that stay in doubt when a repeat is refused: an earlier request may have added them."""
        self._in_flight: CoordinatorRequest | None = None
        self._backoff = backoff
        self._failures = 0

    @property
    def transactional(self) -> bool:
        return self.transactional_id is not None

    @property
    def implicit_partitions(self) -> bool:
        """Whether Produce and TxnOffsetCommit add what they write to by themselves (KIP-890)."""
        return self.transaction_version >= 2

    @property
    def identity(self) -> tuple[int, int]:
        """(producer id, producer epoch)."""
        return self.producer_id, self.producer_epoch

    @property
    def may_produce(self) -> bool:
        """Whether batches may be sent at all now."""
        return self.state is (State.IN_TRANSACTION if self.transactional else State.READY)

    @property
    def may_hold_something(self) -> bool:
        """Whether the coordinator may have a transaction of ours that has to be ended."""
        return bool(self.partitions or self.in_doubt or self.group_may_be_added)

    @property
    def awaits_end(self) -> bool:
        """Whether an answer to EndTxn may still come: after a refusal on the way to the coordinator, nothing is asked any more."""
        return self.end_result is None and self.state in (State.COMMITTING, State.ABORTING)

    # what the producer does

    def initialize(self) -> None:
        """A producer id and epoch shall be asked for; fences whoever had the transactional id."""
        self._move(State.INITIALIZING)

    def initialized(self, producer_id: int, producer_epoch: int) -> None:
        """The identity is known already, from an InitProducerId made elsewhere."""
        self._identify(producer_id, producer_epoch)
        self._move(State.READY)

    def begin(self) -> None:
        """Raises ``KafkaEosError`` (``TAINTED``) where another identity is needed first."""
        if self.spent and not self.implicit_partitions:
            raise KafkaEosError(
                "TAINTED",
                f"the last transaction of {self._name()} left requests behind that may yet arrive; below "
                "transaction.version 2 another one needs a producer id and epoch of its own",
            )
        self._move(State.IN_TRANSACTION)
        self.end_result = None

    def add_partition(self, partition: TopicPartition) -> bool:
        """Whether a batch for ``partition`` may be sent now; if not, it is on its way into the transaction."""
        if not self.may_produce:
            raise IllegalTransition(f"produce in state {self.state.name}")
        if not self.transactional or self.implicit_partitions or partition in self.partitions:
            return True
        self.pending.add(partition)
        return False

    def produced_to(self, partition: TopicPartition) -> None:
        """A Produce request for ``partition`` is on its way.

        In version 2 the request itself may open the transaction, even if the append fails: it has to be ended.
        """
        if self.transactional and self.implicit_partitions:
            self.partitions.add(partition)

    def add_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit the offsets of ``group`` (of the next record to read) with this transaction."""
        if self.state is not State.IN_TRANSACTION:
            raise IllegalTransition(f"add_offsets in state {self.state.name}")
        if self.group not in (None, group):
            raise IllegalTransition(f"a transaction carries the offsets of one group: {self.group}, not {group}")
        self.group = group
        self.offsets.update(offsets)

    def prepare(self) -> None:
        """Everything is acknowledged; whoever is told this identity decides from now on."""
        if self.pending or self.in_doubt or self.offsets:
            raise IllegalTransition("prepare while requests to the coordinator are open")
        self._move(State.PREPARED)

    def commit(self) -> None:
        if self.pending or self.in_doubt or self.offsets:
            raise IllegalTransition("commit while requests to the coordinator are open")
        self._move(State.COMMITTING)
        self._finish_if_empty()

    def abort(self) -> None:
        self._move(State.ABORTING)
        # What was asked without an answer is asked again until one comes: below version 2 an AddPartitionsToTxn that
        # arrives after EndTxn opens a transaction that nobody ends (KAFKA-17754).
        self.pending &= self.in_doubt
        self.offsets.clear()
        self._finish_if_empty()

    def fail(self, error: KafkaEosError, *, fatal: bool = False) -> None:
        """What happened to a batch ends the attempt; the first reason is kept."""
        if self.error is None:
            self.error = error
        if fatal or not self.transactional:
            if State.FATAL_ERROR in TRANSITIONS[self.state]:
                self._move(State.FATAL_ERROR)
        elif self.state is State.IN_TRANSACTION:
            self._move(State.ABORTABLE_ERROR)

    def bump_epoch(self) -> None:
        """The idempotent producer's way on after a sequence that nobody can resolve (KIP-360).

        The next epoch is free to take, as nobody else has this producer id; when epochs run out a new id is asked for.
        """
        if self.transactional:
            raise IllegalTransition("a transactional producer's epoch belongs to the coordinator")
        if self.producer_epoch < MAX_PRODUCER_EPOCH:
            self.producer_epoch += 1
        else:
            self.producer_id = self.producer_epoch = -1
            self._move(State.INITIALIZING)

    # what the coordinator is asked

    def next_request(self, now: int) -> CoordinatorRequest | None:
        """What must be sent now, or None. One request is under way at a time; ``now`` in clock ms."""
        if self._in_flight is not None or now < self.next_at:
            return None
        return self._needed()

    def sent(self, request: CoordinatorRequest) -> None:
        """``request`` is on its way: until the answer comes it may have happened."""
        self._in_flight = request
        match request.request:
            case AddPartitionsToTxnRequest():
                self.in_doubt |= self.pending
            case AddOffsetsToTxnRequest() | TxnOffsetCommitRequest():
                self.group_may_be_added = True

    def unreachable(self) -> None:
        """The node that should be asked cannot be reached: perhaps another one is the coordinator by now."""
        self.coordinator = self.group_coordinator = None

    def _needed(self) -> CoordinatorRequest | None:
        idle = (State.UNINITIALIZED, State.READY, State.PREPARED, State.ABORTABLE_ERROR, State.FATAL_ERROR)
        if self.state in idle:
            return None
        if self.transactional_id is None:
            return CoordinatorRequest(
                request=InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=2**31 - 1),
                to="any",
            )
        if self.state is State.IN_TRANSACTION and not self.pending and not self.offsets:
            return None
        if self.coordinator is None:
            return _find_coordinator(TRANSACTION, self.transactional_id)
        if self.state is State.INITIALIZING:
            return CoordinatorRequest(
                request=InitProducerIdRequest(
                    transactional_id=self.transactional_id, transaction_timeout_ms=self.transaction_timeout_ms
                ),
                to="transaction",
            )
        if self.pending:
            return self._add_partitions(self.transactional_id)
        if self.state is State.IN_TRANSACTION:
            return self._commit_offsets(self.transactional_id)
        return CoordinatorRequest(
            request=EndTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                committed=self.state is State.COMMITTING,
            ),
            to="transaction",
            max_version=5 if self.implicit_partitions else 4,
            min_version=5 if self.implicit_partitions else None,
        )

    def _add_partitions(self, transactional_id: str) -> CoordinatorRequest:
        return CoordinatorRequest(
            request=AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=transactional_id,
                v3_and_below_producer_id=self.producer_id,
                v3_and_below_producer_epoch=self.producer_epoch,
                v3_and_below_topics=tuple(
                    AddPartitionsToTxnRequest.Topic(
                        name=topic, partitions=tuple(sorted(p for t, p in self.pending if t == topic))
                    )
                    for topic in sorted({topic for topic, _ in self.pending})
                ),
            ),
            to="transaction",
            max_version=3,
        )

    def _commit_offsets(self, transactional_id: str) -> CoordinatorRequest:
        assert self.group is not None
        if not self.implicit_partitions and not self._group_added:
            return CoordinatorRequest(
                request=AddOffsetsToTxnRequest(
                    transactional_id=transactional_id,
                    producer_id=self.producer_id,
                    producer_epoch=self.producer_epoch,
                    group_id=self.group,
                ),
                to="transaction",
            )
        if self.group_coordinator is None:
            return _find_coordinator(GROUP, self.group)
        return CoordinatorRequest(
            request=TxnOffsetCommitRequest(
                transactional_id=transactional_id,
                group_id=self.group,
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                topics=tuple(
                    TxnOffsetCommitRequest.Topic(
                        name=topic,
                        partitions=tuple(
                            TxnOffsetCommitRequest.Topic.Partition(
                                partition_index=partition, committed_offset=offset, committed_metadata=""
                            )
                            for (name, partition), offset in sorted(self.offsets.items())
                            if name == topic
                        ),
                    )
                    for topic in sorted({topic for topic, _ in self.offsets})
                ),
            ),
            to="group",
            max_version=5 if self.implicit_partitions else 4,
            min_version=5 if self.implicit_partitions else None,
        )

    # what it answers

    def lost(self, error: LostAnswer, now: int) -> None:
        """The connection broke or the time ran out: what was asked may have happened, and is asked again."""
        request = self._taken()
        self.end_in_doubt |= isinstance(request, EndTxnRequest)
        self.spent |= not isinstance(request, FindCoordinatorRequest | InitProducerIdRequest)
        if isinstance(request, AddPartitionsToTxnRequest):
            self._unsettled |= self.in_doubt
        self.unreachable()
        self.last_problem, self.busy = error.message, False
        self._wait(now)

    def receive(self, response: Any, now: int) -> None:
        """The answer to the request under way."""
        failures = self._failures
        match self._taken():
            case FindCoordinatorRequest() as request:
                self._found(request, response, now)
            case InitProducerIdRequest() as request:
                if self._ok(request, response.error_code, now, f"InitProducerId of {self._name()}"):
                    self._identify(response.producer_id, response.producer_epoch)
                    self._move(State.READY)
            case AddPartitionsToTxnRequest() as request:
                self._added(request, response, now)
            case AddOffsetsToTxnRequest() as request:
                what = f"AddOffsetsToTxn of {self._name()} for group {self.group!r}"
                self._group_added = self._ok(request, response.error_code, now, what)
            case TxnOffsetCommitRequest() as request:
                self._offsets_committed(request, response, now)
            case EndTxnRequest() as request:
                self._ended(request, response, now)
        if self._failures == failures:
            self._failures = 0

    def _found(self, request: FindCoordinatorRequest, response: Any, now: int) -> None:
        (found,) = response.coordinators
        if not self._ok(request, found.error_code, now, f"FindCoordinator of {found.key!r}", found.error_message):
            return
        if request.key_type == TRANSACTION:
            self.coordinator = found.node_id
        else:
            self.group_coordinator = found.node_id

    def _added(self, request: AddPartitionsToTxnRequest, response: Any, now: int) -> None:
        results = {
            (topic.name, result.partition_index): result.partition_error_code
            for topic in response.results_by_topic_v3_and_below
            for result in topic.results_by_partition
        }
        added = {partition for partition, code in results.items() if code == ErrorCode.NONE}
        self.partitions |= added
        self.pending -= added
        self._unsettled -= added
        refused = {partition: code for partition, code in results.items() if code != ErrorCode.NONE}
        # A coordinator that moves or could not replicate in time says so of what it may have written all the same.
        self._unsettled |= {p for p, code in refused.items() if reaction(type(request), code) in TRY_AGAIN}
        self.in_doubt -= results.keys() - self._unsettled
        # A broker that refuses one partition attempts none of the others: the sibling's code is the reason.
        reasons = {p: c for p, c in refused.items() if c != ErrorCode.OPERATION_NOT_ATTEMPTED} or refused
        for (topic, partition), code in sorted(reasons.items()):
            what = f"AddPartitionsToTxn of {self._name()} for topic {topic} partition {partition}"
            first = FIRST_RETRY_OF_A_BUSY_TRANSACTION_MS if code == ErrorCode.CONCURRENT_TRANSACTIONS else None
            self._ok(request, code, now, what, first_wait_ms=first)
            break

    def _offsets_committed(self, request: TxnOffsetCommitRequest, response: Any, now: int) -> None:
        for topic in response.topics:
            for result in topic.partitions:
                where = f"topic {topic.name} partition {result.partition_index}"
                what = f"TxnOffsetCommit of group {self.group!r} for {where}"
                if self._ok(request, result.error_code, now, what):
                    self.offsets.pop((topic.name, result.partition_index), None)
                else:
                    return

    def _ended(self, request: EndTxnRequest, response: Any, now: int) -> None:
        code = response.error_code
        if code == ErrorCode.NONE:
            result = EndTxnResult(
                error_code=code, producer_id=response.producer_id, producer_epoch=response.producer_epoch
            )
            if response.producer_id >= 0:
                self._identify(response.producer_id, response.producer_epoch)
            self._finish(result)
            return
        # In doubt or not: a code is never read as committed or aborted, the caller has witnesses for that.
        if not self._ok(request, code, now, f"EndTxn of {self._name()}") and self.state is State.FATAL_ERROR:
            self.end_result = EndTxnResult(error_code=code, producer_id=-1, producer_epoch=-1)

    def _ok(
        self,
        request: Any,
        code: int,
        now: int,
        what: str,
        message: str | None = None,
        first_wait_ms: int | None = None,
    ) -> bool:
        if code == ErrorCode.NONE:
            if not isinstance(request, FindCoordinatorRequest):  # which is only asked again on the way
                self.last_problem, self.busy = NO_ANSWER, False
            return True
        self.last_problem = f"{what} was answered {ErrorCode.of(code).name}"
        self.busy = code == ErrorCode.CONCURRENT_TRANSACTIONS
        match reaction(type(request), code):
            case Reaction.SUCCESS:
                return True
            case Reaction.RETRY | Reaction.REFRESH_METADATA:
                self._wait(now, first_wait_ms)
            case Reaction.FIND_COORDINATOR:
                if isinstance(request, TxnOffsetCommitRequest):
                    self.group_coordinator = None
                else:
                    self.coordinator = None
                self._wait(now)
            case Reaction.ABORT | Reaction.ABORT_CONFIGURATION if self.state in _ABORTABLE:
                self.fail(refusal(type(request), code, what, message))
            case Reaction.ABORT | Reaction.ABORT_CONFIGURATION if self.state is State.ABORTING and not isinstance(
                request, EndTxnRequest
            ):
                # Asked again only to have an answer, and this is one. What an earlier request may have added is ended.
                self.pending.clear()
                self._finish_if_empty()
            case _:
                self.error = self.error or refusal(type(request), code, what, message)
                if self.state is not State.FATAL_ERROR:
                    self._force_fatal()
        return False

    def _force_fatal(self) -> None:
        if State.FATAL_ERROR in TRANSITIONS[self.state]:
            self._move(State.FATAL_ERROR)

    def _wait(self, now: int, first_wait_ms: int | None = None) -> None:
        if first_wait_ms is not None and self._failures == 0:
            self.next_at = now + first_wait_ms
        else:
            self.next_at = now + self._backoff.delay_ms(self._failures)
        self._failures += 1

    def _taken(self) -> Any:
        if self._in_flight is None:
            raise BrokerRefusedError("PROTOCOL", "a coordinator's answer that nothing was asked for")
        request, self._in_flight = self._in_flight.request, None
        return request

    def _identify(self, producer_id: int, producer_epoch: int) -> None:
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self.spent = False

    def _name(self) -> str:
        return (
            "an idempotent producer" if self.transactional_id is None else f"transactional id {self.transactional_id!r}"
        )

    def _finish_if_empty(self) -> None:
        # A transaction that holds nothing does not exist at the coordinator, which would answer INVALID_TXN_STATE.
        if not self.may_hold_something and not self.pending:
            self._finish(EndTxnResult(error_code=ErrorCode.NONE, producer_id=-1, producer_epoch=-1))

    def _finish(self, result: EndTxnResult) -> None:
        self.end_result = result
        self.partitions.clear()
        self.pending.clear()
        self.in_doubt.clear()
        self._unsettled.clear()
        self.offsets.clear()
        self.group = None
        self._group_added = self.group_may_be_added = self.end_in_doubt = False
        self.error = None
        self._move(State.READY)

    def _move(self, target: State) -> None:
        if target not in TRANSITIONS[self.state]:
            raise IllegalTransition(f"{self.state.name} -> {target.name}")
        self.state = target


def _find_coordinator(key_type: int, key: str) -> CoordinatorRequest:
    return CoordinatorRequest(request=FindCoordinatorRequest(key_type=key_type, coordinator_keys=(key,)), to="any")
