"""How long the producer waits for topics that are missing, and what it concludes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kafka_eos_sink.errors import BrokerUnavailableError
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.producer.topic_directory import TopicDirectory, TopicProblem
from kafka_eos_sink.protocol.error_codes import ErrorCode

MAX_BLOCK_MS = 60_000


def unknown() -> SimpleNamespace:
    code = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.value)
    return SimpleNamespace(is_internal=False, error_code=code, partitions=())


class Cluster:
    """Client and sender at once: time passes when the producer waits. The brokers respond about topics or are silent."""

    def __init__(self, *, responds: bool) -> None:
        self.responds = responds
        self.last_error = "broker 1 (h:1): refused"
        self.now = 0
        self.wanted: list[str] = []
        self.created: set[str] = set()
        self.missing: set[str] = set()
        leader = SimpleNamespace(partition_index=0, leader_id=1)
        self.led = SimpleNamespace(is_internal=False, error_code=0, partitions=(leader,))
        self.metadata = SimpleNamespace(topics={"t": self.led})

    def clock(self) -> int:
        return self.now

    def prevailing_quota(self, since: int) -> str:
        return ""

    def want_topics(self, names: list[str]) -> None:
        self.wanted += names

    def forget_topics(self, names: list[str]) -> None:
        self.wanted = [name for name in self.wanted if name not in names]

    def request_metadata_update(self) -> None:
        if self.responds:
            names = set(self.wanted) - self.metadata.topics.keys() | self.missing
            self.metadata.topics |= {name: self.led if name in self.created else unknown() for name in names}
            self.missing = names - self.created

    def pump(self, ms: int) -> None:
        self.now += ms


def directory(cluster: Any, **settings: Any) -> TopicDirectory:
    return TopicDirectory(cluster, cluster, ProducerConfig(max_block_ms=MAX_BLOCK_MS, **settings))


def code_of(found: Any) -> str:
    assert isinstance(found, TopicProblem)
    return found.code


def test_missing_topic_is_a_problem_once_a_broker_has_responded() -> None:
    cluster = Cluster(responds=True)
    found = directory(cluster).resolve(["t", "missing"])
    assert code_of(found["missing"]) == "UNKNOWN_TOPIC"
    assert not isinstance(found["t"], TopicProblem)
    assert cluster.now == pytest.approx(MAX_BLOCK_MS, abs=100)


def test_awaited_topic_is_not_forgotten_as_idle() -> None:
    """`metadata.max.idle.ms` may be shorter than `max.block.ms`."""

    class Forgetful(Cluster):
        def request_metadata_update(self) -> None:
            is_known = self.now > 10_000 and "late" in self.wanted
            self.metadata.topics = {"late": self.led} if is_known else {}
            self.wanted.clear()

    found = directory(Forgetful(responds=True)).resolve(["late"])
    assert not isinstance(found["late"], TopicProblem)


def test_silent_brokers_fail_the_task_and_make_no_dead_letters() -> None:
    with pytest.raises(BrokerUnavailableError, match=r"REQUEST_DEADLINE\].*topic orders.*broker 1 \(h:1\): refused"):
        directory(Cluster(responds=False)).resolve(["t", "orders"])


def test_many_missing_topics_wait_max_block_ms_once() -> None:
    """One in each slab: the transaction would time out behind them."""
    cluster = Cluster(responds=True)
    topics = directory(cluster)
    for number in range(15):
        assert code_of(topics.resolve([f"missing-{number}"])[f"missing-{number}"]) == "UNKNOWN_TOPIC"
    assert MAX_BLOCK_MS <= cluster.now < 2 * MAX_BLOCK_MS


def test_invalid_names_are_never_requested() -> None:
    cluster = Cluster(responds=True)
    names = ["t", "", ".", "..", "a/b", "a\n", "ü", "x" * 250, "x" * 40_000]
    found = directory(cluster).resolve(names)
    assert [code_of(found[name]) for name in names[1:]] == ["INVALID_TOPIC"] * 8
    assert (cluster.wanted, cluster.now) == (["t"], 0)


def test_topics_of_the_sink_are_problems_and_never_requested() -> None:
    cluster = Cluster(responds=True)
    found = directory(cluster, own_topics=frozenset({"log"})).resolve(["t", "log"])
    assert code_of(found["log"]) == "COMMIT_LOG_TOPIC"
    assert (cluster.wanted, cluster.now) == (["t"], 0)
