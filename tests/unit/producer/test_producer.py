from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.errors import KafkaEosError
from kafka_eos_sink.producer.batcher import PUMP_EVERY_BYTES
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.producer.producer import Producer
from kafka_eos_sink.producer.rows import Rows
from kafka_eos_sink.protocol.compression import Compression
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.record_batch import RecordsBlock, encode_rows, read_record_batches
from kafka_eos_sink.protocol.record_columns import RecordColumns


def test_flush_dead_letters_rejected_record_if_nothing_is_open(bench: Any, answer: Any) -> None:
    client = bench().client
    client.lead({("t", 0): 1, ("log", 0): 1, ("dlq", 0): 1})
    config = ProducerConfig(linger_ms=0, dead_letter_topic="dlq")
    producer = Producer(Admin(client), config, transactional_id="tx", transaction_version=2)
    producer.init(7, 3)
    producer.begin()
    value = pa.array([b"too large for its topic"], pa.binary())
    producer.write(Rows(topic="t", partition=None, columns=RecordColumns(value=value)))

    # Both responses arrive while append_record sends the second record: only flush can write the dead letter.
    poll = client.poll
    written: dict[str, list[Any]] = {}

    def respond(timeout_ms: int, of: Any) -> Any:
        for _ in range(len(client.sent)):
            (((topic, _), octets),) = client.bytes_of().items()
            written.setdefault(topic, []).extend(next(read_record_batches(octets)).records)
            client.answer(answer(ErrorCode.MESSAGE_TOO_LARGE if topic == "t" else ErrorCode.NONE, topic=topic))
        return poll(timeout_ms, of)

    client.poll = respond
    producer.append_record("log", 0, b"key", b"value")
    producer.flush()

    (letter,) = written["dlq"]
    assert dict(letter.headers)["kafka-eos.error"] == b"RECORD_TOO_LARGE"
    assert dict(letter.headers)["kafka-eos.row"] == b"0"
    assert {topic: count for (topic, _), (_, _, count) in producer.acknowledged.items()} == {"log": 1, "dlq": 1}


def block(first: int, size: int = 10, codec: Compression = Compression.NONE) -> RecordsBlock:
    return encode_rows([(None, b"%0*d" % (size, row), ()) for row in (first, first + 1)], 1_000, codec=codec)


def begun(client: Any, **settings: Any) -> Producer:
    producer = Producer(
        Admin(client), ProducerConfig(linger_ms=0, **settings), transactional_id="tx", transaction_version=2
    )
    producer.init(7, 3)
    producer.begin()
    return producer


def acknowledging(client: Any, answer: Any, waiting: bool = False) -> list[Any]:
    """Acknowledge every request, or only while the producer waits; return the batches as they come."""
    poll, found = client.poll, []

    def respond(timeout_ms: int, of: Any) -> Any:
        client.now += timeout_ms
        while client.sent and (timeout_ms or not waiting):
            (((topic, _), octets),) = client.bytes_of().items()
            found.extend(read_record_batches(octets))
            client.answer(answer(topic=topic, base_offset=100 + sum(len(each.records) for each in found[:-1])))
        return poll(timeout_ms, of)

    client.poll = respond
    return found


def test_blocks_are_sent_as_they_are_and_one_batch_each(bench: Any, answer: Any) -> None:
    client = bench().client
    producer, found = begun(client, compression="gzip"), acknowledging(client, answer)
    blocks = [block(0), block(2, codec=Compression.ZSTD), block(4, codec=Compression.LZ4)]
    for each in blocks:
        producer.append_block("t", 0, each)
    producer.flush()
    assert [(each.compression, each.base_sequence, each.producer_epoch) for each in found] == [
        (Compression.NONE, 0, 3),
        (Compression.ZSTD, 2, 3),
        (Compression.LZ4, 4, 3),
    ]
    assert [one.value for each in found for one in each.records] == [b"%010d" % row for row in range(6)]
    assert {one.timestamp for each in found for one in each.records} == {1_000}
    assert producer.acknowledged["t", 0] == (100, 105, 6)


def test_blocks_are_sent_while_more_are_appended(bench: Any, answer: Any) -> None:
    client = bench().client
    producer, found = begun(client), acknowledging(client, answer)
    for first in range(0, 8, 2):
        producer.append_block("t", 0, block(first, size=PUMP_EVERY_BYTES // 2))
    assert len(found) == 4


def test_blocks_wait_for_memory(bench: Any, answer: Any) -> None:
    client = bench().client
    limit = 10_000
    producer, found = begun(client, buffer_memory=limit), acknowledging(client, answer, waiting=True)
    for first in range(0, 40, 2):
        producer.append_block("t", 0, block(first, size=1_000))
        assert producer._accumulator.used_bytes <= limit
    assert len(found) > 10, "before anybody flushes"
    producer.flush()
    assert [int(one.value) for each in found for one in each.records] == list(range(40))


@pytest.mark.parametrize("limit", [10_000, 11_500])
def test_row_numbers_count_in_memory_before_their_batch_closes(bench: Any, answer: Any, limit: int) -> None:
    client = bench().client
    client.lead({("t", 0): 1})
    producer = begun(client, buffer_memory=limit, batch_size=1_000, compression="none")
    found, accumulator, used = acknowledging(client, answer, waiting=True), producer._accumulator, []
    value = pa.array([b"x"] * 100, pa.binary())
    for _ in range(40):
        producer.write(Rows(topic="t", partition=None, columns=RecordColumns(value=value)))
        used.append(accumulator.used_bytes)
    assert limit - 2_500 < max(used) <= limit
    producer.flush()
    assert sum(len(each.records) for each in found) == 4_000


def test_block_fails_when_no_memory_becomes_free(bench: Any) -> None:
    client = bench().client
    producer = begun(client, buffer_memory=1_000, max_block_ms=2_000)
    poll = client.poll

    def silent(timeout_ms: int, of: Any) -> Any:
        client.now += timeout_ms
        return poll(timeout_ms, of)

    client.poll = silent
    client.quota = 1_900, "a quota throttled it"
    producer.append_block("t", 0, block(0, size=400))
    with pytest.raises(
        KafkaEosError, match=r"BUFFER_EXHAUSTED\].*within 2000 ms.*\. A quota throttled it\. Raise it, or raise"
    ):
        producer.append_block("t", 0, block(2, size=400))
