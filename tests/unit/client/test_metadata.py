"""What metadata answers change, what they may not change, and when the next one is asked for."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from kafka_eos_sink.client.backoff import ExponentialBackoff
from kafka_eos_sink.client.metadata import NEVER, Broker, MetadataUpdater
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.messages import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
    NodeEndpoint,
)

BOOTSTRAP = (Broker(node_id=-1, host="seed", port=9092),)
TOPIC_ID = uuid.UUID(int=7)


def updater(wanted: tuple[str, ...] = (), **options: Any) -> MetadataUpdater:
    made = MetadataUpdater(
        BOOTSTRAP, backoff=ExponentialBackoff(100, 1_000, jitter=0), max_age_ms=300_000, max_idle_ms=60_000, **options
    )
    made.want_topics(wanted, 0)
    return made


def partition(index: int, leader: int, epoch: int, error: int = 0) -> MetadataResponsePartition:
    return MetadataResponsePartition(
        error_code=error,
        partition_index=index,
        leader_id=leader,
        leader_epoch=epoch,
        replica_nodes=(1, 2),
        isr_nodes=(leader,),
        offline_replicas=(),
    )


def topic(
    name: str, *partitions: MetadataResponsePartition, error: int = 0, topic_id: uuid.UUID = TOPIC_ID
) -> MetadataResponseTopic:
    return MetadataResponseTopic(error_code=error, name=name, topic_id=topic_id, partitions=partitions)


def answer(
    *topics: MetadataResponseTopic, cluster_id: str = "c", brokers: tuple[int, ...] = (1, 2)
) -> MetadataResponse:
    return MetadataResponse(
        throttle_time_ms=0,
        brokers=tuple(MetadataResponseBroker(node_id=each, host=f"host{each}", port=9092) for each in brokers),
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


def test_it_begins_with_the_bootstrap_servers_and_asks_at_once() -> None:
    made = updater()
    assert dict(made.snapshot.brokers) == {-1: BOOTSTRAP[0]}
    assert made.time_to_next_update(0) == 0


def test_an_answer_makes_a_new_snapshot_and_leaves_the_old_one_as_it_was() -> None:
    made = updater(("t",))
    before = made.snapshot
    exchange(made, answer(topic("t", partition(1, 2, 5), partition(0, 1, 5))), 0)
    assert before.topics == {}
    assert made.snapshot.version > before.version
    assert [each.index for each in made.snapshot.topics["t"].partitions] == [0, 1]
    assert made.snapshot.leader("t", 1) == 2
    assert made.snapshot.leader("t", 2) is None
    assert made.snapshot.leader("other", 0) is None
    assert set(made.snapshot.brokers) == {1, 2}


def test_an_old_answer_does_not_take_a_partition_back_to_an_older_leader_epoch() -> None:
    made = updater(("t",))
    exchange(made, answer(topic("t", partition(0, 2, 8), partition(1, 1, 3))), 0)
    exchange(made, answer(topic("t", partition(0, 1, 7), partition(1, 2, 4))), 1_000)
    assert [(each.leader, each.leader_epoch) for each in made.snapshot.topics["t"].partitions] == [(2, 8), (2, 4)]


def test_a_topic_that_was_created_anew_starts_with_its_own_epochs() -> None:
    made = updater(("t",))
    exchange(made, answer(topic("t", partition(0, 2, 8))), 0)
    exchange(made, answer(topic("t", partition(0, 1, 0), topic_id=uuid.UUID(int=8))), 1_000)
    assert made.snapshot.leader("t", 0) == 1


def test_another_cluster_starts_with_its_own_epochs() -> None:
    made = updater(("t",))
    exchange(made, answer(topic("t", partition(0, 2, 8))), 0)
    exchange(made, answer(topic("t", partition(0, 1, 0)), cluster_id="restored"), 1_000)
    assert made.snapshot.leader("t", 0) == 1


def test_a_leader_hint_counts_only_with_a_newer_epoch_and_a_known_broker() -> None:
    made = updater(("t",))
    exchange(made, answer(topic("t", partition(0, 1, 5))), 0)
    assert not made.learn_leader("t", 0, 2, 5)
    assert not made.learn_leader("t", 0, 3, 6)
    assert not made.learn_leader("t", 0, -1, 6)
    assert made.snapshot.leader("t", 0) == 1
    assert made.learn_leader("t", 0, 3, 6, [NodeEndpoint(node_id=3, host="host3", port=1, rack=None)])
    assert made.snapshot.leader("t", 0) == 3
    assert made.snapshot.brokers[3].host == "host3"


def test_it_asks_again_by_age() -> None:
    made = updater()
    exchange(made, answer(), 1_000)
    assert made.time_to_next_update(1_000) == 300_000
    assert made.time_to_next_update(400_000) == 0


def test_it_asks_again_on_request_after_the_backoff() -> None:
    made = updater()
    exchange(made, answer(), 1_000)
    made.request_update()
    assert made.time_to_next_update(1_000) == 100
    assert made.time_to_next_update(5_000) == 0


def test_a_new_topic_is_asked_for_at_once() -> None:
    made = updater()
    exchange(made, answer(), 1_000)
    made.want_topics(["t"], 1_000)
    assert made.time_to_next_update(1_000) == 0
    assert names(made.next_request(1_000)) == ["t"]


def test_a_topic_wanted_while_an_answer_is_under_way_is_asked_for_next() -> None:
    made = updater()
    made.next_request(0)
    made.want_topics(["t"], 1)
    assert made.time_to_next_update(1) == NEVER
    made.handle_response(answer(), 2)
    assert made.time_to_next_update(2) == 0


def test_a_request_made_while_an_answer_is_under_way_is_not_forgotten() -> None:
    made = updater()
    made.next_request(0)
    made.request_update()
    made.handle_response(answer(), 2)
    assert made.time_to_next_update(2) == 100


def test_what_was_under_way_is_not_the_answer_that_was_asked_for() -> None:
    made = updater()
    made.next_request(0)
    wanted = made.request_update()
    made.handle_response(answer(), 2)
    assert made.completed < wanted
    exchange(made, answer(), 102)
    assert made.completed == wanted


def test_one_answer_is_enough_where_what_was_under_way_is_lost() -> None:
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
def test_while_a_topic_is_troubled_it_asks_again_ever_more_slowly(troubled: MetadataResponseTopic) -> None:
    made = updater(("t",))
    waits = []
    for _ in range(6):
        exchange(made, answer(troubled), 0)
        waits.append(made.time_to_next_update(0))
    assert waits == [100, 200, 400, 800, 1_000, 1_000]
    exchange(made, answer(topic("t", partition(0, 1, 6))), 0)
    assert made.time_to_next_update(0) == 300_000


def test_what_will_not_change_by_itself_is_not_asked_for_again() -> None:
    made = updater(("t",))
    exchange(made, answer(topic("t", error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)), 0)
    assert made.snapshot.topics["t"].error is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert made.time_to_next_update(0) == 300_000


def test_failures_back_off_and_tell_for_how_long() -> None:
    made = updater()
    for now in (1_000, 1_500, 2_500):
        made.next_request(now)
        made.handle_failure(now)
    assert made.time_to_next_update(2_500) == 400
    assert made.failing_for_ms(2_600) == 1_600
    exchange(made, answer(), 3_000)
    assert made.failing_for_ms(3_000) == 0


def test_an_answer_without_brokers_changes_nothing() -> None:
    made = updater(("t",))
    exchange(made, answer(topic("t", partition(0, 1, 5))), 0)
    before = made.snapshot
    exchange(made, answer(brokers=()), 1_000)
    assert made.snapshot is before
    assert made.time_to_next_update(1_000) == 100


def test_a_topic_that_nobody_asks_for_any_more_is_dropped() -> None:
    made = updater(("t", "u"))
    exchange(made, answer(topic("t"), topic("u")), 0)
    made.want_topics(["u"], 50_000)
    assert names(exchange(made, answer(topic("u")), 70_000)) == ["u"]
    assert set(made.snapshot.topics) == {"u"}


def test_only_topics_that_may_be_created_are_asked_for_with_that_permission() -> None:
    made = updater(("log",))
    made.want_topics(["data"], 0, allow_auto_creation=True)
    missing = topic("data", error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    no_log = topic("log", error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    first = exchange(made, answer(missing, no_log), 0)
    assert (names(first), first.allow_auto_topic_creation) == (["log", "data"], False)
    second = exchange(made, answer(missing), 100)
    assert (names(second), second.allow_auto_topic_creation) == (["data"], True)
    third = exchange(made, answer(topic("data", partition(0, 1, 0)), no_log), 300)
    assert (names(third), third.allow_auto_topic_creation) == (["log", "data"], False)
    fourth = exchange(made, answer(topic("data", partition(0, 1, 0)), no_log), 700)
    assert (names(fourth), fourth.allow_auto_topic_creation) == (["log", "data"], False)


def test_rebootstrap_starts_with_the_bootstrap_servers_and_keeps_what_is_known_of_topics() -> None:
    made = updater(("t",))
    exchange(made, answer(topic("t", partition(0, 1, 5))), 0)
    made.rebootstrap(BOOTSTRAP, 1_000)
    assert set(made.snapshot.brokers) == {-1}
    assert made.snapshot.topics["t"].partitions[0].leader_epoch == 5
    assert made.time_to_next_update(1_000) == 0


def test_a_broker_found_otherwise_joins_the_snapshot() -> None:
    made = updater()
    made.learn_broker(Broker(node_id=4, host="host4", port=1))
    version = made.snapshot.version
    made.learn_broker(Broker(node_id=4, host="host4", port=1))
    assert set(made.snapshot.brokers) == {-1, 4}
    assert made.snapshot.version == version


def test_a_topic_that_stays_troubled_does_not_slow_the_others_down() -> None:
    made = updater(("t",))
    for _ in range(6):
        exchange(made, answer(topic("t", error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)), 0)
    assert made.time_to_next_update(0) == 1_000
    made.request_update()
    assert made.time_to_next_update(0) == 100
    made.want_topics(["u"], 0)
    assert made.time_to_next_update(0) == 0


def test_where_nobody_answers_neither_new_topics_nor_requests_hurry() -> None:
    made = updater()
    made.next_request(0)
    made.handle_failure(0)
    made.want_topics(["t"], 0)
    made.request_update()
    assert made.time_to_next_update(0) == 100
