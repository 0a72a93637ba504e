"""The topics that the producer writes to, and the wait for their metadata."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.errors import InvalidRowError, KafkaEosError
from kafka_eos_sink.producer.partitioner import TopicPartitions
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.messages import MetadataRequest
from kafka_eos_sink.protocol.reactions import MISSING_RIGHT, refusal

WAIT_MS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicProblem:
    """Why the topic accepts no writes: a code of docs/errors.md and half a sentence."""

    code: str
    reason: str

    def error(self, topic: str) -> InvalidRowError:
        return InvalidRowError(self.code, f"topic {topic} {self.reason}")


class TopicDirectory:
    """Topics as the partitioner needs them. ``pump`` moves bytes for at most the ms it is given."""

    def __init__(self, client: NetworkClient, pump: Callable[[int], None], max_block_ms: int) -> None:
        self._client = client
        self._pump = pump
        self._max_block_ms = max_block_ms
        self._problems: dict[str, TopicProblem] = {}

    def want(self, topic: str) -> None:
        """Request the topic's metadata without waiting for it."""
        self._client.want_topics([topic])

    def resolve(self, topics: Iterable[str]) -> dict[str, TopicPartitions | TopicProblem]:
        """Each topic, or why it accepts no writes; wait for all of them together, at most max.block.ms.

        A topic that was not found once gets no second wait.

        Raises:
            AuthorizationError: the principal may not describe a topic.
        """
        names = list(topics)
        # Like Java's producer: the cluster creates a missing topic where its auto.create.topics.enable says so.
        wanted = [name for name in names if name not in self._problems]
        self._client.want_topics(wanted, allow_auto_creation=True)
        deadline = self._client.clock() + self._max_block_ms
        found: dict[str, TopicPartitions | TopicProblem] = {}
        while True:
            for name in names:
                if name not in found and (known := self._known(name)) is not None:
                    found[name] = known
            missing = [name for name in names if name not in found]
            if not missing:
                return found
            if self._client.clock() >= deadline:
                for name in missing:
                    found[name] = self._problems[name] = TopicProblem(
                        code="UNKNOWN_TOPIC",
                        reason=f"is not known to the cluster after {self._max_block_ms} ms (max.block.ms); create it, "
                        "or correct the name",
                    )
                return found
            self._client.request_metadata_update()
            self._pump(min(WAIT_MS, max(1, deadline - self._client.clock())))

    def refreshed(self, topic: str) -> TopicPartitions | TopicProblem:
        """The topic from metadata younger than this call, if it arrives within max.block.ms."""
        version, deadline = self._client.metadata.version, self._client.clock() + self._max_block_ms
        while self._client.metadata.version == version and self._client.clock() < deadline:
            self._client.request_metadata_update()
            self._pump(min(WAIT_MS, max(1, deadline - self._client.clock())))
        return self.resolve([topic])[topic]

    def _known(self, name: str) -> TopicPartitions | TopicProblem | None:
        if name in self._problems:
            return self._problems[name]
        topic = self._client.metadata.topics.get(name)
        if topic is None:
            return None
        if topic.is_internal:
            self._problems[name] = TopicProblem(
                code="INTERNAL_TOPIC", reason="is internal to Kafka and must not be written to"
            )
            return self._problems[name]
        if topic.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION:
            self._problems[name] = TopicProblem(
                code="INVALID_TOPIC",
                reason="has a name that Kafka does not allow (letters, digits, '.', '_' and '-', at most 249)",
            )
            return self._problems[name]
        if topic.error_code in MISSING_RIGHT:
            error: KafkaEosError = refusal(MetadataRequest, topic.error_code, f"Metadata of topic {name}")
            raise error
        if not topic.partitions:
            return None
        available = [partition.partition_index for partition in topic.partitions if partition.leader_id >= 0]
        return TopicPartitions(topic=name, count=len(topic.partitions), available=np.array(available, dtype=np.int32))
