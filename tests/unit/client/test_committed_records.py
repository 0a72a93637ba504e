"""Which batches of a Fetch answer a read_committed consumer is shown."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kafka_eos_sink.client.committed_records import committed_batches, read_committed
from kafka_eos_sink.client.topics_admin import AbortedTransaction
from kafka_eos_sink.errors import ProtocolError
from kafka_eos_sink.protocol.compression import Compression
from kafka_eos_sink.protocol.record_batch import (
    CONTROL_ABORT,
    CONTROL_COMMIT,
    MAX_DECOMPRESSED_BYTES,
    ControlRecord,
    RecordBatch,
    encode_rows,
    seal,
)


def batch(
    base_offset: int, producer_id: int, *, records: int = 1, transactional: bool = True, marker: int | None = None
) -> RecordBatch:
    control = () if marker is None else (ControlRecord(offset=base_offset, type=marker),)
    return RecordBatch(
        base_offset=base_offset,
        length=88,
        leader_epoch=0,
        magic=2,
        checksum=0,
        attributes=16 * transactional + 32 * (marker is not None),
        last_offset_delta=records - 1,
        base_timestamp=0,
        max_timestamp=0,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        record_count=records,
        size_in_bytes=100,
        control_records=control,
    )


def shown(batches: list[RecordBatch], *aborted: tuple[int, int]) -> list[int]:
    transactions = [AbortedTransaction(producer_id=producer, first_offset=first) for producer, first in aborted]
    return [each.base_offset for each in committed_batches(batches, transactions)]


def test_aborted_transaction_is_skipped_up_to_its_marker() -> None:
    log = [
        batch(0, 1),
        batch(1, 1, marker=CONTROL_COMMIT),
        batch(2, 1, records=3),
        batch(5, 2),
        batch(6, 1),
        batch(7, 1, marker=CONTROL_ABORT),
        batch(8, 1),
        batch(9, 1, marker=CONTROL_COMMIT),
        batch(10, 2, marker=CONTROL_COMMIT),
    ]
    assert shown(log, (1, 2)) == [0, 5, 8]


def test_aborted_transaction_may_extend_beyond_the_response() -> None:
    assert shown([batch(10, 1), batch(11, 1, marker=CONTROL_ABORT), batch(12, 1)], (1, 3)) == [12]
    assert shown([batch(10, 2), batch(11, 1)], (1, 11)) == [10]
    assert shown([batch(10, 1)], (1, 11)) == [10]


def test_two_aborted_transactions_of_a_producer_in_any_order() -> None:
    log = [
        batch(0, 1),
        batch(1, 1, marker=CONTROL_ABORT),
        batch(2, 1),
        batch(3, 1, marker=CONTROL_COMMIT),
        batch(4, 1),
        batch(5, 1, marker=CONTROL_ABORT),
    ]
    assert shown(log, (1, 4), (1, 0)) == [2]


def test_marker_batch_emptied_by_compaction_ends_transaction() -> None:
    emptied = batch(1, 1, marker=CONTROL_ABORT)
    object.__setattr__(emptied, "control_records", ())
    assert shown([batch(0, 1), emptied, batch(2, 1)], (1, 0)) == [2]


def test_batch_that_is_large_in_memory_is_rejected() -> None:
    """A few KB of zstd may hold any number of zeros."""
    limit = MAX_DECOMPRESSED_BYTES
    sizes = (limit - 1_000, limit + 1_000)
    fits, too_large = (
        b"".join(
            seal(
                encode_rows([(None, bytes(size), ())], 0, codec=Compression.ZSTD),
                producer_id=-1,
                producer_epoch=-1,
                base_sequence=-1,
                transactional=False,
            )
        )
        for size in sizes
    )

    def visible(data: bytes) -> list[RecordBatch]:
        fetched = SimpleNamespace(error_code=0, records=data, aborted_transactions=())
        admin = SimpleNamespace(client=SimpleNamespace(clock=lambda: 0), fetch=lambda *_, **__: fetched)
        return list(read_committed(admin, ("topic", 0), 0, 1))  # type: ignore[arg-type]

    assert [len(record.value or b"") for each in visible(fits) for record in each.records] == [sizes[0]]
    with pytest.raises(ProtocolError, match="more than the limit"):
        visible(too_large)
