"""Build dead letters: rows that Kafka cannot store, with the reason in headers.

    kafka-eos.error        the code, as in docs/errors.md
    kafka-eos.reason       the reason as text
    kafka-eos.topic        the row's topic, if the row has one
    kafka-eos.partition    the row's partition, if the row has one
    kafka-eos.timestamp    the row's timestamp in ms since 1970, if the row has one
    kafka-eos.row          the row's number within the task
    kafka-eos.key.bytes, kafka-eos.value.bytes
                           size of a key or value that the producer removed
    kafka-eos.letter.reason
                           why the dead letter topic rejected the letter with its value and headers

Letters pass through the producer like rows. A letter's row number is the complement ``~number`` of its row's number, so it is negative.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kafka_eos_sink.errors import InvalidRowError
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.producer.row_checks import largest_record
from kafka_eos_sink.producer.rows import BadRows, NumberedRows
from kafka_eos_sink.protocol.record_columns import RecordColumns, header_bytes, headers_array

ENOUGH_BYTES: Final = 16_384
"""A topic with this max.message.bytes accepts every reduced letter."""
LONGEST_KEPT_KEY: Final = 4_096
"""Bytes of the longest key that a reduced letter keeps."""
LONGEST_KEPT_TEXT: Final = 1_000
"""Bytes of the longest text in a letter's own headers."""
AT_ONCE: Final = 1_000
"""Limit on the letters built at a time. One rejected batch of tiny rows makes 100,000 letters, more than memory holds."""
LENGTH_BYTES: Final = 10
"""Upper bound of the overhead per key, value, header key or header value, including a share of the record's own fields."""

PREFIX: Final = b"kafka-eos."
LETTER_REASON: Final = b"kafka-eos.letter.reason"

Headers = list[tuple[bytes, bytes | None]]
Letter = tuple[bytes | None, bytes | None, Headers]
"""Key, value and headers."""


def dead_letters(bad: Sequence[BadRows], config: ProducerConfig) -> Iterator[NumberedRows]:
    """Build the dead letters, some at a time; reduce those too large for a request.

    A letter has the time of writing. With the row's time, retention could delete it at once, or the topic reject it as too old or too new.
    """
    assert config.dead_letter_topic is not None
    for group in bad:
        for start in range(0, group.rows.num_rows, AT_ONCE):
            numbers = group.rows.row_numbers[start : start + AT_ONCE]
            # Python per row is fine here: these are only the rows that Kafka rejects.
            letters = [_letter(group, at, number, config) for at, number in enumerate(numbers.tolist(), start)]
            yield _numbered(config.dead_letter_topic, letters, ~numbers)


def _letter(group: BadRows, at: int, number: int, config: ProducerConfig) -> Letter:
    columns = group.rows.columns
    key = None if columns.key is None else columns.key[at].as_py()
    value = columns.value[at].as_py()
    of_row = [] if columns.headers is None else header_bytes(columns.headers, at)
    # Consumers must be able to read the letter: U+FFFD replaces what is not UTF-8, as in Spark's own sink.
    of_row = [(name.decode(errors="replace").encode(), content) for name, content in of_row]
    # Drop the row's headers with this prefix: a consumer could mistake them for the letter's own headers.
    of_row = [header for header in of_row if not header[0].startswith(PREFIX)]
    reasons = _headers(
        {
            "error": group.code,
            "reason": group.reason,
            "topic": group.topic,
            "partition": None if group.rows.partition is None else group.rows.partition[at].as_py(),
            "timestamp": None if columns.timestamp is None else columns.timestamp[at].as_py(),
            "row": number,
        }
    )
    parts = [key, value, *(part for header in (*of_row, *reasons) for part in header)]
    fits = sum(len(part) + LENGTH_BYTES for part in parts if part is not None) <= largest_record(config)
    return (key, value, of_row + reasons) if fits else _reduced(key, value, reasons)


def reduced_letters(rejected: BadRows) -> NumberedRows:
    """Rebuild letters that their topic rejected, without the rows' value and headers.

    Raises:
        InvalidRowError: DEAD_LETTER_TOPIC if the topic has rejected a reduced letter.
    """
    topic, columns = rejected.topic, rejected.rows.columns
    assert topic is not None
    letters: list[Letter] = []
    for at, number in enumerate(rejected.rows.row_numbers.tolist()):
        reasons = [header for header in header_bytes(columns.headers, at) if header[0].startswith(PREFIX)]
        if reasons[-1][0] == LETTER_REASON:
            raise InvalidRowError(
                "DEAD_LETTER_TOPIC",
                f"the dead letter topic {topic} rejected the letter of row {~number} of the task, even without value and headers: "
                f"{rejected.reason.rstrip('.')}. Give the topic cleanup.policy=delete and a max.message.bytes of at least {ENOUGH_BYTES}, "
                "or set another dead.letter.topic",
            )
        key = None if columns.key is None else columns.key[at].as_py()
        key, value, headers = _reduced(key, columns.value[at].as_py(), reasons)
        letters.append((key, value, [*headers, (LETTER_REASON, _text(f"{rejected.code}: {rejected.reason}"))]))
    return _numbered(topic, letters, rejected.rows.row_numbers)


def _reduced(key: bytes | None, value: bytes | None, reasons: Headers) -> Letter:
    # Topic, row number, sizes and a short key still identify the row.
    removed_key = key if key is not None and len(key) > LONGEST_KEPT_KEY else None
    removed = {"key.bytes": removed_key, "value.bytes": value}
    sizes = _headers({name: len(part) for name, part in removed.items() if part is not None})
    return key if removed_key is None else None, None, reasons + sizes


def _numbered(topic: str, letters: Sequence[Letter], row_numbers: npt.NDArray[np.int64]) -> NumberedRows:
    keys, values, headers = zip(*letters, strict=True)
    columns = RecordColumns(
        value=pa.array(values, pa.binary()), key=pa.array(keys, pa.binary()), headers=headers_array(headers)
    )
    return NumberedRows(topic=topic, partition=None, columns=columns, row_numbers=row_numbers)


def _headers(texts: Mapping[str, object]) -> Headers:
    return [(PREFIX + name.encode(), _text(str(text))) for name, text in texts.items() if text is not None]


def _text(text: str) -> bytes:
    # Codes and topic names are shorter. A reason may name many rows, and would make the letter too large.
    return text.encode()[:LONGEST_KEPT_TEXT].decode(errors="ignore").encode()
