"""Which writes of a prefix `forget` removes, and what keeps the others."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from cluster_views import NOW, write
from kafka_eos_sink.cli.forget import duration_ms
from kafka_eos_sink.operations.write_status import sort_out


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({}, ""),
        ({"state": "resolved", "resolution": "committed"}, ""),
        ({"state": "resolved", "resolution": "rewrite"}, "version 3 is resolved"),
        ({"state": "resolved", "finished_ms": None}, "the commit log does not hold when version 3 ended"),
        ({"finished_ms": NOW}, "finished at 2023-11-14T22:14:20+00:00"),
        ({"state": "decided"}, "version 3 is decided"),
        ({"state": "in-doubt", "version": None}, "a version is in-doubt"),
        ({"state": "prepared"}, "version 3 is prepared"),
        ({"state": "void"}, "version 3 is void"),
        ({"state": "unreadable", "version": None}, "a version is unreadable"),
    ],
)
def test_only_a_write_that_finished_before_is_at_rest(given: dict[str, Any], reason: str) -> None:
    found = sort_out(
        [write(finished_ms=NOW - 1) if not given else write(**{"finished_ms": NOW - 1, **given})], set(), NOW
    )
    assert found.left == ({"w": reason} if reason else {})
    assert found.write_ids == (() if reason else ("w",))


def test_open_transaction_keeps_a_write_that_has_finished() -> None:
    found = sort_out([write(finished_ms=1), write("v", finished_ms=1)], {"w", None}, NOW)
    assert (found.write_ids, found.left) == (("v",), {"w": "a transaction is open"})


def test_every_query_id_of_a_write_must_be_at_rest() -> None:
    found = sort_out([write(finished_ms=1), write(query_id="q", finished_ms=NOW)], set(), NOW)
    assert found.at_rest == ()
    assert list(found.left) == ["w"]


@pytest.mark.parametrize("text", ["", "90", "d", "-1d", "1.5d", "90 d", "90D", "3m", "1d12h", "99999999999d"])
def test_other_durations_are_rejected(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="90d or 12h"):
        duration_ms(text)
