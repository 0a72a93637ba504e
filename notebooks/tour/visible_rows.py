"""How many rows a `read_committed` consumer has seen, second by second."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from dataclasses import dataclass

from confluent_kafka import Consumer, TopicPartition

_TIMEOUT_S = 10


@dataclass(frozen=True, slots=True)
class Mark:
    """What happened at a moment, in seconds since the first sample."""

    at_s: float
    text: str


class VisibleRows:
    """Follows topics by a `read_committed` consumer while its block runs, and counts the rows of each from its start on.

    ``samples`` maps a topic to pairs of seconds and rows.
    """

    def __init__(self, servers: str, *topics: str) -> None:
        self.samples: dict[str, list[tuple[float, int]]] = {topic: [(0.0, 0)] for topic in topics}
        self.marks: list[Mark] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "tour",
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 50,
            }
        )
        partitions = [TopicPartition(topic, number) for topic in topics for number in self._partitions(topic)]
        for each in partitions:
            _, each.offset = self._consumer.get_watermark_offsets(each, timeout=_TIMEOUT_S)
        self._consumer.assign(partitions)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="visible rows", daemon=True)
        self._began = time.monotonic()

    def _partitions(self, topic: str) -> list[int]:
        return list(self._consumer.list_topics(topic, timeout=_TIMEOUT_S).topics[topic].partitions)

    def __enter__(self) -> VisibleRows:
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        time.sleep(1.0)  # for the last rows
        self._ended.set()
        self._thread.join()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def mark(self, text: str) -> None:
        """Remember that this has happened now."""
        self.marks.append(Mark(self.seconds, text))

    def _follow(self) -> None:
        with closing(self._consumer):
            while not self._ended.is_set():
                messages = self._consumer.consume(10_000, timeout=0.1)
                now = self.seconds
                for topic, samples in self.samples.items():
                    found = sum(message.topic() == topic and message.error() is None for message in messages)
                    samples.append((now, samples[-1][1] + found))
