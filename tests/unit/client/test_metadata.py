"""What metadata responses change, what they must not change, and when the next request is due."""

from __future__ import annotations

import ast
import uuid
from pathlib import Path
from typing import Any

import pytest

import kafka_eos_sink
from kafka_eos_sink.client.config import ExponentialBackoff
from kafka_eos_sink.client.metadata import NEVER, MetadataUpdater
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.messages import Broker, MetadataRequest, MetadataResponse

BOOTSTRAP = (Broker(node_id=-1, host="seed", port=9092),)
TOPIC_ID = uuid.UUID(int=7)


def updater(wanted: tuple[str, ...] = (), **options: Any) -> MetadataUpdater:
    made = MetadataUpdater(
        BOOTSTRAP, backoff=ExponentialBackoff(100, 1_000, jitter=0), max_age_ms=300_000, max_idle_ms=60_000, **options
    )
    made.want_topics(wanted, 0)
    return made


def partition(index: int, leader: int, epoch: int, error: int = 0) -> MetadataResponse.Topic.Partition:
    return MetadataResponse.Topic.Partition(
        error_code=error,
        partition_index=index,
        leader_id=leader,
        leader_epoch=epoch,
        replica_nodes=(1, 2),
        isr_nodes=(leader,),
        offline_replicas=(),
    )


def topic(
    name: str, *partitions: MetadataResponse.Topic.Partition, error: int = 0, topic_id: uuid.UUID = TOPIC_ID
) -> MetadataResponse.Topic:
    return MetadataResponse.Topic(error_code=error, name=name, topic_id=topic_id, partitions=partitions)


def answer(
    *topics: MetadataResponse.Topic, cluster_id: str = "c", brokers: tuple[int, ...] = (1, 2)
) -> MetadataResponse:
    return MetadataResponse(
        throttle_time_ms=0,
        brokers=tuple(Broker(node_id=each, host=f"host{each}", port=9092) for each in brokers),
        cluster_id=cluster_id,
        controller_id=1,
        topics=topics,
    )


def exchange(made: MetadataUpdater, response: MetadataResponse, now: int) -> MetadataRequest:
    request = made.next_request(now)
    made.handle_response(response, now)
    return request


def names(request: MetadataRequest) -> list[str | None]:
    return [each.name for each in request.topics or ()]


def test_response_makes_new_snapshot_and_keeps_old_one() -> None:
    made = updater(("t",))
    before = made.snapshot
    exchange(made, answer(topic("t", partition(1, 2, 5), partition(0, 1, 5))), 0)
    assert before.topics == {}
    assert made.snapshot.version > before.version
    assert [each.partition_index for each in made.snapshot.topics["t"].partitions] == [0, 1]
    assert made.snapshot.leader("t", 1) == 2
    assert made.snapshot.leader("t", 2) is None
    assert made.snapshot.leader("other", 0) is None
    assert set(made.snapshot.brokers) == {1, 2}


def test_older_leader_epoch_never_replaces_newer_one() -> None:
    made = updater(("t",))
    exchange(made, answer(topic("t", partition(0, 2, 8), partition(1, 1, 3))), 0)
    exchange(made, answer(topic("t", partition(0, 1, 7), partition(1, 2, 4))), 1_000)
    assert [(each.leader_id, each.leader_epoch) for each in made.snapshot.topics["t"].partitions] == [(2, 8), (2, 4)]


def test_recreated_topic_starts_with_its_own_epochs() -> None:
    made = updater(("t",))
    exchange(made, answer(topic("t", partition(0, 2, 8))), 0)
    exchange(made, answer(topic("t", partition(0, 1, 0), topic_id=uuid.UUID(int=8))), 1_000)
    assert made.snapshot.leader("t", 0) == 1


def test_another_cluster_starts_with_its_own_epochs() -> None:
    made = updater(("t",))
    exchange(made, answer(topic("t", partition(0, 2, 8))), 0)
    exchange(made, answer(topic("t", partition(0, 1, 0)), cluster_id="restored"), 1_000)
    assert made.snapshot.leader("t", 0) == 1


def test_leader_hint_needs_newer_epoch_and_known_broker() -> None:
    made = updater(("t",))
    exchange(made, answer(topic("t", partition(0, 1, 5))), 0)
    assert not made.learn_leader("t", 0, 2, 5)
    assert not made.learn_leader("t", 0, 3, 6)
    assert not made.learn_leader("t", 0, -1, 6)
    assert made.snapshot.leader("t", 0) == 1
    assert made.learn_leader("t", 0, 3, 6, [Broker(node_id=3, host="host3", port=1, rack=None)])
    assert made.snapshot.leader("t", 0) == 3
    assert made.snapshot.brokers[3].host == "host3"


def test_topic_wanted_during_request_makes_next_one_due() -> None:
    made = updater()
    made.next_request(0)
    made.want_topics(["t"], 1)
    assert made.time_to_next_update(1) == NEVER
    made.handle_response(answer(), 2)
    assert made.time_to_next_update(2) == 0


def test_request_in_flight_does_not_count_as_requested_update() -> None:
    made = updater()
    made.next_request(0)
    wanted = made.request_update()
    made.handle_response(answer(), 2)
    assert made.completed < wanted
    exchange(made, answer(), 102)
    assert made.completed == wanted


def test_one_response_suffices_after_lost_request() -> None:
    """Two were once waited for: the second came when the metadata were too old, minutes later."""
    made = updater()
    made.next_request(0)
    wanted = made.request_update()
    made.handle_failure(30_000)
    exchange(made, answer(), 30_100)
    assert made.completed >= wanted
    made.next_request(40_000)
    wanted = made.request_update()
    made.rebootstrap(made.snapshot.brokers.values(), 40_001)
    exchange(made, answer(), 40_100)
    assert made.completed >= wanted


@pytest.mark.parametrize(
    "troubled",
    [
        topic("t", error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        topic("t", partition(0, -1, 5, error=ErrorCode.LEADER_NOT_AVAILABLE)),
    ],
)
def test_incomplete_topic_backs_off_exponentially(troubled: MetadataResponse.Topic) -> None:
    made = updater(("t",))
    waits = []
    for _ in range(6):
        exchange(made, answer(troubled), 0)
        waits.append(made.time_to_next_update(0))
    assert waits == [100, 200, 400, 800, 1_000, 1_000]
    exchange(made, answer(topic("t", partition(0, 1, 6))), 0)
    assert made.time_to_next_update(0) == 300_000


def test_forgotten_topic_is_requested_no_more() -> None:
    made = updater(("t", "u"))
    exchange(made, answer(topic("t"), topic("u")), 0)
    made.want_topics(["new"], 0)
    made.forget_topics(["u", "new", "never wanted"])
    assert names(exchange(made, answer(topic("t")), 1_000)) == ["t"]
    assert set(made.snapshot.topics) == {"t"}
    made.want_topics(["u"], 1_000)
    assert names(exchange(made, answer(topic("t"), topic("u")), 1_100)) == ["t", "u"]


def test_no_code_makes_a_metadata_request_that_may_create() -> None:
    """The field's default is Kafka's, which allows it."""
    found = 0
    for path in Path(kafka_eos_sink.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "MetadataRequest":
                given = {each.arg: ast.unparse(each.value) for each in node.keywords}
                assert given.get("allow_auto_topic_creation") == "False", f"{path}:{node.lineno}"
                found += 1
    assert found >= 4


def test_learned_leader_or_broker_is_no_newer_response() -> None:
    """Who waits for a response compares versions."""
    made = updater(("t",))
    exchange(made, answer(topic("t", partition(0, 1, 5))), 0)
    version = made.snapshot.version
    made.learn_broker(Broker(node_id=3, host="host3", port=9092))
    assert made.learn_leader("t", 0, 3, 6)
    assert (made.snapshot.leader("t", 0), made.snapshot.version) == (3, version)


def test_topic_that_was_dropped_before_any_request_is_not_due() -> None:
    """No broker was reachable meanwhile. The client would request metadata without end."""
    made = updater(("a",))
    made.want_topics(["b"], 61_000)
    assert names(exchange(made, answer(topic("b", partition(0, 1, 5))), 61_000)) == ["b"]
    assert made.time_to_next_update(61_000) > 0
