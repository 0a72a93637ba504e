"""What `ClusterWatch` reads, as metric families of prometheus_client.

Two threads use it: one hands over views, and the threads of the HTTP server collect. No collector waits for Kafka, and a scrape
shows the counters and the gauges of one view.

Counters count the records of the history since the start of the process. The other metrics show the last view.

The label ``app_id`` is a write id without its topic. A Prometheus keeps every value that it has ever seen, so the values are few,
and printable: no metric has a transactional id, all writes with a random id share a value, and so do all applications beyond
`APPLICATIONS`. Each value has at most 40 series.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, get_args

import prometheus_client
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kafka_eos_sink import __version__
from kafka_eos_sink.commit.refusals import refused
from kafka_eos_sink.commit.transactional_id import application_of, is_random_write_id, write_id_of
from kafka_eos_sink.commit.write_states import WriteState
from kafka_eos_sink.errors import peer_text
from kafka_eos_sink.operations.cluster_view import PARTS, ClusterView, WriteLine
from kafka_eos_sink.operations.transactions import times_ms
from kafka_eos_sink.runtime.batch_record import BatchRecord
from kafka_eos_sink.runtime.stopwatch import PHASES

APPLICATIONS = 200
"""Values of the label ``app_id``: those that need action, then those that wrote last."""
BLOCKED_PARTITIONS = 1_000
"""Blocked partitions that are shown; one transaction can block every partition of the cluster."""
THE_REST = "*"
"""The value that all other applications share."""
CLIENT_WITHIN_S = 10.0
"""For how long a client may take over its request."""
STALE_S = 300.0
"""For how long a view is shown after a reading that failed: as long as Prometheus itself shows a series that has ended."""
_BUCKETS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, math.inf)

_UNFINISHED: tuple[WriteState, ...] = ("decided", "in-doubt")

_COUNTERS: Mapping[str, tuple[str, Callable[[BatchRecord], int]]] = {
    "batches": ("Batches that were decided and finished.", lambda batch: 1),
    "recovered_batches": (
        "Batches that their own commit did not finish.",
        lambda batch: batch.recovered_by is not None,
    ),
    "rows": ("Rows of finished batches, dead letters included.", lambda batch: batch.rows),
    "dead_letters": (
        "Rows of finished batches that went to a dead letter topic.",
        lambda batch: batch.dead_letter_rows,
    ),
    "written_bytes": ("Bytes of record batches as sent, compressed.", lambda batch: batch.written_bytes or 0),
    "copied_transactions": (
        "Transactions that Kafka had aborted after their decision, and whose rows were copied.",
        lambda batch: batch.transactions_copied,
    ),
    "aborted_attempts": (
        "Open transactions of dead runs and of losing attempts that plan and commit aborted.",
        lambda batch: batch.attempts_aborted or 0,
    ),
}

_GAUGES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "up": ("1 if the last attempt to read Kafka succeeded.", ()),
    "last_view_timestamp_seconds": ("When Kafka was read for the last view.", ()),
    "view_duration_seconds": ("Duration of that view.", ()),
    "data_readable": ("1 if the last view has this kind of data, 0 if the cluster refused it.", ("data",)),
    "versions": ("Writes by the state of their newest version, and versions in progress.", ("app_id", "state")),
    "unfinished_age_seconds": ("For how long this exporter has seen the oldest unfinished decision.", ("app_id",)),
    "last_version": ("Number of the version that finished last, or was resolved as committed.", ("app_id",)),
    "last_version_finished_timestamp_seconds": ("When the last version was finished or resolved.", ("app_id",)),
    "last_version_rows": ("Rows of the last version; absent if it was resolved.", ("app_id",)),
    "last_version_written_bytes": ("Bytes of the last version as sent; absent if it was resolved.", ("app_id",)),
    "least_headroom_seconds": (
        "Time to the transaction timeout that was left to the last version with the least of it, when its transactions had ended.",
        ("app_id",),
    ),
    "least_headroom_duration_seconds": ("Duration of that version, from plan to verify.", ("app_id",)),
    "open_transactions": ("Open transactions; without app_id those of other programs.", ("app_id",)),
    "open_transaction_age_seconds": ("Age of the oldest open transaction.", ("app_id",)),
    "open_transaction_headroom_seconds": ("Time left to the nearest transaction timeout.", ("app_id",)),
    "blocked_partition_hidden_offsets": (
        "Offsets that read_committed consumers do not see; app_id names the application of the oldest transaction.",
        ("topic", "partition", "app_id"),
    ),
    "blocked_partition_age_seconds": (
        "Age of the oldest open transaction in the partition; app_id names its application.",
        ("topic", "partition", "app_id"),
    ),
}


_Version = tuple[str, str, int | None]
"""Write id, query id and version."""


class _Viewed(NamedTuple):
    """The last view, and the label value of each write id in it."""

    view: ClusterView
    names: Mapping[str, str]

    def name(self, transactional_id: str) -> str:
        """Return the label value for a transaction, empty for another program's."""
        return self.names.get(write_id_of(transactional_id) or "", "")


class WriteMetrics(Collector):
    """A registry of all metrics; `viewed` and `failed` record each reading of Kafka."""

    def __init__(self) -> None:
        self.registry = prometheus_client.CollectorRegistry()
        build = prometheus_client.Info("kafka_eos_build", "The version of kafka-eos.", registry=self.registry)
        build.info({"version": __version__})
        prometheus_client.ProcessCollector(registry=self.registry)
        # When a series was created is of no use, and the names would be new in every dashboard.
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        # In no registry: a scrape gets them together with the gauges of one view.
        counter = partial(prometheus_client.Counter, registry=None)
        self._counters = {
            name: counter(f"kafka_eos_{name}", text, ("app_id",)) for name, (text, _) in _COUNTERS.items()
        }
        text = "Duration of finished batches from plan to verify, where it was measured."
        name = "kafka_eos_batch_duration_seconds"
        self._durations = prometheus_client.Histogram(name, text, ("app_id",), registry=None, buckets=_BUCKETS)
        text = "Time that finished batches spent in each phase, where it was measured."
        self._phases = counter("kafka_eos_batch_phase_seconds", text, ("app_id", "phase"))
        self._failures = counter("kafka_eos_view_failures", "Attempts to read Kafka that failed.")
        self._app_ids: tuple[str, ...] = ()
        """The values of the label in the last view."""
        self._viewed: _Viewed | None = None
        self._unfinished: dict[_Version, int] = {}
        """When each unfinished decision was seen first, in ms since 1970: the commit log holds no time of a decision."""
        self._counts = False
        self._up = False
        self._took_s = 0.0
        self._lock = threading.Lock()
        """Guards all of the above: a scrape takes it once, and so does a reading."""
        self.registry.register(self)

    def viewed(self, view: ClusterView, took_s: float) -> None:
        """Take the view of a reading that succeeded."""
        with self._lock:
            names = label_values(view, self._app_ids)
            self._show(tuple(dict.fromkeys(names.values())))
            # Do not count the first reading of the history: after a restart, old batches must not look like a burst.
            for batch in view.batches if self._counts else ():
                if batch.write_id in names:
                    self._count(names[batch.write_id], batch)
            self._counts = self._counts or view.was_read("history")
            if view.was_read("writes"):
                decided = [line.write for line in view.writes if line.write.state in _UNFINISHED]
                ids = [(write.write_id, write.query_id, write.version) for write in decided]
                self._unfinished = {each: self._unfinished.get(each, view.now_ms) for each in ids}
            self._viewed, self._up, self._took_s = _Viewed(view, names), True, took_s

    def _show(self, app_ids: tuple[str, ...]) -> None:
        """Begin the counters of new label values at 0, and end those of others."""
        of_app = [(each, ()) for each in (*self._counters.values(), self._durations)]
        for metric, phase in (*of_app, *((self._phases, (phase,)) for phase in PHASES)):
            for gone in {*self._app_ids}.difference(app_ids):
                metric.remove(gone, *phase)
            for each in app_ids:
                metric.labels(each, *phase)
        self._app_ids = app_ids

    def _count(self, app_id: str, batch: BatchRecord) -> None:
        for name, (_, amount) in _COUNTERS.items():
            self._counters[name].labels(app_id).inc(amount(batch))
        if measured := batch.phases_ms:
            self._durations.labels(app_id).observe(sum(measured.values()) / 1000)
            for phase, ms in measured.items():
                self._phases.labels(app_id, phase).inc(ms / 1000)

    def failed(self) -> None:
        """Take note of a reading that failed; the last view stays for a while."""
        with self._lock:
            self._up = False
            self._failures.inc()

    def collect(self) -> Sequence[Metric]:
        """Return what was counted, and what the exporter and the last view show."""
        with self._lock:
            counted = (self._failures, *self._counters.values(), self._durations, self._phases)
            families = [family for each in counted for family in each.collect()]
            return [*families, *self._gauges(time.time_ns() // 1_000_000)]

    def _gauges(self, now_ms: int) -> Iterable[Metric]:
        families = {
            name: GaugeMetricFamily(f"kafka_eos_{name}", text, labels=labels)
            for name, (text, labels) in _GAUGES.items()
        }

        def put(name: str, value: float | None, *labels: str) -> None:
            """Add a value, if it is known; seconds are given in ms."""
            if value is not None:
                families[name].add_metric(labels, value / 1000 if name.endswith("_seconds") else value)

        put("up", int(self._up))
        if self._viewed is not None:
            view = self._viewed.view
            put("last_view_timestamp_seconds", view.now_ms)
            put("view_duration_seconds", self._took_s * 1000)
            if self._up or now_ms - view.now_ms < STALE_S * 1000:
                for part in PARTS:
                    put("data_readable", view.was_read(part), part.replace(" ", "_"))
                if view.was_read("writes"):
                    _put_writes(put, self._viewed, self._unfinished, now_ms)
                if view.was_read("transactions"):
                    _put_transactions(put, self._viewed, now_ms)
        return families.values()


@contextmanager
def served(metrics: WriteMetrics, address: str, port: int) -> Iterator[str]:
    """Serve the metrics over HTTP, a thread per request; yield the URL.

    Raises:
        ConfigurationError: METRICS_NOT_SERVED if the address is not of this machine, or the port is in use.
    """
    try:
        server, _ = prometheus_client.start_http_server(port, address, metrics.registry)
    except (OSError, UnicodeError) as failure:
        raise refused("METRICS_NOT_SERVED", address=address, port=port, failure=failure) from None
    # Otherwise a client that sends half a request holds its thread for ever.
    handler: Any = server.RequestHandlerClass
    handler.timeout = CLIENT_WITHIN_S
    try:
        host = f"[{address}]" if ":" in address else address
        yield f"http://{host}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()


def label_values(view: ClusterView, before: Iterable[str]) -> dict[str, str]:
    """Return the label value of each write id of a view, `APPLICATIONS` at most.

    Args:
        before: The values of the view before. The value of random ids is kept, and every value while the commit log is not readable.
    """
    readable = view.was_read("writes")
    # In this order: every program that may begin a transaction chooses its id, and takes no place of a write in the commit log.
    found = [line.write.write_id for line in view.writes]
    found += [write_id for state in view.transactions if (write_id := write_id_of(state.transactional_id)) is not None]
    # If only the history holds a write, an operator has forgotten it: show it no more. Random ids are the exception, because the
    # driver removes them from the commit log when the write finishes.
    found += [batch.write_id for batch in view.batches if is_random_write_id(batch.write_id) or not readable]
    names = {write_id: _name(write_id) for write_id in found}
    kept = [name for name in before if name.endswith("/*") or not readable]
    own = [name for name in dict.fromkeys([*names.values(), *kept]) if name != THE_REST]
    shown = {*own[:APPLICATIONS], THE_REST}
    bounded = {write_id: name if name in shown else THE_REST for write_id, name in names.items()}
    return {**{name: name for name in kept if name in shown}, **bounded}


def _name(write_id: str) -> str:
    return peer_text(write_id.partition("/")[0] + "/*" if is_random_write_id(write_id) else application_of(write_id))


_Put = Callable[..., None]


def _put_writes(put: _Put, viewed: _Viewed, unfinished: Mapping[_Version, int], now_ms: int) -> None:
    versions = Counter((viewed.names[line.write.write_id], line.write.state) for line in viewed.view.writes)
    last: dict[str, WriteLine] = {}
    tightest: dict[str, BatchRecord] = {}
    for line in viewed.view.writes:
        name, record = viewed.names[line.write.write_id], line.record
        if line.write.finished_ms is not None and name != THE_REST and not is_random_write_id(line.write.write_id):
            last[name] = max(last.get(name, line), line, key=lambda each: each.write.finished_ms or 0)
        if line.write.finished_ms is not None and record is not None and record.headroom_ms is not None:
            tightest[name] = min(tightest.get(name, record), record, key=lambda each: each.headroom_ms or 0)
    for name in dict.fromkeys(viewed.names.values()):
        for state in get_args(WriteState):
            put("versions", versions[name, state], name, state)
    ages = [(viewed.names[write_id], max(0, now_ms - seen_ms)) for (write_id, *_), seen_ms in unfinished.items()]
    for name, age_ms in dict(sorted(ages)).items():
        put("unfinished_age_seconds", age_ms, name)
    for name, line in last.items():
        put("last_version", line.write.version, name)
        put("last_version_finished_timestamp_seconds", line.write.finished_ms, name)
        put("last_version_rows", None if line.write.resolution else line.write.rows, name)
        put("last_version_written_bytes", None if line.record is None else line.record.written_bytes, name)
    for name, record in tightest.items():
        put("least_headroom_seconds", record.headroom_ms, name)
        put("least_headroom_duration_seconds", sum(record.phases_ms.values()), name)


def _put_transactions(put: _Put, viewed: _Viewed, now_ms: int) -> None:
    opened: dict[str, list[tuple[int | None, int | None]]] = {name: [] for name in viewed.names.values()}
    for state in viewed.view.transactions:
        opened.setdefault(viewed.name(state.transactional_id), []).append(times_ms(state, now_ms))
    for name, times in opened.items():
        oldest = max((age for age, _ in times if age is not None), default=None)
        nearest = min((left for _, left in times if left is not None), default=None)
        put("open_transactions", len(times), name)
        put("open_transaction_age_seconds", oldest, name)
        put("open_transaction_headroom_seconds", nearest, name)
    # Partitions of writes first: another program may block more partitions.
    blocked = sorted(viewed.view.blocked, key=lambda each: not viewed.name(each.blocked_by[0]))
    for each in blocked[:BLOCKED_PARTITIONS]:
        labels = peer_text(each.topic), str(each.partition), viewed.name(each.blocked_by[0])
        put("blocked_partition_hidden_offsets", each.hidden_offsets, *labels)
        if each.since_ms >= 0:
            put("blocked_partition_age_seconds", max(0, now_ms - each.since_ms), *labels)
