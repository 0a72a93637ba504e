"""A Spark application with an executor on each of two hosts, which does what a test tells it, one JSON line after the other.

cluster_driver.py FOLDER [NAME=VALUE of Spark's configuration ...]

It reads ``{"do": METHOD, "given": {...}}`` of `Application` from standard input and answers with ``{"answer": ...}`` or ``{"error": ...}``.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from tests.spark.jobs import stream_rows

HOSTS = ("127.0.0.1", "127.0.0.2")
"""Two, because Spark never starts a speculative copy on the host of the first one."""


def start_cluster(folder: Path) -> str:
    """Spark's standalone master and a worker for each host, in the driver's JVM as local-cluster has them; the master's URL.

    So they end with the driver, and the executors are processes below it.
    """
    SparkContext._ensure_initialized()
    jvm, gateway = SparkContext._jvm, SparkContext._gateway
    deploy, option = jvm.org.apache.spark.deploy, jvm.scala.Option
    conf = jvm.org.apache.spark.SparkConf(False)
    conf.set("spark.deploy.maxExecutorRetries", "-1")  # a test kills more of them than a cluster puts up with
    url = deploy.master.Master.startRpcEnvAndEndpoint(HOSTS[0], 0, 0, conf)._1().address().toSparkURL()
    urls = gateway.new_array(jvm.java.lang.String, 1)
    urls[0] = url
    start_worker = deploy.worker.Worker.startRpcEnvAndEndpoint
    for number, host in enumerate(HOSTS, 1):
        start_worker(host, 0, 0, 1, 1_024, urls, str(folder), option.apply(number), conf, option.empty())
    return str(url)


class Application:
    """What a test can ask for."""

    def __init__(self, folder: Path, settings: dict[str, str]) -> None:
        conf = SparkConf().setAll(list(settings.items())).setMaster(start_cluster(folder))
        self.spark = SparkSession.builder.config(conf=conf).getOrCreate()
        self.context = self.spark.sparkContext
        self.queries: dict[str, StreamingQuery] = {}

    def executors(self) -> int:
        """How many have registered."""
        return len(self.context._jsc.sc().statusTracker().getExecutorInfos()) - 1

    def speculate(self, on: bool) -> None:
        """Whether jobs from now on start second copies of slow tasks; the scheduler asks its configuration for each stage."""
        self.context._jsc.sc().conf().set("spark.speculation", str(on).lower())

    def start_stream(self, name: str, servers: str, topic: str, folder: str, shuffled: bool) -> None:
        """A query that goes on until it is stopped: the files of `folder`/source, one a batch."""
        frame = stream_rows.rows_to_stream(self.spark, f"{folder}/source")
        if shuffled:
            frame = frame.repartition("value")
        writer = stream_rows.writer_of(frame, servers, topic, f"{folder}/checkpoint")
        self.queries[name] = writer.trigger(processingTime="0 seconds").start()

    def stream_error(self, name: str) -> str | None:
        """What has ended the query, if anything has."""
        query = self.queries[name]
        if query.isActive:
            return None
        return str(query.exception() or "the query was stopped")

    def stop_all(self) -> None:
        for query in self.queries.values():
            query.stop()


def main(folder: str, *settings: str) -> None:
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what Spark prints is for the log
        application = Application(Path(folder), dict(setting.split("=", 1) for setting in settings))
        for line in sys.stdin:
            asked = json.loads(line)
            answer: dict[str, Any]
            try:
                answer = {"answer": getattr(application, asked["do"])(**asked["given"])}
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), file=answers, flush=True)
        application.spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
