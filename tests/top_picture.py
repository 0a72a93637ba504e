"""Draws docs/images/top.svg: what `kafka-eos top` shows of three writes on a real broker, one of which has open transactions.

PYTHONPATH=.:tests python tests/top_picture.py
"""

from __future__ import annotations

import io
import re
import time
from pathlib import Path

import pyarrow as pa
from rich.console import Console

from dead_writes import varied, write_settings
from kafka_eos_sink.cli import console
from kafka_eos_sink.cli.top import _screen
from kafka_eos_sink.client.admin import connected
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.operations.cluster_view import ClusterWatch
from kafka_eos_sink.producer.rows import Rows
from kafka_eos_sink.protocol.record_columns import RecordColumns
from kafka_eos_sink.runtime import session
from kafka_eos_sink.runtime.batch_record import DEFAULT_HISTORY_TOPIC
from kafka_testing import create_topic

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "top.svg"
ROWS = 20_000
QUERY = "5f0c1d3e-8a4b-4c6f-9d2e-7b1a3c5e9f08"
SECONDS_OPEN = 48
WIDTH = 112
FONTS = 'ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace'
# Rich's own format loads a font from another host.
FORMAT = re.sub(
    r"@font-face \{\{.*?\}\}\s*", "", (Console.export_svg.__kwdefaults__ or {})["code_format"], flags=re.DOTALL
).replace("font-family: Fira Code, monospace", f"font-family: {FONTS}")


def settings(kafka: EmbeddedKafka, topic: str, **given: str) -> session.WriteSettings:
    return varied(write_settings(kafka, topic, **given), history_topic=DEFAULT_HISTORY_TOPIC)


def write(given: session.WriteSettings, tasks: int, *, commit: bool = True) -> None:
    plan = session.plan(given)
    messages = []
    for task in range(tasks):
        values = pa.array([b"order %d" % row for row in range(ROWS)])
        rows = Rows(topic=given.batch.topic or "", partition=None, columns=RecordColumns(value=values, key=values))
        identity = session.TaskIdentity(partition=task, attempt_number=0, task_attempt_id=task)
        messages.append(session.write_task(given, plan, identity, iter([rows])))
    if commit:
        session.commit(given, plan, messages)


def main() -> None:
    with EmbeddedKafka() as kafka:
        for topic, partitions in (("orders", 3), ("customers", 1), ("order-totals", 2)):
            create_topic(kafka.bootstrap_servers, topic, partitions=partitions)
        customers = settings(kafka, "customers", write_id="kafka-eos/nightly-customers/customers")
        write(varied(customers, version=20261121), 1)
        stream = settings(kafka, "order-totals", write_id=f"kafka-eos-{QUERY}", query_id=QUERY)
        for version in range(3):
            write(varied(stream, version=version), 2)
        orders = settings(kafka, "orders", write_id="kafka-eos/nightly-orders/orders")
        write(varied(orders, version=20261120), 4)
        write(varied(orders, version=20261121), 4, commit=False)
        time.sleep(SECONDS_OPEN)
        client = console.client_config(kafka.bootstrap_servers, None)
        with connected(client) as admin:
            topics = console.COMMIT_LOG, console.HISTORY
            found = ClusterWatch(admin, *topics, timeout_ms=console.TIMEOUT_MS).look(unlisted_ok=True)
    screen = Console(record=True, width=WIDTH, force_terminal=True, file=io.StringIO())
    screen.print(_screen(found))
    drawn = screen.export_svg(title="kafka-eos top", code_format=FORMAT, unique_id="top")
    PICTURE.write_text(drawn, "utf-8")
    print(PICTURE)


if __name__ == "__main__":
    main()
