"""The records of an aborted transaction are appended again, and no others, from the log of a scripted leader."""

from __future__ import annotations

import dataclasses
import struct
import tracemalloc
from collections import Counter
from collections.abc import Container
from types import SimpleNamespace
from typing import Any

import pytest

from hand_driven import HandDrivenClient
from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.connection import PendingRequest
from kafka_eos_sink.client.topics_admin import EARLIEST
from kafka_eos_sink.commit.steps import AreCommitted, Copied, Copy, CopyRecords, Gone, LogRecord
from kafka_eos_sink.commit.values import OffsetRange
from kafka_eos_sink.errors import (
    BrokerUnavailableError,
    KafkaEosError,
)
from kafka_eos_sink.producer.batcher import PUMP_EVERY_BYTES
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.protocol.compression import Compression
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import ProducerIdentity
from kafka_eos_sink.protocol.messages import (
    EndTxnRequest,
    EndTxnResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    ProduceRequest,
    ProduceResponse,
)
from kafka_eos_sink.protocol.record_batch import RecordBatch, encode_rows, read_record_batches, seal
from kafka_eos_sink.runtime.data_proofs import FETCH_BYTES, DataTopics
from kafka_eos_sink.runtime.record_copier import RecordCopier

LOST = ProducerIdentity(transactional_id="w.0.0", producer_id=7, producer_epoch=2, transaction_version=2)
COPY = ProducerIdentity(transactional_id="w.0.1", producer_id=8, producer_epoch=0, transaction_version=2)
PART = LogRecord(b"part", b"{}")
LOG = ("log", 3)
TIME = 1_700_000_000_000


def batch(
    base_offset: int,
    *values: bytes,
    producer_id: int = LOST.producer_id,
    epoch: int = LOST.producer_epoch,
    codec: Compression = Compression.LZ4,
) -> bytes:
    block = encode_rows([(None, value, ()) for value in values], TIME, codec=codec)
    sealed = seal(block, producer_id=producer_id, producer_epoch=epoch, base_sequence=base_offset, transactional=True)
    return struct.pack(">q", base_offset) + b"".join(sealed)[8:]


def marker(offset: int, producer_id: int = LOST.producer_id, epoch: int = LOST.producer_epoch) -> bytes:
    """An ABORT marker, as it is below version 2: with the epoch of its transaction."""
    data = bytearray(
        batch(offset, struct.pack(">hi", 0, 1), producer_id=producer_id, epoch=epoch, codec=Compression.NONE)
    )
    return changed(data, attributes=0x30)


def changed(data: bytes | bytearray, *, attributes: int | None = None, last_delta: int | None = None) -> bytes:
    """The batch with another header, and the CRC that fits."""
    from crc32c import crc32c

    data = bytearray(data)
    if attributes is not None:
        struct.pack_into(">h", data, 21, attributes)
    if last_delta is not None:
        struct.pack_into(">i", data, 23, last_delta)
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    return bytes(data)


def emptied(base_offset: int, last_delta: int) -> bytes:
    """What the cleaner leaves of the last batch of a producer."""
    data = bytearray(batch(base_offset, b"x")[:61])
    struct.pack_into(">i", data, 8, 61 - 12)
    struct.pack_into(">i", data, 57, 0)
    return changed(data, last_delta=last_delta)


class Cluster:
    """A leader that holds batches, and brokers that acknowledge what is produced. It is the copier's ``Admin``, too."""

    def __init__(self, *batches: bytes, **settings: Any) -> None:
        self.client = Brokers()
        self.batches = {("t", 0): list(batches), ("t", 1): []}
        self.refusal: KafkaEosError | None = None
        self.start = 0
        self.fetched: list[tuple[int, str]] = []
        admin: Any = self
        brokers: Any = self.client
        self.end_transactions = Admin(brokers).end_transactions
        config = ProducerConfig(linger_ms=0, **settings)
        topics = DataTopics(admin, timeout_ms=config.delivery_timeout_ms, max_block_ms=config.max_block_ms)
        self.copier = RecordCopier(topics, LOG, config)

    def end(self, where: tuple[str, int]) -> int:
        last = self.batches[where][-1:]
        return sum(struct.unpack_from(">q", data)[0] + struct.unpack_from(">i", data, 23)[0] + 1 for data in last)

    def fetch(
        self, where: tuple[str, int], offset: int, deadline_ms: int, *, isolation: str, max_wait_ms: int, max_bytes: int
    ) -> Any:
        assert deadline_ms > self.client.now
        self.fetched.append((offset, isolation))
        if self.refusal is not None:
            raise self.refusal
        if offset < self.start:
            return SimpleNamespace(error_code=ErrorCode.OFFSET_OUT_OF_RANGE, records=None, high_watermark=-1)
        found = b""
        for data in self.batches[where]:
            base, delta = struct.unpack_from(">q", data)[0], struct.unpack_from(">i", data, 23)[0]
            if base + delta >= offset and len(found) < max_bytes:
                # The first one comes whole, the last one is cut (KIP-74).
                found += data if not found else data[: max_bytes - len(found)]
        self.client.now += 10 if found else max_wait_ms
        return SimpleNamespace(error_code=0, records=found or None, high_watermark=self.end(where))

    def list_offsets(self, partitions: Any, deadline_ms: int, *, isolation: str, timestamp: int) -> dict[Any, int]:
        assert (isolation, timestamp) == ("read_uncommitted", EARLIEST)
        return dict.fromkeys(partitions, self.start)

    def copy(self, *ranges: OffsetRange) -> Copied:
        (copied,) = self.copier.copy(CopyRecords((Copy(COPY, LOST, ranges, PART),)))
        assert isinstance(copied, Copied), copied
        return copied

    def gone(self, *ranges: OffsetRange) -> Gone:
        """Records are gone, and the copy has ended its transaction if it has begun one."""
        (copied,) = self.copier.copy(CopyRecords((Copy(COPY, LOST, ranges or (where(100, 104),), PART),)))
        assert isinstance(copied, Gone), copied
        assert self.client.ends == ([False] if self.client.appended else [])
        assert all(at != LOG for at, _ in self.client.appended)
        return copied


class Brokers(HandDrivenClient):
    """Answers every request at once, and keeps what was appended."""

    def __init__(self) -> None:
        super().__init__()
        self.handler = self.response
        self.lead({("t", 0): 1, ("t", 1): 1, LOG: 1})
        self.appended: list[tuple[tuple[str, int], RecordBatch]] = []
        self.ends: list[bool] = []
        self.produce_error = 0
        self.busy = False
        """Whether responses come only to a producer that waits for them."""

    def poll(self, timeout_ms: int, of: Container[PendingRequest]) -> Any:
        self.pump(timeout_ms)
        return super().poll(timeout_ms, of)

    def pump(self, timeout_ms: int) -> None:
        if not self.completions:
            self.now += timeout_ms
        while self.sent and not (self.busy and timeout_ms == 0):
            self.answer(self.response(self.sent[0].request))

    def response(self, request: Any) -> Any:
        if isinstance(request, EndTxnRequest):
            self.ends.append(request.committed)
            return EndTxnResponse(
                throttle_time_ms=0,
                error_code=0,
                producer_id=request.producer_id,
                producer_epoch=request.producer_epoch + 1,
            )
        if isinstance(request, FindCoordinatorRequest):
            found = FindCoordinatorResponse.Coordinator(
                key=COPY.transactional_id, node_id=1, host="h", port=1, error_code=0, error_message=None
            )
            return FindCoordinatorResponse(throttle_time_ms=0, coordinators=(found,))
        assert isinstance(request, ProduceRequest)
        return ProduceResponse(
            responses=tuple(
                ProduceResponse.Topic(
                    name=topic.name,
                    partition_responses=tuple(
                        ProduceResponse.Topic.Partition(
                            index=data.index,
                            error_code=self.produce_error,
                            base_offset=self.append((topic.name, data.index), b"".join(map(bytes, data.records))),
                        )
                        for data in topic.partition_data
                    ),
                )
                for topic in request.topic_data
            )
        )

    def append(self, where: tuple[str, int], data: bytes) -> int:
        (found,) = read_record_batches(data)
        self.appended.append((where, found))
        before = [each for at, each in self.appended[:-1] if at == where]
        return 5_000 + sum(len(each.records) for each in before)

    def values(self, partition: int = 0) -> list[bytes | None]:
        return [one.value for where, found in self.appended if where == ("t", partition) for one in found.records]


def where(first: int, last: int, partition: int = 0) -> OffsetRange:
    return OffsetRange(topic="t", partition=partition, first_offset=first, last_offset=last)


def test_only_the_batches_of_the_lost_transaction_are_copied() -> None:
    cluster = Cluster(
        batch(98, b"begins", b"below", b"the range"),
        batch(101, b"a", b"b"),
        batch(103, b"another producer's", producer_id=9),
        batch(104, b"another epoch's", epoch=1),
        batch(105, b"a later epoch's", epoch=3),
        batch(106, b"c"),
        batch(107, b"", producer_id=-1, epoch=-1),
        marker(108, producer_id=9),
        marker(109),
        batch(110, b"d", codec=Compression.ZSTD),
        batch(111, b"beyond the range"),
    )
    copied = cluster.copy(where(100, 110))
    assert cluster.client.values() == [b"a", b"b", b"c", b"d"]
    assert copied.written.rows == 4
    assert {isolation for _, isolation in cluster.fetched} == {"read_uncommitted"}


def test_copied_batches_belong_to_the_new_transaction_unchanged() -> None:
    cluster = Cluster(batch(100, b"a", b"b"), batch(102, b"c", codec=Compression.ZSTD))
    cluster.batches["t", 1] = [batch(7, b"d")]
    copied = cluster.copy(where(100, 102), where(7, 7, partition=1))
    sent = sorted(
        ((at, found) for at, found in cluster.client.appended if at[0] == "t"),
        key=lambda each: (each[0], each[1].base_sequence),
    )
    assert [(found.producer_id, found.producer_epoch, found.transactional) for _, found in sent] == [(8, 0, True)] * 3
    assert [(at[1], found.base_sequence, found.compression) for at, found in sent] == [
        (0, 0, Compression.LZ4),
        (0, 2, Compression.ZSTD),
        (1, 0, Compression.LZ4),
    ]
    assert copied.written.rows == 4
    assert copied.written.offsets == (
        dataclasses.replace(where(5_000, 5_002), rows=3),
        dataclasses.replace(where(5_000, 5_000, partition=1), rows=1),
    )


def test_rows_that_come_late_are_awaited() -> None:
    cluster = Cluster(max_block_ms=1_600)
    shown = iter([[], [], [], [batch(100, b"a")], [], [], [], [batch(101, b"b")]])
    fetch = cluster.fetch

    def late(*args: Any, **options: Any) -> Any:
        cluster.batches["t", 0] = next(shown)
        return fetch(*args, **options)

    cluster.fetch = late  # type: ignore[method-assign]
    assert cluster.copy(where(100, 101)).written.rows == 2


def test_damaged_batch_is_reported_and_nothing_of_it_copied() -> None:
    data = bytearray(batch(100, b"a", b"b", codec=Compression.NONE))
    data[-3] ^= 1
    cluster = Cluster(batch(99, b"before"), bytes(data))
    assert "t-0 [99..101]: the batch at offset 100 is damaged: its CRC-32C" in cluster.gone(where(99, 101)).why


@pytest.mark.parametrize("refusal", [BrokerUnavailableError("REQUEST_DEADLINE", "no leader"), ZeroDivisionError("bug")])
def test_another_failure_is_raised_as_it_is(refusal: Any) -> None:
    """Records that cannot be fetched now are not gone."""
    large = bytes(PUMP_EVERY_BYTES)
    cluster = Cluster(batch(100, large, codec=Compression.NONE))
    fetch = cluster.fetch

    def fails_later(where: Any, offset: int, *args: Any, **options: Any) -> Any:
        if offset > 100:
            raise refusal
        return fetch(where, offset, *args, **options)

    cluster.fetch = fails_later  # type: ignore[method-assign]
    with pytest.raises(type(refusal)) as raised:
        cluster.copy(where(100, 104))
    assert raised.value is refusal
    assert cluster.client.values() == [large]
    assert cluster.client.ends == [False]


@pytest.mark.parametrize(
    "left",
    [emptied(101, last_delta=2), changed(batch(101, b"x", b"y"), last_delta=2)],
    ids=["all records removed", "one record removed"],
)
def test_compacted_batch_is_not_copied(left: bytes) -> None:
    """Its rows are missing in the count, which `commit.restore` compares."""
    cluster = Cluster(batch(100, b"a"), left)
    copied = cluster.copy(where(100, 103))
    assert (cluster.client.values(), copied.written.rows) == ([b"a"], 1)


OTHER = ProducerIdentity(transactional_id="w.1.0", producer_id=9, producer_epoch=0, transaction_version=2)
OTHER_COPY = ProducerIdentity(transactional_id="w.1.1", producer_id=10, producer_epoch=0, transaction_version=2)


def two_copies(first: OffsetRange, second: OffsetRange) -> CopyRecords:
    return CopyRecords((Copy(COPY, LOST, (first,), PART), Copy(OTHER_COPY, OTHER, (second,), PART)))


def test_transactions_that_lie_in_turn_are_copied_in_one_pass() -> None:
    """A pass for each of a batch's concurrent tasks would read the batch once per task."""
    value = bytes(FETCH_BYTES // 3)
    ids = [LOST.producer_id, OTHER.producer_id]
    cluster = Cluster(
        *(
            batch(offset, value, producer_id=ids[offset % 2], epoch=(2, 0)[offset % 2], codec=Compression.NONE)
            for offset in range(100, 110)
        )
    )
    copied = cluster.copier.copy(two_copies(where(100, 108), where(101, 109)))
    assert [one.written.rows for one in copied if isinstance(one, Copied)] == [5, 5]
    assert [offset for offset, _ in cluster.fetched] == [100, 102, 104, 106, 108]
    by_producer = Counter((found.producer_id, at) for at, found in cluster.client.appended)
    assert by_producer == {(8, ("t", 0)): 5, (10, ("t", 0)): 5, (8, LOG): 1, (10, LOG): 1}


def ended(offset: int, commit: bool, producer_id: int = LOST.producer_id) -> bytes:
    """A marker with its key and value."""
    block = encode_rows([(struct.pack(">hh", 0, int(commit)), struct.pack(">hi", 0, 1), ())], TIME)
    sealed = seal(block, producer_id=producer_id, producer_epoch=3, base_sequence=-1, transactional=True)
    return changed(struct.pack(">q", offset) + b"".join(sealed)[8:], attributes=0x30)


@pytest.mark.parametrize(
    ("behind", "is_committed"),
    [
        ([ended(101, False, producer_id=9), ended(102, True), ended(103, False)], True),
        ([ended(101, True, producer_id=9), ended(102, False), ended(103, True)], False),
        ([ended(101, True, producer_id=9), batch(102, b"more")], None),
    ],
    ids=["commit", "abort", "none"],
)
def test_first_marker_behind_a_range_shows_its_end(behind: list[bytes], is_committed: bool | None) -> None:
    cluster = Cluster(ended(99, True), batch(100, b"a"), *behind)
    assert cluster.copier.are_committed(AreCommitted(((LOST, where(100, 100)),))) == (is_committed,)


def test_each_range_of_a_producer_has_the_marker_behind_it() -> None:
    cluster = Cluster(batch(100, b"a"), ended(101, True), batch(102, b"b"), ended(103, False))
    step = AreCommitted(((LOST, where(100, 100)), (LOST, where(102, 102))))
    assert cluster.copier.are_committed(step) == (True, False)


def test_search_for_a_marker_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """The partition is long, and each Fetch takes a second."""
    cluster = Cluster(*(batch(100 + at, b"a", producer_id=9 if at else LOST.producer_id) for at in range(60)))
    fetch = cluster.fetch

    def slow(where: tuple[str, int], offset: int, *more: Any, **options: Any) -> Any:
        cluster.client.now += 1_000
        fetched = fetch(where, offset, *more, **options)
        first = next(each for each in cluster.batches[where] if struct.unpack_from(">q", each)[0] >= offset)
        return SimpleNamespace(**{**vars(fetched), "records": first})

    monkeypatch.setattr(cluster, "fetch", slow)
    started, step = cluster.client.now, AreCommitted(((LOST, where(100, 100)),))
    cluster.copier._config = dataclasses.replace(cluster.copier._config, delivery_timeout_ms=20_000)
    with pytest.raises(BrokerUnavailableError, match="REQUEST_DEADLINE"):
        cluster.copier.are_committed(step)
    assert 20_000 < cluster.client.now - started < 25_000
    # What the last Fetch has found counts.
    cluster.batches["t", 0][len(cluster.fetched)] = ended(100 + len(cluster.fetched), True)
    assert cluster.copier.are_committed(step) == (True,)


class Streaming(Cluster):
    """A range of many batches, each of ``own`` bytes of the lost transaction and ``others`` bytes of another producer."""

    MEGABYTE = 1 << 20

    def __init__(self, batches: int, own: int, others: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.last_offset = 2 * batches - 1
        self.blocks = [encode_rows([(None, bytes(size), ())], TIME) for size in (own, others)]
        self.client.append = self.count  # type: ignore[method-assign]
        self.appended = 0

    def count(self, _where: tuple[str, int], _data: bytes) -> int:
        self.appended += 1
        return self.appended

    def fetch(self, where: Any, offset: int, deadline_ms: int, *, max_bytes: int, **_: Any) -> Any:
        found = bytearray()
        for at in range(offset, self.last_offset + 1):
            owner = (LOST.producer_id, LOST.producer_epoch) if at % 2 == 0 else (9, 0)
            sealed = seal(
                self.blocks[at % 2],
                producer_id=owner[0],
                producer_epoch=owner[1],
                base_sequence=at // 2,
                transactional=True,
            )
            if found and len(found) + sum(map(len, sealed)) > max_bytes:
                break
            start = len(found)
            for piece in sealed:
                found += piece
            struct.pack_into(">q", found, start, at)
        return SimpleNamespace(error_code=0, records=memoryview(found), high_watermark=self.last_offset + 1)


@pytest.mark.parametrize(
    ("own", "others"), [(20_000, 1_500_000), (500_000, 1_000)], ids=["a small share", "nearly all"]
)
def test_copies_need_at_most_buffer_memory(own: int, others: int) -> None:
    """A view into a response would keep all of it until the acknowledgement."""
    memory = 16 * Streaming.MEGABYTE
    cluster = Streaming(120, own, others, buffer_memory=memory)
    cluster.client.busy = True
    tracemalloc.start()
    try:
        copied = cluster.copy(where(0, cluster.last_offset))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert copied.written.rows == 120
    assert peak <= memory, f"{peak / Streaming.MEGABYTE:.1f} MiB"


def test_marker_that_the_cleaner_emptied_shows_no_end() -> None:
    """It was a COMMIT, whose records newer ones of their keys have replaced."""
    empty = changed(bytearray(emptied(101, 0)), attributes=0x30)
    cluster = Cluster(batch(100, b"a"), empty)
    assert cluster.copier.are_committed(AreCommitted(((LOST, where(100, 100)),))) == (None,)


def test_deleted_records_are_reported_with_their_place() -> None:
    cluster = Cluster(batch(100, b"a"), batch(104, b"b"))
    cluster.start = 101
    assert cluster.gone().why == "t-0 [100..104]: the partition does not hold these offsets any more"
