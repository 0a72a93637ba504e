"""Look up the producer's topics, and wait for their metadata."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.errors import BrokerUnavailableError, InvalidRowError, peer_text
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.producer.partitioner import TopicPartitions
from kafka_eos_sink.producer.sender import Sender
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import TOPIC_NAME_RULE, is_topic_name
from kafka_eos_sink.protocol.messages import MetadataRequest
from kafka_eos_sink.protocol.reactions import MISSING_RIGHT, in_words, refusal

WAIT_MS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicProblem:
    """Why a topic accepts no rows: an error code, and a predicate for the message."""

    code: str
    reason: str

    def error(self, topic: str) -> InvalidRowError:
        return InvalidRowError(self.code, f"topic {peer_text(topic)} {self.reason}")


OWN_TOPIC = TopicProblem(code="COMMIT_LOG_TOPIC", reason="holds only the sink's own records")
INVALID_NAME = TopicProblem(code="INVALID_TOPIC", reason=f"has an invalid name; Kafka allows {TOPIC_NAME_RULE}")


class TopicDirectory:
    """The topics' partitions, or the reasons against writing to them."""

    def __init__(self, client: NetworkClient, sender: Sender, config: ProducerConfig) -> None:
        self._client = client
        self._sender = sender
        self._max_block_ms = config.max_block_ms
        self._problems = dict.fromkeys(config.own_topics, OWN_TOPIC)
        timeout_ms = config.transaction_timeout_ms
        self._wait_left_ms = self._max_block_ms if timeout_ms is None else min(self._max_block_ms, timeout_ms // 10)

    def resolve(self, topics: Collection[str]) -> dict[str, TopicPartitions | TopicProblem]:
        """Look up topics, and wait for their metadata together, at most max.block.ms.

        A task waits for unknown topics at most max.block.ms in all its calls, or a tenth of the transaction timeout if that is
        shorter. Otherwise wrong names could let the transaction time out.

        Raises:
            AuthorizationError: Describe on a topic is missing.
            BrokerUnavailableError: REQUEST_DEADLINE if no broker has responded about a topic.
        """
        # One Metadata request lists all topics. A broker closes the connection if it cannot parse one of them.
        invalid = {name: INVALID_NAME for name in topics if not is_topic_name(name)}
        names = [name for name in topics if name not in invalid]
        wanted = [name for name in names if name not in self._problems]
        started = self._client.clock()
        # The client outlives tasks, so it may remember as unknown a topic that has been created since.
        before = {name: self._client.metadata.topics.get(name) for name in names}
        while True:
            self._client.want_topics(wanted)
            found = {name: known for name in names if (known := self._known(name)) is not None}
            missing = [name for name in names if name not in found]
            if not missing:
                return found | invalid
            waited_ms = self._client.clock() - started
            silent = [name for name in missing if self._client.metadata.topics.get(name) is before[name]]
            if silent and waited_ms >= self._max_block_ms:
                # Unreachable brokers must not turn rows into dead letters.
                obstacle = self._client.prevailing_quota(started) or self._client.last_error
                last = f"; last error: {obstacle}" if obstacle else ""
                raise BrokerUnavailableError(
                    "REQUEST_DEADLINE",
                    f"no broker has responded about topic {peer_text(silent[0])} in {self._max_block_ms} ms (kafka.max.block.ms){last}; "
                    "check that the brokers are reachable",
                )
            if not silent and waited_ms >= self._wait_left_ms:
                self._wait_left_ms -= waited_ms
                # Rows can name any number of missing topics. The client would request all of them with every refresh, and the response
                # would be too large to read.
                self._client.forget_topics(missing)
                reason = f"did not appear in the cluster's metadata in {waited_ms} ms; create it, or correct the name"
                return found | invalid | {name: self._reject(name, "UNKNOWN_TOPIC", reason) for name in missing}
            self._await_metadata(started + self._max_block_ms)

    def refreshed(self, topic: str) -> TopicPartitions | TopicProblem:
        """Look up a topic after a metadata refresh, if one arrives within max.block.ms."""
        version, deadline = self._client.metadata.version, self._client.clock() + self._max_block_ms
        while self._client.metadata.version == version and self._client.clock() < deadline:
            self._await_metadata(deadline)
        return self.resolve([topic])[topic]

    def _await_metadata(self, deadline: int) -> None:
        # The sender runs during the wait, so that batches of other topics do not time out because of a missing topic.
        self._client.request_metadata_update()
        self._sender.pump(min(WAIT_MS, max(1, deadline - self._client.clock())))

    def _reject(self, name: str, code: str, reason: str) -> TopicProblem:
        self._problems[name] = TopicProblem(code=code, reason=reason)
        return self._problems[name]

    def _known(self, name: str) -> TopicPartitions | TopicProblem | None:
        if name in self._problems:
            return self._problems[name]
        topic = self._client.metadata.topics.get(name)
        if topic is None:
            return None
        if topic.is_internal:
            return self._reject(name, "INTERNAL_TOPIC", "is internal to Kafka and accepts no rows")
        if topic.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION:
            return self._reject(name, INVALID_NAME.code, INVALID_NAME.reason)
        if topic.error_code in MISSING_RIGHT:
            raise refusal(MetadataRequest, topic.error_code, in_words(MetadataRequest, f"topic {name}"))
        if not topic.partitions:
            return None
        available = [partition.partition_index for partition in topic.partitions if partition.leader_id >= 0]
        return TopicPartitions(topic=name, count=len(topic.partitions), available=np.array(available, dtype=np.int32))
