"""Writes files to a Kafka topic, once.

    spark-submit --properties-file conf/spark-defaults.conf --py-files <the wheel or zip> spark_jobs/batch_to_kafka.py \
        --bootstrap-servers localhost:9092 --topic orders --format parquet --key order_id /data/orders

Each row becomes one record. The value is the row as JSON, or what --value says; the key is what --key says. With
--txn-app-id and --txn-version the job can be started again after any failure: what is written already is not written
twice. Exit status: 0 written, 1 a failure (one sentence on standard error), 2 wrong usage.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

USAGE_ERROR = 2
FAILURE = 1


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line, checked as far as it can be without Spark."""
    parser = argparse.ArgumentParser(
        prog="batch_to_kafka.py",
        description="Writes files (parquet, json, csv) to a Kafka topic, once.",
        epilog="Exit status: 0 written, 1 a failure said in one sentence on standard error, 2 wrong usage.",
    )
    parser.add_argument("paths", nargs="+", metavar="PATH", help="files or directories, as Spark reads them")
    parser.add_argument("--format", choices=("parquet", "json", "csv"), default="parquet", help="default: parquet")
    parser.add_argument(
        "--read-option",
        action="append",
        default=[],
        type=_assignment,
        metavar="K=V",
        help="option of Spark's reader, e.g. multiLine=true (csv: header and inferSchema are on unless set here)",
    )
    parser.add_argument("--bootstrap-servers", metavar="S", help="brokers as host:port, comma-separated")
    parser.add_argument("--topic", required=True, help="the topic to write to")
    parser.add_argument("--key", metavar="SQL", help="column or SQL expression; string or binary, else cast to string")
    parser.add_argument(
        "--value", metavar="SQL", help="column or SQL expression; default: the row as JSON. Structs become JSON"
    )
    parser.add_argument("--headers", metavar="SQL", help="expression of type array<struct<key:string,value:binary>>")
    parser.add_argument("--timestamp", metavar="SQL", help="column or SQL expression of type timestamp")
    parser.add_argument("--where", metavar="SQL", help="write only the rows for which this holds")
    parser.add_argument("--txn-app-id", metavar="ID", help="who writes; together with --txn-version written once")
    parser.add_argument("--txn-version", metavar="N", type=_version, help="which of its writes this is, from 0")
    parser.add_argument(
        "--properties", metavar="FILE", help="Java-style client properties file, see conf/client.properties.example"
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        type=_assignment,
        metavar="K=V",
        help="further option of the sink, e.g. kafka.compression.type=lz4; goes before --properties",
    )
    given = parser.parse_args(argv)
    if (given.txn_app_id is None) != (given.txn_version is None):
        parser.error("--txn-app-id and --txn-version belong together")
    if given.bootstrap_servers is None and given.properties is None:
        named = {name.lower() for name, _ in given.option}
        if "kafka.bootstrap.servers" not in named:
            parser.error("--bootstrap-servers is required (or bootstrap.servers in --properties)")
    return given


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _version(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,19}", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer from 0")
    return int(text)


def sink_options(given: argparse.Namespace) -> dict[str, str]:
    """The options of the sink: the properties file first, then --option, then what has an argument of its own."""
    from kafka_eos_sink.sink.kafka_properties import options_from_file

    options: dict[str, str] = {}
    if given.properties is not None:
        options.update(options_from_file(given.properties))
    # Spark's option names are case-insensitive, so the later spelling replaces the earlier one.
    options.update({name.lower(): value for name, value in given.option})
    options["topic"] = given.topic
    if given.bootstrap_servers is not None:
        options["kafka.bootstrap.servers"] = given.bootstrap_servers
    if given.txn_app_id is not None:
        options["txnappid"] = given.txn_app_id
        options["txnversion"] = str(given.txn_version)
    return options


def read(spark: SparkSession, given: argparse.Namespace) -> DataFrame:
    """The rows of the files."""
    reader = spark.read.format(given.format)
    if given.format == "csv":
        reader = reader.option("header", "true").option("inferSchema", "true")
    for name, value in given.read_option:
        reader = reader.option(name, value)
    rows = reader.load(list(given.paths))
    return rows if given.where is None else rows.where(given.where)


def records(rows: DataFrame, given: argparse.Namespace) -> DataFrame:
    """The columns key, value, headers and timestamp that the sink writes."""
    from pyspark.sql import Column
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, StructType

    def bytes_or_text(expression: str) -> Column:
        column = f.expr(expression)
        data_type = rows.select(column).schema.fields[0].dataType
        if isinstance(data_type, StringType | BinaryType):
            return column
        if isinstance(data_type, StructType | ArrayType | MapType):
            return f.to_json(column)
        return column.cast("string")

    whole_row = f.to_json(f.struct(*(f.col(f"`{name.replace('`', '``')}`") for name in rows.columns)))
    columns = [(whole_row if given.value is None else bytes_or_text(given.value)).alias("value")]
    if given.key is not None:
        columns.append(bytes_or_text(given.key).alias("key"))
    for name in ("headers", "timestamp"):
        expression = getattr(given, name)
        if expression is not None:
            columns.append(f.expr(expression).alias(name))
    return rows.select(*columns)


def run(given: argparse.Namespace) -> None:
    from pyspark.sql import SparkSession

    from kafka_eos_sink import KafkaEosDataSource

    options = sink_options(given)
    spark = SparkSession.builder.appName(f"files to {given.topic}").getOrCreate()
    try:
        # A package given by --py-files is not seen by Spark's look-up of data sources.
        spark.dataSource.register(KafkaEosDataSource)
        records(read(spark, given), given).write.format("kafka-eos").options(**options).mode("append").save()
    finally:
        spark.stop()


_OURS = re.compile(r"\[KAFKA_EOS\.[A-Z_]+\][^\n]*")


def one_sentence(error: BaseException) -> str:
    """What went wrong, without the stack traces that Spark wraps around it."""
    text = str(error)
    ours = _OURS.search(text)
    if ours is not None:
        return ours[0].strip()
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return first or type(error).__name__


def main(argv: Sequence[str] | None = None) -> int:
    given = arguments(argv)
    try:
        run(given)
    except KeyboardInterrupt:
        print("batch_to_kafka: interrupted", file=sys.stderr)
        return FAILURE
    except Exception as error:
        print(f"batch_to_kafka: {one_sentence(error)}", file=sys.stderr)
        return FAILURE
    print(f"batch_to_kafka: written to topic {given.topic}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
