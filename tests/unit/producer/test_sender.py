from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hand_driven import UNREACHABLE, Coordinator
from kafka_eos_sink.errors import (
    BrokerRefusedError,
    BrokerUnavailableError,
    InvalidRowError,
    KafkaEosError,
    TransactionAbortedError,
)
from kafka_eos_sink.producer.transaction_manager import State
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.messages import (
    AddPartitionsToTxnRequest,
    InitProducerIdRequest,
    ProduceResponse,
)
from kafka_eos_sink.runtime.part_producer import flush_and_prove


def test_request_fits_max_request_size_unless_one_batch_exceeds(bench: Any) -> None:
    b = bench(max_request_size=600)
    for partition in range(4):
        b.batch(partition)
    size = b.accumulator.queue("t", 0).fresh[0].size_bytes
    assert 600 // 2 < size * 2 < 600 < size * 3
    b.sender.run_once(0)
    assert [len(b.client.bytes_of(i)) for i in range(len(b.client.sent))] == [2, 2]
    lone = bench(max_request_size=10)
    lone.batch()
    lone.sender.run_once(0)
    assert len(lone.client.sent) == 1


def test_sequences_wrap_after_the_largest_int_to_zero(bench: Any, answer: Any) -> None:
    b = bench()
    b.batch(), b.batch()
    b.sender.run_once(0)
    queue = b.accumulator.queue("t", 0)
    queue.next_sequence = 2**31 - 4
    b.client.answer(answer())
    b.turn()
    assert b.client.sequences_of() == {0: (3, 2**31 - 4, 10)}
    assert queue.next_sequence == 6


def test_lost_response_resends_same_bytes_one_batch_at_a_time(bench: Any, answer: Any) -> None:
    b = bench()
    for _ in range(4):
        b.batch()
    b.sender.run_once(0)
    b.client.answer(answer())
    b.turn()
    before = [b.client.bytes_of(i) for i in range(3)]
    for _ in range(3):
        b.client.lose()
    b.turn(ms=100)
    assert b.client.updates_asked
    for expected in before:
        assert len(b.client.sent) == 1
        assert b.client.bytes_of() == expected
        b.client.answer(answer(base_offset=b.client.sequences_of()[0][1]))
        b.turn(ms=1_000)
    assert b.accumulator.idle
    assert b.sender.failure is None
    assert not b.sender.tainted
    assert b.sender.acknowledged["t", 0].record_count == 40


def test_out_of_order_is_retried_while_older_batch_is_in_flight(bench: Any, answer: Any) -> None:
    b = bench()
    for _ in range(3):
        b.batch()
    b.sender.run_once(0)
    b.client.answer(answer(base_offset=0))
    b.turn()
    b.client.answer(answer(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), which=1)
    b.turn(ms=1_000)
    assert len(b.client.sent) == 1  # only the oldest, still on the wire
    b.client.answer(answer(base_offset=10))
    b.turn(ms=1_000)
    assert b.client.sequences_of() == {0: (3, 20, 10)}
    b.client.answer(answer(base_offset=20))
    b.turn()
    assert b.sender.acknowledged["t", 0] == (0, 29, 30)


def test_out_of_order_of_the_oldest_batch_ends_the_transaction(bench: Any, answer: Any) -> None:
    b = bench()
    b.batch()
    b.sender.run_once(0)
    b.client.answer(answer(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER))
    b.turn()
    assert isinstance(b.sender.failure, TransactionAbortedError)
    assert b.transactions.state is State.ABORTABLE_ERROR


def test_last_offset_is_unknown_after_a_duplicate_response(bench: Any, answer: Any) -> None:
    """A range without the last batch would leave its rows behind when the transaction is copied."""
    b = bench()
    b.batch()
    b.sender.run_once(0)
    b.client.answer(answer(ErrorCode.NONE, base_offset=70))
    b.turn()
    b.batch()
    b.sender.run_once(0)
    b.client.lose()
    b.turn(ms=100)
    b.client.answer(answer(ErrorCode.DUPLICATE_SEQUENCE_NUMBER))
    b.turn()
    assert b.sender.acknowledged["t", 0] == (70, -1, 20)
    producer: Any = SimpleNamespace(flush=lambda: None, tainted=False, acknowledged=b.sender.acknowledged)
    with pytest.raises(TransactionAbortedError, match="OFFSET_UNKNOWN"):
        flush_and_prove(producer)


def test_duplicate_of_a_batch_sent_once_is_another_writer(bench: Any, answer: Any) -> None:
    b = bench()
    b.batch()
    b.sender.run_once(0)
    b.client.answer(answer(ErrorCode.DUPLICATE_SEQUENCE_NUMBER))
    b.turn()
    assert isinstance(b.sender.failure, TransactionAbortedError)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        12345,
    ],
)
def test_codes_that_end_the_attempt(bench: Any, answer: Any, code: int) -> None:
    b = bench()
    b.batch()
    b.batch(1)
    b.sender.run_once(0)
    b.client.answer(answer({0: code, 1: 0}))
    b.turn()
    assert isinstance(b.sender.failure, TransactionAbortedError)
    assert b.sender.acknowledged["t", 1].record_count == 10  # partitions fail and succeed each for itself


def test_new_leader_in_the_response_gets_the_resend_at_once(bench: Any, answer: Any) -> None:
    b = bench()
    b.batch()
    b.sender.run_once(0)
    sent = b.client.bytes_of()
    b.client.answer(answer(ErrorCode.NOT_LEADER_OR_FOLLOWER, leader=(2, 5)))
    b.turn()
    assert b.client.leaders_learned == [("t", 0, 2, 5)]
    assert b.client.sent[0].node_id == 2
    assert b.client.bytes_of() == sent


def test_rejected_batch_is_not_resent_without_pause(bench: Any, answer: Any) -> None:
    """The leader has moved, and the former one does not respond about the batch behind."""
    b = bench(dead_letter_topic="dlq")
    b.batch(count=1)
    b.sender.run_once(0)
    b.client.answer(answer())
    b.turn()
    b.batch(count=1), b.batch(count=1)
    b.sender.run_once(0)
    for _ in range(20):
        rejected = [at for at in range(len(b.client.sent)) if b.client.sequences_of(at)[0][1] == 1]
        for at in rejected:
            b.client.answer(answer(ErrorCode.MESSAGE_TOO_LARGE), at)
        b.turn(ms=10)
    assert len(b.client.versions) <= 6
    assert b.sender.failure is None


def test_record_errors_name_the_rows(bench: Any, answer: Any) -> None:
    b = bench()
    b.batch(count=10, first=100)
    b.sender.run_once(0)
    errors = (
        ProduceResponse.Topic.Partition.RecordError(
            batch_index=3, batch_index_error_message="Compacted topic needs a key"
        ),
    )
    b.client.answer(answer(ErrorCode.INVALID_RECORD, record_errors=errors, message="One or more records rejected"))
    b.turn()
    assert isinstance(b.sender.failure, InvalidRowError)
    assert "row 103 of the task: Compacted topic needs a key" in str(b.sender.failure)
    assert "One or more records rejected" in str(b.sender.failure)


@pytest.mark.parametrize(
    ("before", "named"),
    [
        ("lost", [1]),
        # A leader that loses its role, the topic or its disk after the append; its successor may have the batch.
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, [0, 1, 2, 3, 4]),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, [1]),
        (ErrorCode.KAFKA_STORAGE_ERROR, [1]),
        (None, []),
        (None, [5]),
        (None, [-1]),
    ],
)
def test_rejected_batch_fails_if_in_doubt_or_no_record_is_named(
    bench: Any, answer: Any, before: ErrorCode | str | None, named: list[int]
) -> None:
    b = bench(dead_letter_topic="dlq")
    b.batch(count=5)
    b.sender.run_once(0)
    if before is not None:  # the leader may have appended all five
        b.client.lose() if before == "lost" else b.client.answer(answer(before))
        b.turn(ms=1_000)
    errors = tuple(ProduceResponse.Topic.Partition.RecordError(batch_index=at) for at in named)
    b.client.answer(answer(ErrorCode.INVALID_RECORD, record_errors=errors))
    b.turn()
    assert b.sender.failure is not None
    assert b.sender.rejected == []


CLOCK = "Timestamp 1795764520835 of message with offset 1 is out of range. The timestamp should be within [{}, {}]"


@pytest.mark.parametrize(
    "text",
    [
        CLOCK.format(-9223370241090255000, 1795762720835),
        # Kafka adds its largest number to its clock, which overflows.
        CLOCK.format(1795766320835, -9223370241088454974),
        CLOCK.format(-1, 10**15),
        "another timestamp, please",
        None,
    ],
)
@pytest.mark.parametrize("named", [True, False])
def test_rejected_timestamp_of_the_clock_fails_the_task(bench: Any, answer: Any, text: str | None, named: bool) -> None:
    """With a dead letter topic too, and by brokers that name no record or no limit."""
    b = bench(dead_letter_topic="dlq")
    b.batch(count=5)
    b.sender.run_once(0)
    error = ProduceResponse.Topic.Partition.RecordError(batch_index=1, batch_index_error_message=text)
    response = {"record_errors": (error,)} if named else {"message": text}
    b.client.answer(answer(ErrorCode.INVALID_TIMESTAMP, **response))
    b.turn()
    assert b.sender.failure.code == "CLOCK_SKEW"
    assert b.sender.rejected == []


@pytest.mark.parametrize("own", [{1, 3}, {1, 2, 3, 4}])
def test_record_with_its_own_timestamp_is_at_fault_itself(bench: Any, answer: Any, own: set[int]) -> None:
    """The response also names a record that was rejected for another cause, under the same code."""
    b = bench(dead_letter_topic="dlq")
    b.batch(count=5, own_timestamps=own)
    b.sender.run_once(0)
    record_error = ProduceResponse.Topic.Partition.RecordError
    texts = {1: CLOCK.format(-1, 1), 3: CLOCK.format(-1, 1), 4: "Compacted topic cannot accept message without key"}
    errors = tuple(record_error(batch_index=at, batch_index_error_message=text) for at, text in texts.items())
    b.client.answer(answer(ErrorCode.INVALID_TIMESTAMP, record_errors=errors))
    b.turn()
    (rejected,) = b.sender.rejected
    assert (rejected.code, rejected.rows.row_numbers.tolist()) == ("RECORD_REFUSED", [1, 3, 4])
    # Only the timestamp of a row is the letter's header, not the clock's.
    assert rejected.rows.columns.timestamp.is_valid().to_pylist() == [True, True, 4 in own]
    assert b.sender.failure is None
    # The remaining rows are sent again, and their clock is rejected: it was not at fault before.
    b.client.answer(answer(ErrorCode.INVALID_TIMESTAMP, record_errors=(record_error(batch_index=0),)))
    b.turn()
    assert b.sender.failure.code == "CLOCK_SKEW"


def test_throttled_produce_request_ends_at_delivery_timeout(bench: Any) -> None:
    b = bench(delivery_timeout_ms=100_000)
    b.batch()
    b.client.unready.add(1)
    b.sender.run_once(0)
    b.client.unready.clear()
    b.client.now += 500
    b.sender.run_once(0)
    (pending,) = b.client.sent
    assert (pending.expires_at, pending.deadline_ms) == (30_500, 100_000)


def test_delivery_timeout_names_last_error_and_taints_producer(bench: Any, answer: Any) -> None:
    b = bench(delivery_timeout_ms=1_000)
    b.batch()
    b.sender.run_once(0)
    b.client.lose()
    b.sender.run_once(0)
    b.client.unready.add(1)
    for _ in range(10):
        b.turn(ms=150)
    assert isinstance(b.sender.failure, BrokerUnavailableError)
    assert b.sender.failure.code == "DELIVERY_TIMEOUT"
    assert "gone" in str(b.sender.failure)
    assert b.sender.tainted


def test_later_records_at_the_first_offset_prove_a_loss(bench: Any, answer: Any) -> None:
    """The topic was created again, or its new leader has never had them."""
    b = bench()
    b.batch(), b.batch()
    b.sender.run_once(0)
    b.client.answer(answer(base_offset=50))
    b.turn()
    b.client.answer(answer(base_offset=50))
    b.turn()
    assert isinstance(b.sender.failure, TransactionAbortedError)
    assert "has lost records of this transaction" in str(b.sender.failure)


def test_below_version_two_partition_is_added_before_produce(bench: Any, answer: Any) -> None:
    b = bench(transaction_version=0)
    coordinator = Coordinator()
    b.batch(), b.batch(1)
    coordinator.add = [UNREACHABLE, ErrorCode.CONCURRENT_TRANSACTIONS, 0]
    sent_before = []
    b.client.handler = lambda request: sent_before.extend(b.client.sent) or coordinator(request)
    b.sender.run_once(0)
    assert not sent_before
    asked = b.client.requests(AddPartitionsToTxnRequest)
    assert {request.v3_and_below_topics[0].partitions for request in asked} == {(0, 1)}
    assert b.client.versions == [(None, 11)]
    assert set(b.client.bytes_of()) == {("t", 0), ("t", 1)}


def test_batch_in_flight_does_not_end_a_request_to_the_coordinator(bench: Any) -> None:
    b = bench(transaction_version=0, delivery_timeout_ms=3_000)
    b.client.handler = coordinator = Coordinator()
    b.batch()
    b.sender.run_once(0)
    for _ in range(4):
        b.turn(ms=900)
    b.batch(1)
    coordinator.add = [ErrorCode.CONCURRENT_TRANSACTIONS, 0]
    b.sender.run_once(0)
    assert [set(b.client.bytes_of(i)) for i in range(2)] == [{("t", 0)}, {("t", 1)}]


@pytest.mark.parametrize("add", [UNREACHABLE, ErrorCode.CONCURRENT_TRANSACTIONS])
def test_batch_that_waits_for_its_partition_expires(bench: Any, add: Any) -> None:
    b = bench(transaction_version=0, delivery_timeout_ms=3_000)
    b.client.handler = coordinator = Coordinator()
    coordinator.add = add
    b.batch()
    b.sender.run_once(0)
    b.turn(ms=100)
    assert b.client.now == 3_100
    assert b.sender.failure.code == "DELIVERY_TIMEOUT"
    assert b.transactions.state is State.ABORTABLE_ERROR


def test_no_partition_is_added_after_a_failure(bench: Any, answer: Any) -> None:
    b = bench(transaction_version=0)
    b.client.handler = Coordinator()
    b.batch()
    b.sender.run_once(0)
    b.client.answer(answer())
    b.turn()
    b.batch(), b.batch(1)

    def send(*_: Any, **__: Any) -> None:
        raise BrokerRefusedError("NO_COMMON_VERSION", "Produce")

    b.client.send = send
    b.sender.run_once(0)
    assert b.sender.failure.code == "NO_COMMON_VERSION"
    assert len(b.client.requests(AddPartitionsToTxnRequest)) == 1


# what interceptors are told


class Told:
    """In the place of the interceptors: (partition, base offset, number of records, error) of each call."""

    def __init__(self, bench: Any) -> None:
        self.calls: list[tuple[int, int, int, Exception | None]] = []
        bench.sender._interceptors = self

    def on_acknowledgement(
        self, topic: str, partition: int, base_offset: int, count: int, error: Exception | None, **_: Any
    ) -> None:
        self.calls.append((partition, base_offset, count, error))


def test_failed_batch_is_not_acknowledged_again(bench: Any, answer: Any) -> None:
    b = bench()
    told = Told(b)
    b.batch(0, count=4), b.batch(1, count=5), b.batch(2, count=6), b.batch(2, count=7)
    b.sender.run_once(0)
    b.client.answer(answer({0: ErrorCode.NONE, 1: ErrorCode.INVALID_RECORD, 2: ErrorCode.NONE}, base_offset=9))
    b.turn()
    failure = b.sender.failure
    assert told.calls == [(0, 9, 4, None), (1, -1, 5, failure), (2, -1, 13, failure)]
    b.sender.give_up(KafkaEosError("ABORTED", "later"))
    assert len(told.calls) == 3
    assert b.sender.failure is failure


# without transactions
@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    ],
)
def test_idempotent_producer_resumes_in_next_epoch_at_sequence_0(bench: Any, answer: Any, code: ErrorCode) -> None:
    b = bench(transactional_id=None)
    for first in (0, 10, 20):
        b.batch(first=first)
    b.batch(1)
    b.sender.run_once(0)
    b.client.answer(answer({0: 0, 1: 0}))
    b.turn()
    assert len(b.client.sent) == 2
    b.client.answer(answer(code))
    b.sender.run_once(0)
    b.batch(1)
    b.sender.run_once(0)
    # The other batch of partition 0 is still on the wire: nothing of it is rewritten before its answer.
    assert [b.client.sequences_of(i) for i in range(2)] == [{0: (3, 20, 10)}, {1: (4, 0, 10)}]
    b.client.answer(answer(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER))
    b.turn()
    assert [b.client.sequences_of(i) for i in range(2)] == [{1: (4, 0, 10)}, {0: (4, 0, 10)}]


def test_failed_request_for_a_new_id_fails_the_batches_in_time(bench: Any) -> None:
    b = bench(transactional_id=None, delivery_timeout_ms=3_000)
    b.transactions.producer_id = -1
    b.batch()
    b.sender.run_once(0)
    b.turn(ms=100)
    assert not b.client.sent
    assert b.sender.failure.code == "DELIVERY_TIMEOUT"


@pytest.mark.parametrize("is_sent_before", [False, True])
def test_time_in_which_no_row_came_deletes_no_topic(bench: Any, answer: Any, is_sent_before: bool) -> None:
    """A partition has moved, and nobody reads the new metadata while Spark computes rows: the old leader is asked once more."""
    b = bench(max_block_ms=10_000)
    b.batch()
    b.sender.run_once(0)
    b.client.answer(answer(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    b.turn(ms=200 if is_sent_before else 20_000)
    assert len(b.client.sent) == 1
    b.client.answer(answer(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    b.client.now += 20_000 if is_sent_before else 0
    b.turn(ms=500)
    assert b.sender.failure is None
    b.client.answer(answer())
    b.turn()
    assert b.accumulator.idle


def test_partitions_that_fail_under_one_epoch_bump_it_once(bench: Any, answer: Any) -> None:
    b = bench(transactional_id=None)
    for partition in (0, 1):
        b.batch(partition)
    b.sender.run_once(0)
    b.client.answer(answer(dict.fromkeys((0, 1), ErrorCode.UNKNOWN_PRODUCER_ID)))
    b.turn()
    assert b.transactions.producer_epoch == 4
    assert b.client.sequences_of() == {0: (4, 0, 10), 1: (4, 0, 10)}


def test_partition_that_a_response_lacks_is_in_doubt(bench: Any, answer: Any) -> None:
    b = bench()
    batch = b.batch()
    b.sender.run_once(0)
    b.client.answer(answer({7: 0}))
    b.sender.run_once(0)
    assert batch.in_doubt
    assert "lacks the partition" in batch.last_problem


def test_new_batch_does_not_overtake_a_resend(bench: Any) -> None:
    """The leader would append it first: what it did with the batch before is unknown."""
    b = bench()
    queue = b.accumulator.queue("t", 0)
    oldest, second, _ = (b.batch() for _ in range(3))
    assert queue.next_to_send(0, 5, (7, 3)) is oldest  # adopts the identity
    queue.anything_acknowledged = True
    for batch in (oldest, second):
        queue.sent(batch, transactional=True)
    second.in_flight, second.retry_at = False, 999
    assert queue.next_to_send(0, 5, (7, 3)) is None


def test_the_first_batch_of_a_partition_goes_alone(bench: Any, answer: Any) -> None:
    b = bench()
    for _ in range(8):
        b.batch()
    b.sender.run_once(0)
    assert len(b.client.sent) == 1
    b.client.answer(answer())
    b.turn()
    assert len(b.client.sent) == 5  # max.in.flight.requests.per.connection


def test_idempotent_producer_gets_a_new_id_after_the_last_epoch(bench: Any, answer: Any) -> None:
    b = bench(transactional_id=None)
    b.transactions.producer_epoch = 2**15 - 1
    b.batch()
    b.sender.run_once(0)
    b.client.answer(answer(ErrorCode.UNKNOWN_PRODUCER_ID))
    b.client.handler = Coordinator()
    b.turn()
    (asked,) = b.client.requests(InitProducerIdRequest)
    assert asked.transactional_id is None
    assert b.transactions.identity == (99, 0)
    assert b.client.sequences_of() == {0: (0, 0, 10)}


def test_rejected_own_timestamps_do_not_blame_the_clock(bench: Any, answer: Any) -> None:
    """A recovery copies records with their timestamps, and older brokers name no record."""
    b = bench()
    b.batch(count=5, own_timestamps={0, 1, 2, 3, 4})
    b.sender.run_once(0)
    b.client.answer(answer(ErrorCode.INVALID_TIMESTAMP, message="invalid timestamp"))
    b.turn()
    assert b.sender.failure.code == "BROKER_REFUSED"


def test_a_batch_on_the_wire_does_not_expire(bench: Any, answer: Any) -> None:
    b = bench(delivery_timeout_ms=1_000)
    b.batch()
    b.sender.run_once(0)
    b.turn(ms=5_000)
    assert b.sender.failure is None
    b.client.answer(answer())
    b.turn()
    assert b.accumulator.idle
