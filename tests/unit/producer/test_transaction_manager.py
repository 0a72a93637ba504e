from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from hand_driven import UNREACHABLE, Coordinator, HandDrivenClient, added
from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.connection import ConnectionLost
from kafka_eos_sink.errors import (
    AuthenticationError,
    AuthorizationError,
    BrokerUnavailableError,
    FencedError,
    KafkaEosError,
    TransactionAbortedError,
)
from kafka_eos_sink.producer.transaction_manager import TRANSITIONS, IllegalTransition, State, TransactionManager
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.messages import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
)

LOST = ConnectionLost("CONNECTION_LOST", "gone")
DEADLINE_MS = 5_000


class Dialogue:
    """A manager, and its coordinator."""

    def __init__(self, version: int = 0, transactional_id: str | None = "tx") -> None:
        self.client = HandDrivenClient()
        self.coordinator = self.client.handler = Coordinator()
        client: Any = self.client
        self.manager = TransactionManager(Admin(client), transactional_id, transaction_version=version)

    def in_transaction(self, *partitions: int) -> Dialogue:
        """Begin, with partitions that must be added."""
        self.manager.initialized(7, 3)
        self.manager.begin()
        for partition in partitions:
            assert not self.manager.add_partition(("t", partition))
        return self

    def add(self, *responses: Any) -> None:
        """Add the pending partitions; the coordinator gives these codes, responses or errors."""
        self.coordinator.add = list(responses)
        self.manager.add_pending(DEADLINE_MS)

    def sent(self) -> list[str]:
        """The coordinator's requests, by API."""
        return [type(request).__name__.removesuffix("Request") for _, request, _ in self.client.called]


def test_transitions_not_in_the_table_raise() -> None:
    moves: dict[State, Callable[[TransactionManager], Any]] = {
        State.READY: lambda manager: manager.initialized(1, 1),
        State.IN_TRANSACTION: TransactionManager.begin,
        State.PREPARED: TransactionManager.prepare,
        State.ABORTED: lambda manager: manager.abort(DEADLINE_MS),
    }
    for state, (target, move) in itertools.product(State, moves.items()):
        manager = Dialogue().manager
        manager.state = state
        manager.partitions.add(("t", 0))
        if (State.ABORTING if target is State.ABORTED else target) in TRANSITIONS[state]:
            move(manager)
            assert manager.state is target
        else:
            with pytest.raises(IllegalTransition):
                move(manager)


@pytest.mark.parametrize(
    ("planned", "error"),
    [
        (UNREACHABLE, BrokerUnavailableError),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, BrokerUnavailableError),
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, AuthorizationError),
        (ErrorCode.TRANSACTION_ABORTABLE, TransactionAbortedError),
    ],
)
def test_refused_id_leaves_no_identity(planned: Any, error: type[Exception]) -> None:
    d = Dialogue(transactional_id=None)
    d.coordinator.init = planned
    with pytest.raises(error):
        d.manager.request_identity(DEADLINE_MS)
    assert (d.manager.state, d.manager.identity) == (State.UNINITIALIZED, (-1, -1))


@pytest.mark.parametrize("reverse", [False, True])
def test_unattempted_partitions_report_their_siblings_error(reverse: bool) -> None:
    d = Dialogue().in_transaction(0, 1)
    codes = [ErrorCode.OPERATION_NOT_ATTEMPTED.value, ErrorCode.TOPIC_AUTHORIZATION_FAILED.value]
    refused = codes.index(29) if not reverse else 0
    with pytest.raises(AuthorizationError, match=f"partition {refused}"):
        d.add(added({"t": dict(enumerate(reversed(codes) if reverse else codes))}))
    assert d.manager.state is State.ABORTABLE_ERROR
    assert d.manager.abort(DEADLINE_MS).error_code == 0
    assert not d.client.requests(EndTxnRequest)


def test_a_fenced_producer_cannot_even_abort() -> None:
    d = Dialogue().in_transaction(0)
    with pytest.raises(FencedError):
        d.add(ErrorCode.PRODUCER_FENCED)
    assert d.manager.state is State.FATAL_ERROR
    with pytest.raises(IllegalTransition):
        d.manager.abort(DEADLINE_MS)


def test_abort_waits_for_in_doubt_but_not_unsent_partitions() -> None:
    d = Dialogue().in_transaction(0)
    d.add(LOST)
    assert d.manager.in_doubt == {("t", 0)}
    d.manager.add_partition(("t", 1))
    d.client.now = 0
    d.client.called.clear()
    d.coordinator.add = [LOST, 0]
    assert d.manager.abort(DEADLINE_MS).error_code == 0
    assert {asked.v3_and_below_topics[0].partitions for asked in d.client.requests(AddPartitionsToTxnRequest)} == {(0,)}
    assert d.sent()[-1] == "EndTxn"
    assert d.client.requests(EndTxnRequest)[0].committed is False
    assert d.manager.state is State.ABORTED


@pytest.mark.parametrize("again", [LOST, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.PRODUCER_FENCED], ids=repr)
def test_abort_never_overtakes_a_request_in_doubt(again: Any) -> None:
    """Below version 2, an AddPartitionsToTxn that arrives after EndTxn opens a hanging transaction (KAFKA-17754)."""
    d = Dialogue().in_transaction(0)
    d.add(LOST)
    d.client.now = 0
    d.coordinator.add = again
    assert d.manager.abort(DEADLINE_MS).error_code is None
    assert not d.client.requests(EndTxnRequest)
    assert d.manager.state is State.ABORTING


@pytest.mark.parametrize(("version", "versions"), [(0, (3, 3)), (1, (3, 3)), (2, (5, 5))])
def test_end_txn_goes_out_in_the_version_of_its_transaction(version: int, versions: tuple[int, int]) -> None:
    d = Dialogue(version=version).in_transaction()
    d.manager.partitions.add(("t", 0))
    d.coordinator.end = [LOST, ErrorCode.CONCURRENT_TRANSACTIONS, 0]
    ended = d.manager.abort(DEADLINE_MS)
    assert (ended.error_code, ended.has_lost_response) == (0, True)
    ends = [each for each in d.client.called if isinstance(each[1], EndTxnRequest)]
    assert {(request, of) for _, request, of in ends} == {(ends[0][1], versions)}
    assert len(ends) == 3


@pytest.mark.parametrize(
    "code",
    [ErrorCode.INVALID_TXN_STATE, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING, 12345],
)
def test_end_txn_error_is_returned_and_never_read_as_an_outcome(code: int) -> None:
    d = Dialogue(version=2).in_transaction()
    d.manager.partitions.add(("t", 0))
    d.coordinator.end = code
    assert d.manager.abort(DEADLINE_MS).error_code == code
    assert d.manager.state is State.ABORTING


@pytest.mark.parametrize("responses", [(), (LOST,)])
def test_prepare_is_rejected_while_something_is_pending(responses: tuple[Any, ...]) -> None:
    d = Dialogue().in_transaction(0)
    if responses:
        d.add(*responses)
        d.manager.pending.clear()
    with pytest.raises(IllegalTransition):
        d.manager.prepare()


def test_idempotent_producer_inits_at_any_node_and_bumps_epoch() -> None:
    d = Dialogue(transactional_id=None)
    d.coordinator.identity = (9, 0)
    d.manager.request_identity(DEADLINE_MS)
    assert d.sent() == ["InitProducerId"]
    assert d.client.requests(InitProducerIdRequest)[0].transactional_id is None
    d.manager.bump_epoch()
    assert d.manager.identity == (9, 1)
    with pytest.raises(IllegalTransition):
        Dialogue().in_transaction().manager.bump_epoch()
    with pytest.raises(IllegalTransition):
        Dialogue().manager.request_identity(DEADLINE_MS)


@pytest.mark.parametrize("codes", [{}, {1: 0}, {0: 0, 1: 0}])
def test_added_partitions_must_be_those_of_the_request(codes: dict[int, int]) -> None:
    """A response for others proves nothing, so the partition stays in doubt."""
    d = Dialogue().in_transaction(0)
    d.add(added({"t": codes}))
    assert d.manager.in_doubt == d.manager.pending == {("t", 0)}
    assert not d.manager.partitions


@pytest.mark.parametrize(
    "first", [LOST, ErrorCode.NOT_COORDINATOR, ErrorCode.REQUEST_TIMED_OUT, added({"t": {7: 0}})], ids=repr
)
@pytest.mark.parametrize("again", ["rejected", "no coordinator"])
def test_refused_retry_leaves_a_doubt_that_an_abort_settles(first: Any, again: str) -> None:
    """Below version 2: a coordinator that moved may have added the partition, and only EndTxn ends what it opened."""
    d = Dialogue().in_transaction(0)
    if again == "no coordinator":
        d.coordinator.find = [0, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED]
        first = ErrorCode.NOT_COORDINATOR
    with pytest.raises(KafkaEosError):
        d.add(first, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    assert d.manager.in_doubt == {("t", 0)}
    if again == "rejected":
        assert d.manager.abort(DEADLINE_MS).error_code == 0
        assert d.sent()[-1] == "EndTxn"


def test_request_that_an_error_interrupts_is_in_doubt() -> None:
    """A login that another broker rejects ends the blocking call, and the coordinator still gets the request."""
    d = Dialogue().in_transaction(0)
    error = AuthenticationError("SASL_AUTHENTICATION_FAILED", "broker 2")

    def interrupted(request: Any) -> Any:
        if isinstance(request, AddPartitionsToTxnRequest):
            raise error
        return d.coordinator(request)

    d.client.handler = interrupted
    with pytest.raises(AuthenticationError):
        d.add(0)
    d.manager.fail()
    d.client.handler = d.coordinator
    assert d.manager.abort(DEADLINE_MS).error_code == 0
    assert d.sent()[-2:] == ["AddPartitionsToTxn", "EndTxn"]


def test_rejection_settles_no_older_doubt() -> None:
    d = Dialogue().in_transaction(0)
    d.add(LOST)
    d.client.now = 0
    with pytest.raises(AuthorizationError):
        d.add(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    assert d.manager.in_doubt == {("t", 0)}


def test_rejection_at_once_leaves_no_doubt() -> None:
    d = Dialogue().in_transaction(0)
    with pytest.raises(AuthorizationError):
        d.add(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    assert d.manager.abort(DEADLINE_MS).error_code == 0
    assert d.sent() == ["FindCoordinator", "AddPartitionsToTxn"]


def test_coordinator_that_is_not_found_leaves_no_doubt() -> None:
    d = Dialogue().in_transaction(0)
    d.coordinator.find = ErrorCode.COORDINATOR_NOT_AVAILABLE
    d.add(0)
    assert d.manager.pending == {("t", 0)}
    assert not d.manager.in_doubt
    assert {type(request) for _, request, _ in d.client.called} == {FindCoordinatorRequest}


def test_in_version_two_produce_alone_opens_the_transaction() -> None:
    d = Dialogue(version=2).in_transaction()
    assert d.manager.add_partition(("t", 0))
    d.manager.produced_to(("t", 0))
    assert d.manager.abort(DEADLINE_MS).error_code == 0
    (end,) = d.client.requests(EndTxnRequest)
    assert (end.producer_id, end.producer_epoch) == (7, 3)
    assert d.manager.state is State.ABORTED
