"""A Spark application of the campaign: writes what its folder asks for, as a user's job would.

spark_writer.py FOLDER [--finish]

FOLDER/writer.json is an `Assignment`. A stream takes the files of FOLDER/source one by one, a copy takes its input topic; both go on until
they are killed. A batch job writes the units of FOLDER/units.jsonl in their order, and notes each one that was accepted. With ``--finish``
everything that is there is written, and the application ends.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaException
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from tests.campaign.checker import stable_offsets

Kind = Literal["stream", "shuffled stream", "batch", "copy", "foreachBatch"]
SCHEMA = "key string, value string"
TASKS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What a writer does.

    ``servers`` is for the sink, perhaps through a proxy; ``source_servers`` for Spark's own source.
    """

    name: str
    kind: Kind
    servers: str
    source_servers: str
    topics: list[str]
    keyed: bool
    options: dict[str, str]
    input_topic: str = ""
    group: str = ""
    jars: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Unit:
    """What becomes visible at once: a version of a batch job, or a file of a stream."""

    number: int
    rows: int


def units_of(folder: Path) -> list[Unit]:
    """Return the units in the order in which a batch job writes them; some stand there twice."""
    return [Unit(**json.loads(line)) for line in (folder / "units.jsonl").read_text().splitlines()]


def accepted_of(folder: Path) -> set[int]:
    """Return the numbers of the units whose write returned to its caller."""
    path = folder / "accepted"
    return {int(line) for line in path.read_text().splitlines() if line.isdigit()} if path.exists() else set()


def stamped(name: str, keyed: bool) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return what makes ``WRITER|UNIT|LINE|TASK|INDEX`` of the rows ``UNIT|LINE`` of a task, in their order."""

    def stamp(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task, at = TaskContext.get().partitionId(), 0
        for batch in batches:
            lines = batch.column("value")
            index = pc.cast(pa.array(range(at, at + len(lines)), pa.int64()), pa.string())
            value = pc.binary_join_element_wise(name, lines, str(task), index, "|")
            key = pc.utf8_slice_codeunits(lines, -2) if keyed else pa.nulls(len(lines), pa.string())
            yield pa.RecordBatch.from_arrays([key, value], ["key", "value"])
            at += len(lines)

    return stamp


class Writer:
    """One assignment in one session."""

    def __init__(self, folder: Path, finish: bool) -> None:
        self.folder, self.finish = folder, finish
        self.given = Assignment(**json.loads((folder / "writer.json").read_text()))
        builder = SparkSession.builder.appName(self.given.name)
        if "SPARK_ENV_LOADED" not in os.environ:  # not by spark-submit, which says where
            builder = builder.master("local[2,4]")
        builder = (
            builder.config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.memory", "512m")
            .config("spark.sql.shuffle.partitions", str(TASKS))
            .config("spark.sql.adaptive.enabled", "false")
            .config("spark.sql.files.maxPartitionBytes", "16384")
            .config("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
        )
        if self.given.jars:
            builder = builder.config("spark.jars", ",".join(self.given.jars))
        self.spark = builder.getOrCreate()
        self.spark.sparkContext.setLogLevel("ERROR")

    def run(self) -> None:
        if self.given.kind == "batch":
            self.batches()
        else:
            self.stream()
        print("ended", flush=True)
        self.spark.stop()

    def options(self, topic: str) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.given.servers, "topic": topic, **self.given.options}

    def stamp(self, frame: DataFrame) -> DataFrame:
        return frame.mapInArrow(stamped(self.given.name, self.given.keyed), SCHEMA)

    # a job that is run for one version after the other, in any order

    def batches(self) -> None:
        # A run begins with a few that were accepted: users repeat jobs.
        accepted, units = accepted_of(self.folder), units_of(self.folder)
        asked = next((at for at, unit in enumerate(units) if unit.number not in accepted), len(units))
        asked = max(0, asked - 3)
        while True:
            units = units_of(self.folder)
            for unit in units[asked:]:
                print(f"unit {unit.number} begins", flush=True)
                self.write_unit(unit)
                with (self.folder / "accepted").open("a") as noted:
                    noted.write(f"{unit.number}\n")
                    noted.flush()
                    os.fsync(noted.fileno())
                print(f"unit {unit.number} accepted", flush=True)
            asked = len(units)
            if self.finish:
                return
            time.sleep(0.2)

    def write_unit(self, unit: Unit) -> None:
        rows = self.spark.range(0, unit.rows, 1, TASKS)
        lines = rows.selectExpr(f"concat('{unit.number}|', id) value")
        (topic,) = self.given.topics
        options = {**self.options(topic), "txnAppId": self.given.name, "txnVersion": str(unit.number)}
        self.stamp(lines).write.format("kafka-eos").mode("append").options(**options).save()
        self.note_what_is_visible(topic, unit.number)

    # a query

    def stream(self) -> None:
        trigger = {"availableNow": True} if self.finish else {"processingTime": "0 seconds"}
        if self.given.kind == "foreachBatch":
            writer = self.lines().writeStream.foreachBatch(self.write_both)
        else:
            (topic,) = self.given.topics
            more = {"source.offsets.group": self.given.group} if self.given.group else {}
            writer = self.stamp(self.lines()).writeStream.format("kafka-eos").options(**self.options(topic), **more)
        checkpoint = str(self.folder / "checkpoint")
        writer.option("checkpointLocation", checkpoint).trigger(**trigger).start().awaitTermination()

    def lines(self) -> DataFrame:
        if self.given.kind == "copy":
            source = self.spark.readStream.format("kafka").option("kafka.bootstrap.servers", self.given.source_servers)
            source = source.option("kafka.isolation.level", "read_committed").option("startingOffsets", "earliest")
            source = source.option("subscribe", self.given.input_topic).option("maxOffsetsPerTrigger", 20_000)
            return source.load().selectExpr("concat_ws('|', cast(value as string), partition, offset) value")
        source = self.spark.readStream.format("text").option("maxFilesPerTrigger", "1")
        lines = source.load(str(self.folder / "source"))
        return lines.repartition(TASKS, "value") if self.given.kind == "shuffled stream" else lines

    def write_both(self, batch: DataFrame, batch_id: int) -> None:
        stamped_batch = self.stamp(batch)
        for topic in self.given.topics:
            options = {**self.options(topic), "txnAppId": self.given.name, "txnVersion": str(batch_id)}
            stamped_batch.write.format("kafka-eos").mode("append").options(**options).save()
            self.note_what_is_visible(topic, batch_id)

    def note_what_is_visible(self, topic: str, number: int) -> None:
        """Up to where readers see the topic now that the write has returned."""
        with suppress(KafkaException):
            stable = stable_offsets(self.given.source_servers, [(topic, part) for part in range(TASKS)])
            with (self.folder / "visible.jsonl").open("a") as visible:
                visible.write(json.dumps([topic, number, [stable[topic, part] for part in range(TASKS)]]) + "\n")


if __name__ == "__main__":
    Writer(Path(sys.argv[1]), "--finish" in sys.argv).run()
