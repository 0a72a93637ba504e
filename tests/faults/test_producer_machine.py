"""The producer machine (`model/producer_machine.py`) against real brokers: a few runs by default, many with KAFKA_EOS_ALL_CASES."""

from __future__ import annotations

import os
from collections.abc import Callable

import kafka as kafka_python
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from model.producer_machine import ProducerMachine

from .bench import Bench
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
