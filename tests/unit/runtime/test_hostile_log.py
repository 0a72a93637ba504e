"""The executor's reader of the commit log: a chunk is bounded, and unreadable batches are skipped."""

from __future__ import annotations

import pytest

from kafka_eos_sink.commit import log_records
from kafka_eos_sink.commit.steps import LogChunk, ReadLog, ReadRecord
from kafka_eos_sink.logs import forget
from kafka_eos_sink.protocol.compression import Compression
from kafka_eos_sink.protocol.record_batch import encode_rows, seal
from kafka_eos_sink.runtime.executor import LOG_CHUNK_BYTES
from tests.fuzz.hostile_log import MOST_MEMORY, Fuzz, HostileLog, history, reset_peak, resident, signed

W = "kafka-eos/nightly/orders"


@pytest.fixture(autouse=True)
def no_warning_was_given() -> None:
    forget()


def batch(rows: list[tuple[bytes | None, bytes | None]], codec: Compression = Compression.NONE) -> bytes:
    block = encode_rows([(key, value, ()) for key, value in rows], 1, codec=codec)
    return b"".join(seal(block, producer_id=-1, producer_epoch=-1, base_sequence=-1, transactional=False))


def unreadable() -> bytes:
    return signed(bytearray(batch([(b"key", b"value")])[:-1]))


def read(log: HostileLog, offset: int) -> LogChunk:
    chunk: LogChunk = log.executor()._performers[ReadLog](ReadLog(offset, wait=False))
    return chunk


def test_records_beside_unreadable_batches_are_read_with_warning(caplog: pytest.LogCaptureFixture) -> None:
    log = HostileLog()
    log.append(batch([(b"a", b"")]))
    log.append(unreadable())
    log.append(batch([(b"b", b"")]))
    log.append(unreadable())
    for _ in range(2):
        chunk = read(log, 0)
        assert [each.key for each in chunk.entries if isinstance(each, ReadRecord)] == [b"a", b"b"]
        assert (chunk.next_offset, chunk.end_offset) == (4, 4)
    (warning,) = caplog.records
    assert "log-0 holds a batch at offset 1 that the sink did not write" in warning.getMessage()


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
def test_chunk_is_bounded_and_the_next_one_continues(codec: Compression) -> None:
    log = HostileLog()
    rows: list[tuple[bytes | None, bytes | None]] = [(b"k", bytes(500))] * log_records.LARGEST_BATCH_RECORDS
    for _ in range(40):
        log.append(batch(rows, codec), len(rows))
    offset, seen = 0, 0
    while offset < log.end:
        chunk = read(log, offset)
        assert chunk.next_offset > offset
        assert len(chunk.entries) * 757 <= LOG_CHUNK_BYTES + len(rows) * 757
        offset, seen = chunk.next_offset, seen + len(chunk.entries)
    assert seen == 40 * len(rows)


def test_batch_above_the_sinks_limits_is_skipped() -> None:
    log = HostileLog()
    many: list[tuple[bytes | None, bytes | None]] = [(b"k", b"")] * (log_records.LARGEST_BATCH_RECORDS + 1)
    log.append(batch(many), len(many))
    log.append(batch([(b"k", bytes(log_records.LARGEST_BATCH_BYTES))], Compression.GZIP))
    log.append(batch([(b"a", bytes(log_records.LARGEST_BATCH_BYTES - 20))]))
    chunk = read(log, 0)
    assert [each.key for each in chunk.entries if isinstance(each, ReadRecord)] == [b"a"]
    assert chunk.next_offset == log.end


def test_write_id_is_read_beside_every_bomb_below_64_mib() -> None:
    log = HostileLog()
    fuzz = Fuzz(0)
    for _, codec, count, section in fuzz.bombs:
        fuzz._append_section(log, codec, count, section)
    genuine, batches = history(W, 10)
    for each, records in batches:
        log.append(each, records)
    reset_peak()
    before = resident("VmRSS")
    found = log.read(W).query("batch").newest
    assert resident("VmHWM") - before < MOST_MEMORY
    assert found is not None
    assert found.decision == genuine


@pytest.mark.parametrize("seed", range(4))
def test_hostile_records_stop_no_other_write(seed: int) -> None:
    """10^6 of these cases ran once; see docs/internals/benchmarks.md."""
    fuzz = Fuzz(seed)
    fuzz.run(1_000)
    assert all(fuzz.counts[kind] > 100 for kind in ("barrier", "part", "decision", "done", "tombstone"))
    assert fuzz.counts["foreign records"] > 100
    assert fuzz.counts["decisions that count"] > 100
    assert fuzz.memory < MOST_MEMORY
