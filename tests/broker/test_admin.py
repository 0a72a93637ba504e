"""What the driver asks a cluster, against a real one."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.config import ClientConfig, parse_bootstrap_servers
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.client.requests import KeyResult
from kafka_eos_sink.client.retry import Retry
from kafka_eos_sink.client.transactions_admin import EndTransaction
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.errors import BrokerRefusedError
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.messages import (
    AddPartitionsToTxnRequest,
    EndTxnResponse,
    ListTransactionsResponse,
    ProduceRequest,
    TopicIndexes,
    WriteTxnMarkersRequest,
)
from kafka_eos_sink.protocol.reactions import Reaction
from kafka_eos_sink.protocol.record_batch import RecordBatch, encode_rows, read_record_batches, seal
from kafka_testing import find_coordinators

TIMEOUT_MS = 60_000


@pytest.fixture(scope="module", params=["kafka", "kafka_tv0"], ids=["tv2", "tv0"])
def admin(request: pytest.FixtureRequest) -> Iterator[Admin]:
    kafka = request.getfixturevalue(request.param)
    config = ClientConfig(bootstrap_servers=parse_bootstrap_servers(kafka.bootstrap_servers))
    with NetworkClient(config) as client:
        yield Admin(client)


@pytest.fixture
def topic(admin: Admin) -> str:
    name = f"admin-{uuid.uuid4()}"
    assert admin.create_topic(name, 3, 1, {}, deadline(admin))
    return name


@pytest.fixture
def transactional_id() -> str:
    return f"admin.{uuid.uuid4()}"


def deadline(admin: Admin, ms: int = 30_000) -> int:
    return admin.client.clock() + ms


class Transaction:
    """A transaction whose parts the tests take one by one."""

    def __init__(self, admin: Admin, transactional_id: str) -> None:
        self.admin = admin
        self.transactional_id = transactional_id
        self.producer_id, self.producer_epoch = admin.init_producer_id(transactional_id, TIMEOUT_MS, deadline(admin))
        self.sequences: dict[tuple[str, int], int] = {}
        self.version = 5 if admin.transaction_version(deadline(admin)) >= 2 else 4

    def add(self, topic: str, *partitions: int) -> None:
        answer = self.call(
            AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.transactional_id,
                v3_and_below_producer_id=self.producer_id,
                v3_and_below_producer_epoch=self.producer_epoch,
                v3_and_below_topics=(AddPartitionsToTxnRequest.Topic(name=topic, partitions=partitions),),
            )
        )
        codes = [
            result.partition_error_code
            for each in answer.results_by_topic_v3_and_below
            for result in each.results_by_partition
        ]
        assert set(codes) == {0}

    def call(self, request: Any) -> Any:
        node_id = find_coordinators(self.admin, [self.transactional_id], deadline(self.admin))[self.transactional_id]
        return self.admin.client.call(node_id, request, deadline_ms=deadline(self.admin))

    def produce(self, topic: str, partition: int, *values: bytes) -> int:
        """Write records, which adds the partition as well; the first offset."""
        self.add(topic, partition)
        sequence = self.sequences.get((topic, partition), 0)
        self.sequences[topic, partition] = sequence + len(values)
        batch = seal(
            encode_rows([(None, value, ()) for value in values], timestamp_ms=1),
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=sequence,
            transactional=True,
        )
        data = ProduceRequest.Topic.Partition(index=partition, records=b"".join(bytes(part) for part in batch))
        request = ProduceRequest(
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=30_000,
            topic_data=(ProduceRequest.Topic(name=topic, partition_data=(data,)),),
        )
        retry = Retry(self.admin.client, "Produce", deadline(self.admin))
        while True:
            leader = self.admin.leaders([(topic, partition)], deadline(self.admin))[topic, partition]
            answer = self.admin.client.call(leader, request, deadline_ms=deadline(self.admin))
            (result,) = answer.responses[0].partition_responses
            if not result.error_code:
                return int(result.base_offset)
            # Right after its creation a topic's leader may not know yet that it is.
            assert retry.on_code(ProduceRequest, result.error_code, retry.what) is Reaction.REFRESH_METADATA
            retry.pause()

    def end(self, committed: bool, **changes: Any) -> EndTransaction:
        fields = {
            "transactional_id": self.transactional_id,
            "producer_id": self.producer_id,
            "producer_epoch": self.producer_epoch,
            "committed": committed,
            "version": self.version,
        }
        return EndTransaction(**(fields | changes))


@pytest.mark.feature("producer id", "fencing")
def test_second_init_producer_id_bumps_epoch_and_fences_first(admin: Admin, transactional_id: str) -> None:
    first = admin.init_producer_id(transactional_id, TIMEOUT_MS, deadline(admin))
    second = admin.init_producer_id(transactional_id, TIMEOUT_MS, deadline(admin))
    assert second == (first[0], first[1] + 1)


@pytest.mark.feature("fencing")
def test_init_producer_id_aborts_the_open_transaction(admin: Admin, topic: str, transactional_id: str) -> None:
    Transaction(admin, transactional_id).produce(topic, 0, b"left behind")
    Transaction(admin, transactional_id)
    state = admin.describe_transactions([transactional_id], deadline(admin))[transactional_id]
    assert state is not None
    assert state.transaction_state == "Empty"
    fetched = admin.fetch((topic, 0), 0, deadline_ms=deadline(admin))
    assert len(fetched.aborted_transactions or ()) == 1


@pytest.mark.feature("producer id")
def test_timeout_above_broker_maximum_raises_its_own_error_code(admin: Admin, transactional_id: str) -> None:
    with pytest.raises(BrokerRefusedError, match=r"transaction\.timeout\.ms=960000") as refused:
        admin.init_producer_id(transactional_id, 960_000, deadline(admin))
    assert refused.value.code == "INVALID_TRANSACTION_TIMEOUT"


@pytest.mark.feature("coordinator states")
def test_known_and_unknown_transactions_are_described(admin: Admin, topic: str, transactional_id: str) -> None:
    transaction = Transaction(admin, transactional_id)
    states = admin.describe_transactions([transactional_id, "nobody"], deadline(admin))
    assert states["nobody"] is None
    empty = states[transactional_id]
    assert empty is not None
    assert (empty.transaction_state, empty.transaction_start_time_ms, empty.partitions) == ("Empty", -1, ())
    transaction.add(topic, 0, 2)
    ongoing = admin.describe_transactions([transactional_id], deadline(admin))[transactional_id]
    assert ongoing is not None
    assert (ongoing.transaction_state, ongoing.producer_id, ongoing.producer_epoch, ongoing.transaction_timeout_ms) == (
        "Ongoing",
        transaction.producer_id,
        transaction.producer_epoch,
        TIMEOUT_MS,
    )
    assert set(ongoing.partitions) == {(topic, 0), (topic, 2)}
    assert ongoing.transaction_start_time_ms > 0
    admin.end_transactions([transaction.end(False)], deadline(admin))


def test_open_transactions_are_listed_by_their_ids(admin: Admin, topic: str, transactional_id: str) -> None:
    transaction = Transaction(admin, transactional_id)
    pattern = transactional_id.replace(".", r"\.")
    assert admin.list_transactions(id_pattern=pattern, deadline_ms=deadline(admin)) == ()
    transaction.add(topic, 0)
    listed = ListTransactionsResponse.Transaction(
        transactional_id=transactional_id, producer_id=transaction.producer_id, transaction_state="Ongoing"
    )
    assert admin.list_transactions(id_pattern=pattern, deadline_ms=deadline(admin)) == (listed,)
    assert admin.list_transactions(id_pattern=pattern[:-1], deadline_ms=deadline(admin)) == ()
    assert listed in admin.list_transactions(deadline_ms=deadline(admin))
    admin.end_transactions([transaction.end(False)], deadline(admin))
    assert listed not in admin.list_transactions(deadline_ms=deadline(admin))
    with pytest.raises(BrokerRefusedError, match="Sleeping"):
        admin.list_transactions(states=("Sleeping",), deadline_ms=deadline(admin))


@pytest.mark.feature("commit and abort")
@pytest.mark.parametrize("admin", ["kafka"], ids=["tv2"], indirect=True)  # below version 2 other answers are right
def test_end_txn_error_codes_are_returned_unchanged(admin: Admin, topic: str, transactional_id: str) -> None:
    transaction = Transaction(admin, transactional_id)
    transaction.add(topic, 0)
    commit, abort = transaction.end(True), transaction.end(False)
    bumped = EndTxnResponse(
        throttle_time_ms=0,
        error_code=0,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch + 1,
    )
    committed = KeyResult(error_code=0, value=bumped)
    assert admin.end_transactions([commit], deadline(admin)) == [committed]
    answers = admin.end_transactions(
        [commit, abort, transaction.end(True, version=4), transaction.end(True, transactional_id="nobody")],
        deadline(admin),
    )
    assert answers[0] == committed
    assert [ErrorCode.of(answer.error_code or 0).name for answer in answers[1:]] == [
        "INVALID_TXN_STATE",
        "PRODUCER_FENCED",
        "INVALID_PRODUCER_ID_MAPPING",
    ]


@pytest.mark.feature("markers")
@pytest.mark.parametrize("committed", [True, False])
def test_fetched_records_carry_their_transaction_outcome(
    admin: Admin, topic: str, transactional_id: str, committed: bool
) -> None:
    transaction = Transaction(admin, transactional_id)
    transaction.produce(topic, 0, b"a", b"b")
    held = admin.fetch((topic, 0), 0, deadline_ms=deadline(admin), max_wait_ms=0)
    assert (held.records, held.last_stable_offset, held.high_watermark) == (b"", 0, 2)
    admin.end_transactions([transaction.end(committed)], deadline(admin))
    until = deadline(admin)
    batches: list[RecordBatch] = []
    aborted: set[tuple[int, int]] = set()
    # The end of what is stable can be ahead of the records in the same answer: a reader goes by the records.
    while not batches or batches[-1].last_offset < 2:
        assert admin.client.clock() < until
        position = batches[-1].last_offset + 1 if batches else 0
        fetched = admin.fetch((topic, 0), position, deadline_ms=deadline(admin))
        batches += read_record_batches(fetched.records or b"")
        aborted |= {(each.producer_id, each.first_offset) for each in fetched.aborted_transactions or ()}
    data, marker = batches
    assert [record.value for record in data.records] == [b"a", b"b"]
    assert [control.type for control in marker.control_records] == [int(committed)]
    assert aborted == (set() if committed else {(transaction.producer_id, 0)})


@pytest.mark.feature("markers")
def test_open_producer_is_described_and_ended_by_manual_marker(admin: Admin, topic: str, transactional_id: str) -> None:
    transaction = Transaction(admin, transactional_id)
    transaction.produce(topic, 0, b"a")
    (open_one,) = admin.describe_producers([(topic, 0)], deadline(admin))[topic, 0]
    assert (open_one.producer_id, open_one.producer_epoch, open_one.last_sequence) == (
        transaction.producer_id,
        transaction.producer_epoch,
        0,
    )
    assert open_one.current_txn_start_offset == 0
    marker = WriteTxnMarkersRequest.Marker(
        topics=(TopicIndexes(name=topic, partition_indexes=(0,)),),
        producer_id=open_one.producer_id,
        # From transaction version 2 on a marker carries the next epoch (KIP-890).
        producer_epoch=open_one.producer_epoch + (1 if transaction.version >= 5 else 0),
        transaction_result=False,
        coordinator_epoch=max(0, open_one.coordinator_epoch),
        transaction_version=2 if transaction.version >= 5 else 0,
    )
    admin.write_txn_marker(marker, deadline(admin))
    (ended,) = admin.describe_producers([(topic, 0)], deadline(admin))[topic, 0]
    assert ended.current_txn_start_offset == -1
    assert admin.list_offsets([(topic, 0)], deadline(admin)) == {(topic, 0): 2}
    admin.end_transactions([transaction.end(False)], deadline(admin))


@pytest.mark.feature("coordinator lookup", "fail-over")
def test_end_txn_succeeds_after_coordinator_fail_over() -> None:
    with EmbeddedKafka(brokers=3) as cluster:
        config = ClientConfig(bootstrap_servers=parse_bootstrap_servers(cluster.bootstrap_servers))
        with NetworkClient(config) as client:
            admin = Admin(client)
            admin.create_topic("survivor", 3, 3, {}, deadline(admin))
            transactions = [Transaction(admin, f"survivor.{number}") for number in range(12)]
            for transaction in transactions:
                transaction.add("survivor", 0, 1, 2)
            ids = [transaction.transactional_id for transaction in transactions]
            coordinators = find_coordinators(admin, ids, deadline(admin))
            dying = coordinators[ids[0]]
            assert set(coordinators.values()) != {dying}
            cluster.kill(dying)
            ends = [transaction.end(True) for transaction in transactions]
            results = admin.end_transactions(ends, deadline(admin, 90_000))
            assert [result.error_code for result in results] == [0] * 12
            assert dying not in find_coordinators(admin, ids, deadline(admin)).values()
            assert admin.list_transactions(deadline_ms=deadline(admin, 60_000)) == ()
            states = admin.describe_transactions(ids, deadline(admin, 60_000))
            assert {state.transaction_state for state in states.values() if state} <= {
                "PrepareCommit",
                "CompleteCommit",
            }
            assert None not in states.values()
