"""The client's reader of a topic, without Spark."""

from __future__ import annotations

from typing import Any

import pytest

from kafka_eos_sink.jobs import topic_frame
from kafka_eos_sink.protocol.record_batch import encode_rows, read_record_batches, seal


@pytest.mark.parametrize(("timestamp", "micros"), [(-5 * 10**18, -(2**63 - 1)), (2**62, 2**63 - 1), (1_000, 1_000_000)])
def test_timestamp_beyond_sparks_range_is_clamped(monkeypatch: pytest.MonkeyPatch, timestamp: int, micros: int) -> None:
    block = encode_rows([(None, b"v", ())], timestamp)
    data = b"".join(seal(block, producer_id=-1, producer_epoch=-1, base_sequence=-1, transactional=False))
    monkeypatch.setattr(topic_frame, "read_committed", lambda *_: read_record_batches(data))
    admin: Any = None
    (found,) = topic_frame._partition_batches(admin, "t", topic_frame.Offsets(0, 0, 1, 1))
    assert found.column("timestamp").cast("int64").to_pylist() == [micros]


def test_large_records_are_delivered_in_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    value = bytes(6 << 20)
    block = encode_rows([(None, value, ()), (None, b"", (("h", value),)), (value, None, ()), (None, None, ())], 0)
    data = b"".join(seal(block, producer_id=-1, producer_epoch=-1, base_sequence=-1, transactional=False))
    monkeypatch.setattr(topic_frame, "read_committed", lambda *_: read_record_batches(data))
    admin: Any = None
    found = list(topic_frame._partition_batches(admin, "t", topic_frame.Offsets(0, 0, 4, 4)))
    assert [batch.column("offset").to_pylist() for batch in found] == [[0, 1, 2], [3]]


def test_records_with_many_empty_headers_are_delivered_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    block = encode_rows([(None, None, (("", None),) * 100_000)] * 3, 0)
    data = b"".join(seal(block, producer_id=-1, producer_epoch=-1, base_sequence=-1, transactional=False))
    monkeypatch.setattr(topic_frame, "read_committed", lambda *_: read_record_batches(data))
    admin: Any = None
    found = topic_frame._partition_batches(admin, "t", topic_frame.Offsets(0, 0, 3, 3))
    assert [batch.column("offset").to_pylist() for batch in found] == [[0], [1], [2]]
