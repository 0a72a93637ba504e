"""``kafka-eos top``: what `kafka-eos status` shows, live."""

from __future__ import annotations

import sys
import time

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from kafka_eos_sink.cli import console
from kafka_eos_sink.cli.status import status
from kafka_eos_sink.cli.view import view
from kafka_eos_sink.client.admin import connected
from kafka_eos_sink.errors import BrokerUnavailableError
from kafka_eos_sink.operations.cluster_view import ClusterView, ClusterWatch


def top(
    interval: console.Interval = 2.0,
    write_id: console.OneWriteId = None,
    prefix: console.Prefix = None,
    as_json: console.AsJson = False,
    history_topic: console.HistoryTopic = console.HISTORY,
    commit_log_topic: console.CommitLogTopic = console.COMMIT_LOG,
    bootstrap_servers: console.BootstrapServers = None,
    properties: console.PropertiesFile = None,
) -> None:
    """Watch writes, open transactions, and which readers they block.

    Shows the first ten rows of each table of `kafka-eos status`, again and again, until Ctrl-C. Without a terminal, and with
    `--json`, it prints what `kafka-eos status` prints, once.

    Example: kafka-eos top --interval 5 --prefix kafka-eos/nightly-orders

    To finish or abort a dead write: kafka-eos recover
    """
    out = console.output_console()
    if as_json or not sys.stdout.isatty() or out.is_dumb_terminal:
        status(write_id, prefix, as_json, history_topic, commit_log_topic, bootstrap_servers, properties)
        return
    topics = commit_log_topic, history_topic
    try:
        # A terminal without its cursor must not remain after SIGTERM either.
        with console.signals_interrupt(), connected(console.client_config(bootstrap_servers, properties)) as admin:
            watch = ClusterWatch(admin, *topics, timeout_ms=console.TIMEOUT_MS, prefix=prefix, write_id=write_id)
            _follow(out, watch, interval)
    except KeyboardInterrupt:
        pass


def _follow(out: Console, watch: ClusterWatch, interval_s: float) -> None:
    found = watch.look()
    with Live(_screen(found), console=out, auto_refresh=False) as screen:
        while True:
            screen.refresh()
            time.sleep(interval_s)
            try:
                found = watch.look()
                screen.update(_screen(found))
            except BrokerUnavailableError as unavailable:
                # Brokers restart. The last view stays, with its time.
                screen.update(_screen(found, console.line(str(unavailable), "bold red")))


def _screen(found: ClusterView, *first: Text) -> Group:
    not_shown = (console.line(f"not shown: {refused}", "yellow") for refused in found.not_read)
    return Group(*first, *not_shown, *view(found, live=True))
