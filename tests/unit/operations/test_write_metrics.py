"""The metrics of `kafka-eos metrics`: what they show of a view, what they count, and that their labels stay few and printable."""

from __future__ import annotations

import socket
import time
import urllib.request
from collections.abc import Sequence
from typing import Any, get_args

import prometheus_client
import pytest
from prometheus_client.parser import text_string_to_metric_families

from cluster_views import EVIL, batch, blocked, letters, transaction, write
from kafka_eos_sink.commit.write_states import CommittedWrite, WriteState
from kafka_eos_sink.errors import ConfigurationError
from kafka_eos_sink.operations import write_metrics
from kafka_eos_sink.operations.cluster_view import ClusterView, write_lines
from kafka_eos_sink.operations.write_metrics import THE_REST, WriteMetrics, served
from kafka_eos_sink.runtime.batch_record import BatchRecord

RANDOM = [f"kafka-eos/{number:08x}-0000-4000-8000-000000000000" for number in range(3)]
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
STATES = get_args(WriteState)
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def view(
    writes: Sequence[CommittedWrite] = (), batches: Sequence[BatchRecord] = (), *, age_s: int = 0, **given: Any
) -> ClusterView:
    """What a view finds that ended so many seconds ago; its batches are also the newest of the history."""
    lines = write_lines(writes, batches)
    return ClusterView(now_ms=now_ms() - age_s * 1000, writes=lines, batches=tuple(batches), **given)


def samples(metrics: WriteMetrics) -> Samples:
    """What a scrape gets; each series stands there once."""
    text = prometheus_client.generate_latest(metrics.registry).decode()
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for each in family.samples:
            key = each.name, frozenset(each.labels.items())
            assert key not in found
            found[key] = each.value
    return found


def value(found: Samples, name: str, **labels: str) -> float | None:
    return found.get((f"kafka_eos_{name}", frozenset(labels.items())))


def app_ids(found: Samples) -> set[str]:
    return {dict(labels)["app_id"] for _, labels in found if "app_id" in dict(labels)}


def after(*views: ClusterView) -> Samples:
    metrics = WriteMetrics()
    for each in views:
        metrics.viewed(each, 0.5)
    return samples(metrics)


def test_counters_count_the_batches_after_the_first_view() -> None:
    first = view([write()], [batch(1, rows=10**6)])
    later = view(
        [write(version=3)],
        [
            batch(2, rows=10, write_ms=200, verify_ms=50, written_bytes=77, transactions_copied=2, attempts_aborted=3),
            batch(3, rows=5, write_ms=None, recovered_by="abort", dead_letters=letters(NULL_TOPIC=3, UNKNOWN_TOPIC=1)),
        ],
    )
    found = after(first, later)
    expected = {"batches": 2, "rows": 15, "dead_letters": 4, "written_bytes": 77, "recovered_batches": 1}
    for name, wanted in {**expected, "copied_transactions": 2, "aborted_attempts": 3}.items():
        assert value(found, f"{name}_total", app_id="w") == wanted, name
    assert value(found, "batch_duration_seconds_count", app_id="w") == 1
    assert value(found, "batch_duration_seconds_sum", app_id="w") == 0.25
    assert value(found, "batch_duration_seconds_bucket", app_id="w", le="1.0") == 1
    assert value(found, "batch_phase_seconds_total", app_id="w", phase="write") == 0.2
    assert value(found, "batch_phase_seconds_total", app_id="w", phase="plan") == 0


def test_forgotten_write_is_gone_and_begins_at_zero() -> None:
    counted = view([write()], [batch(4)])
    # The history still has its batches.
    gone = [view([write("another")]), view([write("another")], [batch(5)])]
    assert app_ids(after(view([write()]), counted)) == {"w"}
    assert app_ids(after(view([write()]), counted, *gone)) == {"another"}
    again = after(view([write()]), counted, *gone, view([write()]))
    assert value(again, "batches_total", app_id="w") == 0


def test_batches_with_random_ids_share_a_series() -> None:
    views = [view([], [batch(0, write_id=each)]) for each in RANDOM]
    decided = write(RANDOM[0], state="decided", finished_ms=None)
    found = after(*views, view(), view([decided], transactions=(transaction(f"{RANDOM[0]}.0.0"),)))
    assert app_ids(found) == {"kafka-eos/*"}
    assert value(found, "batches_total", app_id="kafka-eos/*") == 2
    assert value(found, "versions", app_id="kafka-eos/*", state="decided") == 1
    assert value(found, "open_transactions", app_id="kafka-eos/*") == 1


def test_refused_part_is_absent_and_counters_stay() -> None:
    whole = view([write()], [batch(4)], transactions=(transaction(),), blocked=(blocked("w.0.3"),))
    refused = view(
        [], [batch(5)], not_read=("writes: denied", "transactions: denied", "hidden offsets of orders: denied")
    )
    found = after(view([write()]), whole, refused)
    readable = {data: value(found, "data_readable", data=data) for data in ("writes", "history", "transactions")}
    assert readable == {"writes": 0, "history": 1, "transactions": 0}
    assert value(found, "data_readable", data="hidden_offsets") == 0
    assert value(found, "batches_total", app_id="w") == 2
    assert value(found, "versions", app_id="w", state="finished") is None
    assert value(found, "open_transactions", app_id="w") is None
    assert value(found, "up") == 1


@pytest.mark.parametrize(("age_s", "shown"), [(200, True), (400, False)])
def test_view_is_shown_for_a_while_after_a_failure(age_s: int, shown: bool) -> None:
    metrics = WriteMetrics()
    metrics.viewed(view([write()]), 0.5)
    old = view([write()], [batch(4)], age_s=age_s)
    metrics.viewed(old, 0.5)
    metrics.failed()
    found = samples(metrics)
    assert value(found, "up") == 0
    assert value(found, "view_failures_total") == 1
    assert value(found, "last_view_timestamp_seconds") == old.now_ms / 1000
    assert (value(found, "last_version", app_id="w") == 3) == shown
    assert value(found, "batches_total", app_id="w") == 1
    metrics.viewed(view([write()]), 0.25)
    found = samples(metrics)
    assert (value(found, "up"), value(found, "view_duration_seconds")) == (1, 0.25)
    assert value(found, "last_version", app_id="w") == 3


def test_applications_beyond_the_bound_share_a_series(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_metrics, "APPLICATIONS", 2)
    many = [write(f"w{number}", finished_ms=number) for number in range(5)]
    batches = [batch(4, rows=10, write_id=f"w{number}") for number in range(5)]
    found = after(view(many), view(list(reversed(many)), batches))
    assert app_ids(found) == {"w4", "w3", THE_REST}
    assert value(found, "rows_total", app_id="w3") == 10
    assert value(found, "rows_total", app_id=THE_REST) == 30
    assert value(found, "versions", app_id=THE_REST, state="finished") == 3
    assert value(found, "last_version", app_id=THE_REST) is None
    # Those that wrote last have their own series, after those that need action.
    found = after(view(many), view([*many, write("new", finished_ms=9)]))
    assert app_ids(found) == {"new", "w4", THE_REST}
    assert app_ids(after(view(many), view(many[:4]))) == {"w3", "w2", THE_REST}
    decided = write("w0", state="decided", finished_ms=None)
    assert app_ids(after(view(many), view([decided, *many[1:]]))) == {"w0", "w4", THE_REST}


@pytest.mark.parametrize("bound", [10, 0], ids=["own series", "aggregated"])
def test_unfinished_decision_has_an_age_since_it_was_seen(monkeypatch: pytest.MonkeyPatch, bound: int) -> None:
    monkeypatch.setattr(write_metrics, "APPLICATIONS", bound)
    other = write("other", finished_ms=now_ms())
    old, new = (write(version=version, state="decided", finished_ms=None) for version in (4, 5))
    views = [view([other, each], age_s=age) for each, age in ((old, 90), (old, 60), (new, 30))]
    metrics = WriteMetrics()
    metrics.viewed(view([other]), 0.5)
    for each, age in zip(views, (90, 90, 30), strict=True):
        metrics.viewed(each, 0.5)
        name = "w" if bound == 10 else THE_REST
        assert value(samples(metrics), "unfinished_age_seconds", app_id=name) == pytest.approx(age, abs=5)
    metrics.viewed(view(not_read=("writes: denied",)), 0.5)
    metrics.viewed(view([other]), 0.5)
    assert not any(name == "kafka_eos_unfinished_age_seconds" for name, _ in samples(metrics))


def test_hostile_texts_are_printable_and_single_series() -> None:
    ids = [EVIL, EVIL.replace("\x07", "\x08"), 'quote" back\\slash', "\ud800", "long" * 5_000]
    found = after(
        view(
            [write(each) for each in ids],
            transactions=tuple(transaction(f"{each}.0.0") for each in ids),
            blocked=(blocked(f"{EVIL}.0.0", topic=EVIL),),
        )
    )
    # Two ids look alike, and are one series then.
    assert value(found, "versions", app_id="evil�]0;owned��2J� line", state="finished") == 2
    texts = {text for _, labels in found for _, text in labels}
    assert 'quote" back\\slash' in texts
    assert all(text.isprintable() and len(text) <= 500 for text in texts)


def test_metrics_are_served_over_http() -> None:
    metrics = WriteMetrics()
    with served(metrics, "127.0.0.1", 0) as url:
        with DIRECT.open(url, timeout=10) as response:
            assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert b"\nkafka_eos_up 0.0\n" in response.read()
        port = int(url.rpartition(":")[2].partition("/")[0])
        with (
            pytest.raises(ConfigurationError, match=rf"METRICS_NOT_SERVED\] .*127\.0\.0\.1, port {port}: .*--port"),
            served(metrics, "127.0.0.1", port),
        ):
            pass
    with pytest.raises(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        pass
