"""What the readers of a campaign see, and what must be true of it. It uses nothing of the product: librdkafka and kafka-python read.

A value is ``WRITER|UNIT|LINE|TASK|INDEX``. In a copy, PARTITION and OFFSET of the input stand behind LINE. Another program writes
``foreign|...``. Each reader checks at once that the rows of a task come in their order, and that no row comes twice.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import confluent_kafka
import kafka as kafka_python
from confluent_kafka.admin import AdminClient, OffsetSpec

PATIENCE_S = 120.0
OPEN = ["Ongoing", "PrepareCommit", "PrepareAbort"]
MOST_TOLD = 20
"""Rows that are wrong are told up to this number."""
Batch = tuple[str, str, int]
"""Topic, writer and unit."""


@dataclass(slots=True)
class Sightings:
    """What one reader has seen."""

    lines: dict[Batch, bytearray] = field(default_factory=lambda: defaultdict(bytearray))
    """How often each line of a unit was seen."""
    copied: dict[tuple[str, int], set[int]] = field(default_factory=lambda: defaultdict(set))
    """The offsets of the input that were seen, by writer and input partition."""
    newest: dict[Batch, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    """The largest offset of a unit's rows in each partition."""
    foreign: Counter[bytes] = field(default_factory=Counter)
    rows: int = 0
    wrong: list[str] = field(default_factory=list)
    _last: dict[tuple[str, int, str, str, bytes], int] = field(default_factory=dict)

    def take(self, topic: str, partition: int, offset: int, value: bytes) -> None:
        self.rows += 1
        fields = value.split(b"|")
        if fields[0] == b"foreign":
            self.foreign[value] += 1
            return
        writer, unit, line = fields[0].decode(), int(fields[1]), int(fields[2])
        if len(fields) == 7:
            self.copied[writer, int(fields[3])].add(int(fields[4]))
        seen = self.lines[topic, writer, unit]
        if len(seen) <= line:
            seen.extend(bytes(line + 1 - len(seen)))
        if seen[line]:
            self.tell(f"{value.decode()} is there again at {topic}-{partition} offset {offset}")
        seen[line] = min(255, seen[line] + 1)
        self.newest[topic, writer, unit][partition] = offset
        # A unit is one micro-batch, but of a copy: there a micro-batch has many.
        batch = str(unit) if len(fields) == 5 else ""
        where = topic, partition, writer, batch, fields[-2]
        index = int(fields[-1])
        if batch and index <= self._last.get(where, -1):
            self.tell(f"{value.decode()} at {topic}-{partition} offset {offset} comes after row {self._last[where]}")
        self._last[where] = index

    def tell(self, what: str) -> None:
        if len(self.wrong) < MOST_TOLD:
            self.wrong.append(what)


class LiveReader:
    """Reads topics under read_committed while the campaign runs."""

    def __init__(self, servers: str, topics: Iterable[str]) -> None:
        self.sightings = Sightings()
        self._servers = servers
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": f"campaign-{uuid.uuid4()}",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "log_level": 0,
            }
        )
        known = self._consumer.list_topics(timeout=60).topics
        parts = [(topic, part) for topic in topics for part in known[topic].partitions]
        self._ends = dict.fromkeys(parts, 0)
        beginning = confluent_kafka.OFFSET_BEGINNING
        self._consumer.assign([confluent_kafka.TopicPartition(*part, beginning) for part in parts])
        self._thread = threading.Thread(target=self._read, name="live-reader", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while not self._stopped.is_set():
            for message in self._consumer.consume(5_000, timeout=0.2):
                where = message.topic(), message.partition()
                error = message.error()
                if error is None:
                    with self._lock:
                        self.sightings.take(*where, message.offset(), message.value())
                elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    self._ends[where] = message.offset()  # behind the markers, in contrast to the position

    def is_absent(self, batches: Iterable[Batch]) -> bool:
        with self._lock:
            return not any(any(self.sightings.lines.get(batch, b"")) for batch in batches)

    def catch_up(self) -> None:
        """Read to the last stable offsets of now."""
        ends = stable_offsets(self._servers, self._ends)
        given_up_at = time.monotonic() + PATIENCE_S
        while time.monotonic() < given_up_at:
            if all(self._ends[part] >= end for part, end in ends.items()):
                return
            time.sleep(0.1)
        raise AssertionError(f"the live reader did not come to the last stable offsets {ends}")

    def close(self) -> None:
        self._stopped.set()
        self._thread.join()
        self._consumer.close()


Taker = TypeVar("Taker", Sightings, "Input")


def read_again(servers: str, topics: Iterable[str], found: Taker) -> Taker:
    """Hand over all records from the beginning, as kafka-python reads them under read_committed."""
    consumer = kafka_python.KafkaConsumer(
        bootstrap_servers=servers.split(","),
        group_id=None,
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    try:
        parts = [
            kafka_python.TopicPartition(topic, part)
            for topic in topics
            for part in consumer.partitions_for_topic(topic)
        ]
        consumer.assign(parts)
        consumer.seek_to_beginning(*parts)
        ends = consumer.end_offsets(parts)
        given_up_at = time.monotonic() + 5 * PATIENCE_S
        while any(consumer.position(part) < ends[part] for part in parts):
            assert time.monotonic() < given_up_at, "kafka-python did not come to the last stable offsets"
            for part, records in consumer.poll(timeout_ms=500, max_records=20_000).items():
                for record in records:
                    if record.offset < ends[part]:
                        found.take(part.topic, part.partition, record.offset, record.value)
    finally:
        consumer.close()
    return found


def stable_offsets(
    servers: str, parts: Iterable[tuple[str, int]], *, stable: bool = True
) -> dict[tuple[str, int], int]:
    """Return last stable offsets, or high watermarks."""
    level = confluent_kafka.IsolationLevel.READ_COMMITTED if stable else confluent_kafka.IsolationLevel.READ_UNCOMMITTED
    asked = {confluent_kafka.TopicPartition(*part): OffsetSpec.latest() for part in parts}
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})  # one that is forgotten never answers
    answers = admin.list_offsets(asked, isolation_level=level, request_timeout=30)
    return {(part.topic, part.partition): answer.result(60).offset for part, answer in answers.items()}


def transactions(admin: kafka_python.KafkaAdminClient, states: list[str]) -> list[Any]:
    """Return the transactions in these states, of all coordinators."""
    return [each for of_broker in admin.list_transactions(state_filters=states).values() for each in of_broker]


def partitions_of(admin: kafka_python.KafkaAdminClient, topics: Iterable[str]) -> list[tuple[str, int]]:
    known = admin.describe_topics(list(topics))
    return [(each["name"], part["partition_index"]) for each in known for part in each["partitions"]]


def what_is_open(servers: str, prefixes: Iterable[str], topics: Iterable[str]) -> list[str]:
    """Return the open transactions of some transactional ids, and the partitions that readers cannot read to the end."""
    admin = kafka_python.KafkaAdminClient(bootstrap_servers=servers.split(","))
    try:
        listed = transactions(admin, OPEN)
        parts = partitions_of(admin, topics)
    finally:
        admin.close()
    found = [
        f"{each.transactional_id} is {each.state}"
        for each in listed
        if each.transactional_id.startswith(tuple(prefixes))
    ]
    stable, high = stable_offsets(servers, parts), stable_offsets(servers, parts, stable=False)
    return found + [
        f"{topic}-{part} is stable up to {stable[topic, part]} of {high[topic, part]}"
        for topic, part in parts
        if stable[topic, part] < high[topic, part]
    ]


def await_nothing_open(servers: str, prefixes: Iterable[str], topics: Iterable[str], within_s: float) -> None:
    """Wait until nothing of the writers is open and readers see everything; raise AssertionError if that takes longer."""
    began = time.monotonic()
    prefixes, topics, problems = list(prefixes), list(topics), ["nobody looked"]
    while True:
        late = time.monotonic() - began > within_s
        with contextlib.suppress(kafka_python.errors.KafkaError, confluent_kafka.KafkaException):
            problems = what_is_open(servers, prefixes, topics)
            if not problems:
                return
        if late:
            raise AssertionError(f"still open {within_s:g} s after the last fault: {'; '.join(problems[:5])}")
        time.sleep(0.3)


def group_offsets(servers: str, group: str) -> dict[int, int]:
    """Return the committed offset of each input partition."""
    request = confluent_kafka.ConsumerGroupTopicPartitions(group)
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    found = admin.list_consumer_group_offsets([request], require_stable=True)[group].result()
    return {each.partition: each.offset for each in found.topic_partitions}


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What one writer was asked to write: the rows of each unit, and the units that were accepted."""

    writer: str
    topics: tuple[str, ...]
    units: Mapping[int, int]
    accepted: frozenset[int]
    input_topic: str = ""
    """Of a copy: all that is committed there must be written, in micro-batches that are others than its units."""
    group: str = ""


@dataclass(slots=True)
class Input:
    """What is committed in the input of a copy."""

    units: Counter[int] = field(default_factory=Counter)
    offsets: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))

    def take(self, topic: str, partition: int, offset: int, value: bytes) -> None:
        self.units[int(value.split(b"|")[0])] += 1
        self.offsets[partition].add(offset)


def judge(
    seen: Sightings,
    wanted: Iterable[Expected],
    foreign: Mapping[bytes, int],
    unknown: Collection[bytes],
    *,
    all_written: bool,
) -> list[str]:
    """Return what is wrong with what a reader has seen.

    Args:
        foreign: How often each committed value of other programs must be there; others must not be.
        unknown: Values of other programs that do not know how their transaction ended.
        all_written: Whether every unit must be there, not only those that were accepted.
    """
    wrong = list(seen.wrong)
    known: set[Batch] = set()
    for expected in wanted:
        for number, rows in expected.units.items():
            for topic in expected.topics:
                batch = topic, expected.writer, number
                known.add(batch)
                lines = seen.lines.get(batch, b"")
                there = sum(1 for times in lines[:rows] if times)
                must = all_written or number in expected.accepted
                if there != rows and (must or (there and not expected.input_topic)):
                    kind = "accepted " if number in expected.accepted else ""
                    wrong.append(
                        f"{there} of {rows} rows of the {kind}unit {number} of {expected.writer} are in {topic}"
                    )
                if any(lines[rows:]):
                    wrong.append(f"unit {number} of {expected.writer} has lines in {topic} that nobody wrote")
    wrong += [
        f"{batch} is there, and was never asked for"
        for batch in seen.lines
        if batch not in known and any(seen.lines[batch])
    ]
    wrong += [
        f"{value.decode()} of another program is there {seen.foreign[value]} times, not {foreign.get(value, 0)}"
        for value in {*seen.foreign, *foreign}.difference(unknown)
        if seen.foreign[value] != foreign.get(value, 0)
    ]
    return wrong


def judge_returned(
    servers: str, seen: Sightings, writer: str, notes: Iterable[tuple[str, int, list[int]]]
) -> list[str]:
    """Require that the rows of a unit were visible when its write returned.

    Args:
        notes: Topic, unit, and the last stable offset of each partition right after a write of it returned.
    """
    wrong = []
    for topic, number, stable in notes:
        for part, newest in seen.newest.get((topic, writer, number), {}).items():
            # A transaction of another program may hold back readers.
            if newest >= stable[part] and not value_at(servers, topic, part, stable[part]).startswith(b"foreign|"):
                wrong.append(
                    f"the write of unit {number} of {writer} returned when {topic}-{part} was stable up to {stable[part]}, "
                    f"and its rows reach to {newest}"
                )
    return wrong


def value_at(servers: str, topic: str, partition: int, offset: int) -> bytes:
    """Return the value of the first record from an offset on, of any transaction."""
    part = kafka_python.TopicPartition(topic, partition)
    consumer = kafka_python.KafkaConsumer(bootstrap_servers=servers.split(","), group_id=None, enable_auto_commit=False)
    try:
        consumer.assign([part])
        consumer.seek(part, offset)
        given_up_at = time.monotonic() + PATIENCE_S
        while time.monotonic() < given_up_at:
            for record in consumer.poll(timeout_ms=500, max_records=1).get(part, ()):
                return bytes(record.value)
    finally:
        consumer.close()
    raise AssertionError(f"no record at {topic}-{partition} from offset {offset} on")


def judge_group(servers: str, seen: Sightings, copy: Expected, committed: Input) -> list[str]:
    """Compare a group's offsets with what is visible: all committed input below them, and nothing above."""
    wrong = []
    for part, end in group_offsets(servers, copy.group).items():
        there = seen.copied[copy.writer, part]
        below = {offset for offset in committed.offsets[part] if offset < end}
        if there != below:
            missing, above = len(below - there), len(there - below)
            wrong.append(
                f"{copy.group} is at {end} of partition {part}: {missing} rows below are missing, {above} above are there"
            )
    return wrong
