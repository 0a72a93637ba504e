"""A query whose checkpoint was deleted, beside the group of `source.offsets.group`: it writes no row twice, and continues when told to."""

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
from kafka_testing import create_topic, read_uncommitted, unique_topic, wait_until
from tests.spark.streams import Stream, committed_offsets, lag, produce

CodeOf = Callable[[str], str]
pytestmark = pytest.mark.feature("lost checkpoint")


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
        read = source.option("kafka.isolation.level", "read_committed").option("maxOffsetsPerTrigger", 15).load()
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


def test_group_that_a_person_has_reset_decides_what_is_written(query: Copying, code_of: CodeOf) -> None:
    """A new query that begins where the group stands is planned without an error, also if another program has moved the group."""
    query.send(20)
    query.copy()
    query.lose_checkpoint()
    query.set_group(2)
    text = query.is_refused()
    assert code_of(text) == "CHECKPOINT_LOST"
    assert "committed by another program, or a person" in text
    query.lose_checkpoint()
    query.copy(pasted(text))
    # Only the first two rows of each partition, which lie below the group's offsets, are there once.
    assert Counter(query.numbers().values()) == Counter({1: 4, 2: query.sent - 4})


def test_rewrite_writes_all_rows_a_second_time(query: Copying) -> None:
    query.send(20)
    query.copy()
    query.lose_checkpoint()
    query.copy(onCheckpointRollback="rewrite")
    assert query.numbers() == Counter(dict.fromkeys(range(20), 2))
    query.send(10)
    query.copy()  # without the option: the log knows the query
    assert query.numbers() == Counter({number: 2 if number < 20 else 1 for number in range(30)})
    assert lag(query.servers, query.group, query.input) == 0


def test_fixed_prefix_does_not_hide_a_lost_checkpoint(query: Copying, code_of: CodeOf) -> None:
    """The write id stays, the query id does not."""
    prefix = {"transactional.id.prefix": unique_topic("prefix")}
    query.send(20)
    query.copy(**prefix)
    query.send(10)
    query.lose_checkpoint()
    text = query.is_refused(**prefix)
    assert code_of(text) == "CHECKPOINT_LOST"
    assert "kafka-eos recover" not in text  # the run has taken the write over
    query.lose_checkpoint()
    query.copy(pasted(text), **prefix)
    assert query.numbers() == Counter(range(30))


def test_group_without_offsets_reveals_nothing(query: Copying) -> None:
    """It was deleted, or its offsets have expired: what README and docs/stream.md state as the limit."""
    query.send(20)
    query.copy()
    query.lose_checkpoint()
    admin = AdminClient({"bootstrap.servers": query.servers})
    admin.delete_consumer_groups([query.group])[query.group].result(60)
    query.copy()
    assert query.numbers() == Counter(dict.fromkeys(range(20), 2))


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


def test_added_topic_begins_where_the_new_query_begins(query: Copying, code_of: CodeOf) -> None:
    """The group has no offsets of it. Spark needs the value of every partition of the source."""
    query.send(20)
    query.copy()
    query.lose_checkpoint()
    added = create_topic(query.servers, partitions=1)
    produce(query.servers, added, [("a", "20"), ("b", "21")], end="commit")
    both, options = f"{query.input},{added}", {"source.offsets.group": query.group}
    text = query.fails(query.rows(topics=both), **options)
    assert code_of(text) == "CHECKPOINT_LOST"
    assert json.loads(pasted(text))[added] == {"0": 0}
    query.lose_checkpoint()
    query.run(query.rows(pasted(text), both), **options)
    assert query.numbers() == Counter(range(22))


def test_query_that_shares_a_group_needs_one_of_its_own(
    kafka: EmbeddedKafka, query: Copying, code_of: CodeOf, tmp_path: Path
) -> None:
    query.send(20)
    query.copy()
    (tmp_path / "second").mkdir()
    second = Stream(kafka, query.spark, tmp_path / "second", files=0)
    text = second.fails(query.rows(), **{"source.offsets.group": query.group})
    assert code_of(text) == "CHECKPOINT_LOST"
    assert "give this one a source.offsets.group of its own" in text
    second.run(query.rows(), **{"source.offsets.group": unique_topic("group")})
    assert second.numbers() == Counter(range(20))


def test_query_starts_once_no_consumer_is_in_its_group(query: Copying, code_of: CodeOf) -> None:
    query.send(20)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": query.servers, "group.id": query.group})
    try:
        consumer.subscribe([query.input])
        wait_until(consumer.assignment, "the consumer's partitions", meanwhile=lambda: consumer.poll(0.1))
        text = query.fails(query.rows(), **{"source.offsets.group": query.group})
    finally:
        consumer.close()
    assert code_of(text) == "SOURCE_OFFSETS"
    assert "has members" in text
    assert query.numbers() == Counter()
    query.copy()
    query.assert_every_row_once()
    assert lag(query.servers, query.group, query.input) == 0
