"""The producer machine (`model/producer_machine.py`) against real brokers: how many runs, the tier says."""

from __future__ import annotations

from collections.abc import Callable

import kafka as kafka_python
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from model.producer_faults import LATER, Fault
from model.producer_machine import ProducerMachine

from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.producer.sender import Sender
from kafka_eos_sink.protocol import messages as m
from tests.tiers import Effort

from .bench import Bench
from .fault_proxy import DeliverLate, LoseResponse
from .proxied_world import ProxiedWorld


@pytest.mark.feature("identical resends", "commit and abort", "error reactions", "producer without transactions")
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("kind", ["transactional-v2", "transactional-v0", "idempotent"])
def test_random_runs_claim_only_outcomes_seen_at_the_broker(
    bench_of: Callable[[int], Bench], kind: str, effort: Effort
) -> None:
    version = 0 if kind.endswith("v0") else 2
    bench = bench_of(version)
    admin = kafka_python.KafkaAdminClient(bootstrap_servers=bench.kafka.bootstrap_servers)
    try:
        run_state_machine_as_test(
            lambda: ProducerMachine(lambda: ProxiedWorld(bench, version, admin, transactional=kind != "idempotent")),
            settings=settings(
                max_examples=effort.machine_examples_on_broker,
                stateful_step_count=12,
                deadline=None,
                derandomize=not effort.random,
                database=None,
                phases=[
                    Phase.generate
                ],  # a shorter run of a failure is found in the simulation, where time costs nothing
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        admin.close()


class PatientWorld(ProxiedWorld):
    """However slow the machine is, nothing is given up by the clock."""

    def client(self, client_id: str) -> NetworkClient:
        return NetworkClient(self._bench.client_config(client_id=client_id, request_timeout_ms=30_000))

    def may_fail_by_itself(self, age_ms: int) -> bool:
        return super().may_fail_by_itself(0)


@pytest.mark.feature("error reactions")
@pytest.mark.parametrize("transactional", [True, False])
def test_client_that_fails_on_survivable_fault_is_detected(
    bench_of: Callable[[int], Bench], monkeypatch: pytest.MonkeyPatch, transactional: bool
) -> None:
    monkeypatch.setattr(
        Sender, "_lost", lambda self, batch, error, now: self._fail_undelivered(batch, "one attempt", "try again")
    )
    bench = bench_of(2)
    admin = kafka_python.KafkaAdminClient(bootstrap_servers=bench.kafka.bootstrap_servers)
    machine = ProducerMachine(lambda: PatientWorld(bench, 2, admin, transactional=transactional))
    try:
        machine.configure()
        machine.start(begins=True)
        machine.world.plan(Fault(m.ProduceRequest, LoseResponse()))
        with pytest.raises(AssertionError, match=r"met .*LoseResponse.*DELIVERY_TIMEOUT"):
            machine.transact(partitions=[0], commits=True)
    finally:
        machine.teardown()
        admin.close()


def test_open_transaction_of_aborted_run_is_not_blamed_on_next(bench_of: Callable[[int], Bench]) -> None:
    bench = bench_of(0)
    admin = kafka_python.KafkaAdminClient(bootstrap_servers=bench.kafka.bootstrap_servers)
    broken_off, machine = (ProducerMachine(lambda: ProxiedWorld(bench, 0, admin)) for _ in range(2))
    try:
        broken_off.configure()
        broken_off.start(begins=True)
        broken_off.append_record(partition=0)
        broken_off.flush()
        assert bench.open_transactions() == {broken_off.world.transactional_id: "Ongoing"}
        machine.configure()
        machine.teardown()
        assert bench.open_transactions() == {broken_off.world.transactional_id: "Ongoing"}
    finally:
        broken_off.teardown()
        admin.close()


class SlowAtLast(ProxiedWorld):
    """Even the last transaction, which meets no faults, gives a request up, and it arrives after the end."""

    def heal(self) -> None:
        super().heal()
        self.plan(Fault(m.AddPartitionsToTxnRequest, DeliverLate(LATER)))

    def settle(self) -> None:
        assert [fault for _, fault in self.fired] == [DeliverLate(LATER)]
        self.deliver_late()
        super().settle()


def test_slow_final_transaction_is_not_reported_as_open(
    bench_of: Callable[[int], Bench],
) -> None:
    bench = bench_of(0)
    admin = kafka_python.KafkaAdminClient(bootstrap_servers=bench.kafka.bootstrap_servers)
    machine = ProducerMachine(lambda: SlowAtLast(bench, 0, admin))
    try:
        machine.configure()
        machine.teardown()
    finally:
        admin.close()
