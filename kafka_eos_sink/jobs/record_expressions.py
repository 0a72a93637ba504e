"""Turn rows into the columns of records, by SQL expressions of a command line.

The three jobs in ``spark_jobs/`` accept the same arguments, so that ``verify_exactly_once`` accepts a write's unchanged.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, StructType

SOURCE_VIEW = "source"

KAFKA_COLUMNS = {"key": "key", "value": "value", "headers": "headers", "timestamp": "timestamp"}
"""Default expressions for rows of Spark's Kafka source: the same records."""

_COLUMNS = ("value", "key", "headers", "timestamp")
_EXCLUDED = {"sql": ("select", *_COLUMNS, "where"), "select": _COLUMNS}


def add_record_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --key, --value, --headers, --timestamp and --where, --select, and --sql."""
    group = parser.add_argument_group(
        "records",
        "How each row of the source becomes a record: an expression per column, or --select, or a query with --sql. "
        "A key or value that is neither string nor binary is cast to string; structs, arrays and maps become JSON. "
        "Without --value: a file's row as JSON, a Kafka record as it is (key, value, headers, timestamp).",
    )
    group.add_argument("--key", metavar="SQL", help="column or expression")
    group.add_argument("--value", metavar="SQL", help="column or expression")
    group.add_argument("--headers", metavar="SQL", help="expression of type array<struct<key:string,value:binary>>")
    group.add_argument("--timestamp", metavar="SQL", help="column or expression of type timestamp")
    group.add_argument("--where", metavar="SQL", help="write only the rows for which this condition is true")
    group.add_argument(
        "--select",
        action="append",
        metavar="SQL",
        help="instead of these: an expression with AS and one of key, value, headers, timestamp, topic, partition; "
        "repeat it for each column",
    )
    group.add_argument(
        "--sql", metavar="QUERY", help=f"instead of all these: a query over the view {SOURCE_VIEW} with such columns"
    )


def check_record_arguments(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    """Exit with wrong usage if arguments exclude each other."""
    for name, excluded in _EXCLUDED.items():
        besides = [f"--{other}" for other in excluded if getattr(given, other) is not None]
        if getattr(given, name) is not None and besides:
            parser.error(f"--{name} and {' and '.join(besides)} exclude each other")


def records(
    rows: DataFrame,
    given: argparse.Namespace,
    *,
    defaults: Mapping[str, str] | None = None,
    beside: Mapping[str, str] | None = None,
) -> DataFrame:
    """Select the columns that the sink writes.

    Args:
        rows: The rows of the source.
        given: The parsed arguments.
        defaults: Expressions for columns that no argument gives; without one, the value is the row as JSON.
        beside: Further columns by name, as expressions over the rows of the source (with --sql, of the query).
    """
    further = [f.expr(expression).alias(name) for name, expression in (beside or {}).items()]
    if given.sql is not None:
        # The view belongs to the session of the rows. In foreachBatch that is another session than the application's.
        rows.createOrReplaceTempView(SOURCE_VIEW)
        made = rows.sparkSession.sql(given.sql)
        return _as_text(made.select("*", *further) if further else made)
    if given.where is not None:
        rows = rows.where(given.where)
    if given.select is not None:
        return _as_text(rows.select(*map(f.expr, given.select), *further))
    expressions = dict(defaults or {})
    expressions |= {name: written for name in _COLUMNS if (written := getattr(given, name)) is not None}
    columns = {name: f.expr(expressions[name]) for name in _COLUMNS if name in expressions}
    columns.setdefault("value", f.to_json(f.struct("*")))
    return _as_text(rows.select(*(column.alias(name) for name, column in columns.items()), *further))


def _as_text(made: DataFrame) -> DataFrame:
    """Cast keys and values that are neither string nor binary to text."""
    for name in ("key", "value"):
        types = [field.dataType for field in made.schema.fields if field.name == name]
        if len(types) != 1 or isinstance(types[0], StringType | BinaryType):
            continue  # The sink rejects a duplicate column with its own message.
        nested = isinstance(types[0], StructType | ArrayType | MapType)
        made = made.withColumn(name, f.to_json(name) if nested else f.col(name).cast("string"))
    return made
