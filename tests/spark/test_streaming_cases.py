"""What can happen to streaming queries beside dying at one step: whoever meddles with their transactions, and whatever lies about them.

The drivers of most cases here are queries of one Spark application, which is killed while each hangs in its commit: decided, and the first
of its transactions committed. What has to pass until then (timeouts, expiry of ids) passes for all of them at once.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import confluent_kafka
import kafka as kafka_python
import pytest
from kafka.admin import AbortTransactionSpec, KafkaAdminClient
from pyspark.sql import SparkSession
from pyspark.sql.functions import expr

from kafka_eos_sink.cli.main import main
from kafka_eos_sink.client.admin import Admin, connected
from kafka_eos_sink.client.transactions_admin import EndTransaction
from kafka_eos_sink.commit.values import PreparedTransaction, log_partition_of
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.protocol.record_batch import read_record_batches
from kafka_testing import (
    ReadRecord,
    assert_nothing_open,
    create_topic,
    delete_topic,
    open_transaction,
    read_committed,
    read_uncommitted,
    unique_topic,
)
from tests.broker.transaction_versions import set_transaction_version
from tests.conftest import TEST_PROPERTIES
from tests.spark.jobs.several_queries import Query, Shape, frame_of, held_while_there
from tests.spark.jobs.stream_rows import LINES, add_files, writer_of
from tests.spark.killable_job import KillableJob
from tests.spark.streams import Stream, commits_of_group, committed_offsets, lag, newest_decision, produce

CodeOf = Callable[[str], str]
COMMIT_LOG = "__kafka_eos_commits"
SCRIPT = Path(__file__).parent / "jobs" / "stream_several.py"
SHORT_MS, NEVER_MS = 40_000, 2_147_483_647
EXPIRATION_MS = 30_000
PATIENCE_S = 120.0
SCHEMES = ("file:", "file://")


@pytest.fixture(scope="module")
def forgetful_kafka() -> Iterator[EmbeddedKafka]:
    """Transactions may be open for ever here, and ids that carry none are soon forgotten. Its transaction.version is raised by a test."""
    properties = {
        "transaction.max.timeout.ms": str(NEVER_MS),
        "transactional.id.expiration.ms": str(EXPIRATION_MS),
        "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
    }
    with EmbeddedKafka(transaction_version=0, properties=TEST_PROPERTIES | properties) as cluster:
        yield cluster


class Dead:
    """Queries whose drivers were killed together, by name."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.queries: dict[str, Query] = {}
        self.streams: dict[str, Stream] = {}

    def add(
        self, name: str, cluster: EmbeddedKafka, shape: Shape = "lines", *, stop: bool = False, **options: str
    ) -> None:
        (self.folder / name).mkdir()
        stream = self.streams[name] = Stream(cluster, self.spark, self.folder / name, files=1)
        self.queries[name] = Query(
            servers=stream.servers,
            topic=stream.topic,
            source=str(stream.source),
            checkpoint=str(stream.checkpoint),
            shape=shape,
            options=options,
            stop_mark=str(self.folder / "in-commit") if stop else "",
        )

    def add_lagging(self, cluster: EmbeddedKafka) -> None:
        """One that reads a topic and commits its offsets."""
        source = create_topic(cluster.bootstrap_servers, partitions=2)
        produce(cluster.bootstrap_servers, source, ((str(n % 100), str(n)) for n in range(LINES)), end="commit")
        self.add("lagging", cluster, "topic", **{"source.offsets.group": f"group-of-{source}"})
        self.queries["lagging"] = replace(self.queries["lagging"], source=source)

    def die(self, environment: dict[str, str], jars: Sequence[Path]) -> None:
        (self.folder / "queries.json").write_text(json.dumps([asdict(query) for query in self.queries.values()]))
        job = KillableJob(SCRIPT, environment, self.folder)
        fail = f"commit.between_ends=hang;commit.finished=wait:{self.folder / 'in-commit'}"
        with job.started([str(self.folder), ",".join(map(str, jars))], fail) as process:
            job.await_mark(self.folder / "all-hang", process, "the commit of every query")

    def go_on(self, name: str, shape: Shape | None = None, **options: str) -> Stream:
        """The query of a dead driver, to the end of its source by one that lives."""
        query, stream = self.queries[name], self.streams[name]
        stream.run(frame_of(self.spark, query, shape), **(query.options | options))
        return stream


@pytest.fixture(scope="module")
def dead(
    kafka: EmbeddedKafka,
    forgetful_kafka: EmbeddedKafka,
    spark: SparkSession,
    spark_environment: dict[str, str],
    kafka_source_jars: list[Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Dead]:
    dead = Dead(spark, tmp_path_factory.mktemp("dead"))
    dead.add("never", forgetful_kafka, **{"kafka.transaction.timeout.ms": str(NEVER_MS)})
    dead.add("forgotten", forgetful_kafka)
    dead.add("upgraded", forgetful_kafka)
    # Not among the first, which take longer.
    dead.add("short", forgetful_kafka, **{"kafka.transaction.timeout.ms": str(SHORT_MS)})
    dead.add("shuffled", kafka, "shuffled")
    dead.add("stamped", kafka, interceptors="tests.spark.random_ids:RandomIds")
    for name in ("fenced", "marked data", "marked log", "deleted"):
        dead.add(name, kafka)
    dead.add_lagging(kafka)
    dead.add("stopped", kafka, "one partition", stop=True)
    dead.die(spark_environment, kafka_source_jars)
    abort(dead.streams["forgotten"], dead.streams["forgotten"].decision().transactions[1:])
    yield dead
    # Whatever was selected or has failed: the brokers are shared, and others look for what is open there.
    for stream in dead.streams.values():
        main(["recover", "--yes", "--bootstrap-servers", stream.servers, "--write-id", stream.write_id()])
    for cluster in (kafka, forgetful_kafka):
        assert_nothing_open(cluster.bootstrap_servers)


def abort(stream: Stream, named: Sequence[PreparedTransaction]) -> None:
    """As their coordinator does when they time out, but at once."""
    with connected(stream.servers) as admin:
        ends = [EndTransaction.of(prepared.identity, committed=False) for prepared in named]
        results = admin.end_transactions(ends, admin.client.clock() + 30_000)
    assert [result.error_code for result in results] == [0] * len(named)


def states(stream: Stream, ids: Sequence[str]) -> list[str | None]:
    """What the coordinators say of transactional ids, None of those that they do not know."""
    with connected(stream.servers) as admin:
        found = admin.describe_transactions(ids, admin.client.clock() + 30_000)
    return [None if found[each] is None else found[each].transaction_state for each in ids]


def await_states(stream: Stream, ids: Sequence[str], wanted: set[str | None]) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while not wanted.issuperset(found := states(stream, ids)):
        assert time.monotonic() < give_up_at, f"{ids} are {found}"
        time.sleep(0.1)


def number_of(record: ReadRecord) -> int:
    return int((record.value or b"").split(b":")[0])


def written_twice(stream: Stream) -> tuple[dict[int, list[ReadRecord]], dict[int, list[ReadRecord]]]:
    """Of the rows that lie in the topic twice, aborted and committed, the first and the second ones by partition."""
    records = read_uncommitted(stream.servers, stream.topic)
    times = Counter(number_of(record) for record in records)
    assert set(times.values()) <= {1, 2}
    found: tuple[dict[int, list[ReadRecord]], ...] = defaultdict(list), defaultdict(list)
    seen: set[int] = set()
    for record in records:
        if times[number_of(record)] == 2:
            found[number_of(record) in seen][record.partition].append(record)
            seen.add(number_of(record))
    return found[0], found[1]


def assert_every_line_once(stream: Stream) -> None:
    found = Counter(number_of(record) for record in read_committed(stream.servers, stream.topic))
    assert found == Counter(range(LINES))
    stream.assert_nothing_of_it_is_open()


def markers(admin: Admin, write_id: str) -> dict[int, list[tuple[str, int]]]:
    """Producer id -> (kind, epoch) of each control record in the commit log."""
    found: dict[int, list[tuple[str, int]]] = {}
    offset, until = 0, admin.client.clock() + 30_000
    where = (COMMIT_LOG, log_partition_of(write_id))
    while True:
        chunk = admin.fetch(where, offset, isolation="read_uncommitted", max_wait_ms=0, deadline_ms=until)
        batches = tuple(read_record_batches(chunk.records))
        for batch in batches:
            kinds = [("COMMIT" if each.type == 1 else "ABORT", batch.producer_epoch) for each in batch.control_records]
            found.setdefault(batch.producer_id, []).extend(kinds if batch.control else [])
            offset = batch.last_offset + 1
        if not batches:
            return found


def test_version_zero_transactions_are_ended_after_an_upgrade(dead: Dead, forgetful_kafka: EmbeddedKafka) -> None:
    """Of four parts one was committed before, one is aborted, and two are still open when transaction.version goes from 0 to 2."""
    stream = dead.streams["upgraded"]
    decided = stream.decision()
    committed, lost, *still_open = (prepared.identity for prepared in decided.transactions)
    abort(stream, decided.transactions[1:2])
    set_transaction_version(forgetful_kafka, 2)
    # A client of its own: those of other queries may know of the version that the cluster had.
    dead.go_on("upgraded", **{"kafka.client.id": "after-the-upgrade"})
    assert_every_line_once(stream)
    assert sum(map(len, written_twice(stream)[0].values())) == decided.transactions[1].rows
    assert {prepared.identity.transaction_version for prepared in decided.transactions} == {0}
    again = stream.decision()
    versions = {prepared.partition: prepared.identity.transaction_version for prepared in again.transactions}
    assert versions == {0: 0, 1: 2, 2: 0, 3: 0}
    with connected(stream.servers) as admin:
        found = markers(admin, decided.write_id)
    for identity in (committed, *still_open):  # EndTxn 5 would have raised the epoch
        assert found[identity.producer_id] == [("COMMIT", identity.producer_epoch)]
    assert ("COMMIT", lost.producer_epoch) not in found[lost.producer_id]
    add_files(stream.source, 1, 1)
    dead.go_on("upgraded")
    assert stream.numbers() == Counter(range(2 * LINES))
    stream.assert_nothing_of_it_is_open()


def test_lost_part_behind_shuffle_is_restored_in_its_order(dead: Dead) -> None:
    """Although the next run of the batch gives the rows in another one."""
    stream = dead.streams["shuffled"]
    lost = stream.decision().transactions[1]
    abort(stream, [lost])
    dead.go_on("shuffled", "shuffled in another order")
    assert_every_line_once(stream)
    before, after = written_twice(stream)
    assert sum(map(len, before.values())) == lost.rows > 0
    for partition, records in before.items():
        assert list(map(number_of, records)) == list(map(number_of, after[partition]))


def test_lost_part_is_restored_with_the_bytes_of_its_interceptor(dead: Dead) -> None:
    """An interceptor stamps each row anew with every run; the copies pass it no second time."""
    stream = dead.streams["stamped"]
    lost = stream.decision().transactions[1:]
    abort(stream, lost)
    dead.go_on("stamped")
    assert_every_line_once(stream)
    before, after = written_twice(stream)
    assert sum(map(len, before.values())) == sum(prepared.rows for prepared in lost) > 0
    stamps = {record.value for found in (before, after) for records in found.values() for record in records}
    assert len(stamps) == sum(map(len, before.values()))


def test_part_fenced_by_zombie_is_restored(dead: Dead) -> None:
    stream = dead.streams["fenced"]
    taken = stream.decision().transactions[1]
    zombie = confluent_kafka.Producer(
        {"bootstrap.servers": stream.servers, "transactional.id": taken.identity.transactional_id}
    )
    zombie.init_transactions(60)
    zombie.begin_transaction()
    zombie.produce(stream.topic, b"-1")
    zombie.flush(60)
    assert states(stream, [taken.identity.transactional_id]) == ["Ongoing"]
    dead.go_on("fenced")
    assert_every_line_once(stream)
    assert sum(map(len, written_twice(stream)[0].values())) == taken.rows


def write_abort_marker(stream: Stream, marked: PreparedTransaction, topic: str, partition: int) -> None:
    """As kafka-transactions.sh abort does, past the coordinator."""
    person = KafkaAdminClient(bootstrap_servers=stream.servers)
    try:
        person.abort_transaction(
            AbortTransactionSpec(
                kafka_python.TopicPartition(topic, partition),
                marked.identity.producer_id,
                marked.identity.producer_epoch,
            )
        )
    finally:
        person.close()


def test_data_topics_outvote_manual_marker_in_the_commit_log(dead: Dead) -> None:
    stream = dead.streams["marked log"]
    write_abort_marker(stream, stream.decision().transactions[1], COMMIT_LOG, log_partition_of(stream.write_id()))
    dead.go_on("marked log")
    assert_every_line_once(stream)
    stream.assert_nothing_of_it_is_open()
    add_files(stream.source, 1, 1)
    dead.go_on("marked log")
    seen = Counter(number_of(record) for record in read_committed(stream.servers, stream.topic))
    assert seen == Counter(range(2 * LINES))


def test_rows_that_a_manual_marker_discarded_are_copied(dead: Dead) -> None:
    stream = dead.streams["marked data"]
    marked = stream.decision().transactions[1]
    write_abort_marker(stream, marked, marked.offsets[0].topic, marked.offsets[0].partition)
    dead.go_on("marked data")
    assert_every_line_once(stream)
    assert sum(map(len, written_twice(stream)[0].values())) == marked.offsets[0].rows
    stream.assert_nothing_of_it_is_open()
    add_files(stream.source, 1, 1)
    dead.go_on("marked data")
    assert stream.numbers() == Counter(range(2 * LINES))
    stream.assert_nothing_of_it_is_open()


def test_stopped_querys_commit_is_finished_and_batch_is_skipped(dead: Dead) -> None:
    stream = dead.streams["stopped"]
    assert not (stream.checkpoint / "commits" / "0").exists()  # Spark runs the batch again, though it is committed
    assert_every_line_once(stream)
    dead.go_on("stopped")
    assert (stream.checkpoint / "commits" / "0").exists()
    assert_every_line_once(stream)
    assert len(read_uncommitted(stream.servers, stream.topic)) == LINES


# the offsets of the source


def offsets_of(stream: Stream, batch: int) -> dict[tuple[str, int], int]:
    """(topic, partition) -> where the batch ends, as the checkpoint says."""
    (line,) = (stream.checkpoint / "offsets" / str(batch)).read_text().splitlines()[2:]
    return {(topic, int(part)): offset for topic, parts in json.loads(line).items() for part, offset in parts.items()}


def newest_batch(stream: Stream) -> int:
    return max(int(file.name) for file in (stream.checkpoint / "offsets").iterdir() if file.name.isdecimal())


def assert_offsets_are_those_of_every_batch(stream: Stream, group: str) -> None:
    """What the group holds now, and all that was ever committed to it: once for each batch, in their order."""
    newest = newest_batch(stream)
    assert committed_offsets(stream.servers, group) == offsets_of(stream, newest)
    expected = [
        (*where, end) for batch in range(newest + 1) for where, end in sorted(offsets_of(stream, batch).items())
    ]
    found = commits_of_group(stream.servers, group)
    size = len(offsets_of(stream, newest))
    assert [each for at in range(0, len(found), size) for each in sorted(found[at : at + size])] == expected


def test_source_offsets_are_committed_with_empty_batches_too(
    kafka: EmbeddedKafka, spark: SparkSession, tmp_path: Path
) -> None:
    servers, group = kafka.bootstrap_servers, unique_topic("group")
    source = create_topic(servers, partitions=2)
    stream = Stream(kafka, spark, tmp_path, files=0)
    query = Query(servers=servers, topic=stream.topic, source=source, checkpoint=str(stream.checkpoint), shape="topic")
    rows = frame_of(spark, query).where("value <> 'dropped'")

    produce(servers, source, ((str(n), str(n)) for n in range(40)), end="commit")
    stream.run(frame_of(spark, query, per_batch=15).where("value <> 'dropped'"), **{"source.offsets.group": group})
    assert newest_batch(stream) >= 2
    assert_offsets_are_those_of_every_batch(stream, group)
    assert lag(servers, group, source) == 0

    running = stream.writer(rows, **{"source.offsets.group": group}).trigger(processingTime="0 seconds").start()
    try:
        for value, end in (("dropped", "commit"), ("aborted", "abort"), ("100", "commit")):
            batches = newest_batch(stream)
            produce(servers, source, [(key, value) for key in ("a", "b", "c")], end=end)
            assert_nothing_open(servers, [source], of="test-")  # the query is shown all of it
            running.processAllAvailable()
            assert newest_batch(stream) > batches
            assert_offsets_are_those_of_every_batch(stream, group)
            assert lag(servers, group, source) == 0
    finally:
        running.stop()
    assert stream.numbers() == Counter(range(40)) + Counter({100: 3})
    stream.assert_nothing_of_it_is_open()


def test_decision_commits_offsets_when_the_driver_dies(dead: Dead) -> None:
    stream, query = dead.streams["lagging"], dead.queries["lagging"]
    group = query.options["source.offsets.group"]
    assert not (stream.checkpoint / "commits" / "0").exists()
    assert_offsets_are_those_of_every_batch(stream, group)
    dead.go_on("lagging")
    assert_every_line_once(stream)
    assert_offsets_are_those_of_every_batch(stream, group)
    produce(stream.servers, query.source, ((str(n), str(n)) for n in range(LINES, 2 * LINES)), end="commit")
    dead.go_on("lagging")
    assert stream.numbers() == Counter(range(2 * LINES))
    assert_offsets_are_those_of_every_batch(stream, group)
    assert lag(stream.servers, group, query.source) == 0


# others beside the query


def test_open_transactions_of_another_write_are_never_ended(
    kafka: EmbeddedKafka, spark: SparkSession, tmp_path: Path, code_of: CodeOf
) -> None:
    """Whose id begins with ours, or ours with it: `orders` and `orders.v2`."""
    orders = unique_topic("orders")
    v2 = f"{orders}.v2"
    prefix = {"transactional.id.prefix": orders}
    stream = Stream(kafka, spark, tmp_path, files=1)
    stream.run(**prefix)
    logs = {(COMMIT_LOG, log_partition_of(each)) for each in (orders, v2)}
    other = open_transaction(stream.servers, f"{v2}.0.0", stream.topic, *logs)

    def untouched() -> bool:
        return states(stream, [f"{v2}.0.0"]) == ["Ongoing"]

    # What a losing attempt of ours has left open is ended by the next batch or the sweep after it, and nothing else.
    open_transaction(stream.servers, f"{orders}.0.7", stream.topic)
    add_files(stream.source, 1, 1)
    running = stream.writer(**prefix).trigger(processingTime="0 seconds").start()
    try:
        running.processAllAvailable()
        assert stream.numbers() == Counter(
            range(LINES)
        )  # what lies behind the open transaction is committed and held up
        await_states(stream, [f"{orders}.0.7"], {"CompleteAbort"})
        assert untouched()
    finally:
        running.stop()
    add_files(stream.source, 2, 1)
    text = stream.fails(
        stream.frame().withColumn("value", expr("if(value % 1000 = 500, repeat('x', 2000000), value)")), **prefix
    )  # aborts
    assert code_of(text) == "RECORD_TOO_LARGE"
    assert untouched()
    assert main(["recover", "--yes", "--bootstrap-servers", stream.servers, "--write-id", orders]) == 0
    assert untouched()
    stream.run(**prefix)
    assert untouched()
    other.commit_transaction(60)
    assert_nothing_open(stream.servers, [stream.topic], of=f"{v2}.")
    assert stream.numbers() == Counter(range(3 * LINES)) + Counter({-1: 3})

    # Its fence stops the sweeps that follow the last batch of `orders`, which would rightly end what is opened now.
    assert main(["recover", "--yes", "--bootstrap-servers", stream.servers, "--write-id", orders]) == 0
    open_transaction(stream.servers, f"{orders}.0.3", stream.topic)
    (tmp_path / "v2").mkdir()
    another = Stream(kafka, spark, tmp_path / "v2", files=1)
    another.run(**{"transactional.id.prefix": v2})
    assert main(["recover", "--yes", "--bootstrap-servers", stream.servers, "--write-id", v2]) == 0
    assert another.numbers() == Counter(range(LINES))
    assert states(stream, [f"{orders}.0.3"]) == ["Ongoing"]
    stream.run(**prefix)  # nothing to do, so nothing is planned
    assert main(["recover", "--yes", "--bootstrap-servers", stream.servers, "--write-id", orders]) == 0
    assert_nothing_open(stream.servers, [stream.topic, another.topic], of=orders)


# topics that are deleted


def test_topic_deleted_before_the_write_is_named_soon(
    kafka: EmbeddedKafka, spark: SparkSession, tmp_path: Path, code_of: CodeOf
) -> None:
    stream = Stream(kafka, spark, tmp_path, files=1)
    held = tmp_path / "held"
    held.touch()
    options = {"transactional.id.prefix": stream.topic, "kafka.max.block.ms": "15000"}
    rows = stream.frame()
    running = stream.writer(rows.mapInArrow(held_while_there(str(held)), rows.schema), **options).start()
    try:
        await_states(stream, [f"{stream.topic}.driver"], {"Empty"})  # planned
        delete_topic(stream.servers, stream.topic)
    finally:
        held.unlink()
    with pytest.raises(Exception) as caught:
        running.awaitTermination()
    assert code_of(str(caught.value)) == "UNKNOWN_TOPIC"
    assert stream.topic in str(caught.value)
    create_topic(stream.servers, stream.topic)
    stream.run(**{"transactional.id.prefix": stream.topic})
    assert stream.numbers() == Counter(range(LINES))
    assert_nothing_open(stream.servers, [stream.topic], of=stream.topic)


def test_deleted_topic_of_open_decision_is_named_until_resolved(dead: Dead, code_of: CodeOf) -> None:
    stream, soon = dead.streams["deleted"], {"kafka.max.block.ms": "15000"}
    delete_topic(stream.servers, stream.topic)
    for code in ("UNKNOWN_TOPIC", "TOPIC_GONE"):  # the second one of a topic that is there, and is another
        with pytest.raises(Exception) as caught:
            dead.go_on("deleted", **soon)
        assert code_of(str(caught.value)) == code
        if code == "UNKNOWN_TOPIC":
            create_topic(stream.servers, stream.topic, partitions=3)
    assert "--as rewrite" in str(caught.value)
    assert read_committed(stream.servers, stream.topic) == []
    answer = ["--write-id", stream.write_id(), "--version", "0", "--as", "rewrite", "--allow-duplicates"]
    assert main(["resolve", "--yes", "--bootstrap-servers", stream.servers, *answer]) == 0
    dead.go_on("deleted")
    assert_every_line_once(stream)


# where the checkpoint lies


@pytest.mark.parametrize("scheme", SCHEMES)
def test_checkpoint_with_scheme_is_read_as_spark_writes_it(
    kafka: EmbeddedKafka, spark: SparkSession, tmp_path: Path, scheme: str
) -> None:
    stream = Stream(kafka, spark, tmp_path)
    stream.checkpoint = tmp_path / "check point 100%20"
    location = f"{scheme}{stream.checkpoint}"

    def run() -> None:
        writer_of(stream.frame(), stream.servers, stream.topic, location).start().awaitTermination()

    run()
    stream.forget_commit(1)
    run()
    assert stream.numbers() == Counter(range(2 * LINES))
    offsets = (stream.checkpoint / "offsets" / "1").read_bytes()
    assert stream.decision().offsets_hash == hashlib.sha256(offsets).hexdigest()
    stream.assert_nothing_of_it_is_open()


def test_checkpoint_only_spark_can_open_requires_a_prefix(
    kafka: EmbeddedKafka, spark: SparkSession, tmp_path: Path, code_of: CodeOf
) -> None:
    """On Hadoop's viewfs, which needs no network and which pyarrow opens by a Hadoop of its own only."""
    stream = Stream(kafka, spark, tmp_path)
    context: Any = spark.sparkContext
    link = f"fs.viewfs.mounttable.default.link./{stream.topic}"
    context._jsc.hadoopConfiguration().set(link, f"file://{tmp_path}")

    def run(**options: str) -> None:
        location = f"viewfs:///{stream.topic}/{stream.checkpoint.name}"
        writer_of(stream.frame(), stream.servers, stream.topic, location, options).start().awaitTermination()

    prefix = {"transactional.id.prefix": stream.topic}
    for wrong, needed in (
        ({}, "transactional.id.prefix"),
        ({**prefix, "source.offsets.group": "g"}, "source.offsets.group"),
    ):
        with pytest.raises(Exception) as caught:
            run(**wrong)
        assert code_of(str(caught.value)) == "CHECKPOINT_NOT_READABLE"
        assert needed in str(caught.value)
    assert read_committed(stream.servers, stream.topic) == []
    run(**prefix)
    stream.forget_commit(1)
    run(**prefix)
    assert stream.numbers() == Counter(range(2 * LINES))
    decision = newest_decision(stream.servers, stream.topic)
    assert (decision.version, decision.offsets_hash) == (1, None)
    assert_nothing_open(stream.servers, [stream.topic], of=stream.topic)


# long absence


def test_long_outage_loses_nothing_without_transaction_timeout(dead: Dead) -> None:
    short, never = dead.streams["short"], dead.streams["never"]
    bounded, boundless = short.decision().transactions, never.decision().transactions
    await_states(short, [prepared.identity.transactional_id for prepared in bounded[1:]], {"CompleteAbort", None})
    assert set(states(never, [prepared.identity.transactional_id for prepared in boundless[1:]])) == {"Ongoing"}
    for name, named in (("short", bounded), ("never", boundless)):
        assert len(read_committed(dead.streams[name].servers, dead.streams[name].topic)) <= named[0].rows
        dead.go_on(name)
        assert_every_line_once(dead.streams[name])
    assert sum(map(len, written_twice(short)[0].values())) == sum(prepared.rows for prepared in bounded[1:])
    assert len(read_uncommitted(never.servers, never.topic)) == LINES


def test_commit_log_decides_when_coordinators_forgot_the_ids(dead: Dead) -> None:
    stream = dead.streams["forgotten"]
    named = stream.decision().transactions
    ids = [prepared.identity.transactional_id for prepared in named]
    await_states(stream, [*ids, f"{stream.write_id()}.driver"], {None})
    dead.go_on("forgotten")
    assert_every_line_once(stream)
    assert sum(map(len, written_twice(stream)[0].values())) == sum(prepared.rows for prepared in named[1:])
