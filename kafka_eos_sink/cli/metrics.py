"""``kafka-eos metrics``: what `kafka-eos status` shows, for Prometheus."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from kafka_eos_sink.cli import console
from kafka_eos_sink.client.admin import connected
from kafka_eos_sink.errors import KafkaEosError
from kafka_eos_sink.extras import require_modules
from kafka_eos_sink.operations.cluster_view import ClusterWatch

if TYPE_CHECKING:
    from kafka_eos_sink.operations.write_metrics import WriteMetrics


def metrics(
    port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65_535, help="Port to listen on; 0 chooses a free one.")
    ] = 9400,
    address: Annotated[
        str, typer.Option(metavar="A", help="Address to listen on; 0.0.0.0 is every interface of this machine.")
    ] = "127.0.0.1",
    interval: console.Interval = 15.0,
    prefix: console.Prefix = None,
    history_topic: console.HistoryTopic = console.HISTORY,
    commit_log_topic: console.CommitLogTopic = console.COMMIT_LOG,
    bootstrap_servers: console.BootstrapServers = None,
    properties: console.PropertiesFile = None,
) -> None:
    """Serve metrics of writes, open transactions and blocked readers to Prometheus.

    Everything is read from Kafka, so writes whose driver has died also appear. One process watches all writes of a commit log.
    A scrape never waits for Kafka: it gets the last view, and kafka_eos_up is 0 if Kafka could not be read. The metrics contain
    topics and write ids and need no password, so by default only this machine can read them. Prints its URL on standard output.
    Ctrl-C or SIGTERM stops it.

    Example: kafka-eos metrics --port 9400

    To see the same in a terminal: kafka-eos top
    """
    config = console.client_config(bootstrap_servers, properties)
    require_modules("kafka-eos metrics", ("prometheus_client",), "metrics", "PROMETHEUS_CLIENT_MISSING")
    from kafka_eos_sink.operations.write_metrics import WriteMetrics, served

    found = WriteMetrics()
    try:
        with console.signals_interrupt(), connected(config) as admin, served(found, address, port) as url:
            typer.echo(url)
            console.echo(f"Metrics of {config.bootstrap_servers_text} are at {url}. Ctrl-C stops it.", err=True)
            watch = ClusterWatch(admin, commit_log_topic, history_topic, timeout_ms=console.TIMEOUT_MS, prefix=prefix)
            _watch(watch, found, interval)
    except KeyboardInterrupt:
        console.echo("Stopping ...", err=True)


def _watch(watch: ClusterWatch, found: WriteMetrics, interval_s: float) -> None:
    """Read Kafka until interrupted; print each problem when it begins or changes."""
    problems: tuple[str, ...] = ()
    while True:
        began = time.monotonic()
        before = problems
        try:
            view = watch.look()
        # Brokers restart, and credentials are replaced. Until a reading succeeds, Prometheus reads kafka_eos_up 0.
        except KafkaEosError as failure:
            found.failed()
            problems = (str(failure),)
        else:
            found.viewed(view, time.monotonic() - began)
            problems = view.not_read
        for problem in problems if problems != before else ():
            console.echo(f"kafka-eos: {problem}", err=True)
        if before and not problems:
            console.echo("kafka-eos: everything is read again", err=True)
        time.sleep(max(0.0, began + interval_s - time.monotonic()))
