"""What the jobs in ``spark_jobs/`` have in common: how they are told of a cluster and of files, and how they end.

Each of them is a single file for ``spark-submit``, so what they share travels with the package.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kafka_eos_sink.errors import one_sentence
from kafka_eos_sink.settings.kafka_properties import options_from_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SUCCESS = 0
FAILURE = 1

_BOOTSTRAP_SERVERS = "kafka.bootstrap.servers"


class JobFailed(Exception):
    """A job that ran to its end and has to say in one sentence that it did not do what it is for."""


def job_parser(name: str, description: str, epilog: str) -> argparse.ArgumentParser:
    """The parser of a job's command line; lines of `epilog` stay lines."""
    return argparse.ArgumentParser(
        prog=f"{name}.py", description=description, epilog=epilog, formatter_class=_LineByLine
    )


class _LineByLine(argparse.HelpFormatter):
    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        # What is indented is to be copied, and stays as it is.
        return "\n".join(line if line[:1] == " " else fill(line, width, indent) for line in text.splitlines())


def assignment(text: str) -> tuple[str, str]:
    """The argument type of ``NAME=VALUE``."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def add_cluster_arguments(parser: argparse.ArgumentParser, *, of: str) -> None:
    """Adds --bootstrap-servers, --properties and --option; `of` says whose options the last ones are."""
    parser.add_argument("--bootstrap-servers", metavar="S", help="brokers as host:port, comma-separated")
    parser.add_argument(
        "--properties", metavar="FILE", help="Java-style client properties file, see conf/client.properties.example"
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        type=assignment,
        metavar="K=V",
        help=f"further option of {of}, e.g. kafka.client.id=nightly; goes before --properties",
    )


def add_read_arguments(parser: argparse._ActionsContainer, examples: str) -> None:
    """Adds --schema and --read-option: how Spark reads; `examples` are some of its options."""
    parser.add_argument("--schema", metavar="DDL", help="columns of the files, e.g. 'id BIGINT, name STRING'")
    parser.add_argument(
        "--read-option",
        action="append",
        default=[],
        type=assignment,
        metavar="K=V",
        help=f"option of Spark's reader, e.g. {examples}",
    )


def read_files(spark: SparkSession, given: argparse.Namespace, paths: Sequence[str]) -> DataFrame:
    """The rows of the files at `paths`; a csv file has a header, and types that are found out where --schema says none."""
    reader = spark.read.format(given.format)
    if given.format == "csv":
        reader = reader.option("header", "true").option("inferSchema", "true")
    if given.schema is not None:
        reader = reader.schema(given.schema)
    for name, value in given.read_option:
        reader = reader.option(name, value)
    return reader.load(list(paths))


def check_cluster_arguments(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    """Ends with wrong usage where nothing can name the brokers."""
    if given.bootstrap_servers is None and given.properties is None:
        named = {name.lower() for name, _ in given.option}
        if _BOOTSTRAP_SERVERS not in named:
            parser.error("--bootstrap-servers is required (or bootstrap.servers in --properties)")


def cluster_options(given: argparse.Namespace) -> dict[str, str]:
    """The options that the arguments come to: the properties file first, then --option, then --bootstrap-servers.

    Names are in lower case: Spark's option names are case-insensitive, so a later spelling replaces an earlier one.

    Raises:
        ConfigurationError: INVALID_PROPERTIES, where the file cannot be read.
    """
    options: dict[str, str] = {}
    if given.properties is not None:
        options.update(options_from_file(given.properties, warn))
    options.update({name.lower(): value for name, value in given.option})
    if given.bootstrap_servers is not None:
        options[_BOOTSTRAP_SERVERS] = given.bootstrap_servers
    return options


def warn(what: str) -> None:
    print(f"warning: {what}", file=sys.stderr)


def end(name: str, run: Callable[[], str]) -> int:
    """Runs a job and returns its exit status; `run` returns the line that says what was done.

    A failure is one sentence on standard error and status 1.
    """
    try:
        done = run()
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return FAILURE
    except Exception as error:
        print(f"{name}: {one_sentence(error)}", file=sys.stderr)
        return FAILURE
    print(f"{name}: {done}")
    return SUCCESS
