"""Find the rows that Kafka would reject, before the producer sends any.

Without a dead letter topic, the first such row fails the task. With one, the rows become `dead_letters`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from kafka_eos_sink.errors import InvalidRowError, peer_text
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.producer.partitioner import TopicPartitions
from kafka_eos_sink.producer.rows import Rows, topic_column
from kafka_eos_sink.producer.topic_directory import TopicDirectory, TopicProblem
from kafka_eos_sink.protocol.binary_columns import as_binary
from kafka_eos_sink.protocol.record_batch import BATCH_OVERHEAD
from kafka_eos_sink.protocol.record_columns import null_header_keys, record_sizes

NAMES_AT_ONCE = 10_000
"""Topics of one look-up. The response takes up to 280 bytes for each missing one, and must fit into a frame."""


@dataclass(frozen=True, slots=True)
class BadRows:
    """Rows that Kafka cannot store, all for the same reason."""

    code: str
    reason: str
    topic: str | None
    rows: Rows
    row_numbers: npt.NDArray[np.int64]
    partition: int | None = None
    """The partitioner's choice, for a row that the broker rejected."""

    def error(self) -> InvalidRowError:
        """Build the error for the first row, without the row's content."""
        partition = self.partition
        if partition is None and self.rows.partition is not None:
            partition = self.rows.partition[0].as_py()
        where = "no topic" if self.topic is None else f"topic {peer_text(self.topic)}"
        at = "" if partition is None else f", partition {partition}"
        more = len(self.row_numbers) - 1
        return InvalidRowError(
            self.code,
            f"row {self.row_numbers[0]} of the task ({where}{at}) {self.reason}"
            f"{f'; {more} more rows have this error' if more else ''}. Correct the rows, or set dead.letter.topic",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRows:
    """Valid rows of one topic, with their encoded bytes and their numbers in the task."""

    topic: TopicPartitions
    rows: Rows
    sizes: npt.NDArray[np.int64]
    row_numbers: npt.NDArray[np.int64]


def checked_rows(
    rows: Rows, row_numbers: npt.NDArray[np.int64], topics: TopicDirectory, config: ProducerConfig
) -> tuple[list[TopicRows], list[BadRows]]:
    """Group rows by topic, and separate the rows that Kafka cannot store.

    Raises:
        InvalidRowError: Kafka cannot store a row, and there is no dead letter topic. The producer sends none of ``rows``.
    """
    good: list[TopicRows] = []
    bad: list[BadRows] = []
    groups = list(_by_topic(rows, row_numbers))
    names = [name for name, _, _ in groups if name is not None]
    resolved: dict[str, TopicPartitions | TopicProblem] = {}
    for at in range(0, len(names), NAMES_AT_ONCE):
        resolved |= topics.resolve(names[at : at + NAMES_AT_ONCE])
    for name, group, numbers in groups:
        if name is None:
            bad.append(BadRows("NULL_TOPIC", "has no topic", None, group, numbers))
            continue
        topic = resolved[name]
        if isinstance(topic, TopicProblem):
            bad.append(BadRows(topic.code, f"cannot be written: the topic {topic.reason}", name, group, numbers))
        else:
            kept = _check_topic(topic, group, numbers, topics, config, bad)
            if kept is not None:
                good.append(kept)
    if bad and config.dead_letter_topic is None:
        raise min(bad, key=lambda rows: int(rows.row_numbers[0])).error()
    return good, bad


def largest_record(config: ProducerConfig) -> int:
    return min(config.max_request_size, config.buffer_memory) - BATCH_OVERHEAD


def _check_topic(
    topic: TopicPartitions,
    rows: Rows,
    numbers: npt.NDArray[np.int64],
    topics: TopicDirectory,
    config: ProducerConfig,
    bad: list[BadRows],
) -> TopicRows | None:
    sizes = record_sizes(rows.columns)
    unfit = np.zeros(len(sizes), np.bool_)

    def refuse(which: npt.NDArray[np.bool_], code: str, reason: str) -> None:
        # A row goes to the dead letter topic once, with the first reason.
        which = which & ~unfit
        if which.any():
            bad.append(BadRows(code, reason, topic.topic, *_picked(rows, numbers, which)))
            np.logical_or(unfit, which, out=unfit)

    limit = largest_record(config)
    too_large = sizes > limit
    if too_large.any():
        largest = int(sizes[too_large].max())
        reason = (
            f"takes up to {largest} bytes as a record, more than the {limit} that max.request.size "
            f"({config.max_request_size}) and buffer.memory ({config.buffer_memory}) leave"
        )
        refuse(too_large, "RECORD_TOO_LARGE", reason)
    if rows.columns.timestamp is not None:
        # -1 means "none" on the wire, and the Java producer rejects other negative times.
        before_1970 = pc.less(rows.columns.timestamp, 0).fill_null(False).to_numpy(zero_copy_only=False)
        refuse(before_1970, "INVALID_TIMESTAMP", "has a timestamp before 1970-01-01T00:00:00Z, which Kafka cannot hold")
    if rows.columns.headers is not None:
        null_keys = null_header_keys(rows.columns.headers)
        refuse(null_keys, "INVALID_HEADER", "has a header with a null key, which Kafka cannot hold")
    if rows.partition is not None and rows.partition.null_count < len(rows.partition):
        given = rows.partition.fill_null(0).to_numpy(zero_copy_only=False)
        if ((given < 0) | (given >= topic.count)).any():
            # The topic may have new partitions. Java's producer also refreshes metadata before it rejects a row.
            fresh = topics.refreshed(topic.topic) if (given >= topic.count).any() else topic
            topic = fresh if isinstance(fresh, TopicPartitions) else topic
        reason = f"names a partition that does not exist: topic {topic.topic} has {topic.count}"
        refuse((given < 0) | (given >= topic.count), "NO_SUCH_PARTITION", reason)
    if not unfit.any():
        return TopicRows(topic=topic, rows=rows, sizes=sizes, row_numbers=numbers)
    fit = np.flatnonzero(~unfit)
    if not len(fit):
        return None
    return TopicRows(topic=topic, rows=rows.take(fit), sizes=sizes[fit], row_numbers=numbers[fit])


def _by_topic(rows: Rows, numbers: npt.NDArray[np.int64]) -> Iterator[tuple[str | None, Rows, npt.NDArray[np.int64]]]:
    if isinstance(rows.topic, str):
        yield rows.topic, rows, numbers
        return
    encoded = topic_column(rows).dictionary_encode(null_encoding="encode")
    # No topic has a name that is not UTF-8, so it is rejected like other invalid names.
    octets = as_binary(encoded.dictionary).to_pylist()
    names = [None if name is None else name.decode(errors="replace") for name in octets]
    index = encoded.indices.to_numpy(zero_copy_only=False)
    for at, name in enumerate(names):
        if len(names) == 1:
            group, of_group = rows, numbers
        else:
            picked = np.flatnonzero(index == at)
            group, of_group = rows.take(picked), numbers[picked]
        if name is None:
            yield None, group, of_group
        else:
            yield name, Rows(topic=name, partition=group.partition, columns=group.columns), of_group


def _picked(
    rows: Rows, numbers: npt.NDArray[np.int64], which: npt.NDArray[np.bool_]
) -> tuple[Rows, npt.NDArray[np.int64]]:
    at = np.flatnonzero(which)
    return rows.take(at), numbers[at]
