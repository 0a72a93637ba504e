"""What `ClusterWatch` reads, as metric families of prometheus_client.

Two threads use it: one hands over views, and the threads of the HTTP server collect. No collector waits for Kafka.

Counters count the records of the history since the start of the process. The other metrics show the last view. Label values that
come from Kafka are printable and bounded: no metric has a transactional id, writes with a random id share a value, and so do all
write ids beyond `WRITE_IDS`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, get_args

import prometheus_client
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kafka_eos_sink import __version__
from kafka_eos_sink.commit.transactional_id import is_random_write_id, write_id_of
from kafka_eos_sink.commit.write_states import WriteState
from kafka_eos_sink.errors import ConfigurationError, peer_text
from kafka_eos_sink.operations.cluster_view import PARTS, ClusterView, WriteLine
from kafka_eos_sink.operations.transactions import times_ms
from kafka_eos_sink.runtime.batch_record import BatchRecord
from kafka_eos_sink.runtime.stopwatch import PHASES

WRITE_IDS = 200
"""Values of the label ``write_id``; a write has about 120 series."""
BLOCKED_PARTITIONS = 1_000
"""Blocked partitions with series of their own; one transaction can block every partition of the cluster."""
THE_REST = "*"
"""The value that all write ids, and all blocked partitions, beyond them share."""
CLIENT_WITHIN_S = 10.0
"""For how long a client may take over its request."""
STALE_S = 300.0
"""For how long a view is shown after a look that failed: as long as Prometheus itself shows a series that has ended."""
_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
_PHASE_BUCKETS = (0.01, 0.1, 0.5, 1, 5, 10, 60, 300, 900)

_COUNTERS: Mapping[str, tuple[str, Callable[[BatchRecord], int]]] = {
    "batches": ("Batches that were decided and finished.", lambda batch: 1),
    "recovered_batches": ("Batches that a later run finished, because their driver had died.", lambda b: b.recovered),
    "rows": ("Rows of finished batches.", lambda batch: batch.rows),
    "written_bytes": ("Bytes of record batches as sent, compressed.", lambda batch: batch.written_bytes or 0),
    "copied_transactions": (
        "Transactions that Kafka had aborted after their decision, and whose rows were copied.",
        lambda batch: batch.parts_copied,
    ),
    "ended_attempts": (
        "Open transactions of dead runs and of losing attempts that plan and commit aborted.",
        lambda batch: batch.attempts_ended or 0,
    ),
}

_GAUGES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "part_readable": ("1 if this part of the last view could be read, 0 if the cluster refused it.", ("part",)),
    "versions": ("Versions in the commit log by state.", ("write_id", "state")),
    "last_version": ("Number of the version that finished last.", ("write_id",)),
    "last_version_finished_timestamp_seconds": ("When the last version was finished, since 1970.", ("write_id",)),
    "last_version_rows": ("Rows of the last version.", ("write_id",)),
    "last_version_written_bytes": ("Bytes of the last version as sent, compressed.", ("write_id",)),
    "last_version_phase_seconds": ("Duration of each phase of the last version.", ("write_id", "phase")),
    "last_version_headroom_seconds": (
        "What was left of the transaction timeout when the last version had ended its transactions.",
        ("write_id",),
    ),
    "open_transactions": ("Open transactions; without write_id those of other programs.", ("write_id",)),
    "open_transaction_age_seconds": ("Age of the oldest open transaction.", ("write_id",)),
    "open_transaction_headroom_seconds": ("Time left to the nearest transaction timeout.", ("write_id",)),
    "blocked_partition_hidden_offsets": (
        "Offsets that read_committed consumers do not see; write_id names the write of the oldest transaction.",
        ("topic", "partition", "write_id"),
    ),
    "blocked_partition_age_seconds": (
        "Age of the oldest open transaction in the partition; write_id names its write.",
        ("topic", "partition", "write_id"),
    ),
}


class _Looked(NamedTuple):
    """The last view, and the label value of each write id in it."""

    view: ClusterView
    names: Mapping[str, str]

    def name(self, transactional_id: str) -> str:
        """Return the label value for a transaction, empty for that of another program."""
        return self.names.get(write_id_of(transactional_id) or "", "")


class WriteMetrics(Collector):
    """A registry of all metrics; `looked` and `failed` record each look at Kafka."""

    def __init__(self) -> None:
        # A counter's creation time doubles its series, and Prometheus reads it only behind a feature flag.
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = prometheus_client.CollectorRegistry()
        self._counters = {
            name: prometheus_client.Counter(f"kafka_eos_{name}", text, ("write_id",), registry=self.registry)
            for name, (text, _) in _COUNTERS.items()
        }
        self._duration = prometheus_client.Histogram(
            "kafka_eos_batch_duration_seconds",
            "Duration of finished batches from plan to verify, where it was measured.",
            ("write_id",),
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._phases = prometheus_client.Histogram(
            "kafka_eos_batch_phase_seconds",
            "Duration of each phase of finished batches, where it was measured.",
            ("write_id", "phase"),
            buckets=_PHASE_BUCKETS,
            registry=self.registry,
        )
        self._per_write = [
            *((metric, ()) for metric in (*self._counters.values(), self._duration)),
            *((self._phases, (phase,)) for phase in PHASES),
        ]
        build = prometheus_client.Info("kafka_eos_build", "The version of kafka-eos.", registry=self.registry)
        build.info({"version": __version__})
        prometheus_client.ProcessCollector(registry=self.registry)
        self._looked: _Looked | None = None
        self._counts = False
        self._up = False
        self._failures = 0
        self._took_s = 0.0
        self.registry.register(self)

    def looked(self, view: ClusterView, took_s: float) -> None:
        """Take the view of a look that succeeded."""
        before = [] if self._looked is None else list(dict.fromkeys(self._looked.names.values()))
        names = label_values(view, before)
        shown = set(names.values())
        for metric, more in self._per_write:
            for name in set(before) - shown:
                metric.remove(name, *more)
            for name in shown:
                metric.labels(name, *more)
        # Do not count the first reading of the history: after a restart, old batches must not look like a burst.
        for batch in view.batches if self._counts else ():
            if batch.write_id in names:
                self._count(names[batch.write_id], batch)
        self._counts = self._counts or view.was_read("history")
        self._looked, self._up, self._took_s = _Looked(view, names), True, took_s

    def failed(self) -> None:
        """Take note of a look that failed; the last view stays for a while."""
        self._up = False
        self._failures += 1

    def _count(self, name: str, batch: BatchRecord) -> None:
        for counter, (_, amount) in zip(self._counters.values(), _COUNTERS.values(), strict=True):
            counter.labels(name).inc(amount(batch))
        if measured := batch.phases_ms:
            self._duration.labels(name).observe(sum(measured.values()) / 1000)
        for phase, ms in measured.items():
            self._phases.labels(name, phase).observe(ms / 1000)

    def collect(self) -> Iterator[Metric]:
        """Yield what is known of the exporter itself, and what the last view shows."""
        looked, now_ms = self._looked, time.time_ns() // 1_000_000
        yield GaugeMetricFamily("kafka_eos_up", "1 if the last look at Kafka succeeded.", int(self._up))
        yield CounterMetricFamily("kafka_eos_look_failures", "Looks at Kafka that failed.", self._failures)
        if looked is None:
            return
        at = looked.view.now_ms / 1000
        yield GaugeMetricFamily("kafka_eos_last_look_timestamp_seconds", "When the last look succeeded.", at)
        yield GaugeMetricFamily("kafka_eos_look_duration_seconds", "Duration of that look.", self._took_s)
        if self._up or now_ms - looked.view.now_ms < STALE_S * 1000:
            yield from _gauges(looked, now_ms)


@contextmanager
def served(metrics: WriteMetrics, address: str, port: int) -> Iterator[str]:
    """Serve the metrics over HTTP, a thread per request; yield the URL.

    Raises:
        ConfigurationError: METRICS_NOT_SERVED if the address is not of this machine, or the port is in use.
    """
    try:
        server, _ = prometheus_client.start_http_server(port, address, metrics.registry)
    except (OSError, UnicodeError) as failure:
        raise ConfigurationError(
            "METRICS_NOT_SERVED",
            f"cannot listen on {address}, port {port}: {failure}; choose another --address or --port",
        ) from None
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
    """Return the label value of each write id of a view.

    Args:
        before: The values of the view before. A value keeps its place among `WRITE_IDS` while the commit log holds its write.
    """
    found = [line.write.write_id for line in view.writes]
    found += [write_id for state in view.transactions if (write_id := write_id_of(state.transactional_id)) is not None]
    readable = view.was_read("writes")
    # If only the history holds a write, an operator has forgotten it: show it no more. Random ids are the exception, because the
    # driver removes them from the commit log when the write finishes.
    found += [batch.write_id for batch in view.batches if is_random_write_id(batch.write_id) or not readable]
    names = {write_id: _name(write_id) for write_id in found}
    known = set(names.values())
    kept = [name for name in before if name in known or name.endswith("/*") or not readable]
    # A value that only looks like that of random ids is kept last: no new write may lose its place to it.
    first = [name for name in kept if name in known or not readable]
    # Every program that may begin a transaction chooses its id. No such id takes the place of a write in the commit log.
    logged = {names[line.write.write_id] for line in view.writes}
    ordered = sorted(dict.fromkeys([*first, *names.values(), *kept]), key=lambda name: name not in logged)
    shown = set([name for name in ordered if name != THE_REST][:WRITE_IDS])
    bounded = {write_id: name if name in shown else THE_REST for write_id, name in names.items()}
    return {**{name: name for name in kept if name in {*shown, THE_REST}}, **bounded}


def _name(write_id: str) -> str:
    return peer_text(write_id.partition("/")[0] + "/*" if is_random_write_id(write_id) else write_id)


def _gauges(looked: _Looked, now_ms: int) -> Iterable[Metric]:
    families = {
        name: GaugeMetricFamily(f"kafka_eos_{name}", text, labels=labels) for name, (text, labels) in _GAUGES.items()
    }

    def put(name: str, value: float | None, *labels: str) -> None:
        if value is not None:
            families[name].add_metric(labels, value)

    view = looked.view
    for part in PARTS:
        put("part_readable", view.was_read(part), part.replace(" ", "_"))
    if view.was_read("writes"):
        _put_writes(put, looked)
    if view.was_read("transactions"):
        _put_transactions(put, looked, now_ms)
    return families.values()


_Put = Callable[..., None]


def _put_writes(put: _Put, looked: _Looked) -> None:
    versions = Counter((looked.names[line.write.write_id], line.write.state) for line in looked.view.writes)
    last: dict[str, WriteLine] = {}
    for line in looked.view.writes:
        name = looked.names[line.write.write_id]
        if line.write.finished_ms is not None and name != THE_REST and not is_random_write_id(line.write.write_id):
            last[name] = max(last.get(name, line), line, key=lambda each: each.write.finished_ms or 0)
    for name in dict.fromkeys(looked.names.values()):
        for state in get_args(WriteState):
            put("versions", versions[name, state], name, state)
    for name, line in last.items():
        write, record = line.write, line.record
        put("last_version", write.version, name)
        put("last_version_finished_timestamp_seconds", _seconds(write.finished_ms), name)
        put("last_version_rows", write.rows, name)
        if record is not None:
            put("last_version_written_bytes", record.written_bytes, name)
            put("last_version_headroom_seconds", _seconds(record.headroom_ms), name)
            for phase, ms in record.phases_ms.items():
                put("last_version_phase_seconds", ms / 1000, name, phase)


def _put_transactions(put: _Put, looked: _Looked, now_ms: int) -> None:
    opened: dict[str, list[tuple[int | None, int | None]]] = {name: [] for name in looked.names.values()}
    for state in looked.view.transactions:
        opened.setdefault(looked.name(state.transactional_id), []).append(times_ms(state, now_ms))
    for name, times in opened.items():
        oldest = max((age for age, _ in times if age is not None), default=None)
        nearest = min((left for _, left in times if left is not None), default=None)
        put("open_transactions", len(times), name)
        put("open_transaction_age_seconds", _seconds(oldest), name)
        put("open_transaction_headroom_seconds", _seconds(nearest), name)
    # Those of writes first: another program may block more partitions.
    blocked = sorted(looked.view.blocked, key=lambda each: not looked.name(each.blocked_by[0]))
    for each in blocked[:BLOCKED_PARTITIONS]:
        labels = peer_text(each.topic), str(each.partition), looked.name(each.blocked_by[0])
        put("blocked_partition_hidden_offsets", each.hidden_offsets, *labels)
        if each.since_ms >= 0:
            put("blocked_partition_age_seconds", _seconds(max(0, now_ms - each.since_ms)), *labels)
    if rest := blocked[BLOCKED_PARTITIONS:]:
        labels = THE_REST, THE_REST, THE_REST
        put("blocked_partition_hidden_offsets", sum(each.hidden_offsets or 0 for each in rest), *labels)
        oldest = min((each.since_ms for each in rest if each.since_ms >= 0), default=now_ms)
        put("blocked_partition_age_seconds", _seconds(max(0, now_ms - oldest)), *labels)


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000
