"""What makes a commit log weak; how it is created is seen on three nodes, in ``tests/broker/test_commit_log_creation.py``."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kafka_eos_sink.commit.values import Write
from kafka_eos_sink.protocol.messages import UNKNOWN_AUTHORIZED_OPERATIONS, AclOperation
from kafka_eos_sink.runtime import topics
from kafka_eos_sink.runtime.topics import lacks_read, weaknesses

INSYNC, UNCLEAN = "min.insync.replicas", "unclean.leader.election.enable"


@pytest.mark.parametrize(
    ("replicas", "brokers", "configs", "found"),
    [
        (3, 3, {INSYNC: "2", UNCLEAN: "false"}, ""),
        (2, 3, {INSYNC: "2"}, "only 2 of 3 brokers as replicas"),
        (2, 5, {INSYNC: "1", UNCLEAN: "true"}, f"only 2 of 5 brokers as replicas, {INSYNC}=1, {UNCLEAN}=true"),
        (2, 2, {INSYNC: "1"}, f"{INSYNC}=1"),
        (1, 1, {INSYNC: "1", UNCLEAN: "true"}, ""),  # a single broker can do no better
        (3, 3, {}, ""),  # settings that may not be read
        (-1, 3, {}, ""),  # nor the replicas of a new topic
    ],
)
def test_weaknesses_are_those_that_the_cluster_could_mend(
    replicas: int, brokers: int, configs: dict[str, str], found: str
) -> None:
    assert weaknesses(replicas, brokers, configs) == found


@pytest.mark.parametrize(
    ("is_new", "streaming", "write_id", "warns"),
    [
        (True, False, "kafka-eos/nightly/orders", True),
        (False, False, "kafka-eos/nightly/orders", False),
        (True, True, "kafka-eos-q", False),  # the tasks refuse its batches above 0
        (True, False, "kafka-eos/b119f28e-40dc-420f-9ae2-817389028d00", False),  # a random id begins once
    ],
    ids=["new log", "known log", "stream", "random id"],
)
def test_batch_job_warns_when_its_write_created_the_commit_log(
    is_new: bool, streaming: bool, write_id: str, warns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else shows that a job has moved to another cluster, where it writes its versions again."""
    warned: list[str] = []
    monkeypatch.setattr(topics, "ensure_commit_log", lambda *_: is_new)
    monkeypatch.setattr(topics, "require_readable_topic", lambda *_: None)
    monkeypatch.setattr(topics, "warn_once", warned.append)
    write = Write(write_id, "log", "--bootstrap-servers b:1")
    producer = SimpleNamespace(max_block_ms=1, dead_letter_topic=None)
    batch = SimpleNamespace(topic="orders", streaming=streaming)
    settings: Any = SimpleNamespace(write=write, producer=producer, batch=batch)
    admin: Any = SimpleNamespace(client=SimpleNamespace(clock=lambda: 0), fetch=lambda *_, **__: None)
    topics.require_topics(settings, admin)
    assert ["kafka-eos resolve --bootstrap-servers b:1" in each and "'log'" in each for each in warned] == [
        True
    ] * warns


EVERYTHING = sum(1 << operation for operation in AclOperation)
READ, DESCRIBE = 1 << AclOperation.READ, 1 << AclOperation.DESCRIBE


@pytest.mark.parametrize(
    ("operations", "lacks"),
    [
        (EVERYTHING, False),
        (EVERYTHING - READ, True),
        # A broker that shows a topic has granted Describe: without that bit it reports no rights.
        (EVERYTHING - READ - DESCRIBE, False),
        (UNKNOWN_AUTHORIZED_OPERATIONS, False),
        (0, False),
    ],
)
def test_rights_that_the_broker_does_not_report_refuse_nothing(operations: int, lacks: bool) -> None:
    topic: Any = SimpleNamespace(topic_authorized_operations=operations)
    assert lacks_read(topic) is lacks
