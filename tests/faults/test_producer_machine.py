"""The producer machine (`model/producer_machine.py`) against real brokers: how many runs, the tier says."""

from __future__ import annotations

from collections.abc import Callable

import kafka as kafka_python
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from model.producer_machine import ProducerMachine

from tests.tiers import Effort

from .bench import Bench
from .proxied_world import ProxiedWorld


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
