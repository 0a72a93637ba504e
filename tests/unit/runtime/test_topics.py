"""How the sink creates its commit log; a cluster of several brokers runs in the exhaustive tests only."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.commit.commit_log import LOG_PARTITIONS, TOPIC_CONFIGURATION
from kafka_eos_sink.runtime.topics import ensure_commit_log


class CreatedTopics:
    """Takes CreateTopics for a cluster of so many brokers that holds no topic yet."""

    def __init__(self, brokers: int) -> None:
        metadata = SimpleNamespace(brokers=dict.fromkeys(range(brokers)))
        self.client = SimpleNamespace(metadata=metadata, wait_for_metadata=lambda deadline: None)
        self.created: list[tuple[Any, ...]] = []

    def topic(self, name: str, deadline: int) -> None:
        return None

    def create_topic(self, *created: Any) -> bool:
        self.created.append(created)
        return True


@pytest.mark.parametrize(("brokers", "replicas"), [(1, 1), (2, 2), (3, 3), (5, 3)])
def test_commit_log_is_created_with_kafkas_names_of_settings(brokers: int, replicas: int) -> None:
    admin = CreatedTopics(brokers)
    ensure_commit_log(cast(Admin, admin), "log", "orders", 1_000)
    replicated = {} if replicas == 1 else {"min.insync.replicas": "2"}
    assert admin.created == [("log", LOG_PARTITIONS, replicas, {**TOPIC_CONFIGURATION, **replicated}, 1_000)]
