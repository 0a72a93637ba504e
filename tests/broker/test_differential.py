"""The same random tables written by us and by librdkafka: other clients cannot tell who wrote which.

A table has rows for topics of every shape, made from a seed: null and empty keys and values, single bytes and a megabyte,
unicode, headers, timestamps in no order. Both write it in one transaction with each codec; kafka-python and librdkafka
read both. A row is recognised by its timestamp, which no other row of its table has.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

import confluent_kafka
import confluent_kafka.admin
import pyarrow as pa
import pytest

from dead_writes import varied, write_settings
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.producer.rows import Rows
from kafka_eos_sink.protocol.compression import Compression
from kafka_eos_sink.protocol.record_columns import HEADERS_TYPE, RecordColumns
from kafka_eos_sink.runtime import session
from kafka_testing import PATIENCE_S, READERS, assert_nothing_open, await_markers, read_topics_committed

SEEDS = range(12)
CODECS = tuple(codec.name.lower() for codec in Compression)
WRITERS = ("ours", "theirs")
ROWS = 600
LARGEST = 1 << 20
LATEST_MS = 1_700_000_000_000
"""Brokers refuse records from the future."""
SIZES_OF_BATCHES = (1, 700, 16_384, 1_000_000)


# tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How the rows of a topic get to a partition."""

    partitions: int
    keyed: bool
    """Whether every row has a key, which decides unless the row names a partition."""
    placed: bool
    """Whether every row names a partition."""
    mixed: bool = False
    """Whether a row has a key, or names a partition, or both, as it comes."""


SHAPES: dict[str, Shape] = {
    "keyed": Shape(partitions=7, keyed=True, placed=False),
    "placed": Shape(partitions=3, keyed=False, placed=True),
    "mixed": Shape(partitions=4, keyed=True, placed=True, mixed=True),
    "single": Shape(partitions=1, keyed=False, placed=False, mixed=True),
    "keyless": Shape(partitions=3, keyed=False, placed=False),
    **{f"few-{number}": Shape(partitions=number % 3 + 1, keyed=True, placed=False) for number in range(6)},
}

Header = tuple[str, bytes | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    shape: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    timestamp: int

    @property
    def place_is_settled(self) -> bool:
        """Whether everybody puts it into the same partition."""
        return self.key is not None or self.partition is not None or SHAPES[self.shape].partitions == 1


def text(chance: random.Random, length: int) -> str:
    """Letters of many scripts, signs of four bytes among them; no control character."""
    ranges = ((0x20, 0x7E), (0xA1, 0x24F), (0x391, 0x3C9), (0x5D0, 0x5EA), (0x4E00, 0x9FFF), (0x1F300, 0x1F64F))
    return "".join(chr(chance.randint(*chance.choice(ranges))) for _ in range(length))


def content(chance: random.Random) -> bytes | None:
    """A value: null, empty, a byte, text, or bytes of any kind, most of them short."""
    kind = chance.randrange(12)
    if kind == 0:
        return None
    if kind == 1:
        return b""
    if kind == 2:
        return chance.randbytes(1)
    if kind < 7:
        return text(chance, chance.randrange(60)).encode()
    length = chance.choice((10, 130, 2_000, 20_000)) * chance.randrange(1, 10) // 5
    return chance.randbytes(length) if kind < 10 else chance.randbytes(3) * (length // 3)


def headers(chance: random.Random) -> tuple[Header, ...]:
    def value() -> bytes | None:
        return chance.choice((None, b"", b"1", text(chance, 9).encode(), chance.randbytes(200)))

    keys = ("", "a", "a", "trace-id", text(chance, 5))
    return tuple((chance.choice(keys), value()) for _ in range(max(0, chance.randrange(8) - 4)))


def random_table(seed: int, codec: str) -> list[Row]:
    """No timestamp is in the table of another codec either."""
    chance = random.Random(f"{seed}/{codec}")
    times = chance.sample(range(CODECS.index(codec) + 1, LATEST_MS, len(CODECS)), ROWS)
    keys = [text(chance, chance.randrange(1, 20)).encode() for _ in range(40)] + [b"\x00", b"k" * 3_000]

    def row(number: int, value: bytes | None) -> Row:
        name = chance.choice(tuple(SHAPES))
        shape = SHAPES[name]
        has_key, is_placed = shape.keyed, shape.placed
        if shape.mixed:
            has_key = chance.random() < 0.5
            is_placed = (not has_key and shape.partitions > 1) or chance.random() < 0.5
        key = chance.choice(keys) if has_key else None
        if is_placed and key is None:
            key = chance.choice((None, b""))  # librdkafka places an empty key at random
        return Row(
            shape=name,
            partition=chance.randrange(shape.partitions) if is_placed else None,
            key=key,
            value=value,
            headers=headers(chance),
            timestamp=times[number],
        )

    large = {
        100: chance.randbytes(LARGEST),
        200: text(chance, 1_000).encode() * 300,
        300: b"x" * LARGEST,
    }
    return [row(number, large.get(number) or content(chance)) for number in range(ROWS)]


# writers


def topic_of(run: str, writer: str, codec: str, shape: str) -> str:
    return f"{run}-{writer}-{codec}-{shape}"


def make_topics(kafka: EmbeddedKafka, run: str) -> None:
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    wanted = [
        confluent_kafka.admin.NewTopic(
            topic_of(run, writer, codec, name),
            num_partitions=shape.partitions,
            # Retention goes by the records' timestamps, and most of these are old: they would be gone within minutes.
            config={"max.message.bytes": str(2 * LARGEST), "retention.ms": "-1"},
        )
        for writer in WRITERS
        for codec in CODECS
        for name, shape in SHAPES.items()
    ]
    for future in admin.create_topics(wanted, operation_timeout=30).values():
        future.result(PATIENCE_S)


def write_ours(kafka: EmbeddedKafka, run: str, codec: str, table: list[Row]) -> None:
    """As one task of a write whose rows name their topics, in slabs of any size."""
    chance = random.Random(codec)
    config = ProducerConfig(compression=codec, batch_size=chance.choice(SIZES_OF_BATCHES), max_request_size=2 * LARGEST)
    settings = varied(write_settings(kafka, "of the rows"), topic=None, producer=config)

    def slabs() -> Iterator[Rows]:
        first = 0
        while first < len(table):
            slab = table[first : first + chance.choice((1, 10, 300))]
            first += len(slab)
            yield Rows(
                topic=pa.array([topic_of(run, "ours", codec, row.shape) for row in slab]),
                partition=pa.array([row.partition for row in slab], pa.int32()),
                columns=RecordColumns(
                    key=pa.array([row.key for row in slab], pa.binary()),
                    value=pa.array([row.value for row in slab], pa.binary()),
                    headers=pa.array(
                        [[{"key": key, "value": value} for key, value in row.headers] for row in slab], HEADERS_TYPE
                    ),
                    timestamp=pa.array([row.timestamp for row in slab], pa.int64()),
                ),
            )

    plan = session.plan(settings)
    task = session.TaskIdentity(partition=0, attempt_number=0, task_attempt_id=0)
    assert session.commit(settings, plan, [session.write_task(settings, plan, task, slabs())]) is not None


def write_theirs(kafka: EmbeddedKafka, run: str, codec: str, table: list[Row]) -> None:
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "transactional.id": f"{run}-{codec}",
            "compression.type": codec,
            "partitioner": "murmur2_random",
            "message.max.bytes": 2 * LARGEST,
        }
    )
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    for row in table:
        producer.produce(
            topic_of(run, "theirs", codec, row.shape),
            row.value,
            row.key,
            -1 if row.partition is None else row.partition,
            headers=list(row.headers),
            timestamp=row.timestamp,
        )
    producer.commit_transaction(PATIENCE_S)


# readers


@dataclass(frozen=True, slots=True)
class Seen:
    """A record as a reader shows it: `content` is all but place and time."""

    partition: int
    timestamp: int
    content: tuple[object, ...]


def shown_by_clients(row: Row) -> tuple[object, ...]:
    return row.key, row.value, row.headers


@dataclass(slots=True)
class Written:
    """The tables of a seed, by codec, written twice; and what each reader saw of them, once it was asked."""

    kafka: EmbeddedKafka
    run: str
    tables: dict[str, list[Row]]
    seen: dict[str, dict[str, list[Seen]]] = field(default_factory=dict)

    def topics(self, writer: str) -> list[str]:
        return [topic_of(self.run, writer, codec, shape) for codec in CODECS for shape in SHAPES]

    def seen_by(self, reader: str) -> dict[str, list[Seen]]:
        """By topic, in order of partition and offset."""
        if reader not in self.seen:
            self.seen[reader] = self._read_with_client(reader)
        return self.seen[reader]

    def _read_with_client(self, reader: str) -> dict[str, list[Seen]]:
        topics = [topic for writer in WRITERS for topic in self.topics(writer)]
        records = read_topics_committed(self.kafka.bootstrap_servers, topics, reader=reader)  # type: ignore[arg-type]
        return {
            topic: [Seen(each.partition, each.timestamp, (each.key, each.value, each.headers)) for each in found]
            for topic, found in records.items()
        }


@pytest.fixture(scope="module", params=SEEDS, ids=lambda seed: f"seed {seed}")
def written(request: pytest.FixtureRequest, kafka: EmbeddedKafka) -> Written:
    run = f"differential-{uuid.uuid4().hex[:8]}"
    made = Written(kafka, run, {codec: random_table(request.param, codec) for codec in CODECS})
    make_topics(kafka, run)
    for codec, table in made.tables.items():
        write_ours(kafka, run, codec, table)
        write_theirs(kafka, run, codec, table)
    await_markers(kafka.bootstrap_servers)
    return made


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("reader", READERS)
def test_records_are_those_that_librdkafka_writes(written: Written, reader: str, codec: str) -> None:
    seen = written.seen_by(reader)
    places: dict[str, dict[int, int]] = {}
    for writer in WRITERS:
        places[writer] = {}
        for shape in SHAPES:
            rows = [row for row in written.tables[codec] if row.shape == shape]
            records = seen[topic_of(written.run, writer, codec, shape)]
            assert sorted(record.timestamp for record in records) == sorted(row.timestamp for row in rows)
            contents = {record.timestamp: record.content for record in records}
            # Not compared in one piece: what pytest would print of a difference has megabytes.
            assert [row.timestamp for row in rows if contents[row.timestamp] != shown_by_clients(row)] == []
            for partition in range(SHAPES[shape].partitions):
                times = [record.timestamp for record in records if record.partition == partition]
                assert times == [row.timestamp for row in rows if row.timestamp in set(times)]
            partitions = {record.timestamp: record.partition for record in records}
            places[writer] |= {row.timestamp: partitions[row.timestamp] for row in rows if row.place_is_settled}
            for row in rows:
                assert row.partition in (None, partitions[row.timestamp])
    assert places["ours"] == places["theirs"]
    assert len(places["ours"]) > ROWS / 2


def test_differential_tables_cover_all_edge_cases(written: Written) -> None:
    """So that nothing is left out in silence."""
    for table in written.tables.values():
        values = [row.value for row in table]
        assert {None, b""} <= set(values)
        assert {1, LARGEST} <= {len(value or b"") for value in values}
        assert {None, b""} <= {row.key for row in table}
        assert {row.shape for row in table} == set(SHAPES)
        assert {None, b""} <= {value for row in table for _, value in row.headers}
        assert any(len(row.headers) > len({key for key, _ in row.headers}) for row in table)
        assert [row.timestamp for row in table] != sorted(row.timestamp for row in table)


def test_writers_leave_no_open_transaction(written: Written) -> None:
    for writer in WRITERS:
        assert_nothing_open(written.kafka.bootstrap_servers, written.topics(writer))
