"""Write files to a Kafka topic, once.

    spark-submit --properties-file conf/spark-defaults.conf --py-files <the wheel or zip> spark_jobs/batch_to_kafka.py \
        --bootstrap-servers localhost:9092 --topic orders --format parquet --key order_id /data/orders

Each row becomes one record. The value is the row as JSON unless --value is given; --key sets the key. With --txn-app-id and
--txn-version you can run the job again after any failure: it writes no row twice. Exit status: 0 written, 1 a failure (one
sentence on standard error), 2 wrong usage.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence

from kafka_eos_sink.jobs.record_expressions import add_record_arguments, check_record_arguments, records
from kafka_eos_sink.jobs.submit_job import (
    add_cluster_arguments,
    add_read_arguments,
    check_cluster_arguments,
    cluster_options,
    end,
    job_parser,
    read_files,
    register_sink,
)

NAME = "batch_to_kafka"


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line and check it as far as possible without Spark."""
    parser = job_parser(
        NAME,
        "Writes files (parquet, json, csv) to a Kafka topic, once.",
        "Exit status: 0 written, 1 a failure (one sentence on standard error), 2 wrong usage.",
    )
    parser.add_argument("paths", nargs="+", metavar="PATH", help="files or directories, as Spark reads them")
    parser.add_argument("--format", choices=("parquet", "json", "csv"), default="parquet", help="default: parquet")
    add_read_arguments(parser, "multiLine=true (csv: header and inferSchema are on unless set here)")
    add_cluster_arguments(parser, of="the sink")
    parser.add_argument("--topic", required=True, help="the topic to write to")
    parser.add_argument("--txn-app-id", metavar="ID", help="name of the write; with --txn-version, it is written once")
    parser.add_argument(
        "--txn-version", metavar="N", type=version, help="version of the write, from 0; new rows need an unused one"
    )
    add_record_arguments(parser)
    given = parser.parse_args(argv)
    if (given.txn_app_id is None) != (given.txn_version is None):
        parser.error("--txn-app-id and --txn-version belong together")
    check_cluster_arguments(parser, given)
    check_record_arguments(parser, given)
    return given


def version(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,19}", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer from 0")
    return int(text)


def sink_options(given: argparse.Namespace) -> dict[str, str]:
    """Return the options of the sink."""
    options = cluster_options(given)
    options["topic"] = given.topic
    if given.txn_app_id is not None:
        options["txnappid"] = given.txn_app_id
        options["txnversion"] = str(given.txn_version)
    return options


def run(given: argparse.Namespace) -> str:
    from pyspark.sql import SparkSession

    options = sink_options(given)
    spark = SparkSession.builder.appName(f"files to {given.topic}").getOrCreate()
    try:
        register_sink(spark)
        rows = read_files(spark, given, given.paths)
        records(rows, given).write.format("kafka-eos").options(**options).mode("append").save()
    finally:
        spark.stop()
    # A version that was written before is skipped, with a warning.
    return f"topic {given.topic} holds the rows"


def main(argv: Sequence[str] | None = None) -> int:
    given = arguments(argv)
    return end(NAME, lambda: run(given))


if __name__ == "__main__":
    sys.exit(main())
