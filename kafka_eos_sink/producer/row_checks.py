"""Find the rows that Kafka would reject, before the producer sends any.

Without a dead letter topic, the first such row fails the task. With one, the rows become `dead_letters`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.producer.partitioner import TopicPartitions
from kafka_eos_sink.producer.rows import BadRows, NumberedRows, topic_column
from kafka_eos_sink.producer.topic_directory import TopicDirectory, TopicProblem
from kafka_eos_sink.protocol.binary_columns import as_binary
from kafka_eos_sink.protocol.record_batch import BATCH_OVERHEAD
from kafka_eos_sink.protocol.record_columns import header_keys_not_utf8, null_header_keys, record_sizes

NAMES_AT_ONCE = 10_000
"""Topics of one look-up. The response takes up to 280 bytes per missing topic, and must fit into a frame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRows:
    """Valid rows of one topic, with their encoded bytes."""

    topic: TopicPartitions
    rows: NumberedRows
    sizes: npt.NDArray[np.int64]


def checked_rows(
    rows: NumberedRows, topics: TopicDirectory, config: ProducerConfig
) -> tuple[list[TopicRows], list[BadRows]]:
    """Group rows by topic, and separate the rows that Kafka cannot store.

    Raises:
        InvalidRowError: Kafka cannot store a row, and there is no dead letter topic. The producer sends none of ``rows``.
    """
    good: list[TopicRows] = []
    bad: list[BadRows] = []
    groups = list(_by_topic(rows))
    names = [group.topic for group in groups if isinstance(group.topic, str)]
    resolved: dict[str, TopicPartitions | TopicProblem] = {}
    for at in range(0, len(names), NAMES_AT_ONCE):
        resolved |= topics.resolve(names[at : at + NAMES_AT_ONCE])
    for group in groups:
        topic = resolved[group.topic] if isinstance(group.topic, str) else None
        if topic is None:
            bad.append(BadRows("NULL_TOPIC", "has no topic", group))
        elif isinstance(topic, TopicProblem):
            bad.append(BadRows(topic.code, f"cannot be written: the topic {topic.reason}", group))
        else:
            kept = _check_topic(topic, group, topics, config, bad)
            if kept is not None:
                good.append(kept)
    if bad and config.dead_letter_topic is None:
        raise min(bad, key=lambda each: int(each.rows.row_numbers[0])).error()
    return good, bad


def largest_record(config: ProducerConfig) -> int:
    return min(config.max_request_size, config.buffer_memory) - BATCH_OVERHEAD


def _check_topic(
    topic: TopicPartitions, rows: NumberedRows, topics: TopicDirectory, config: ProducerConfig, bad: list[BadRows]
) -> TopicRows | None:
    sizes = record_sizes(rows.columns)
    unfit = np.zeros(len(sizes), np.bool_)

    def refuse(which: npt.NDArray[np.bool_], code: str, reason: str) -> None:
        # A row goes to the dead letter topic once, with the first reason.
        which = which & ~unfit
        if which.any():
            bad.append(BadRows(code, reason, rows.take(np.flatnonzero(which))))
            np.logical_or(unfit, which, out=unfit)

    limit = largest_record(config)
    too_large = sizes > limit
    if too_large.any():
        largest = int(sizes[too_large].max())
        reason = (
            f"takes up to {largest} bytes as a record, more than the {limit} that kafka.max.request.size "
            f"({config.max_request_size}) and kafka.buffer.memory ({config.buffer_memory}) leave"
        )
        refuse(too_large, "RECORD_TOO_LARGE", reason)
    if rows.columns.timestamp is not None:
        # -1 means "none" on the wire, and the Java producer rejects other negative times.
        before_1970 = pc.less(rows.columns.timestamp, 0).fill_null(False).to_numpy(zero_copy_only=False)
        refuse(before_1970, "INVALID_TIMESTAMP", "has a timestamp before 1970-01-01T00:00:00Z, which Kafka cannot hold")
    if rows.columns.headers is not None:
        null_keys = null_header_keys(rows.columns.headers)
        refuse(null_keys, "INVALID_HEADER", "has a header with a null key, which Kafka cannot hold")
        # Kafka's brokers accept such bytes. Its protocol guide calls the key a string, and clients fail when they decode it.
        not_utf8 = header_keys_not_utf8(rows.columns.headers)
        refuse(not_utf8, "INVALID_HEADER", "has a header whose key is not UTF-8 text, which consumers cannot decode")
    if rows.partition is not None and rows.partition.null_count < len(rows.partition):
        given = rows.partition.fill_null(0).to_numpy(zero_copy_only=False)
        if ((given < 0) | (given >= topic.count)).any():
            # The topic may have new partitions. Java's producer also refreshes metadata before it rejects a row.
            fresh = topics.refreshed(topic.topic) if (given >= topic.count).any() else topic
            topic = fresh if isinstance(fresh, TopicPartitions) else topic
        reason = f"names a partition that does not exist: topic {topic.topic} has {topic.count} partitions"
        refuse((given < 0) | (given >= topic.count), "NO_SUCH_PARTITION", reason)
    if not unfit.any():
        return TopicRows(topic=topic, rows=rows, sizes=sizes)
    fit = np.flatnonzero(~unfit)
    return TopicRows(topic=topic, rows=rows.take(fit), sizes=sizes[fit]) if len(fit) else None


def _by_topic(rows: NumberedRows) -> Iterator[NumberedRows]:
    """Group rows by topic; those without a topic keep their column of nulls."""
    if isinstance(rows.topic, str):
        yield rows
        return
    encoded = topic_column(rows).dictionary_encode(null_encoding="encode")
    # A name that is not UTF-8 is no topic name, so it is rejected like other invalid names.
    octets = as_binary(encoded.dictionary).to_pylist()
    names = [None if name is None else name.decode(errors="replace") for name in octets]
    index = encoded.indices.to_numpy(zero_copy_only=False)
    for at, name in enumerate(names):
        group = rows if len(names) == 1 else rows.take(np.flatnonzero(index == at))
        yield group if name is None else replace(group, topic=name)
