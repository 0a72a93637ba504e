"""The engine that routes, sends, reacts per key and retries: on a client whose brokers answer from a script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.config import ClientConfig
from kafka_eos_sink.client.connection import BrokerVersions, ConnectionLost, RequestTimedOut
from kafka_eos_sink.client.network_client import NodeRequest
from kafka_eos_sink.client.requests import KeyResult, Route
from kafka_eos_sink.client.transactions_admin import EndTransaction
from kafka_eos_sink.commit.steps import AppendInTransaction, CommitGroupOffsets, LogRecord
from kafka_eos_sink.errors import (
    AuthorizationError,
    BrokerRefusedError,
    BrokerUnavailableError,
    KafkaEosError,
    ProtocolError,
)
from kafka_eos_sink.protocol import messages as m
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import ProducerIdentity
from kafka_eos_sink.protocol.schema import decode, encode
from kafka_eos_sink.runtime import driver_requests

DEADLINE_MS = 5_000
LOST = RequestTimedOut("REQUEST_TIMED_OUT", "lost")
UNREACHABLE = BrokerUnavailableError("BROKER_UNREACHABLE", "broker 1 is away")


NO_SUCH_VERSION = BrokerRefusedError("NO_COMMON_VERSION", "not spoken")


Handler = Callable[[int, Any], Any]


class Brokers:
    """As much of a `NetworkClient` as the engine needs. `handler` returns the response, or the error, of a request at a node."""

    def __init__(self, handler: Handler) -> None:
        self.now = 0
        self.handler = handler
        self.config = ClientConfig(bootstrap_servers=(("localhost", 9092),))
        self.metadata = SimpleNamespace(controller=1, brokers={1: None, 2: None}, topics={})
        self.sent: list[NodeRequest] = []
        self.features: dict[str, int] = {}

    def clock(self) -> int:
        return self.now

    def wait(self, ms: int, deadline_ms: int) -> None:
        self.now = min(self.now + ms, deadline_ms)

    def any_node(self, _deadline_ms: int) -> int:
        return 1

    def request_metadata_update(self) -> None:
        pass

    def learn_broker(self, *_: Any) -> None:
        pass

    def learn_features(self, versions: BrokerVersions) -> None:
        self.features = dict(versions.finalized_features)

    def finalized_features(self) -> dict[str, int]:
        return self.features

    def call_all(
        self, requests: Sequence[NodeRequest], _deadline_ms: int, older: Sequence[NodeRequest] = ()
    ) -> list[Any | KafkaEosError]:
        self.sent += requests
        return [self.handler(node_id, request) for node_id, request, _versions in requests]

    def requests(self, api: type[Any]) -> list[NodeRequest]:
        return [each for each in self.sent if isinstance(each[1], api)]


def admin(handler: Handler, coordinators: Callable[[str], int] = lambda _: 1) -> tuple[Admin, Brokers]:
    """An admin on brokers where FindCoordinator returns the node of each id, or an error code below 0, negated."""

    def handle(node_id: int, request: Any) -> Any:
        if not isinstance(request, m.FindCoordinatorRequest):
            return handler(node_id, request)
        found = [(key, coordinators(key)) for key in request.coordinator_keys]
        return SimpleNamespace(
            coordinators=[
                m.FindCoordinatorResponse.Coordinator(
                    key=key, node_id=node, host="h", port=1, error_code=max(0, -node), error_message=None
                )
                for key, node in found
            ]
        )

    brokers = Brokers(handle)
    return Admin(brokers), brokers  # type: ignore[arg-type]


def end(transaction_version: int = 2) -> EndTransaction:
    identity = ProducerIdentity(
        transactional_id="a", producer_id=1, producer_epoch=2, transaction_version=transaction_version
    )
    return EndTransaction(identity, committed=True)


def ended(code: int, epoch: int = -1) -> m.EndTxnResponse:
    return m.EndTxnResponse(
        throttle_time_ms=0, error_code=code, producer_id=1 if epoch >= 0 else -1, producer_epoch=epoch
    )


def scripted(*answers: Any) -> Handler:
    """Each request gets the next answer, and at last the same one again and again."""
    left = list(answers)
    return lambda _node, _request: left.pop(0) if len(left) > 1 else left[0]


def described(*ids: str, code: int = 0) -> Any:
    states = [
        m.TransactionState(
            error_code=code,
            transactional_id=each,
            transaction_state="Ongoing",
            transaction_timeout_ms=1,
            transaction_start_time_ms=1,
            producer_id=1,
            producer_epoch=1,
            topics=(),
        )
        for each in ids
    ]
    return SimpleNamespace(transaction_states=states)


def test_end_txn_retries_are_identical_and_keep_their_version() -> None:
    retriable = ended(ErrorCode.CONCURRENT_TRANSACTIONS)
    own, brokers = admin(scripted(retriable, LOST, ended(0, epoch=3)))
    (outcome,) = own.end_transactions([end(transaction_version=1)], DEADLINE_MS)
    assert outcome == KeyResult(error_code=0, value=ended(0, epoch=3), has_lost_response=True)
    sent = brokers.requests(m.EndTxnRequest)
    assert len(sent) == 3
    assert len(set(sent)) == 1
    assert sent[0][2] == (3, 3)


@pytest.mark.parametrize(
    ("last", "result"),
    [
        (LOST, KeyResult(error_code=None, earlier_code=ErrorCode.CONCURRENT_TRANSACTIONS)),
        (UNREACHABLE, KeyResult(error_code=ErrorCode.CONCURRENT_TRANSACTIONS)),
    ],
    ids=["lost", "not sent"],
)
def test_end_txn_code_holds_until_a_later_try_was_sent_and_lost(last: KafkaEosError, result: KeyResult[Any]) -> None:
    own, _ = admin(scripted(ended(ErrorCode.CONCURRENT_TRANSACTIONS), last))
    (found,) = own.end_transactions([end()], DEADLINE_MS)
    assert (found.error_code, found.earlier_code) == (result.error_code, result.earlier_code)
    assert found.has_lost_response is (last is LOST)


def test_end_txn_stays_unknown_if_an_error_interrupts_the_call() -> None:
    """Such as DNS without the bootstrap servers. The request in flight may still reach the coordinator."""

    def interrupted(_node: int, _request: Any) -> Any:
        raise UNREACHABLE

    own, _ = admin(interrupted)
    assert own.end_transactions([end()], DEADLINE_MS) == [KeyResult(has_lost_response=True)]


def test_lost_end_txn_stays_unknown_if_the_next_lookup_fails() -> None:
    """`DriverTransaction.late_end_possible` relies on it: the try without a response may still reach the coordinator."""
    nodes = iter([1, -ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED])
    own, _ = admin(scripted(LOST, ended(0)), coordinators=lambda _: next(nodes))
    (outcome,) = own.end_transactions([end()], DEADLINE_MS)
    assert outcome == KeyResult(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, has_lost_response=True)


def test_end_txn_in_an_unknown_version_is_not_retried() -> None:
    own, brokers = admin(scripted(NO_SUCH_VERSION))
    assert own.end_transactions([end()], DEADLINE_MS) == [KeyResult(error_code=ErrorCode.UNSUPPORTED_VERSION)]
    assert len(brokers.requests(m.EndTxnRequest)) == 1


def test_ids_are_batched_by_the_thousand_per_coordinator() -> None:
    own, brokers = admin(lambda _node, request: described(*request.transactional_ids), lambda key: 1 + int(key) % 2)
    ids = [str(number) for number in range(3_000)]
    assert list(own.describe_transactions(ids, DEADLINE_MS)) == ids
    sent = [
        (node, len(request.transactional_ids)) for node, request, *_ in brokers.requests(m.DescribeTransactionsRequest)
    ]
    assert sorted(sent) == [(1, 500), (1, 1_000), (2, 500), (2, 1_000)]
    assert len(brokers.requests(m.FindCoordinatorRequest)) == 3


def test_responses_with_too_many_values_are_requested_in_parts() -> None:
    def handler(_node: int, request: Any) -> Any:
        # As many partitions per transaction as another program has added to each of its own.
        state = described("").transaction_states[0]
        topics = (m.TransactionState.Topic(topic="t", partitions=tuple(range(1_500))),)
        states = (replace(state, transactional_id=each, topics=topics) for each in request.transactional_ids)
        response = m.DescribeTransactionsResponse(throttle_time_ms=0, transaction_states=tuple(states))
        try:
            return decode(m.DescribeTransactionsResponse, 0, encode(response, 0))
        except ProtocolError as unreadable:
            return ConnectionLost("CONNECTION_LOST", unreadable.message)

    own, brokers = admin(handler)
    ids = [str(number) for number in range(700)]
    assert list(own.describe_transactions(ids, DEADLINE_MS)) == ids
    sent = [len(request.transactional_ids) for _, request, *_ in brokers.requests(m.DescribeTransactionsRequest)]
    assert sent == [700] + [70] * 10


def test_ids_of_many_writes_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit process serves thousands of writes with random ids, and describes eight ids for each of their tasks."""
    monkeypatch.setattr("kafka_eos_sink.client.requests.MOST_COORDINATORS", 100)
    opened, _ = admin(lambda _node, request: described(*request.transactional_ids))
    for write in range(20):
        ids = [f"{write}.{task}.0" for task in range(150)]
        assert list(opened.describe_transactions(ids, DEADLINE_MS)) == ids
        opened._stale.add((Route.TRANSACTION_COORDINATOR, f"{write}.unknown"))
    assert len(opened._coordinators) <= 250
    assert len(opened._stale) <= 250


def test_transaction_version_is_read_again_after_ten_seconds() -> None:
    feature = m.ApiVersionsResponse.FinalizedFeature(
        name="transaction.version", max_version_level=2, min_version_level=0
    )
    busy = m.ApiVersionsResponse(error_code=ErrorCode.THROTTLING_QUOTA_EXCEEDED, api_keys=())
    response = m.ApiVersionsResponse(
        error_code=0, api_keys=(), finalized_features_epoch=1, finalized_features=(feature,)
    )
    own, brokers = admin(scripted(busy, response))
    assert own.transaction_version(DEADLINE_MS) == 0
    brokers.now = 10_001
    assert own.transaction_version(20_000) == 2
    assert own.transaction_version(20_000) == 2
    assert len(brokers.requests(m.ApiVersionsRequest)) == 2


# Well-formed responses that do not belong to their request


def test_negative_producer_identity_is_protocol_error() -> None:
    """With -1 the producer would write without a transaction."""
    for identity in ((-1, 0), (1, -1), (-1, -1)):
        fields = {"throttle_time_ms": 0, "error_code": 0, "producer_id": identity[0], "producer_epoch": identity[1]}
        opened, _ = admin(scripted(m.InitProducerIdResponse(**fields)))
        with pytest.raises(ProtocolError, match="returned the identity"):
            opened.init_producer_id("a", 1_000, DEADLINE_MS)


IDENTITY = ProducerIdentity(transactional_id="a", producer_id=1, producer_epoch=2, transaction_version=2)


def test_response_for_another_partition_proves_no_append() -> None:
    def produced(index: int) -> m.ProduceResponse:
        part = m.ProduceResponse.Topic.Partition(index=index, error_code=0, base_offset=9)
        return m.ProduceResponse(responses=(m.ProduceResponse.Topic(name="log", partition_responses=(part,)),))

    leader = SimpleNamespace(leader=lambda *_: 1, topics={"log": None}, controller=1, brokers={1: None})
    step = AppendInTransaction(IDENTITY, 0, (LogRecord(b"k", b"v"),))
    for index, expected in ((3, (0, 9)), (4, (None, -1))):
        opened, brokers = admin(scripted(produced(index)))
        brokers.metadata, brokers.want_topics = leader, lambda _: None  # type: ignore[attr-defined]
        appended = driver_requests.append(opened, step, ("log", 3), DEADLINE_MS)
        assert (appended.error, appended.offset) == expected


@pytest.mark.parametrize("partitions", [(), (0,), (1,), (0, 7)])
def test_response_missing_a_partition_commits_no_offsets(partitions: tuple[int, ...]) -> None:
    def committed(indexes: tuple[int, ...]) -> Any:
        parts = [SimpleNamespace(partition_index=each, error_code=0) for each in indexes]
        return SimpleNamespace(topics=[SimpleNamespace(name="in", partitions=parts)])

    step = CommitGroupOffsets(IDENTITY, "group", (("in", 0, 5), ("in", 1, 6)))
    for indexes, expected in (((1, 0), ErrorCode.NONE), (partitions, None)):
        opened, brokers = admin(scripted(committed(indexes)))
        assert driver_requests.commit_group_offsets(opened, step, DEADLINE_MS).error == expected
        topic = brokers.requests(m.TxnOffsetCommitRequest)[0][1].topics[0]
        assert {each.committed_metadata for each in topic.partitions} == {"kafka-eos write id a"}
        assert len(brokers.requests(m.TxnOffsetCommitRequest)) == 1 or expected is None


def test_members_of_a_group_cost_a_second_request_only_if_there_are_some(caplog: pytest.LogCaptureFixture) -> None:
    """The sink commits as a member that the group does not have; a broker accepts that of a group without members."""

    def committed(code: int) -> Any:
        return SimpleNamespace(
            topics=[SimpleNamespace(name="in", partitions=[SimpleNamespace(partition_index=0, error_code=code)])]
        )

    members = ErrorCode.UNKNOWN_MEMBER_ID.value
    step = CommitGroupOffsets(IDENTITY, "group", (("in", 0, 5),))

    def members_sent(*codes: int, first_batch: bool = False) -> list[str]:
        opened, brokers = admin(scripted(*map(committed, codes)))
        try:
            driver_requests.commit_group_offsets(opened, step, DEADLINE_MS, first_batch=first_batch)
        except KafkaEosError as error:
            return [error.code]
        return [request.member_id for _, request, _ in brokers.requests(m.TxnOffsetCommitRequest)]

    assert members_sent(0) == members_sent(0, first_batch=True) == ["kafka-eos"]
    assert caplog.messages == []
    assert members_sent(members, 0) == ["kafka-eos", ""]
    assert "has members" in caplog.text
    assert members_sent(members, 0, first_batch=True) == ["SOURCE_OFFSETS"]
    assert members_sent(members, members) == ["BROKER_REFUSED"]  # no broker does that
    assert members_sent(ErrorCode.GROUP_ID_NOT_FOUND.value) == ["SOURCE_OFFSETS"]


def offsets_of_group(group: str, *parts: tuple[int, int, int], code: int = 0) -> m.OffsetFetchResponse:
    """Of topic "in": partition, offset, error code."""
    topic = m.OffsetFetchResponse.Group.Topic
    found = tuple(
        topic.Partition(partition_index=at, committed_offset=offset, metadata="", error_code=each)
        for at, offset, each in parts
    )
    topics = (topic(name="in", partitions=found),) if found else ()
    group_ = m.OffsetFetchResponse.Group(group_id=group, topics=topics, error_code=code)
    return m.OffsetFetchResponse(throttle_time_ms=0, groups=(group_,))


def test_group_offsets_are_read_once_no_transaction_holds_them() -> None:
    unstable = ErrorCode.UNSTABLE_OFFSET_COMMIT.value
    answers = [
        offsets_of_group("g", (0, -1, unstable), (1, 4, 0)),
        offsets_of_group("another", (0, 1, 0)),  # counts as lost
        offsets_of_group("g", (0, 7, 0), (1, 4, 0), (2, -1, 0)),
    ]
    opened, brokers = admin(scripted(*answers))
    found = opened.group_offsets("g", [("in", 0), ("in", 1), ("in", 2)], 60_000)
    assert {where: each.committed_offset for where, each in found.items()} == {("in", 0): 7, ("in", 1): 4}
    (request, *_) = [request for _, request, _ in brokers.requests(m.OffsetFetchRequest)]
    assert request.require_stable
    assert request.groups[0].topics == (m.OffsetFetchRequest.Group.Topic(name="in", partition_indexes=(0, 1, 2)),)
    assert len(brokers.requests(m.OffsetFetchRequest)) == 3


@pytest.mark.parametrize("code", [ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED], ids=str)
def test_missing_right_on_group_offsets_is_named(code: ErrorCode) -> None:
    of_group = code is ErrorCode.GROUP_AUTHORIZATION_FAILED
    response = offsets_of_group("g", code=code) if of_group else offsets_of_group("g", (0, -1, code), (1, 3, 0))
    opened, _ = admin(scripted(response))
    with pytest.raises(AuthorizationError, match=f"the committed offsets of group 'g' returned {code.name}"):
        opened.group_offsets("g", None, DEADLINE_MS)


@pytest.mark.parametrize(
    ("code_of_other", "expected", "waits_ms"), [(0, 0, 5_000), (3, 3, 60_000), (51, 51, 60_000), (47, 47, 0)]
)
def test_deleted_source_topic_does_not_stop_a_stream(
    code_of_other: int, expected: int, waits_ms: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Each run of the batch has the offsets that the checkpoint holds. If the cluster knows none of the topics, it is the wrong one."""

    def committed(name: str, code: int) -> Any:
        return SimpleNamespace(name=name, partitions=[SimpleNamespace(partition_index=0, error_code=code)])

    step = CommitGroupOffsets(IDENTITY, "group", (("deleted", 0, 5), ("in", 0, 6)))
    response = SimpleNamespace(topics=[committed("in", code_of_other), committed("deleted", 3)])
    opened, brokers = admin(scripted(response))
    assert driver_requests.commit_group_offsets(opened, step, 60_000).error == expected
    assert brokers.now == pytest.approx(waits_ms, abs=2_000)
    assert ("'group' gets no offsets of deleted" in caplog.text) == (expected == 0)


def test_result_of_another_topic_or_resource_does_not_count() -> None:
    created = SimpleNamespace(topics=[SimpleNamespace(name="other", error_code=0, error_message=None)])
    opened, _ = admin(scripted(created))
    with pytest.raises(BrokerUnavailableError, match="REQUEST_DEADLINE"):
        opened.create_topic("mine", 1, 1, {}, DEADLINE_MS, validate_only=True)
    configs = SimpleNamespace(
        results=[SimpleNamespace(resource_name="other", error_code=0, error_message=None, configs=())]
    )
    opened, _ = admin(scripted(configs))
    with pytest.raises(BrokerUnavailableError, match="REQUEST_DEADLINE"):
        opened.describe_configs("topic", "mine", None, DEADLINE_MS)
