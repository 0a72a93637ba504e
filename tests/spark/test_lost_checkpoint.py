"""The group of `source.offsets.group`: it has the offsets of each batch, and shows that a checkpoint was deleted."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession

from kafka_eos_sink.cli.main import main
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_testing import assert_nothing_open, create_topic, read_uncommitted, unique_topic
from tests.spark.streams import Stream, committed_offsets, lag, produce

CodeOf = Callable[[str], str]


class Copying(Stream):
    """A query from a topic of two partitions to another one, which commits its offsets to a group."""

    def __init__(self, cluster: EmbeddedKafka, spark: SparkSession, folder: Path) -> None:
        super().__init__(cluster, spark, folder, files=0)
        self.input, self.group = create_topic(self.servers, partitions=2), unique_topic("group")
        self.sent = 0

    def send(self, count: int) -> None:
        numbers = range(self.sent, self.sent + count)
        produce(self.servers, self.input, ((str(number), str(number)) for number in numbers), end="commit")
        self.sent += count

    def rows(self, start: str = "earliest", topics: str = "", name: str = "") -> DataFrame:
        source = self.spark.readStream.format("kafka").option("kafka.bootstrap.servers", self.servers)
        source = source.name(name) if name else source
        source = source.option("subscribe", topics or self.input).option("startingOffsets", start)
        read = source.option("kafka.isolation.level", "read_committed").option("maxOffsetsPerTrigger", 25).load()
        return read.selectExpr("key", "value")

    def copy(self, start: str = "earliest", **options: str) -> None:
        self.run(self.rows(start), **{"source.offsets.group": self.group, **options})

    def is_refused(self, start: str = "earliest", **options: str) -> str:
        """What the user is told."""
        before = read_uncommitted(self.servers, self.topic)
        text = self.fails(self.rows(start), **{"source.offsets.group": self.group, **options})
        assert read_uncommitted(self.servers, self.topic) == before
        return text

    def lose_checkpoint(self) -> None:
        shutil.rmtree(self.checkpoint)

    def set_group(self, offset: int, group: str = "") -> None:
        """As kafka-consumer-groups.sh --reset-offsets does: in both partitions."""
        offsets = [confluent_kafka.TopicPartition(self.input, partition, offset) for partition in range(2)]
        request = confluent_kafka.ConsumerGroupTopicPartitions(group or self.group, offsets)
        admin = AdminClient({"bootstrap.servers": self.servers})
        (done,) = admin.alter_consumer_group_offsets([request]).values()
        done.result(60)

    def assert_every_row_once(self) -> None:
        assert self.numbers() == Counter(range(self.sent))
        self.assert_nothing_of_it_is_open()


@pytest.fixture
def query(kafka: EmbeddedKafka, spark: SparkSession, tmp_path: Path) -> Copying:
    return Copying(kafka, spark, tmp_path)


def pasted(text: str) -> str:
    """The value of startingOffsets that an error holds."""
    found = re.search(r"continues exactly: (\{[^;]*\});", text)
    assert found is not None, text
    return found[1]


def test_query_without_its_checkpoint_continues_at_the_group(
    query: Copying, code_of: CodeOf, capsys: pytest.CaptureFixture[str]
) -> None:
    query.send(40)
    query.copy()
    old = query.write_id()
    query.send(20)
    query.lose_checkpoint()

    text = query.is_refused()
    assert code_of(text) == "CHECKPOINT_LOST"
    stands = committed_offsets(query.servers, query.group)
    for partition in range(2):
        at = stands[query.input, partition]
        assert f"{query.input}-{partition} begins at 0, the group stands at {at}" in text
    assert f"committed by write id '{old}'" in text
    assert f"kafka-eos recover --bootstrap-servers {query.servers} --write-id {old}; then" in text
    start = pasted(text)
    assert json.loads(start) == {query.input: {str(where[1]): offset for where, offset in stands.items()}}
    # The checkpoint of the rejected run has batch 0, which Spark runs again with the beginning that it noted: the same error.
    assert code_of(query.is_refused(start)) == "CHECKPOINT_LOST"

    capsys.readouterr()
    assert main(["offsets", "--bootstrap-servers", query.servers, "--group", query.group]) == 0
    printed = capsys.readouterr()
    assert printed.out.strip() == start
    assert f"--write-id {old}" in printed.err

    assert main(["recover", "--yes", "--bootstrap-servers", query.servers, "--write-id", old]) == 0
    query.lose_checkpoint()
    query.copy(start)
    query.assert_every_row_once()
    assert query.write_id() != old
    # The checkpoint is whole: later batches and restarts are planned without the group.
    query.set_group(10_000)
    query.send(20)
    query.copy(start)
    query.assert_every_row_once()
    assert lag(query.servers, query.group, query.input) == 0


@pytest.fixture(params=[False, True], ids=["numbers", "names"])
def format_2(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[bool]:
    """Spark writes offset logs of format 2, which name their sources; whether the query has given the names."""
    if not hasattr(spark.readStream, "name"):
        pytest.skip("before Spark 4.2 there is no format 2")
    settings = {"spark.sql.streaming.offsetLog.formatVersion": "2"}
    if request.param:  # names imply the format
        settings = {"spark.sql.streaming.queryEvolution.enableSourceEvolution": "true"}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield request.param
    for name in settings:
        spark.conf.unset(name)


def test_offset_log_of_format_2_serves_as_format_1_does(query: Copying, format_2: bool, code_of: CodeOf) -> None:
    other = create_topic(query.servers, partitions=1)
    produce(query.servers, other, (("a", str(number)) for number in range(60, 66)), end="commit")
    options = {"source.offsets.group": query.group}

    def both(start: str = "earliest", of_other: str = "earliest") -> DataFrame:
        names = ("clicks", "views") if format_2 else ("", "")
        return query.rows(start, name=names[0]).union(query.rows(of_other, other, names[1]))

    query.send(40)
    query.run(both(), **options)
    log = (query.checkpoint / "offsets" / "0").read_text().splitlines()
    assert log[0] == "v2"
    assert {line.partition(":")[0] for line in log[2:]} == ({"clicks", "views"} if format_2 else {"0", "1"})
    query.send(20)
    query.run(both(), **options)  # a restart
    stands = committed_offsets(query.servers, query.group)
    assert (set(stands), stands[other, 0]) == ({(query.input, 0), (query.input, 1), (other, 0)}, 7)
    assert query.numbers() == Counter(range(66))

    query.lose_checkpoint()
    text = query.fails(both(), **options)
    assert code_of(text) == "CHECKPOINT_LOST"
    starts = [json.loads(each) for each in pasted(text).split(" and, for another Kafka source, ")]
    known = {topic: each for start in starts for topic, each in start.items()}
    assert known == {query.input: {str(part): stands[query.input, part] for part in range(2)}, other: {"0": 7}}
    query.lose_checkpoint()
    query.run(both(json.dumps({query.input: known[query.input]}), json.dumps({other: known[other]})), **options)
    assert query.numbers() == Counter(range(66))
    query.assert_nothing_of_it_is_open()


def test_group_has_the_offsets_of_batches_that_write_nothing(query: Copying) -> None:
    """The rows of a batch are filtered, or their transaction was aborted."""
    query.send(20)
    query.copy()
    options = {"source.offsets.group": query.group}
    running = query.writer(query.rows().where("value <> '30'"), **options).trigger(processingTime="0 seconds").start()
    try:
        for value, end in (("30", "commit"), ("10", "abort")):
            produce(query.servers, query.input, [(key, value) for key in "abc"], end=end)
            assert_nothing_open(query.servers, [query.input], of="test-")  # so that the query gets all of it
            running.processAllAvailable()
            assert lag(query.servers, query.group, query.input) == 0
    finally:
        running.stop()
    query.assert_every_row_once()
