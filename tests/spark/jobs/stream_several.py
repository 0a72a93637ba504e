"""Streams several queries in one driver until each hangs in its commit, so that a test can kill them all at once.

stream_several.py FOLDER JARS

FOLDER/queries.json is a list of queries as `several_queries.Query` has them. Two run at a time: another begins when one is in the midst of
its commit, with the first of its transactions committed. A query with a `stop_mark` is stopped in good order when that file appears, which
is within its commit, and the file is removed while it waits. FOLDER/all-hang is made in the end.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from kafka_eos_sink.client.admin import connected
from tests.spark.jobs.several_queries import Query, frame_of
from tests.spark.jobs.stream_rows import writer_of

AT_A_TIME = 2


def has_committed_one(query: Query) -> bool:
    """Whether a transaction of the query is committed. Readers need not see its rows: others of the batch hold them up."""
    write_id = f"kafka-eos-{json.loads((Path(query.checkpoint) / 'metadata').read_text())['id']}"
    with connected(query.servers) as admin:
        ids = f"{write_id}\\.[0-9]+\\.[0-9]+"
        until = admin.client.clock() + 30_000
        return bool(admin.list_transactions(states=("CompleteCommit",), id_pattern=ids, deadline_ms=until))


def has_come_so_far(query: Query, running: StreamingQuery) -> bool:
    if not running.isActive:
        sys.exit(f"{query.topic} has ended: {running.exception()}")
    return Path(query.stop_mark).exists() if query.stop_mark else has_committed_one(query)


def is_interrupted(spark: SparkSession, running: StreamingQuery) -> bool:
    """Whether the stop has reached the query's thread. `isActive` ends before: what commits in between is noted as done."""
    threads = spark._jvm.java.lang.Thread.getAllStackTraces().keySet()
    return any(running.runId in thread.getName() and thread.isInterrupted() for thread in threads)


def stop_in_commit(spark: SparkSession, mark: Path, running: StreamingQuery) -> None:
    stopping = threading.Thread(target=running.stop)
    stopping.start()
    while not is_interrupted(spark, running):
        time.sleep(0.01)
    mark.unlink()
    stopping.join()


def main(folder: str, jars: str) -> None:
    spark = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.jars", jars)
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    running: list[tuple[Query, StreamingQuery]] = []

    def await_at_most(count: int) -> None:
        while len(running) > count:
            for query, started in tuple(running):
                if has_come_so_far(query, started):
                    running.remove((query, started))
                    print(f"{query.checkpoint} has come so far", flush=True)
                    if query.stop_mark:
                        stop_in_commit(spark, Path(query.stop_mark), started)
            time.sleep(0.05)

    for fields in json.loads((Path(folder) / "queries.json").read_text()):
        await_at_most(AT_A_TIME - 1)
        query = Query(**fields)
        writer = writer_of(frame_of(spark, query), query.servers, query.topic, query.checkpoint, query.options)
        running.append((query, writer.start()))
    await_at_most(0)
    (Path(folder) / "all-hang").touch()
    signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
