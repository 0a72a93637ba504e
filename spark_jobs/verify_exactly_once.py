"""Compare the committed records of a Kafka topic with the expected records.

    spark-submit --properties-file conf/spark-defaults.conf --py-files <the wheel or zip> \
        spark_jobs/verify_exactly_once.py --bootstrap-servers localhost:9092 --topic totals \
        --files /data/orders --format json --schema 'order_id BIGINT, amount DOUBLE' \
        --key order_id --where 'amount > 0'

Repeat the source and the expressions of the job that wrote the topic. Spark compares both sides as multisets. Spark's
Kafka source reads the topic if its four jars are given, otherwise the client of this package; the report names the
reader. Exit status: 0 the topic holds every record exactly once and no other, 1 it does not, or a failure (one sentence on
standard error), 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from kafka_eos_sink.jobs.record_comparison import (
    COLUMNS,
    ORDER,
    SOURCE_PARTITION,
    Comparison,
    Difference,
    compare,
    compared_columns,
)
from kafka_eos_sink.jobs.record_expressions import KAFKA_COLUMNS, add_record_arguments, check_record_arguments, records
from kafka_eos_sink.jobs.spark_kafka_source import KAFKA_SOURCE_HELP
from kafka_eos_sink.jobs.submit_job import (
    JobFailed,
    add_cluster_arguments,
    add_read_arguments,
    check_cluster_arguments,
    cluster_options,
    end,
    job_parser,
    read_files,
    warn,
)
from kafka_eos_sink.jobs.topic_frame import TopicFrame, topic_frame
from kafka_eos_sink.settings.kafka_properties import options_from_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME = "verify_exactly_once"
SERVERS = "kafka.bootstrap.servers"
SHOWN_CHARACTERS = 80
SORT_ORDER = re.compile(r"\s(asc|desc)(\s+nulls\s+(first|last))?\s*$", re.IGNORECASE)


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line and check it as far as possible without Spark."""
    parser = job_parser(
        NAME,
        "Compares the committed records of a Kafka topic with the expected records.",
        f"{KAFKA_SOURCE_HELP}\n"
        "Exit status: 0 the topic holds every record exactly once and no other; 1 it does not, or a failure (one sentence "
        "on standard error); 2 wrong usage.",
    )
    add_cluster_arguments(parser, of="the client, kafka.* only")
    parser.add_argument("--topic", required=True, help="the topic to verify; records with a column topic: those for it")
    parser.add_argument(
        "--topic-where",
        metavar="SQL",
        help="only these records of the topic; columns as in Spark's Kafka source, e.g. 'offset >= 1000'",
    )
    source = parser.add_argument_group("source", "The expected records: one of --from-topic and --files.")
    either = source.add_mutually_exclusive_group(required=True)
    either.add_argument("--from-topic", metavar="TOPIC", help="topics, comma-separated, read under read_committed")
    either.add_argument("--files", nargs="+", metavar="PATH", help="files or directories, as Spark reads them")
    source.add_argument(
        "--from-bootstrap-servers",
        metavar="S",
        help="brokers of --from-topic; default: the brokers and connection options of --topic",
    )
    source.add_argument("--from-properties", metavar="FILE", help="client properties file for --from-topic")
    source.add_argument("--format", help="format of --files, any that Spark reads; default: parquet")
    add_read_arguments(source, "multiLine=true (csv: header is on, and inferSchema without --schema, unless set here)")
    add_record_arguments(parser)
    comparison = parser.add_argument_group("comparison")
    comparison.add_argument(
        "--compare",
        type=columns_to_compare,
        metavar="COLUMNS",
        help=f"of {','.join(COLUMNS)}; default: key and value, and headers and timestamp if the source has them",
    )
    comparison.add_argument(
        "--order-by",
        metavar="SQL",
        help="also check the order of the records of each key: an expression over the rows of the source (with --sql: of the "
        "query). For --from-topic use offset; it orders the records within each partition of the source",
    )
    comparison.add_argument(
        "--reader",
        choices=("auto", "spark", "client"),
        default="auto",
        help="reader of topics. spark: Spark's Kafka source (see below); client: the client of this package; auto (default): "
        "spark if its jars are present",
    )
    comparison.add_argument("--show", type=int, default=5, metavar="N", help="records shown per kind of difference")
    comparison.add_argument("--json", action="store_true", help="one line of JSON instead of a table")
    given = parser.parse_args(argv)
    check_cluster_arguments(parser, given)
    check_record_arguments(parser, given)
    of_the_other = ("from_bootstrap_servers", "from_properties") if given.files else ("format", "schema", "read_option")
    for name in of_the_other:
        if getattr(given, name):
            parser.error(f"--{name.replace('_', '-')} belongs to {'--from-topic' if given.files else '--files'}")
    if given.order_by is not None and given.compare is not None and "key" not in given.compare:
        parser.error("--order-by compares the order per key: add key to --compare")
    if given.order_by is not None and SORT_ORDER.search(given.order_by):
        # Spark would take the word for a column alias, and check the ascending order.
        parser.error(
            "--order-by is an ascending expression, without ASC or DESC: for a descending number negate it: --order-by=-id"
        )
    if given.show < 0:
        parser.error(f"--show {given.show}: must be 0 or more")
    given.format = given.format or "parquet"
    return given


def columns_to_compare(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    unknown = [name for name in names if name not in COLUMNS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(map(repr, unknown))} is not among {', '.join(COLUMNS)}")
    return names


def source_options(given: argparse.Namespace, options: dict[str, str]) -> dict[str, str]:
    """Return the client's options for --from-topic: its own, or those for --topic."""
    if given.from_properties is not None:
        own = options_from_file(given.from_properties, warn)
    else:
        # A secret of one cluster must not reach another.
        own = options if given.from_bootstrap_servers is None else {}
    # Either set of options may name its servers in a properties file.
    for servers in (given.from_bootstrap_servers, own.get(SERVERS), options.get(SERVERS)):
        if servers is not None:
            return {**own, SERVERS: servers}
    return own


def expected_records(spark: SparkSession, given: argparse.Namespace, options: dict[str, str]) -> DataFrame:
    """Return the expected records."""
    beside = {} if given.order_by is None else {ORDER: given.order_by}
    if given.files is not None:
        rows = read_files(spark, given, given.files)
        expected = records(rows, given, beside=beside)
    else:
        own = source_options(given, options)
        topics = [topic_frame(spark, topic.strip(), own, given.reader).frame for topic in given.from_topic.split(",")]
        if beside and given.sql is None:
            # Offsets of different partitions are not comparable, so the order holds per topic and partition of the source.
            beside[SOURCE_PARTITION] = "struct(topic, partition)"
        expected = records(reduce(lambda a, b: a.unionByName(b), topics), given, defaults=KAFKA_COLUMNS, beside=beside)
    return expected.where(expected["topic"] == given.topic) if "topic" in expected.columns else expected


def shown(value: Any) -> Any:
    """Format a column: text if UTF-8, else hexadecimal, up to ``SHOWN_CHARACTERS``."""
    if isinstance(value, bytes | bytearray):
        try:
            text = value.decode()
        except UnicodeDecodeError:
            text = f"0x{value.hex()}"
        return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}... ({len(value):,} bytes)"
    if isinstance(value, list):
        return {header["key"]: shown(header["value"]) for header in value}
    return value


def report(given: argparse.Namespace, topic: TopicFrame, columns: Sequence[str], found: Comparison) -> dict[str, Any]:
    """Build the whole report, for JSON."""
    return {
        "topic": given.topic,
        "exactly_once": found.equal,
        "reader": topic.reader,
        "compared": list(columns),
        "expected": found.expected,
        "found": found.found,
        "missing": found.missing,
        "duplicated": found.duplicated,
        "unexpected": found.unexpected,
        "out_of_order": found.out_of_order,
        "held_back": {
            str(each.partition): each.high_watermark - each.last_stable
            for each in topic.offsets
            if each.last_stable < each.high_watermark
        },
        "differences": [as_json(difference) for difference in found.differences],
    }


def as_json(difference: Difference) -> dict[str, Any]:
    places = {name: getattr(difference, name) for name in ("first", "last")}
    return {
        "kind": difference.kind,
        "record": {name: shown(value) for name, value in difference.record.items()},
        "expected": difference.expected,
        "found": difference.found,
        **{name: place and dict(zip(("partition", "offset"), place, strict=True)) for name, place in places.items()},
    }


def table(found: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the report."""
    yield f"topic {found['topic']} under read_committed, read by {found['reader']}; compared: {', '.join(found['compared'])}"
    for name in ("expected", "found", "missing", "duplicated", "unexpected", "out_of_order"):
        if found[name] is not None:
            yield f"  {name.replace('_', ' '):<12} {found[name]:>15,}"
    for partition, offsets in found["held_back"].items():
        yield f"  {offsets:,} offsets of partition {partition} are not visible yet: an open transaction blocks them"
    for difference in found["differences"]:
        record = ", ".join(f"{name} {value!r}" for name, value in difference["record"].items())
        line = f"  {difference['kind']}: {record}; expected {difference['expected']}, found {difference['found']}"
        places = [difference["first"], difference["last"]]
        distinct = [place for place in places[: 1 if places[0] == places[1] else 2] if place]
        yield (
            line
            + (", at " if distinct else "")
            + " and ".join(f"partition {place['partition']} offset {place['offset']}" for place in distinct)
        )


def run(given: argparse.Namespace) -> str:
    from pyspark.sql import SparkSession

    options = cluster_options(given)
    spark = SparkSession.builder.appName(f"verify {given.topic}").getOrCreate()
    try:
        topic = topic_frame(spark, given.topic, options, given.reader)
        expected = expected_records(spark, given, options)
        columns = compared_columns(expected, given.compare)
        there = topic.frame if given.topic_where is None else topic.frame.where(given.topic_where)
        comparison = compare(expected, there, columns, examples=given.show)
    finally:
        spark.stop()
    found = report(given, topic, columns, comparison)
    print(json.dumps(found) if given.json else "\n".join(table(found)))
    if "topic" in expected.columns and not comparison.expected:
        raise JobFailed(
            f"nothing was compared: no record of the source has topic {given.topic} in its column topic. A job with --topic ignores that "
            "column; leave it out of --sql or --select"
        )
    if comparison.equal:
        return f"topic {given.topic} holds every record exactly once"
    wrong = [
        f"{found[name]:,} {name.replace('_', ' ')}"
        for name in ("missing", "duplicated", "unexpected", "out_of_order")
        if found[name]
    ]
    raise JobFailed(f"topic {given.topic} does not hold every record exactly once: {', '.join(wrong)}")


def main(argv: Sequence[str] | None = None) -> int:
    given = arguments(argv)
    return end(NAME, lambda: run(given))


if __name__ == "__main__":
    sys.exit(main())
