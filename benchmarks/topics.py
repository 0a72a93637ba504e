"""Topics of the benchmarks."""

from __future__ import annotations

from collections.abc import Mapping

from kafka_eos_sink.client.admin import Admin, connected

__all__ = ["DEADLINE_MS", "create_topic", "make_topic"]

DEADLINE_MS = 60_000


def create_topic(admin: Admin, topic: str, partitions: int, configuration: Mapping[str, str] | None = None) -> None:
    """Create a topic with one replica."""
    admin.create_topic(topic, partitions, 1, dict(configuration or {}), admin.client.clock() + DEADLINE_MS)


def make_topic(bootstrap_servers: str, topic: str, partitions: int) -> str:
    """Create a topic over a connection of its own; return its name."""
    with connected(bootstrap_servers) as admin:
        create_topic(admin, topic, partitions)
    return topic
