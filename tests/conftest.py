"""Real Kafkas for all tests: started when the first test asks for one, shared, and stopped at the end of the session.

`kafka` and `kafka_tv0` stay up together. A test that needs a Kafka of its own (to kill, or of another version) starts
one and stops it before it returns or its module ends, so that a small machine never holds many.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from certificates import Authority
from kafka_classes import archive_kafka_classes
from kafka_eos_sink import logs
from kafka_eos_sink.embedded import distribution
from kafka_eos_sink.embedded.cluster import EmbeddedKafka

# Transactions that timed out are looked for every 10 s by default; tests that wait for that should not take so long.
TEST_PROPERTIES = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "log.retention.ms": "-1",  # which goes by the rows' own timestamps: those of 1970 would be deleted at the broker's next look
}


# A machine that stalls for a second is no failure, and each run of `make test` tries the same examples; others with KAFKA_EOS_ALL_CASES.
settings.register_profile(
    "suite",
    deadline=None,
    derandomize=not os.environ.get("KAFKA_EOS_ALL_CASES"),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("suite")

# What is quick runs first, so that a mistake shows early; what is not named runs between these.
FIRST = ("unit", "conformance", "model")
LAST = ("spark",)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    tests = Path(__file__).parent

    def rank(item: pytest.Item) -> int:
        folder = item.path.relative_to(tests).parts[0]
        if folder in FIRST:
            return FIRST.index(folder)
        return len(FIRST) + (folder in LAST)

    items.sort(key=rank)  # stable: the order within a folder stays


@pytest.fixture(autouse=True)
def warnings_of_each_test() -> None:
    """What a process says once, each test hears."""
    logs.forget()


@pytest.fixture(scope="session")
def kafka_jars() -> Path:
    """The folder with the jars of the Kafka that tests run by default."""
    return distribution.resolve()


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Who signs the certificates of secured listeners and endpoints."""
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def kafka_classes() -> None:
    archive_kafka_classes()


@pytest.fixture(scope="session")
def kafka(kafka_classes: None) -> Iterator[EmbeddedKafka]:
    """One node with transaction.version 2 (KIP-890)."""
    with EmbeddedKafka(transaction_version=2, properties=TEST_PROPERTIES) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def kafka_tv0(kafka_classes: None) -> Iterator[EmbeddedKafka]:
    """One node with transaction.version 0, as clusters have it that came from Kafka 3."""
    with EmbeddedKafka(transaction_version=0, properties=TEST_PROPERTIES) as cluster:
        yield cluster


@pytest.fixture(params=["transaction.version=2", "transaction.version=0"])
def any_kafka(request: pytest.FixtureRequest) -> EmbeddedKafka:
    """Runs a test against both transaction protocols."""
    found: EmbeddedKafka = request.getfixturevalue("kafka" if request.param.endswith("2") else "kafka_tv0")
    return found
