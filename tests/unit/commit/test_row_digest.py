"""The digest of rows depends on all that a row holds, and on nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_eos_sink.commit.row_digest import add_digests, row_digest
from kafka_eos_sink.protocol.record_columns import HEADERS_TYPE, RecordColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    value: bytes | None = b"value"
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] | None = None
    timestamp: int | None = None
    topic: str = "flights"
    partition: int | None = None


def columns_of(rows: Sequence[Row]) -> RecordColumns:
    headers = [
        None if row.headers is None else [{"key": key, "value": value} for key, value in row.headers] for row in rows
    ]
    return RecordColumns(
        value=pa.array([row.value for row in rows], pa.binary()),
        key=pa.array([row.key for row in rows], pa.binary()),
        headers=pa.array(headers, HEADERS_TYPE),
        timestamp=pa.array([row.timestamp for row in rows], pa.int64()),
    )


def digest(*rows: Row) -> int:
    topics = pa.array([row.topic for row in rows], pa.string())
    partitions = pa.array([row.partition for row in rows], pa.int32())
    return row_digest(topics, partitions, columns_of(rows))


contents = st.none() | st.binary(max_size=40) | st.integers(0, 700).map(lambda size: b"x" * size)
row_strategy = st.builds(
    Row,
    value=contents,
    key=contents,
    headers=st.none()
    | st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=20)), max_size=3).map(tuple),
    timestamp=st.none() | st.integers(0, 2**50),
    topic=st.sampled_from(["flights", "planes", "ä"]),
    partition=st.none() | st.integers(0, 100),
)
tables = st.lists(row_strategy, min_size=1, max_size=30)


@settings(deadline=None)
@given(tables, st.randoms(use_true_random=False))
def test_order_does_not_matter(rows: list[Row], random: object) -> None:
    shuffled = list(rows)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert digest(*shuffled) == digest(*rows)


@settings(deadline=None)
@given(tables, st.data())
def test_the_digests_of_pieces_add_up(rows: list[Row], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(rows)))
    assert add_digests(digest(*rows[:cut]), digest(*rows[cut:])) == digest(*rows)
    whole = columns_of(rows)
    topics = pa.array([row.topic for row in rows])
    partitions = pa.array([row.partition for row in rows], pa.int32())
    sliced = [
        row_digest(topics.slice(start, length), partitions.slice(start, length), whole.slice(start, length))
        for start, length in ((0, cut), (cut, len(rows) - cut))
    ]
    assert add_digests(*sliced) == digest(*rows)
    assert digest(*rows) == sum(digest(row) for row in rows) % 2**128


@settings(deadline=None)
@given(tables)
def test_the_digest_is_a_number_of_128_bits(rows: list[Row]) -> None:
    assert 0 <= digest(*rows) < 2**128


def test_no_rows_have_the_digest_zero() -> None:
    assert digest() == 0
    assert row_digest("flights", None, RecordColumns(value=pa.array([], pa.string()))) == 0


@pytest.mark.parametrize(
    "kind",
    [pa.large_string(), pa.string_view(), pa.dictionary(pa.int16(), pa.string()), pa.binary(), pa.large_binary()],
    ids=str,
)
def test_types_do_not_matter(kind: pa.DataType) -> None:
    texts = ["", None, "häuser", "x" * 300, "häuser"]
    topics = pa.array(["a", "b", "a", "a", "b"])

    def of(column: pa.Array, topic: pa.Array) -> int:
        return row_digest(topic, None, RecordColumns(value=column, key=column))

    plain = of(pa.array(texts), topics)
    encoded = texts if not pa.types.is_binary(kind) else [None if t is None else t.encode() for t in texts]
    assert of(pa.array(["no", *texts]).cast(pa.string()).slice(1), topics) == plain
    assert of(pa.array(encoded, kind), topics) == plain
    for topic_kind in (pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())):
        assert of(pa.array(texts), pa.array(topics.to_pylist(), topic_kind)) == plain


@settings(deadline=None)
@given(tables)
def test_fixed_topic_and_missing_columns_hash_like_full_columns(rows: list[Row]) -> None:
    bare = [replace(row, topic="flights", partition=None, key=None, headers=None, timestamp=None) for row in rows]
    values = columns_of(bare).value
    assert row_digest("flights", None, RecordColumns(value=values)) == digest(*bare)


ROW = Row(value=b"c" * 33, key=b"ab", headers=(("h", b"1"), ("i", None)), timestamp=5, partition=3)


@pytest.mark.parametrize(
    "other",
    [
        replace(ROW, value=None),
        replace(ROW, value=b""),
        replace(ROW, value=b"c" * 32),
        replace(ROW, value=b"c" * 33 + b"\0"),
        replace(ROW, value=b"c" * 32 + b"d"),
        replace(ROW, key=None),
        replace(ROW, key=b""),
        replace(ROW, key=b"ab\0"),
        replace(ROW, key=b"abc", value=b"c" * 32),
        replace(ROW, key=b"a", value=b"b" + b"c" * 33),
        replace(ROW, key=b"c" * 33, value=b"ab"),
        replace(ROW, headers=None),
        replace(ROW, headers=(("h", b"1"),)),
        replace(ROW, headers=(("i", None), ("h", b"1"))),
        replace(ROW, headers=(("h", b"1"), ("i", b""))),
        replace(ROW, headers=(("h1", b""), ("i", None))),
        replace(ROW, headers=(("h", b"2"), ("i", None))),
        replace(ROW, timestamp=None),
        replace(ROW, timestamp=0),
        replace(ROW, timestamp=6),
        replace(ROW, partition=None),
        replace(ROW, partition=0),
        replace(ROW, partition=5, timestamp=3),
        replace(ROW, topic="flight"),
    ],
    ids=str,
)
def test_any_difference_in_a_row_is_seen(other: Row) -> None:
    assert digest(other) != digest(ROW)
    assert digest(ROW, other) != digest(ROW, ROW)
    assert digest(ROW, other) != digest(other, other)


def test_null_and_empty_differ_but_not_for_a_list_of_headers() -> None:
    combinations = {digest(Row(key=key, value=value)) for key in (None, b"") for value in (None, b"")}
    assert len(combinations) == 4
    assert digest(Row(headers=None)) == digest(Row(headers=()))


def test_a_row_that_comes_twice_counts_twice() -> None:
    once, twice, thrice = digest(ROW), digest(ROW, ROW), digest(ROW, ROW, ROW)
    assert len({0, once, twice, thrice}) == 4


def test_rows_that_swap_their_values_are_seen() -> None:
    first, second = Row(key=b"1", value=b"a"), Row(key=b"2", value=b"b")
    swapped = replace(first, value=b"b"), replace(second, value=b"a")
    assert digest(first, second) != digest(*swapped)
    topics = replace(first, topic="planes"), second
    assert digest(*topics) != digest(first, replace(second, topic="planes"))


@pytest.mark.parametrize("length", [1, 7, 8, 16, 17, 100, 255, 256, 257, 300, 4096, 4100, 70_000])
def test_every_flipped_bit_gives_another_digest(length: int) -> None:
    original = bytes(range(256)) * (length // 256) + bytes(length % 256)
    places = range(8 * length) if length <= 17 else np.random.default_rng(7).integers(0, 8 * length, 100)
    digests = {digest(Row(value=original))}
    variants = []
    for place in map(int, places):
        changed = bytearray(original)
        changed[place // 8] ^= 1 << place % 8
        variants.append(Row(value=bytes(changed)))
    digests |= {digest(variant) for variant in variants}
    assert len(digests) == len({variant.value for variant in variants}) + 1


def one_digest_per_row(values: list[bytes]) -> list[int]:
    column = pa.array(values, pa.binary())
    return [row_digest("t", None, RecordColumns(value=column.slice(place, 1))) for place in range(len(values))]


def test_a_flipped_bit_changes_half_of_the_digest() -> None:
    """In every half and every byte of a word, also where only the top bits differ."""
    random = np.random.default_rng(11)
    original = random.integers(0, 256, 40, np.uint8).tobytes()
    variants = []
    for place in range(8 * len(original)):
        changed = bytearray(original)
        changed[place // 8] ^= 1 << place % 8
        variants.append(bytes(changed))
    base, *others = one_digest_per_row([original, *variants])
    bits = np.array([[(base ^ other) >> bit & 1 for bit in range(128)] for other in others])
    assert 60 < bits.sum(axis=1).mean() < 68
    assert bits.sum(axis=1).min() > 30
    share_per_bit = bits.mean(axis=0)
    assert share_per_bit.min() > 0.3
    assert share_per_bit.max() < 0.7


def test_numbers_that_count_up_in_few_digits_do_not_collide() -> None:
    """Rows that differ only in the highest byte of neighbouring words, where multiplication mixes least."""
    values = []
    for first in range(0x30, 0x3A):
        for second in range(0x30, 0x3A):
            for third in range(0x30, 0x3A):
                row = bytearray(b"0" * 48)
                row[7], row[23], row[27] = first, second, third
                values.append(bytes(row))
    digests = one_digest_per_row(values)
    for mask in (2**32 - 1, (2**32 - 1) << 32, (2**32 - 1) << 64, (2**32 - 1) << 96):
        # A thousand values of 32 bits: a collision by chance has a probability of one in ten thousand.
        assert len({one & mask for one in digests}) == len(values)


def test_rows_of_all_lengths_in_one_column() -> None:
    random = np.random.default_rng(3)
    lengths = [0, 1, 255, 256, 257, 70_000, 15, 16, 17, 5000, 0, 64, 65_536, 65_537, 1_200_000]
    rows = [Row(value=random.bytes(length), key=random.bytes(length % 40)) for length in lengths]
    assert digest(*rows) == sum(digest(row) for row in rows) % 2**128


def test_more_rows_than_are_hashed_at_once() -> None:
    rows = [Row(value=b"%d" % number, timestamp=number) for number in range(40_000)]
    thirds = digest(*rows[:13_000]), digest(*rows[13_000:26_001]), digest(*rows[26_001:])
    assert sum(thirds) % 2**128 == digest(*rows)


def test_the_digest_never_changes_between_versions() -> None:
    """Digests are kept in the commit log and compared by whichever version runs next."""
    assert digest(ROW) == 0x15721F212CCD1E87CAE14270522B3EB9
    assert digest(Row(value=bytes(range(256)) * 5, topic="ä")) == 0x2FBDA525FF2B7180C9A1DA69B378D32F


def test_columns_of_unequal_length_and_null_topics_are_refused() -> None:
    columns = RecordColumns(value=pa.array([b"a", b"b"]))
    with pytest.raises(ValueError, match="topic has 1 rows, the records have 2"):
        row_digest(pa.array(["a"]), None, columns)
    with pytest.raises(ValueError, match="partition has 3 rows"):
        row_digest("a", pa.array([1, 2, 3], pa.int32()), columns)


def test_a_null_topic_has_a_digest_of_its_own() -> None:
    columns = RecordColumns(value=pa.array([b"a"]))
    digests = {row_digest(pa.array([topic], pa.string()), None, columns) for topic in (None, "", "null", "None")}
    assert len(digests) == 4
