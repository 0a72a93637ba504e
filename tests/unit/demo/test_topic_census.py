from __future__ import annotations

from collections import Counter

import pytest

from kafka_eos_sink.demo.topic_census import Census, compare, count_records, fingerprint


def test_equal_multisets_are_exactly_once() -> None:
    sent = Counter({b"a": 1, b"b": 2})
    found = compare(sent, Counter({b"b": 2, b"a": 1}))
    assert found == Census(sent=3, visible=3, duplicates=0, missing=0, unknown=0)
    assert found.exactly_once


@pytest.mark.parametrize(
    ("seen", "duplicates", "missing", "unknown"),
    [
        ({b"a": 1}, 0, 2, 0),
        ({b"a": 3, b"b": 2}, 2, 0, 0),
        ({b"a": 1, b"b": 1, b"c": 1}, 0, 1, 1),
        ({b"a": 3}, 2, 2, 0),  # as many as were sent, and still wrong twice
        ({}, 0, 3, 0),
    ],
)
def test_duplicates_and_missing_do_not_cancel_out(
    seen: dict[bytes, int], duplicates: int, missing: int, unknown: int
) -> None:
    found = compare(Counter({b"a": 1, b"b": 2}), Counter(seen))
    assert (found.duplicates, found.missing, found.unknown) == (duplicates, missing, unknown)
    assert not found.exactly_once


def test_fingerprints_distinguish_null_empty_key_and_value() -> None:
    pairs = [(None, None), (None, b""), (b"", None), (b"", b""), (b"ab", b"c"), (b"a", b"bc"), (b"abc", b"")]
    assert len({fingerprint(key, value) for key, value in pairs}) == len(pairs)
    assert count_records([(b"k", b"v"), (b"k", b"v")]) == Counter({fingerprint(b"k", b"v"): 2})
