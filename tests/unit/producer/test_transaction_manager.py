from __future__ import annotations

import itertools
from typing import Any

import pytest

from kafka_eos_sink.client.config import ExponentialBackoff
from kafka_eos_sink.client.connection import ConnectionLost
from kafka_eos_sink.errors import AuthorizationError, FencedError, ProtocolError, TransactionAbortedError
from kafka_eos_sink.producer.transaction_manager import TransactionManager
from kafka_eos_sink.producer.transaction_states import TRANSITIONS, IllegalTransition, State
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)

LOST = ConnectionLost("CONNECTION_LOST", "gone")


class Dialogue:
    """A manager, and the coordinator's side of the talk written by hand."""

    def __init__(self, version: int = 0, transactional_id: str | None = "tx") -> None:
        backoff = ExponentialBackoff(100, 1_000, jitter=0)
        self.manager = TransactionManager(transactional_id, transaction_version=version, backoff=backoff)
        self.now = 0

    def ask(self) -> Any:
        self.now = max(self.now, self.manager.next_at)
        asked = self.manager.next_request(self.now)
        if asked is None:
            return None
        self.manager.sent(asked)
        return asked

    def answer(self, response: Any) -> None:
        self.manager.receive(response, self.now)

    def found(self, node: int = 1, code: int = 0) -> None:
        self.answer(
            FindCoordinatorResponse(
                throttle_time_ms=0,
                coordinators=(
                    FindCoordinatorResponse.Coordinator(
                        key="tx", node_id=node, host="h", port=1, error_code=code, error_message=None
                    ),
                ),
            )
        )

    def added(self, codes: dict[int, int]) -> None:
        results = tuple(
            AddPartitionsToTxnResponse.Topic.Partition(partition_index=p, partition_error_code=c)
            for p, c in codes.items()
        )
        self.answer(
            AddPartitionsToTxnResponse(
                throttle_time_ms=0,
                results_by_topic_v3_and_below=(
                    AddPartitionsToTxnResponse.Topic(name="t", results_by_partition=results),
                ),
            )
        )

    def ended(self, code: int = 0, producer_id: int = -1, epoch: int = -1) -> None:
        self.answer(EndTxnResponse(throttle_time_ms=0, error_code=code, producer_id=producer_id, producer_epoch=epoch))

    def in_transaction(self) -> Dialogue:
        self.manager.initialized(7, 3)
        self.manager.begin()
        self.manager.coordinator = 1
        return self


@pytest.mark.feature("producer states")
def test_transitions_not_in_the_table_raise() -> None:
    moves = {
        State.INITIALIZING: TransactionManager.initialize,
        State.IN_TRANSACTION: TransactionManager.begin,
        State.PREPARED: TransactionManager.prepare,
        State.ABORTING: TransactionManager.abort,
    }
    for state, (target, move) in itertools.product(State, moves.items()):
        manager = Dialogue(transactional_id=None if target is State.INITIALIZING else "tx").manager
        manager.state = state
        manager.partitions.add(("t", 0))
        if target in TRANSITIONS[state]:
            move(manager)
            assert manager.state is target
        else:
            with pytest.raises(IllegalTransition):
                move(manager)


def test_a_handed_over_or_ended_transaction_cannot_be_touched() -> None:
    assert TRANSITIONS[State.PREPARED] == frozenset()
    assert TRANSITIONS[State.ABORTED] == frozenset()


def test_add_partitions_follows_coordinator_lookup() -> None:
    d = Dialogue().in_transaction()
    d.manager.coordinator = None
    d.manager.add_partition(("t", 0))
    assert isinstance(d.ask(), FindCoordinatorRequest)
    assert d.ask() is None  # one request at a time
    d.found(code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert isinstance(d.ask(), FindCoordinatorRequest)
    d.found(node=4)
    assert isinstance(d.ask(), AddPartitionsToTxnRequest)
    d.added({0: ErrorCode.CONCURRENT_TRANSACTIONS})
    assert isinstance(d.ask(), AddPartitionsToTxnRequest)
    d.added({0: ErrorCode.NOT_COORDINATOR})
    assert isinstance(d.ask(), FindCoordinatorRequest)
    d.found(node=5)
    d.ask()
    d.added({0: 0})
    assert (d.manager.state, d.manager.coordinator) == (State.IN_TRANSACTION, 5)
    assert d.manager.add_partition(("t", 0))


def test_init_producer_id_error_is_kept_until_it_succeeds() -> None:
    d = Dialogue(transactional_id=None)

    def refused(code: ErrorCode) -> None:
        d.ask()
        d.answer(InitProducerIdResponse(throttle_time_ms=0, error_code=code, producer_epoch=-1))

    d.manager.initialize()
    assert d.manager.last_problem == "no response"
    refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert (
        d.manager.last_problem
        == "the initialisation of an idempotent producer failed with COORDINATOR_LOAD_IN_PROGRESS"
    )
    refused(ErrorCode.NOT_COORDINATOR)
    assert d.manager.last_problem == "the initialisation of an idempotent producer failed with NOT_COORDINATOR"
    d.ask()
    d.manager.lost(LOST, d.now)
    assert d.manager.last_problem == LOST.message
    d.ask()
    d.answer(InitProducerIdResponse(throttle_time_ms=0, error_code=0, producer_id=9, producer_epoch=2))
    assert d.manager.last_problem == "no response"
    assert (d.manager.state, d.manager.identity) == (State.READY, (9, 2))


@pytest.mark.feature("producer id")
@pytest.mark.parametrize(
    ("code", "error"),
    [
        (ErrorCode.PRODUCER_FENCED, FencedError),
        (ErrorCode.INVALID_PRODUCER_EPOCH, FencedError),
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, AuthorizationError),
        (ErrorCode.TRANSACTION_ABORTABLE, TransactionAbortedError),
    ],
)
def test_an_id_that_is_refused_ends_the_producer(code: ErrorCode, error: type[Exception]) -> None:
    d = Dialogue(transactional_id=None)
    d.manager.initialize()
    d.ask()
    d.answer(InitProducerIdResponse(throttle_time_ms=0, error_code=code, producer_epoch=-1))
    assert d.manager.state is State.FATAL_ERROR
    assert isinstance(d.manager.error, error)


@pytest.mark.feature("adding partitions")
def test_partitions_are_added_together_and_once() -> None:
    d = Dialogue().in_transaction()
    assert not d.manager.add_partition(("t", 0))
    assert not d.manager.add_partition(("t", 1))
    asked = d.ask()
    assert asked.v3_and_below_topics[0].partitions == (0, 1)
    d.added({0: 0, 1: 0})
    assert d.manager.add_partition(("t", 0))
    assert d.ask() is None


def test_concurrent_transactions_is_retried_after_20_ms() -> None:
    d = Dialogue().in_transaction()
    d.manager.add_partition(("t", 0))
    d.ask()
    d.added({0: ErrorCode.CONCURRENT_TRANSACTIONS})
    assert d.manager.next_at == 20
    assert d.manager.next_request(19) is None
    d.ask()
    d.added({0: ErrorCode.CONCURRENT_TRANSACTIONS})
    assert d.manager.next_at == 20 + 200


def test_unattempted_partitions_report_their_siblings_error() -> None:
    d = Dialogue().in_transaction()
    for partition in (0, 1):
        d.manager.add_partition(("t", partition))
    d.ask()
    d.added({0: ErrorCode.OPERATION_NOT_ATTEMPTED, 1: ErrorCode.TOPIC_AUTHORIZATION_FAILED})
    assert d.manager.state is State.ABORTABLE_ERROR
    assert isinstance(d.manager.error, AuthorizationError)
    assert "partition 1" in str(d.manager.error)


@pytest.mark.feature("error reactions")
def test_a_fenced_producer_cannot_even_abort() -> None:
    d = Dialogue().in_transaction()
    d.manager.add_partition(("t", 0))
    d.ask()
    d.added({0: ErrorCode.PRODUCER_FENCED})
    assert d.manager.state is State.FATAL_ERROR
    with pytest.raises(IllegalTransition):
        d.manager.abort()


@pytest.mark.feature("producer states")
def test_abort_waits_for_in_doubt_but_not_unsent_partitions() -> None:
    d = Dialogue().in_transaction()
    d.manager.add_partition(("t", 0))
    d.ask()
    d.manager.add_partition(("t", 1))
    d.manager.lost(LOST, d.now)
    d.manager.abort()
    assert isinstance(d.ask(), FindCoordinatorRequest)
    d.found()
    asked = d.ask()
    assert isinstance(asked, AddPartitionsToTxnRequest)
    assert asked.v3_and_below_topics[0].partitions == (0,)
    d.added({0: 0})
    end = d.ask()
    assert isinstance(end, EndTxnRequest)
    assert not end.committed
    d.ended()
    assert d.manager.state is State.ABORTED


def test_abort_of_an_empty_transaction_sends_no_request() -> None:
    d = Dialogue().in_transaction()
    d.manager.add_partition(("t", 0))
    d.manager.abort()
    assert d.manager.state is State.ABORTED
    assert d.ask() is None
    assert d.manager.end_result is not None
    assert d.manager.end_result.error_code == 0


def test_in_version_two_produce_alone_opens_the_transaction() -> None:
    d = Dialogue(version=2).in_transaction()
    assert d.manager.add_partition(("t", 0))
    d.manager.produced_to(("t", 0))
    d.manager.abort()
    end = d.ask()
    assert isinstance(end, EndTxnRequest)
    assert (end.producer_id, end.producer_epoch) == (7, 3)
    d.ended(producer_id=7, epoch=4)
    assert d.manager.state is State.ABORTED


@pytest.mark.feature("commit and abort")
@pytest.mark.parametrize(("version", "versions"), [(0, (None, 4)), (1, (None, 4)), (2, (5, 5))])
def test_end_txn_goes_out_in_the_version_of_its_transaction(version: int, versions: tuple[int | None, int]) -> None:
    d = Dialogue(version=version).in_transaction()
    d.manager.partitions.add(("t", 0))
    d.manager.abort()
    asked = d.manager.next_request(0)
    assert asked is not None
    assert d.manager.versions(type(asked)) == versions


def test_lost_end_txn_is_resent_unchanged_and_remains_in_doubt() -> None:
    d = Dialogue(version=2).in_transaction()
    d.manager.partitions.add(("t", 0))
    d.manager.abort()
    first = d.ask()
    d.manager.lost(LOST, d.now)
    assert d.manager.awaits_end
    d.ask()
    d.found()
    assert d.ask() == first
    d.ended(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert d.ask() == first
    d.ended(producer_id=7, epoch=4)
    assert (d.manager.state, d.manager.awaits_end) == (State.ABORTED, False)


@pytest.mark.parametrize(
    "code",
    [ErrorCode.INVALID_TXN_STATE, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING, 12345],
)
def test_end_txn_error_is_returned_and_never_read_as_an_outcome(code: int) -> None:
    d = Dialogue(version=2).in_transaction()
    d.manager.partitions.add(("t", 0))
    d.manager.abort()
    d.ask()
    d.ended(code)
    assert d.manager.state is State.FATAL_ERROR
    assert d.manager.end_result is not None
    assert d.manager.end_result.error_code == code


@pytest.mark.feature("producer states")
def test_prepare_is_rejected_while_something_is_pending() -> None:
    d = Dialogue().in_transaction()
    d.manager.add_partition(("t", 0))
    with pytest.raises(IllegalTransition):
        d.manager.prepare()


@pytest.mark.feature("producer without transactions")
def test_idempotent_producer_inits_at_any_node_and_bumps_epoch() -> None:
    d = Dialogue(transactional_id=None)
    d.manager.initialize()
    asked = d.manager.next_request(0)
    assert asked is not None
    assert d.manager.coordinator is None
    d.ask()
    d.answer(InitProducerIdResponse(throttle_time_ms=0, error_code=0, producer_id=9, producer_epoch=0))
    d.manager.bump_epoch()
    assert d.manager.identity == (9, 1)
    with pytest.raises(IllegalTransition):
        Dialogue().in_transaction().manager.bump_epoch()
    with pytest.raises(IllegalTransition):
        Dialogue().manager.initialize()


# Well-formed responses that do not belong to their request


@pytest.mark.parametrize("named", [(), ("other",)])
def test_coordinator_of_another_id_is_protocol_error(named: tuple[str, ...]) -> None:
    talk = Dialogue().in_transaction()
    talk.manager.coordinator = None
    talk.manager.add_partition(("t", 0))
    assert isinstance(talk.ask(), FindCoordinatorRequest)
    coordinators = tuple(
        FindCoordinatorResponse.Coordinator(key=key, node_id=1, host="h", port=1, error_code=0, error_message=None)
        for key in named
    )
    talk.answer(FindCoordinatorResponse(throttle_time_ms=0, coordinators=coordinators))
    assert isinstance(talk.manager.error, ProtocolError)
    assert talk.manager.coordinator is None
    assert talk.ask() is None


@pytest.mark.parametrize("identity", [(-1, 0), (1, -1)])
def test_negative_identity_is_protocol_error(identity: tuple[int, int]) -> None:
    talk = Dialogue(transactional_id=None)
    talk.manager.initialize()
    assert isinstance(talk.ask(), InitProducerIdRequest)
    talk.answer(
        InitProducerIdResponse(throttle_time_ms=0, error_code=0, producer_id=identity[0], producer_epoch=identity[1])
    )
    assert isinstance(talk.manager.error, ProtocolError)
    assert talk.manager.state is State.FATAL_ERROR


@pytest.mark.parametrize("codes", [{}, {1: 0}, {0: 0, 1: 0}])
def test_added_partitions_must_be_those_of_the_request(codes: dict[int, int]) -> None:
    talk = Dialogue().in_transaction()
    talk.manager.add_partition(("t", 0))
    assert isinstance(talk.ask(), AddPartitionsToTxnRequest)
    talk.added(codes)
    assert isinstance(talk.manager.error, ProtocolError)
    assert talk.manager.state is State.FATAL_ERROR


def test_refused_retry_leaves_a_doubt_that_an_abort_settles() -> None:
    """Below version 2: a coordinator that moved may have added the partition, and only EndTxn ends what it opened."""
    d = Dialogue().in_transaction()
    d.manager.add_partition(("t", 0))
    d.ask()
    d.added({0: ErrorCode.NOT_COORDINATOR})
    d.manager.abort()
    assert d.manager.state is State.ABORTING


def test_lost_request_leaves_a_doubt_that_a_refusal_does_not_settle() -> None:
    d = Dialogue().in_transaction()
    d.manager.add_partition(("t", 0))
    d.ask()
    d.manager.lost(LOST, d.now)
    d.manager.abort()
    d.ask()
    d.found()
    d.ask()
    d.added({0: ErrorCode.TOPIC_AUTHORIZATION_FAILED})
    assert isinstance(d.ask(), EndTxnRequest)


def test_only_the_first_failure_counts() -> None:
    d = Dialogue().in_transaction()
    first = TransactionAbortedError("TRANSACTION_ABORTED", "the first")
    for error in (first, TransactionAbortedError("TRANSACTION_ABORTED", "the second")):
        d.manager.fail(error)
    assert d.manager.error is first
