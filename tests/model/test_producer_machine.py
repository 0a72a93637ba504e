"""Producers under every fault: what they say is what the coordinator did, or "unknown".

First the search, then cases told by hand: the mistakes of mature clients, and what the search has found here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from faults.fault_proxy import Answer, LoseResponse
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from kafka_eos_sink.errors import FencedError
from kafka_eos_sink.producer.transaction_manager import IllegalTransition
from kafka_eos_sink.protocol import messages as m
from kafka_eos_sink.protocol.error_codes import ErrorCode
from tests.tiers import Effort

from .producer_faults import FOR_THE_CALL, Fault
from .producer_ledger import Claim
from .producer_machine import ProducerMachine
from .simulated_network import Meanwhile
from .simulated_world import SimulatedWorld


@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("kind", ["transactional-v2", "transactional-v0", "idempotent"])
def test_random_runs_claim_only_true_outcomes(kind: str, effort: Effort) -> None:
    run_state_machine_as_test(
        lambda: ProducerMachine(
            lambda: SimulatedWorld(0 if kind.endswith("v0") else 2, transactional=kind != "idempotent")
        ),
        settings=settings(
            max_examples=effort.machine_examples,
            stateful_step_count=40,
            deadline=None,
            derandomize=not effort.random,
            database=None,
            print_blob=effort.random,
            suppress_health_check=list(HealthCheck),
        ),
    )


# told by hand

Machines = Callable[[int], ProducerMachine]


@pytest.fixture
def machine_of() -> Iterator[Machines]:
    """A machine with one producer in a transaction; at the end of the test it checks everything as after a search."""
    with ExitStack() as stack:

        def of(version: int) -> ProducerMachine:
            machine = ProducerMachine(lambda: SimulatedWorld(version))
            stack.callback(machine.teardown)
            machine.configure()
            machine.start(begins=True)
            return machine

        yield of


versions = pytest.mark.parametrize("version", [2, 0])


@pytest.mark.parametrize("version", [2, 0])
def test_id_whose_coordinator_is_not_found_in_time_fails(version: int) -> None:
    """At the deadline the client asks a broker why there is no coordinator."""
    machine = ProducerMachine(lambda: SimulatedWorld(version))
    machine.configure()
    machine.start(faults=(Fault(m.FindCoordinatorRequest, Answer(ErrorCode.COORDINATOR_NOT_AVAILABLE), FOR_THE_CALL),))
    machine.teardown()
    assert not machine.actors


def ends(machine: ProducerMachine) -> list[bool]:
    """The EndTxn requests that were sent: commit or abort."""
    return [seen.request.committed for seen in machine.world.seen if seen.api is m.EndTxnRequest]


@versions
@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("before", [False, True])
def test_a_fenced_commit_is_never_success(machine_of: Machines, version: int, prepared: bool, before: bool) -> None:
    """Flink's KafkaSink logs it as probable data loss and goes on; here nobody may take it for done."""
    machine = machine_of(version)
    machine.write(partitions=[0, 1])
    machine.flush()
    if prepared:
        machine.prepare()
    fenced = () if before else (Fault(m.EndTxnRequest, Meanwhile("take over")),)
    if before:
        machine.start()  # the next owner is there already, and what was open is aborted
    if prepared:
        machine.decide(committed=True, faults=fenced)
    else:
        machine.commit(faults=fenced)
    assert ends(machine) == [True]
    assert machine.ledger.attempts[0].claim is Claim.UNKNOWN


@versions
def test_abort_stops_waiting_when_coordinator_lookup_fails(machine_of: Machines, version: int) -> None:
    """Its coordinator has to be looked for again, and that is refused for good."""
    machine = machine_of(version)
    machine.write(partitions=[0])
    machine.flush()
    producer, client = machine.actors[0].producer, machine.actors[0].client
    machine.world.plan(Fault(m.EndTxnRequest, LoseResponse()))
    machine.world.plan(Fault(m.FindCoordinatorRequest, Answer(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)))
    began = client.clock()
    ended = producer.abort(began + 8_000)
    assert ended is not None
    assert ended.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert ended.has_lost_response
    assert client.clock() - began < 1_000
    machine.ledger.attempts[0].claim = Claim.UNKNOWN


@pytest.mark.parametrize("in_doubt", [True, False])
def test_fencing_during_abort_raises_no_illegal_transition(machine_of: Machines, in_doubt: bool) -> None:
    machine = machine_of(0)
    machine.write(partitions=[0])
    machine.flush()
    producer, client = machine.actors[0].producer, machine.actors[0].client
    if in_doubt:
        machine.write(partitions=[0, 1], faults=(Fault(m.AddPartitionsToTxnRequest, LoseResponse(), FOR_THE_CALL),))
        machine.world.plan(Fault(m.AddPartitionsToTxnRequest, Answer(ErrorCode.PRODUCER_FENCED)))
        ended = producer.abort(client.clock() + 8_000)
        assert ended is not None
        assert ended.error_code is None
        assert ends(machine) == []
    else:
        machine.write(
            partitions=[0, 1], faults=(Fault(m.AddPartitionsToTxnRequest, Answer(ErrorCode.PRODUCER_FENCED)),)
        )
        assert producer.abort(client.clock() + 8_000) is None
        assert isinstance(producer._sender.failure, FencedError)


def test_below_version_two_identity_is_not_used_after_an_abort(machine_of: Machines) -> None:
    """The dropped batch had a sequence: each later transaction was refused with OUT_OF_ORDER_SEQUENCE_NUMBER."""
    machine = machine_of(0)
    machine.write(partitions=[0])
    machine.flush()
    producer = machine.actors[0].producer
    machine.write(partitions=[0, 0], faults=(Fault(m.ProduceRequest, Answer(ErrorCode.NOT_ENOUGH_REPLICAS), 2),))
    machine.abort()
    with pytest.raises(IllegalTransition):
        producer.begin()


@versions
def test_rows_dropped_in_one_transaction_do_not_taint_the_next(machine_of: Machines, version: int) -> None:
    machine = machine_of(version)
    machine.write(partitions=[0], faults=(Fault(m.ProduceRequest, LoseResponse()),))
    machine.pump(ms=3)
    machine.abort()
    machine.start(begins=True)
    machine.write(partitions=[0])
    machine.prepare()
    assert len(machine.actors) == 1
    machine.decide(committed=True)
    assert machine.ledger.attempts[-1].claim is Claim.COMMITTED
