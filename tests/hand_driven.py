"""A client whose answers a test writes by hand."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

from kafka_eos_sink.client.connection import ANY_VERSION, Completion, ConnectionLost, PendingRequest, Versions
from kafka_eos_sink.client.metadata import NEVER, Metadata, PartitionMetadata, TopicMetadata
from kafka_eos_sink.client.network_client import NodeRequest
from kafka_eos_sink.errors import BrokerUnavailableError
from kafka_eos_sink.protocol.messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    Broker,
    EndTxnRequest,
    EndTxnResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from kafka_eos_sink.protocol.record_batch import read_record_batches

UNREACHABLE = BrokerUnavailableError("BROKER_UNREACHABLE", "broker 1 is away")


class HandDrivenClient:
    """Keeps what is sent; the test answers it. One broker, 1, leads partitions 0 to 3 of topic ``t``.

    Blocking calls get their responses, or errors, from ``handler`` at once.
    """

    def __init__(self) -> None:
        self.now = 0
        self.config = SimpleNamespace(
            request_timeout_ms=30_000,
            retry_backoff_ms=100,
            retry_backoff_max_ms=1_000,
            bootstrap_servers_text="localhost:9092",
        )
        self.sent: list[PendingRequest] = []
        self.completions: list[Completion] = []
        self.updates_asked = 0
        self.leaders_learned: list[tuple[str, int, int, int]] = []
        self.unready: set[int] = set()
        self.versions: list[Versions] = []
        self.last_error = ""
        self.called: list[NodeRequest] = []
        """The requests of blocking calls."""
        self.handler: Callable[[Any], Any] = lambda _request: UNREACHABLE
        self.quota = (0, "")
        """For how many ms a broker has throttled this client, and what to say about it."""
        self.lead({("t", partition): 1 for partition in range(4)})

    def lead(self, leaders: dict[tuple[str, int], int]) -> None:
        topics = {
            name: TopicMetadata(
                error_code=0,
                name=name,
                partitions=tuple(
                    PartitionMetadata(
                        error_code=0,
                        partition_index=p,
                        leader_id=leader,
                        leader_epoch=0,
                        replica_nodes=(),
                        isr_nodes=(),
                        offline_replicas=(),
                    )
                    for (topic, p), leader in sorted(leaders.items())
                    if topic == name
                ),
            )
            for name, _ in leaders
        }
        brokers = {node: Broker(node_id=node, host="h", port=node) for node in (1, 2)}
        self.metadata = Metadata(version=1, brokers=brokers, topics=topics)

    def clock(self) -> int:
        return self.now

    def ready(self, node_id: int) -> bool:
        return node_id not in self.unready

    def why_unreachable(self, node_id: int) -> str:
        return "broker 1 (h:1): refused" if node_id in self.unready else ""

    def in_flight(self, node_id: int) -> int:
        return sum(pending.node_id == node_id for pending in self.sent)

    def request_metadata_update(self) -> None:
        self.updates_asked += 1

    def want_topics(self, topics: Iterable[str]) -> None:
        pass

    def learn_leader(self, topic: str, partition: int, leader: int, epoch: int, endpoints: Any = ()) -> bool:
        self.leaders_learned.append((topic, partition, leader, epoch))
        self.lead({(topic, p): leader if p == partition else 1 for p in range(4)})
        return True

    def learn_broker(self, node_id: int, host: str, port: int) -> None:
        pass

    def throttling(self, since: int, node_ids: Container[int | None] | None = None) -> tuple[int, str]:
        return self.quota

    def prevailing_quota(self, since: int) -> str:
        return self.quota[1]

    def send(
        self, node_id: int, request: Any, *, deadline_ms: int = NEVER, versions: Versions = ANY_VERSION
    ) -> PendingRequest:
        self.versions.append(versions)
        pending = PendingRequest(
            node_id=node_id,
            request=request,
            version=versions[1] or 0,
            correlation_id=len(self.versions),
            sent_at=self.now,
            expires_at=min(self.now + 30_000, deadline_ms),
            deadline_ms=deadline_ms,
        )
        self.sent.append(pending)
        return pending

    def poll(self, timeout_ms: int, of: Container[PendingRequest]) -> list[Completion]:
        done = [each for each in self.completions if each.pending in of]
        self.completions = [each for each in self.completions if each.pending not in of]
        return done

    def any_node(self, deadline_ms: int) -> int:
        return 1

    def wait(self, delay_ms: int, deadline_ms: int) -> None:
        self.now = min(self.now + delay_ms, deadline_ms)

    def call_all(self, requests: Sequence[NodeRequest], deadline_ms: int) -> list[Any]:
        self.called += requests
        return [self.handler(request) for _, request, _ in requests]

    def requests(self, api: type[Any]) -> list[Any]:
        """The requests of blocking calls, of one API."""
        return [request for _, request, _ in self.called if isinstance(request, api)]

    # what the test does

    def answer(self, response: Any, which: int = 0) -> None:
        self.completions.append(Completion(pending=self.sent.pop(which), response=response))

    def lose(self, which: int = 0) -> None:
        self.completions.append(
            Completion(pending=self.sent.pop(which), error=ConnectionLost("CONNECTION_LOST", "gone"))
        )

    def bytes_of(self, which: int = 0) -> dict[tuple[str, int], bytes]:
        return {
            (topic.name, data.index): b"".join(bytes(part) for part in data.records)
            for topic in self.sent[which].request.topic_data
            for data in topic.partition_data
        }

    def sequences_of(self, which: int = 0) -> dict[int, tuple[int, int, int]]:
        """Partition to (producer epoch, base sequence, number of records)."""
        found = {}
        for (_, partition), octets in self.bytes_of(which).items():
            (batch,) = read_record_batches(octets)
            found[partition] = batch.producer_epoch, batch.base_sequence, len(batch.records)
        return found


class Coordinator:
    """The coordinator's side of blocking calls: what it responds to an API, or what a test sets instead.

    ``find``, ``init``, ``add`` and ``end`` are a code, an error, or a list of them: one for each request, the last for all others.
    """

    def __init__(self) -> None:
        self.find: Any = 0
        self.init: Any = 0
        self.add: Any = 0
        self.end: Any = 0
        self.identity = (99, 0)

    def __call__(self, request: Any) -> Any:
        match request:
            case FindCoordinatorRequest(coordinator_keys=(key,)):
                return self._respond("find", lambda code: self._found(key, code))
            case InitProducerIdRequest():
                producer_id, epoch = self.identity
                return self._respond(
                    "init",
                    lambda code: InitProducerIdResponse(
                        throttle_time_ms=0, error_code=code, producer_id=producer_id, producer_epoch=epoch
                    ),
                )
            case AddPartitionsToTxnRequest(v3_and_below_topics=topics):
                return self._respond(
                    "add", lambda code: added({t.name: dict.fromkeys(t.partitions, code) for t in topics})
                )
            case EndTxnRequest():
                return self._respond("end", lambda code: EndTxnResponse(throttle_time_ms=0, error_code=code))
        raise AssertionError(f"no response to {type(request).__name__}")

    def _respond(self, api: str, response: Callable[[int], Any]) -> Any:
        planned = getattr(self, api)
        if isinstance(planned, list):
            planned = planned.pop(0) if len(planned) > 1 else planned[0]
        return response(planned) if isinstance(planned, int) else planned

    def _found(self, key: str, code: int) -> FindCoordinatorResponse:
        found = FindCoordinatorResponse.Coordinator(
            key=key, node_id=1, host="h", port=1, error_code=code, error_message=None
        )
        return FindCoordinatorResponse(throttle_time_ms=0, coordinators=(found,))


def added(codes: dict[str, dict[int, int]]) -> AddPartitionsToTxnResponse:
    """A response to AddPartitionsToTxn: topic to partition to code."""
    results = AddPartitionsToTxnResponse.Topic
    return AddPartitionsToTxnResponse(
        throttle_time_ms=0,
        results_by_topic_v3_and_below=tuple(
            results(
                name=topic,
                results_by_partition=tuple(
                    results.Partition(partition_index=partition, partition_error_code=code)
                    for partition, code in of_topic.items()
                ),
            )
            for topic, of_topic in codes.items()
        ),
    )
