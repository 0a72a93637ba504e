"""A bench per broker: a proxy before it, topics to spare, and a reader that is not ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from kafka_eos_sink.embedded.cluster import EmbeddedKafka

from .bench import Bench


@pytest.fixture(scope="module")
def benches(request: pytest.FixtureRequest) -> Iterator[dict[int, Bench]]:
    """Filled as tests ask for them, so that no broker is started in vain."""
    made: dict[int, Bench] = {}
    with ExitStack() as stack:
        stack.callback(lambda: [bench.close() for bench in made.values()])
        yield made


@pytest.fixture
def bench_of(request: pytest.FixtureRequest, benches: dict[int, Bench]):
    """The bench of the broker with this transaction.version (2 or 0), without any fault yet."""

    def of(transaction_version: int) -> Bench:
        if transaction_version not in benches:
            kafka: EmbeddedKafka = request.getfixturevalue("kafka" if transaction_version == 2 else "kafka_tv0")
            benches[transaction_version] = Bench(kafka)
        bench = benches[transaction_version]
        bench.begin()
        return bench

    return of


@pytest.fixture(params=[2, 0], ids=["transaction.version=2", "transaction.version=0"])
def bench(request: pytest.FixtureRequest, bench_of) -> Bench:
    """Runs a test against both transaction protocols."""
    return bench_of(request.param)
