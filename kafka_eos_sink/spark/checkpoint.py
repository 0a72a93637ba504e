"""The checkpoint of a streaming query, as far as the sink needs it: the query's id and the source offsets of a batch.

Spark writes both before a batch begins and never changes them: ``metadata`` holds ``{"id": ...}``, ``offsets/<batch>`` a version
line, a line of settings, and a line per source (OffsetSeqLog).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from kafka_eos_sink.errors import ConfigurationError
from kafka_eos_sink.spark.checkpoint_filesystem import open_location

LOG_FORMAT = "v1"
OFFSETS_HEADER_LINES = 2
NO_OFFSETS = "-"
"""What Spark writes for a source that has delivered nothing yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOffsets:
    """The source offsets of one batch: their file's SHA-256, and its lines, one per source."""

    version: int
    sha256: str
    log_format: str
    sources: tuple[str, ...]

    def of_kafka(self) -> tuple[tuple[str, int, int], ...]:
        """(topic, partition, next offset) of all Kafka sources, sorted.

        Raises:
            ConfigurationError: SOURCE_OFFSETS where no source is Kafka, or two read one partition to different offsets.
        """
        if self.log_format != LOG_FORMAT:
            raise ConfigurationError(
                "SOURCE_OFFSETS",
                f"the checkpoint's offsets are written in format {self.log_format!r}, of which only {LOG_FORMAT} is understood; leave "
                "source.offsets.group out",
            )
        found: dict[tuple[str, int], int] = {}
        kafka_sources = 0
        for line in self.sources:
            partitions = _kafka_offsets(line)
            if partitions is None:
                continue
            kafka_sources += 1
            for where, offset in partitions.items():
                if found.setdefault(where, offset) != offset:
                    raise ConfigurationError(
                        "SOURCE_OFFSETS",
                        f"two sources of the query read {where[0]}-{where[1]} to different offsets, so there is no one offset to commit "
                        "for it; leave source.offsets.group out",
                    )
        if not kafka_sources and any(line != NO_OFFSETS for line in self.sources):
            raise ConfigurationError(
                "SOURCE_OFFSETS",
                "source.offsets.group commits the offsets of Kafka sources, and the query reads from none; leave it out",
            )
        return tuple(sorted((topic, partition, offset) for (topic, partition), offset in found.items()))


def _kafka_offsets(line: str) -> dict[tuple[str, int], int] | None:
    """The partitions of a KafkaSourceOffset, ``{"topic": {"0": 17}}``; None for the offset of another kind of source."""
    try:
        topics: Any = json.loads(line)
    except ValueError:
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
    """A checkpoint location of any file system that `pyarrow.fs` opens; a path without scheme is a local one."""

    def __init__(self, location: str) -> None:
        self.location = location

    def query_id(self) -> str:
        """The query's id, which outlives its runs. Raises OSError or ValueError where it cannot be read."""
        found = json.loads(self._read("metadata"))["id"]
        if not isinstance(found, str) or not found:
            raise ValueError(f"{self.location}/metadata holds no id")
        return found

    def newest_batch(self) -> int | None:
        """The newest batch that has source offsets: the one that is being run. Raises OSError or ValueError."""
        from pyarrow.fs import FileSelector

        filesystem, path = open_location(self.location)
        found = filesystem.get_file_info(FileSelector(f"{path}/offsets", allow_not_found=True))
        return max((int(info.base_name) for info in found if info.base_name.isdecimal()), default=None)

    def is_committed(self, version: int) -> bool:
        """Whether Spark has finished the batch. Raises OSError or ValueError."""
        from pyarrow.fs import FileType

        filesystem, path = open_location(self.location)
        return bool(filesystem.get_file_info(f"{path}/commits/{version}").type == FileType.File)

    def offsets(self, version: int) -> BatchOffsets:
        """The source offsets of a batch. Raises OSError or ValueError where they cannot be read."""
        content = self._read(f"offsets/{version}")
        lines = content.decode().splitlines()
        if len(lines) < OFFSETS_HEADER_LINES or not lines[0].startswith("v"):
            raise ValueError(f"{self.location}/offsets/{version} is not what Spark writes there")
        return BatchOffsets(
            version=version,
            sha256=hashlib.sha256(content).hexdigest(),
            log_format=lines[0],
            sources=tuple(lines[OFFSETS_HEADER_LINES:]),
        )

    def _read(self, name: str) -> bytes:
        filesystem, path = open_location(self.location)
        with filesystem.open_input_stream(f"{path}/{name}") as stream:
            return bytes(stream.read())
