"""A streaming query's checkpoint: the query's id and the offsets of its sources.

Spark writes them before a batch begins and never changes them: ``metadata`` holds ``{"id": ...}``, ``offsets/<batch>`` a version
line, a line of settings, and a line per source (OffsetSeqLog). In version 1, a source is the number of its line. In version 2, from
Spark 4.2 on, the line begins with the source's name, and the order varies. ``sources/<name>/0`` holds the offsets at which a Kafka
source began.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kafka_eos_sink.client.topics_admin import EARLIEST
from kafka_eos_sink.errors import ConfigurationError, peer_text
from kafka_eos_sink.protocol.identity import TopicPartition
from kafka_eos_sink.spark.checkpoint_filesystem import open_location

START_FORMAT = "v1"
"""Of ``sources/<name>/0``, in every version of the offset log."""
LOG_FORMATS = ("v1", "v2")
OFFSETS_HEADER_LINES = 2
NO_OFFSETS = "-"
"""Spark's entry for a source that has delivered no data yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOffsets:
    """A batch's source offsets by source, and the SHA-256 of their file.

    ``sources`` is empty in a ``log_format`` that is unknown.
    """

    version: int
    sha256: str
    log_format: str
    sources: Mapping[str, str]

    def of_kafka(self) -> tuple[tuple[str, int, int], ...]:
        """Return (topic, partition, next offset) of all Kafka sources, sorted.

        Raises:
            ConfigurationError: SOURCE_OFFSETS if no source is Kafka, two sources read a partition to different offsets, or the format is
                unknown.
        """
        if self.log_format not in LOG_FORMATS:
            raise ConfigurationError(
                "SOURCE_OFFSETS",
                f"the checkpoint's offsets have the format {peer_text(self.log_format)!r}, which Spark chose when the query first ran "
                f"(spark.sql.streaming.offsetLog.formatVersion), and the sink reads only {' and '.join(LOG_FORMATS)}; remove the option "
                "source.offsets.group",
            )
        found: dict[tuple[str, int], int] = {}
        kafka_sources = 0
        for line in self.sources.values():
            partitions = _kafka_offsets(line)
            if partitions is None:
                continue
            kafka_sources += 1
            for where, offset in partitions.items():
                if found.setdefault(where, offset) != offset:
                    raise ConfigurationError(
                        "SOURCE_OFFSETS",
                        f"two sources of the query read {where[0]}-{where[1]} to different offsets, so there is no single offset to "
                        "commit; remove the option source.offsets.group",
                    )
        # If every line is NO_OFFSETS, one may be a Kafka source that has delivered no data yet.
        if not kafka_sources and any(line != NO_OFFSETS for line in self.sources.values()):
            raise ConfigurationError(
                "SOURCE_OFFSETS",
                "source.offsets.group commits the offsets of Kafka sources, and the query reads from none; remove the option",
            )
        return tuple(sorted((topic, partition, offset) for (topic, partition), offset in found.items()))


def _sources(log_format: str, lines: list[str]) -> dict[str, str]:
    if log_format == "v1":
        return {str(number): line for number, line in enumerate(lines)}
    if log_format == "v2":
        return {name: offsets for name, _, offsets in (line.partition(":") for line in lines)}
    return {}


def _kafka_offsets(line: str) -> dict[tuple[str, int], int] | None:
    """Parse a KafkaSourceOffset, ``{"topic": {"0": 17}}``; None for another source."""
    try:
        topics: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(topics, dict):
        return None
    found: dict[tuple[str, int], int] = {}
    for topic, partitions in topics.items():
        if not isinstance(partitions, dict) or not partitions:
            return None
        for partition, offset in partitions.items():
            if not partition.isdecimal() or not isinstance(offset, int):
                return None
            found[topic, int(partition)] = offset
    return found


class Checkpoint:
    """A checkpoint by the location that Spark uses; raises as `open_location`."""

    def __init__(self, location: str) -> None:
        self.location = location
        self._files = open_location(location)

    def query_id(self) -> str:
        """Return the query's id, the same in every run. Raises OSError or ValueError."""
        found = json.loads(self._files.read("metadata"))["id"]
        if not isinstance(found, str) or not found:
            raise ValueError(f"{self.location}/metadata holds no id")
        return found

    def newest_batch(self) -> int | None:
        """Return the running batch: the newest with offsets. Raises OSError or ValueError."""
        # The folder also has other names: Spark writes ".<batch>.<uuid>.tmp" before a rename, and keeps ".<batch>.crc".
        return max((int(name) for name in self._files.names("offsets") if name.isdecimal()), default=None)

    def is_committed(self, version: int) -> bool:
        """Return True if Spark has finished the batch. Raises OSError or ValueError."""
        return self._files.exists(f"commits/{version}")

    def offsets(self, version: int) -> BatchOffsets:
        """Read the source offsets of a batch. Raises OSError or ValueError."""
        content = self._files.read(f"offsets/{version}")
        lines = content.decode().splitlines()
        if len(lines) < OFFSETS_HEADER_LINES or not lines[0].startswith("v"):
            raise ValueError(f"{self.location}/offsets/{version} is not what Spark writes there")
        # The settings line is not a source, but the hash covers it: Spark writes the file once and never changes it.
        return BatchOffsets(
            version=version,
            sha256=hashlib.sha256(content).hexdigest(),
            log_format=lines[0],
            sources=_sources(lines[0], lines[OFFSETS_HEADER_LINES:]),
        )

    def first_offsets(self, batch: BatchOffsets) -> tuple[Mapping[TopicPartition, int], ...]:
        """Return where each Kafka source begins; raises OSError or ValueError.

        Args:
            batch: The checkpoint's first. It may end in partitions that were created after the start; Spark begins these at EARLIEST.
        """
        found = []
        for name, line in batch.sources.items():
            ends = _kafka_offsets(line)
            if not ends:
                continue
            # A zero byte comes before the version (SPARK-19517, KafkaSourceInitialOffsetWriter).
            version, _, initial = self._files.read(f"sources/{name}/0").lstrip(b"\0").decode().partition("\n")
            begins = _kafka_offsets(initial)
            if version != START_FORMAT or begins is None:
                raise ValueError(f"{self.location}/sources/{name}/0 is not what Spark's Kafka source writes there")
            found.append(dict.fromkeys(ends, EARLIEST) | begins)
        return tuple(found)
