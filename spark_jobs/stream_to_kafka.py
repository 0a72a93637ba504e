"""Stream a Kafka topic or arriving files through SQL to a topic, exactly once.

    spark-submit --properties-file conf/spark-defaults.conf --py-files <the wheel or zip> \
        spark_jobs/stream_to_kafka.py --bootstrap-servers localhost:9092 --topic totals --checkpoint /data/checkpoints/totals \
        --files /data/orders --format json --schema 'order_id BIGINT, amount DOUBLE' \
        --key order_id --where 'amount > 0' --trigger available-now

The checkpoint and the commit log hold the progress: run the same command again, and it continues where it stopped. To
read a Kafka topic, Spark needs the four jars of its Kafka source, which PySpark does not ship: --help names them.
Exit status: 0 all written, or a query without end stopped by SIGTERM or SIGINT; 1 a failure (one sentence on standard
error), or stopped by a signal before the end that --trigger sets; 2 wrong usage.
"""

from __future__ import annotations

import argparse
import re
import secrets
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pyspark.errors import StreamingQueryException

from kafka_eos_sink.jobs.record_expressions import KAFKA_COLUMNS, add_record_arguments, check_record_arguments, records
from kafka_eos_sink.jobs.spark_kafka_source import KAFKA_SOURCE_HELP, connection_options, require_kafka_source
from kafka_eos_sink.jobs.submit_job import (
    JobFailed,
    add_cluster_arguments,
    add_read_arguments,
    check_cluster_arguments,
    cluster_options,
    end,
    job_parser,
    register_sink,
)
from kafka_eos_sink.settings.java_properties import read_properties
from kafka_eos_sink.settings.secrets import resolve

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

NAME = "stream_to_kafka"
FORMATS_WITH_SCHEMA = ("json", "csv", "parquet")

# Spark's defaults begin at the end of the topic, read records of aborted transactions, drop the headers, and let a broker create the topic
# if its name is misspelled.
KAFKA_SOURCE_DEFAULTS = {
    "startingoffsets": "earliest",
    "kafka.isolation.level": "read_committed",
    "kafka.allow.auto.create.topics": "false",
    "includeheaders": "true",
}


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line and check it as far as possible without Spark."""
    parser = job_parser(
        NAME,
        "Streams a Kafka topic or arriving files through a SQL expression to a Kafka topic, exactly once. The same command "
        "with the same checkpoint continues where it stopped.",
        f"{KAFKA_SOURCE_HELP}\n"
        "Exit status: 0 all written, or a query without end stopped by a signal; 1 a failure (one sentence on "
        "standard error), or stopped by a signal before the end that --trigger sets; 2 wrong usage.",
    )
    add_cluster_arguments(parser, of="the sink")
    parser.add_argument("--topic", help="the topic to write to; without it the records need a column topic")
    parser.add_argument(
        "--checkpoint", required=True, metavar="DIR", help="directory of the query's progress; one per query"
    )
    parser.add_argument("--name", help="name of the query in Spark's logs and metrics")
    parser.add_argument(
        "--trigger",
        nargs="+",
        metavar=("WHEN", "INTERVAL"),
        help="available-now: write all data that exists at the start, then end; once: the same in one batch; "
        "processing-time '10 seconds': a batch every 10 seconds; default: a batch as soon as data arrives",
    )
    source = parser.add_argument_group("source", "One of --from-topic and --files.")
    either = source.add_mutually_exclusive_group(required=True)
    either.add_argument("--from-topic", metavar="TOPIC", help="topics to read, comma-separated")
    either.add_argument("--files", metavar="DIR", help="directory (or glob) into which complete files are moved")
    source.add_argument(
        "--from-bootstrap-servers",
        metavar="S",
        help="brokers of the topics to read; default: the brokers and connection options of the sink",
    )
    source.add_argument(
        "--from-properties",
        metavar="FILE",
        help="Java-style consumer properties file for the topics to read",
    )
    source.add_argument(
        "--source-offsets-group",
        metavar="GROUP",
        help="commit the offsets of --from-topic to this consumer group, in the transaction that decides the batch; "
        "only if both topics are on one cluster",
    )
    source.add_argument("--format", choices=(*FORMATS_WITH_SCHEMA, "text"), help="format of --files")
    add_read_arguments(
        source,
        "startingOffsets=latest, maxOffsetsPerTrigger=100000, maxFilesPerTrigger=10 (a topic is read from its earliest "
        "offset, with headers, under read_committed, and csv files have a header, unless set here)",
    )
    add_record_arguments(parser)
    given = parser.parse_args(argv)
    check_cluster_arguments(parser, given)
    check_record_arguments(parser, given)
    given.trigger = checked_trigger(parser, given.trigger)
    only_for_topics = ("from_bootstrap_servers", "from_properties", "source_offsets_group")
    for name in ("format", "schema") if given.files is None else only_for_topics:
        if getattr(given, name) is not None:
            other = "--files" if given.files is None else "--from-topic"
            parser.error(f"--{name.replace('_', '-')} belongs to {other}")
    if given.files is not None:
        if given.format is None:
            parser.error("--files needs --format")
        if (given.schema is None) != (given.format == "text"):
            parser.error(
                "--format text has one column, value, and takes no --schema"
                if given.format == "text"
                else f"--format {given.format} needs --schema: a stream cannot infer it from files that do not exist yet"
            )
    return given


def checked_trigger(parser: argparse.ArgumentParser, words: Sequence[str] | None) -> dict[str, Any]:
    """Return the arguments of ``trigger``; without any, batches begin as data arrives."""
    match words:
        case None:
            return {}
        case ["available-now"]:
            return {"availableNow": True}
        case ["once"]:
            return {"once": True}
        case ["processing-time", interval] if re.fullmatch(r"\s*\d+\s+[a-z]+\s*", interval, re.ASCII | re.IGNORECASE):
            return {"processingTime": interval}
        case _:
            parser.error(f"--trigger {' '.join(words)}: must be available-now, once or processing-time 'N seconds'")


def sink_options(given: argparse.Namespace) -> dict[str, str]:
    """Return the options of the sink."""
    options = cluster_options(given)
    if given.topic is not None:
        options["topic"] = given.topic
    if given.source_offsets_group is not None:
        options["source.offsets.group"] = given.source_offsets_group
    return options


def source_options(given: argparse.Namespace, sink: dict[str, str]) -> dict[str, str]:
    """Return the options of Spark's reader; --read-option overrides all others."""
    if given.from_topic is None:
        options = {"header": "true"} if given.format == "csv" else {}
    else:
        options = {**KAFKA_SOURCE_DEFAULTS, "subscribe": given.from_topic}
        if given.from_properties is not None:
            file = read_properties(given.from_properties)
            options.update({f"kafka.{name}": resolve(value) for name, value in file.items()})
        elif given.from_bootstrap_servers is None:
            options.update(connection_options(sink))
        if given.from_bootstrap_servers is not None:
            options["kafka.bootstrap.servers"] = given.from_bootstrap_servers
        options.setdefault("kafka.bootstrap.servers", resolve(sink.get("kafka.bootstrap.servers", "")))
    return options | {name.lower(): value for name, value in given.read_option}


def read(spark: SparkSession, given: argparse.Namespace, sink: dict[str, str]) -> DataFrame:
    """Open the source."""
    if given.from_topic is not None:
        require_kafka_source(spark)
    reader = spark.readStream.format("kafka" if given.from_topic is not None else given.format)
    reader = reader.options(**source_options(given, sink))
    if given.schema is not None:
        reader = reader.schema(given.schema)
    return reader.load() if given.from_topic is not None else reader.load(given.files)


def write(rows: DataFrame, given: argparse.Namespace, sink: dict[str, str]) -> DataStreamWriter:
    """Create the query without starting it."""
    made = records(rows, given, defaults=KAFKA_COLUMNS if given.from_topic is not None else None)
    writer = made.writeStream.format("kafka-eos").options(**sink).option("checkpointLocation", given.checkpoint)
    if given.name is not None:
        writer = writer.queryName(given.name)
    return writer.trigger(**given.trigger) if given.trigger else writer


class StopOnSignal:
    """Turn SIGTERM and SIGINT, to this process or to the JVM, into a request to stop.

    Under spark-submit this process is a child of the JVM. A signal to the job reaches the JVM, a signal from the terminal
    reaches both. The JVM would shut down Spark under the running query, so its handler calls ``handle`` instead. A second
    signal of the same kind has its default effect.
    """

    def __init__(self, spark: SparkSession) -> None:
        self.requested = threading.Event()
        # A terminal sends SIGINT to the Python workers too, so the running tasks fail. That failure is not the query's.
        self.interrupted = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._python_signal)
        java: Any = getattr(spark, "_jvm", None)
        if java is None:  # Spark Connect: the JVM is a server of its own, which no signal for this job reaches.
            return
        from pyspark import java_gateway

        gateway: Any = spark.sparkContext._gateway
        java_gateway.ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
        # Py4J's callback server asks no secret of a local user who connects. A call must name an object, by default p0, p1 and so on.
        gateway.gateway_property.pool.next_id = secrets.randbits(128)
        self._signals = java.sun.misc
        for name in ("TERM", "INT"):
            # A JVM started with -Xrs does not handle signals; then only signals to this process count.
            with suppress(Exception):
                self._signals.Signal.handle(self._signals.Signal(name), self)

    def _python_signal(self, number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        self._request(number)

    def handle(self, received: Any) -> None:
        """Called by the JVM."""
        self._signals.Signal.handle(received, self._signals.SignalHandler.SIG_DFL)
        self._request(received.getNumber())

    def _request(self, number: int) -> None:
        self.interrupted = self.interrupted or number == signal.SIGINT
        self.requested.set()

    class Java:
        """The Java interface that Py4J implements for the JVM."""

        implements = ("sun.misc.SignalHandler",)


def wait(query: StreamingQuery, stop: StopOnSignal) -> bool:
    """Wait for the query's end; False if a signal stopped it. Raises its error."""
    try:
        while not stop.requested.is_set():
            if query.awaitTermination(1):
                return True
        query.stop()
        failure = query.exception()
        if failure is not None:
            raise failure
    except StreamingQueryException:
        if not stop.interrupted:
            raise
    return False


def run(given: argparse.Namespace) -> str:
    from pyspark.sql import SparkSession

    options = sink_options(given)
    what = f"{given.from_topic or given.files} to {given.topic or 'the topics of the column topic'}"
    spark = SparkSession.builder.appName(given.name or what).getOrCreate()
    try:
        register_sink(spark)
        writer = write(read(spark, given, options), given, options)
        stop = StopOnSignal(spark)
        ended = wait(writer.start(), stop)
    finally:
        spark.stop()
    if ended:
        return f"all written, {what}"
    if given.trigger.keys() & {"availableNow", "once"}:
        raise JobFailed("stopped by a signal before all was written; run the same command again to continue")
    return f"stopped by a signal, {what}; run the same command again to continue"


def main(argv: Sequence[str] | None = None) -> int:
    given = arguments(argv)
    return end(NAME, lambda: run(given))


if __name__ == "__main__":
    sys.exit(main())
