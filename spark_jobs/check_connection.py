"""Try the connection to Kafka from the driver and from every executor.

    spark-submit --properties-file conf/spark-defaults.conf --py-files <the wheel or zip> spark_jobs/check_connection.py \
        --executors 2 --topic orders --option kafka.properties.file=client.properties

Each of them runs what `kafka-eos check` runs, with the options of the sink, and changes nothing. The job prints one line for each
process: what it reached and the package that it runs, or what is wrong. An executor's line also says how Spark sends it rows. Exit
status: 0 all can write, 1 one cannot (one sentence on standard error), 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import kafka_eos_sink
from kafka_eos_sink.client.admin import connected
from kafka_eos_sink.errors import one_line, one_sentence
from kafka_eos_sink.jobs.submit_job import (
    JobFailed,
    add_cluster_arguments,
    check_cluster_arguments,
    cluster_options,
    end,
    job_parser,
)
from kafka_eos_sink.operations.cluster_check import CheckResult, check_cluster
from kafka_eos_sink.settings.options import read_options
from kafka_eos_sink.spark.quick_acks import hand_over

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "check_connection"
CHECK_TIMEOUT_MS = 30_000
EXECUTORS_TIMEOUT_S = 120.0
ROUND_S = 1.0
LOGIN_FAILED = re.compile(r"\[KAFKA_EOS\.(\w*SASL|TOKEN|KERBEROS)_")


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line and check it as far as possible without Spark."""
    parser = job_parser(
        NAME,
        "Tries the connection to Kafka from the driver and from every executor. Changes nothing.",
        "Exit status: 0 all can write, 1 one cannot (one sentence on standard error), 2 wrong usage.",
    )
    parser.add_argument(
        "--executors",
        required=True,
        type=positive,
        metavar="N",
        help=f"how many executors the cluster gives this job; it waits up to {EXECUTORS_TIMEOUT_S:.0f} s for them",
    )
    add_cluster_arguments(parser, of="the sink")
    parser.add_argument("--topic", help="the topic to write to")
    given = parser.parse_args(argv)
    check_cluster_arguments(parser, given)
    return given


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer from 1")
    return int(text)


def sink_options(given: argparse.Namespace) -> dict[str, str]:
    """Return the options of the sink."""
    return cluster_options(given) | ({} if given.topic is None else {"topic": given.topic})


def check_here(options: Mapping[str, str]) -> tuple[bool, str]:
    """Return whether a write from this process would work, and what was found."""
    try:
        sink = read_options(options)
        with connected(sink.client) as admin:
            found = check_cluster(
                admin,
                topic=sink.topic,
                commit_log_topic=sink.commit_log_topic,
                history_topic=sink.history_topic,
                timeout_ms=CHECK_TIMEOUT_MS,
            )
    except Exception as error:  # each process has its line, whatever its brokers send
        return False, one_sentence(error)
    wrong = [
        f"{each.about} {each.what}: {each.found}; {each.meaning}".strip()
        for each in found
        if each.result is CheckResult.FAILS
    ]
    package = f"kafka-eos-sink {kafka_eos_sink.__version__} in {Path(kafka_eos_sink.__file__).parent}"
    return not wrong, "; ".join(wrong) or f"{found[0].found}; {package}"


def login_failed(rows: Mapping[str, tuple[bool, str]]) -> bool:
    return any(LOGIN_FAILED.search(text) for _, text in rows.values())


def check_executors(spark: SparkSession, options: Mapping[str, str], executors: int) -> dict[str, tuple[bool, str]]:
    """Check from so many executors, or fewer if no more came in time; by executor."""
    from pyspark.sql.functions import udf

    def task(_: int) -> str:
        # The parent of a Python worker is the daemon of its executor, or the executor itself.
        works, text = check_here(options)
        text = f"{text}; rows over {hand_over()}" if works else text
        return json.dumps([f"{socket.gethostname()}, process {os.getppid()}", works, text])

    found: dict[str, tuple[bool, str]] = {}
    give_up_at = time.monotonic() + EXECUTORS_TIMEOUT_S
    # Spark gives the tasks of a job to all free executors in turn, but starts when the first executor has registered.
    while len(found) < executors and time.monotonic() < give_up_at:
        tasks = spark.range(0, executors, 1, executors).select(udf(task, useArrow=False)("id"))
        for row in tasks.collect():
            executor, works, text = json.loads(row[0])
            found[executor] = works, text
        # Each round logs in again, and failed logins can lock the account.
        if login_failed(found):
            break
        if len(found) < executors:
            time.sleep(ROUND_S)
    return found


def run(given: argparse.Namespace) -> str:
    from pyspark.sql import SparkSession
    from pyspark.sql.utils import is_remote

    options = sink_options(given)
    spark = SparkSession.builder.appName("check the connection to Kafka").getOrCreate()
    try:
        # A client of Spark Connect is not the driver.
        rows = {} if is_remote() else {f"driver {socket.gethostname()}": check_here(options)}
        executors = {} if login_failed(rows) else check_executors(spark, options, given.executors)
    finally:
        spark.stop()
    rows |= {f"executor {name}": row for name, row in executors.items()}
    for name, (works, text) in rows.items():
        print(one_line(f"{name}: {'ok' if works else 'FAILS'}: {text}"))
    if failing := sum(not works for works, _ in rows.values()):
        raise JobFailed(f"{failing} of {len(rows)} processes cannot write to Kafka")
    if len(executors) < given.executors:
        raise JobFailed(
            f"only {len(executors)} of {given.executors} executors ran a task in {EXECUTORS_TIMEOUT_S:.0f} s; the master's web page "
            "shows which workers are alive and have free cores"
        )
    return f"{len(executors)} of {given.executors} executors can write to Kafka"


def main(argv: Sequence[str] | None = None) -> int:
    given = arguments(argv)
    return end(NAME, lambda: run(given))


if __name__ == "__main__":
    sys.exit(main())
