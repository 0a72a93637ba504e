"""Real Kafkas for all tests: started when the first test asks for one, shared, and stopped at the end of the session.

`kafka` and `kafka_tv0` stay up together. A test that needs a Kafka of its own (to kill, or of another version) starts
one and stops it before it returns or its module ends, so that a small machine never holds many.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from certificates import Authority
from kafka_classes import archive_kafka_classes
from kafka_eos_sink import logs
from kafka_eos_sink.embedded import distribution
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from tests.tiers import EFFORTS, LANES, RULES, Case, Effort, Tier, place

# Transactions that timed out are looked for every 10 s by default; tests that wait for that should not take so long.
TEST_PROPERTIES = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "log.retention.ms": "-1",  # which goes by the rows' own timestamps: those of 1970 would be deleted at the broker's next look
}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kafka-eos")
    names = [tier.name.lower() for tier in Tier]
    group.addoption("--tier", choices=names, default="all", help="run the tests of this tier and of those below it")
    group.addoption("--beyond", choices=names, help="without the tests of this tier and of those below it")
    group.addoption("--effort", choices=names, help="how far searches go; that of the tier unless given")
    group.addoption("--lane", choices=LANES, help="only the tests of this lane")
    group.addoption("--logs", type=Path, help="keep the logs of a failed test's brokers in this folder")
    group.addoption("--slice", help="K/N: of the selected tests those whose hash modulo N is K")


def pytest_configure(config: pytest.Config) -> None:
    # A script's background job starts with SIGINT ignored, and so would the commands that tests end by Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for tier in Tier:
        config.addinivalue_line("markers", f"{tier.name.lower()}: set by tests/tiers.py")
    # A machine that stalls for a second is no failure; and each run tries the same examples, unless it is exhaustive.
    effort = _effort(config)
    settings.register_profile(
        "suite",
        deadline=None,
        max_examples=effort.hypothesis_examples,
        derandomize=not effort.random,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("suite")


def _effort(config: pytest.Config) -> Effort:
    return EFFORTS[Tier.of(config.getoption("--effort") or config.getoption("--tier"))]


@pytest.fixture(scope="session")
def effort(pytestconfig: pytest.Config) -> Effort:
    """How far a test searches that could search for any time."""
    return _effort(pytestconfig)


# What is quick runs first, so that a mistake shows early; what is not named runs between these.
FIRST = ("unit", "conformance", "model")
LAST = ("spark",)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    cases = [_case(item) for item in items]
    place(cases, RULES)
    kept, dropped = [], []
    for item, case in zip(items, cases, strict=True):
        item.add_marker(case.tier.name.lower())
        (kept if _is_wanted(config, case) else dropped).append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
    items[:] = sorted(kept, key=_rank)  # stable: the order within a folder stays


def _case(item: pytest.Item) -> Case:
    return Case(
        nodeid=item.nodeid,
        path=item.path.relative_to(Path(__file__).parent).as_posix(),
        function=getattr(item, "originalname", item.name),
        params=dict(item.callspec.params) if hasattr(item, "callspec") else {},
        takes_effort="effort" in getattr(item, "fixturenames", ()),
    )


def _is_wanted(config: pytest.Config, case: Case) -> bool:
    run = Tier.of(config.getoption("--tier"))
    if case.tier > run or config.getoption("--lane") not in (None, case.lane):
        return False
    if beyond := config.getoption("--beyond"):
        # With more effort a test is another one.
        is_new = case.takes_effort and EFFORTS[Tier.of(beyond)] != _effort(config)
        if case.tier <= Tier.of(beyond) and not is_new:
            return False
    if part := config.getoption("--slice"):
        at, parts = map(int, part.split("/"))
        return case.number % parts == at % parts
    return True


def _rank(item: pytest.Item) -> int:
    folder = item.path.relative_to(Path(__file__).parent).parts[0]
    if folder in FIRST:
        return FIRST.index(folder)
    return len(FIRST) + (folder in LAST)


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


class Brokers:
    """The shared Kafkas of a run, one per transaction version. Each starts in a thread, so that they and Spark start at once."""

    def __init__(self) -> None:
        self._starting = ThreadPoolExecutor(max_workers=2)
        self._started: dict[int, Future[EmbeddedKafka]] = {}

    def start(self, transaction_version: int) -> None:
        if transaction_version not in self._started:
            cluster = EmbeddedKafka(transaction_version=transaction_version, properties=TEST_PROPERTIES)
            self._started[transaction_version] = self._starting.submit(cluster.start)

    def of(self, transaction_version: int) -> EmbeddedKafka:
        self.start(transaction_version)
        return self._started[transaction_version].result()

    def running(self) -> list[EmbeddedKafka]:
        return [each.result() for each in self._started.values() if each.done() and not each.exception()]

    def stop(self) -> None:
        self._starting.shutdown()
        for cluster in self.running():
            cluster.stop()


BROKERS = pytest.StashKey[Brokers]()


@pytest.fixture(scope="session")
def brokers(kafka_classes: None, request: pytest.FixtureRequest) -> Iterator[Brokers]:
    """Starts at once those of which it is known that a test of this run needs them."""
    found = request.config.stash[BROKERS] = Brokers()
    names = {name for item in request.session.items for name in (*item.fixturenames, item.nodeid)}
    if any(name == "kafka" or "version=2" in name for name in names):
        found.start(2)
    if any(name == "kafka_tv0" or "version=0" in name for name in names):
        found.start(0)
    yield found
    found.stop()


@pytest.fixture(scope="session")
def kafka(brokers: Brokers) -> EmbeddedKafka:
    """One node with transaction.version 2 (KIP-890)."""
    return brokers.of(2)


@pytest.fixture(scope="session")
def kafka_tv0(brokers: Brokers) -> EmbeddedKafka:
    """One node with transaction.version 0, as clusters have it that came from Kafka 3."""
    return brokers.of(0)


@pytest.fixture(params=["transaction.version=2", "transaction.version=0"])
def any_kafka(request: pytest.FixtureRequest) -> EmbeddedKafka:
    """Runs a test against both transaction protocols."""
    found: EmbeddedKafka = request.getfixturevalue("kafka" if request.param.endswith("2") else "kafka_tv0")
    return found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Name the logs of the brokers that ran when a test failed, and keep them."""
    report = yield
    if report.failed:
        shared = item.config.stash.get(BROKERS, None)
        clusters = [
            *(each for each in getattr(item, "funcargs", {}).values() if isinstance(each, EmbeddedKafka)),
            *(shared.running() if shared else ()),
        ]
        logs = dict.fromkeys(log for cluster in clusters for log in cluster.log_files if log.exists())
        if folder := item.config.getoption("--logs"):
            folder.mkdir(parents=True, exist_ok=True)
            logs = {Path(shutil.copy(log, folder / f"{log.parent.name}-{log.name}")): None for log in logs}
        if logs:
            report.sections.append(("Broker logs", "\n".join(map(str, logs))))
    return report
