"""How long the producer waits for topics that are missing, and what it concludes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kafka_eos_sink.errors import BrokerUnavailableError
from kafka_eos_sink.producer.topic_directory import TopicDirectory, TopicProblem
from kafka_eos_sink.protocol.error_codes import ErrorCode

MAX_BLOCK_MS = 60_000


class Cluster:
    """Client and sender at once: time passes when the producer waits. The brokers respond about topics or are silent."""

    def __init__(self, *, responds: bool) -> None:
        self.responds = responds
        self.now = 0
        self.wanted: list[str] = []
        led = SimpleNamespace(partition_index=0, leader_id=1)
        self.metadata = SimpleNamespace(
            topics={"t": SimpleNamespace(is_internal=False, error_code=0, partitions=(led,))}
        )

    def clock(self) -> int:
        return self.now

    def want_topics(self, names: list[str], *, allow_auto_creation: bool) -> None:
        assert allow_auto_creation
        self.wanted += names

    def request_metadata_update(self) -> None:
        missing = SimpleNamespace(
            is_internal=False, error_code=int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.value), partitions=()
        )
        if self.responds:
            self.metadata.topics |= dict.fromkeys(set(self.wanted) - self.metadata.topics.keys(), missing)

    def pump(self, ms: int) -> None:
        self.now += ms


def directory(cluster: Any, timeout_ms: int | None = None) -> TopicDirectory:
    return TopicDirectory(cluster, cluster, MAX_BLOCK_MS, timeout_ms)


def code_of(found: Any) -> str:
    assert isinstance(found, TopicProblem)
    return found.code


def test_missing_topic_is_a_problem_once_a_broker_has_responded() -> None:
    cluster = Cluster(responds=True)
    found = directory(cluster).resolve(["t", "missing"])
    assert code_of(found["missing"]) == "UNKNOWN_TOPIC"
    assert not isinstance(found["t"], TopicProblem)
    assert cluster.now == pytest.approx(MAX_BLOCK_MS, abs=100)


def test_silent_brokers_fail_the_task_and_make_no_dead_letters() -> None:
    with pytest.raises(BrokerUnavailableError, match=r"REQUEST_DEADLINE\].*topic orders"):
        directory(Cluster(responds=False)).resolve(["t", "orders"])


def test_many_missing_topics_wait_max_block_ms_once() -> None:
    """One in each slab: the transaction would time out behind them."""
    cluster = Cluster(responds=True)
    topics = directory(cluster)
    for number in range(15):
        assert code_of(topics.resolve([f"missing-{number}"])[f"missing-{number}"]) == "UNKNOWN_TOPIC"
    assert MAX_BLOCK_MS <= cluster.now < 2 * MAX_BLOCK_MS


def test_missing_topic_wait_fits_a_short_transaction_timeout() -> None:
    cluster = Cluster(responds=True)
    topics = directory(cluster, timeout_ms=60_000)
    for number in range(15):
        topics.resolve([f"missing-{number}"])
    assert 6_000 <= cluster.now < 12_000


def test_brokers_get_max_block_ms_after_many_missing_topics() -> None:
    cluster = Cluster(responds=True)
    topics = directory(cluster)
    topics.resolve(["missing"])
    cluster.responds = False
    before = cluster.now
    with pytest.raises(BrokerUnavailableError, match="REQUEST_DEADLINE"):
        topics.resolve(["orders"])
    assert cluster.now - before >= MAX_BLOCK_MS


def test_invalid_names_are_never_requested() -> None:
    cluster = Cluster(responds=True)
    names = ["t", "", ".", "..", "a/b", "a\n", "ü", "x" * 250, "x" * 40_000]
    found = directory(cluster).resolve(names)
    assert [code_of(found[name]) for name in names[1:]] == ["INVALID_TOPIC"] * 8
    assert (cluster.wanted, cluster.now) == (["t"], 0)
