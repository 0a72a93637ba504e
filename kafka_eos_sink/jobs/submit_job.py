"""Shared by ``spark_jobs/``: arguments for clusters and files, exit status.

Each job is a single file for ``spark-submit``, so the shared code is part of the package.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kafka_eos_sink.errors import one_sentence
from kafka_eos_sink.logs import escape_unencodable
from kafka_eos_sink.settings.kafka_properties import options_from_file
from kafka_eos_sink.settings.table import PROPERTIES_FILE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SUCCESS = 0
FAILURE = 1

_BOOTSTRAP_SERVERS = "kafka.bootstrap.servers"


class JobFailed(Exception):
    """A job ran to its end without its result; the message is one sentence."""


def job_parser(name: str, description: str, epilog: str) -> argparse.ArgumentParser:
    """Create a job's command-line parser; it keeps the line breaks of ``epilog``."""
    return argparse.ArgumentParser(
        prog=f"{name}.py", description=description, epilog=epilog, formatter_class=_LineByLine
    )


class _LineByLine(argparse.HelpFormatter):
    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        # Users copy indented lines, so they are not wrapped.
        return "\n".join(line if line[:1] == " " else fill(line, width, indent) for line in text.splitlines())


def assignment(text: str) -> tuple[str, str]:
    """Parse an argument ``NAME=VALUE``."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def add_cluster_arguments(parser: argparse.ArgumentParser, *, of: str) -> None:
    """Add --bootstrap-servers, --properties and --option, whose help names ``of``."""
    parser.add_argument("--bootstrap-servers", metavar="S", help="brokers as host:port, comma-separated")
    parser.add_argument(
        "--properties", metavar="FILE", help="Java-style client properties file, see conf/client.properties.example"
    )
    _add_pairs(parser, "--option", f"further option of {of}, e.g. kafka.client.id=nightly; overrides --properties")


def add_read_arguments(parser: argparse._ActionsContainer, examples: str) -> None:
    """Add --schema and --read-option; ``examples`` are options of Spark's reader."""
    parser.add_argument("--schema", metavar="DDL", help="columns of the files, e.g. 'id BIGINT, name STRING'")
    _add_pairs(parser, "--read-option", f"option of Spark's reader, e.g. {examples}")


def _add_pairs(parser: argparse._ActionsContainer, name: str, text: str) -> None:
    parser.add_argument(name, action="append", default=[], type=assignment, metavar="K=V", help=text)


def register_sink(spark: SparkSession) -> None:
    """Make the format known to Spark, which finds no package of ``--py-files``."""
    from pyspark.errors import AnalysisException

    from kafka_eos_sink import KafkaEosDataSource

    try:
        spark.dataSource.register(KafkaEosDataSource)
    except AnalysisException as refused:
        # Spark 4.0 rejects what its look-up has found: the same class, of the installed package. Newer ones replace it.
        if refused.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def read_files(spark: SparkSession, given: argparse.Namespace, paths: Sequence[str]) -> DataFrame:
    """Read files; csv has a header, and Spark infers its types without --schema."""
    reader = spark.read.format(given.format)
    if given.format == "csv":
        reader = reader.option("header", "true").option("inferSchema", "true")
    if given.schema is not None:
        reader = reader.schema(given.schema)
    for name, value in given.read_option:
        reader = reader.option(name, value)
    return reader.load(list(paths))


def check_cluster_arguments(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    """Exit with wrong usage if no argument gives the brokers."""
    if given.bootstrap_servers is None and given.properties is None:
        named = {name.lower() for name, _ in given.option}
        if named.isdisjoint((_BOOTSTRAP_SERVERS, PROPERTIES_FILE)):
            parser.error("--bootstrap-servers is required (or bootstrap.servers in --properties)")


def cluster_options(given: argparse.Namespace) -> dict[str, str]:
    """Merge the options: the properties file, then --option, then --bootstrap-servers.

    Raises:
        ConfigurationError: INVALID_PROPERTIES if the file cannot be read.
    """
    options: dict[str, str] = {}
    if given.properties is not None:
        options.update(options_from_file(given.properties, warn))
    # Spark's option names are case-insensitive: without lower() two spellings of one name would both reach Spark.
    options.update({name.lower(): value for name, value in given.option})
    if given.bootstrap_servers is not None:
        options[_BOOTSTRAP_SERVERS] = given.bootstrap_servers
    return options


def warn(what: str) -> None:
    print(f"warning: {what}", file=sys.stderr)


def end(name: str, run: Callable[[], str]) -> int:
    """Run a job and return its exit status.

    ``run`` returns the line for standard output. A failure is one sentence on standard error and status 1.
    """
    escape_unencodable()
    try:
        # A stack trace of Spark and the JVM would hide the one sentence that the user needs.
        done = run()
    except KeyboardInterrupt:
        # Not an Exception: without this clause Ctrl-C ends with a stack trace of Py4J.
        print(f"{name}: interrupted", file=sys.stderr)
        return FAILURE
    except Exception as error:
        print(f"{name}: {one_sentence(error)}", file=sys.stderr)
        return FAILURE
    print(f"{name}: {done}")
    return SUCCESS
