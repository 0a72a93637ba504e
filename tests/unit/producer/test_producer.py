from __future__ import annotations

from typing import Any

import pyarrow as pa

from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.producer.producer import Producer
from kafka_eos_sink.producer.rows import Rows
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.record_batch import read_record_batches
from kafka_eos_sink.protocol.record_columns import RecordColumns


def test_flush_dead_letters_rejected_record_if_nothing_is_open(bench: Any, answer: Any) -> None:
    client = bench().client
    client.lead({("t", 0): 1, ("log", 0): 1, ("dlq", 0): 1})
    config = ProducerConfig(linger_ms=0, dead_letter_topic="dlq")
    producer = Producer(client, config, transactional_id="tx", transaction_version=2)
    producer.init(7, 3)
    producer.begin()
    value = pa.array([b"too large for its topic"], pa.binary())
    producer.write(Rows(topic="t", partition=None, columns=RecordColumns(value=value)))

    # Both responses arrive while append_record sends the second record: only flush can write the dead letter.
    poll = client.poll
    written: dict[str, list[Any]] = {}

    def respond(timeout_ms: int) -> Any:
        for _ in range(len(client.sent)):
            (((topic, _), octets),) = client.bytes_of().items()
            written.setdefault(topic, []).extend(read_record_batches(octets)[0].records)
            client.answer(answer(ErrorCode.MESSAGE_TOO_LARGE if topic == "t" else ErrorCode.NONE, topic=topic))
        return poll(timeout_ms)

    client.poll = respond
    producer.append_record("log", 0, b"key", b"value")
    producer.flush()

    (letter,) = written["dlq"]
    assert dict(letter.headers)["kafka-eos.error"] == b"RECORD_TOO_LARGE"
    assert dict(letter.headers)["kafka-eos.row"] == b"0"
    assert {topic: count for (topic, _), (_, _, count) in producer.acknowledged.items()} == {"log": 1, "dlq": 1}
