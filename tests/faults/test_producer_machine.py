"""The producer machine (`model/producer_machine.py`) against real brokers: a few runs by default, many with KAFKA_EOS_ALL_CASES."""

from __future__ import annotations

import os
from collections.abc import Callable

import kafka as kafka_python
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from model.producer_faults import LATER, Fault
from model.producer_machine import ProducerMachine

from kafka_eos_sink.protocol import messages as m

from .bench import Bench
from .fault_proxy import DeliverLate
from .proxied_world import ProxiedWorld

ALL_CASES = bool(os.environ.get("KAFKA_EOS_ALL_CASES"))
EXAMPLES = int(os.environ.get("KAFKA_EOS_MACHINE_EXAMPLES", "60" if ALL_CASES else "10"))


@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("version", [2, 0])
def test_whatever_happens_a_producer_says_what_a_real_broker_did(
    bench_of: Callable[[int], Bench], version: int
) -> None:
    bench = bench_of(version)
    admin = kafka_python.KafkaAdminClient(bootstrap_servers=bench.kafka.bootstrap_servers)
    try:
        run_state_machine_as_test(
            lambda: ProducerMachine(lambda: ProxiedWorld(bench, version, admin)),
            settings=settings(
                max_examples=EXAMPLES,
                stateful_step_count=12,
                deadline=None,
                derandomize=not ALL_CASES,
                database=None,
                phases=[
                    Phase.generate
                ],  # a shorter run of a failure is found in the simulation, where time costs nothing
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        admin.close()


def test_what_a_run_that_was_broken_off_has_left_open_is_not_the_next_ones(bench_of: Callable[[int], Bench]) -> None:
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


def test_what_a_slow_machine_gives_up_in_the_last_transaction_is_not_taken_for_one_left_open(
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
