"""What a user can get wrong, with a real broker: the error has its code, nothing is visible, and nothing stays open."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import pytest
from pyspark.sql import DataFrame, SparkSession

from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_testing import assert_nothing_open, create_topic, read_committed, topic_names

PARTITIONS = 3
MISSING = "no-such-topic"
ANOTHER_TOPIC = "SELECT 'v' AS value, 'no-such-topic' AS topic"
NOT_UTF8 = "CAST(X'6bff' AS STRING)"
AT_LEAST_ONCE = {"delivery.guarantee": "at-least-once"}
SOON = {"kafka.max.block.ms": "2500"}
"""Each of four attempts of a task waits so long for the topic."""


@pytest.fixture
def servers(kafka: EmbeddedKafka) -> Iterator[str]:
    """The bootstrap servers; afterwards no transaction is open and no reader is blocked."""
    yield kafka.bootstrap_servers
    assert_nothing_open(kafka.bootstrap_servers)


@pytest.fixture
def topic(servers: str) -> str:
    return create_topic(servers, partitions=PARTITIONS)


def save(frame: DataFrame, servers: str, topic: str, options: Mapping[str, str]) -> None:
    """Write the rows; an empty option is removed."""
    given = {"kafka.bootstrap.servers": servers, "topic": topic} | options
    present = {name: value for name, value in given.items() if value}
    frame.write.format("kafka-eos").options(**present).mode("append").save()


def refused(frame: DataFrame, servers: str, topic: str, options: Mapping[str, str]) -> str:
    """The text that the caller of save() catches."""
    with pytest.raises(Exception) as raised:
        save(frame, servers, topic, options)
    return str(raised.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """``rows`` and ``options`` that a write refuses with a code. TOPIC in a query is the topic; an empty option is removed."""

    code: str
    rows: str = "SELECT 'v' AS value"
    options: Mapping[str, str] = field(default_factory=dict)
    where: str = ""
    """What the text must name."""


def first_bad(columns: str) -> str:
    """Ten rows in two tasks, of which number 7 is the bad one: row 2 of the second task."""
    return f"SELECT {columns} FROM range(0, 10, 1, 2)"


WRONG = {
    "types": Wrong(code="INVALID_COLUMNS", rows="SELECT 1 AS value, 1L AS partition", where="partition attribute"),
    "one name twice, at least once": Wrong(
        code="INVALID_COLUMNS", rows="SELECT 'v' AS value, 1 AS id, 2 AS id", options=AT_LEAST_ONCE, where="'id'"
    ),
    "no topic": Wrong(code="INVALID_COLUMNS", options={"topic": ""}, where="topic option"),
    "acks": Wrong(code="INVALID_OPTIONS", options={"kafka.acks": "1"}, where="kafka.acks=1"),
    "unknown option": Wrong(code="INVALID_OPTIONS", options={"kafka.sasl.pasword": "secret"}, where="sasl.password"),
    "reference": Wrong(
        code="INVALID_OPTIONS", options={"kafka.client.id": "${env:SURELY_NOT_SET}"}, where="SURELY_NOT_SET"
    ),
    "timeout": Wrong(
        code="INVALID_TRANSACTION_TIMEOUT",
        options={"kafka.transaction.timeout.ms": "2000000000"},
        where="transaction.max.timeout.ms",
    ),
    "missing topic": Wrong(code="UNKNOWN_TOPIC", options={"topic": MISSING, **SOON}, where=MISSING),
    "missing topic of a column": Wrong(
        code="UNKNOWN_TOPIC", rows=ANOTHER_TOPIC, options={"topic": "", **SOON}, where=MISSING
    ),
    "no broker": Wrong(
        code="BROKER_UNREACHABLE",
        options={"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.max.block.ms": "1500"},
        where="127.0.0.1:1",
    ),
    "large record": Wrong(
        code="RECORD_TOO_LARGE",
        rows=first_bad("IF(id = 7, repeat('secret', 400), 'v') AS value"),
        options={"kafka.max.request.size": "2000"},
        where="row 2 of the task",
    ),
    "partition": Wrong(
        code="NO_SUCH_PARTITION",
        rows=first_bad("'v' AS value, IF(id = 7, 3, 0) AS partition"),
        where="row 2 of the task",
    ),
    "null topic": Wrong(
        code="NULL_TOPIC",
        rows=first_bad("'v' AS value, IF(id = 7, NULL, 'TOPIC') AS topic"),
        options={"topic": ""},
        where="row 2 of the task",
    ),
    "old timestamp": Wrong(
        code="INVALID_TIMESTAMP", rows="SELECT 'v' AS value, TIMESTAMP '1969-12-31 23:59:59' AS timestamp"
    ),
    "null header key": Wrong(
        code="INVALID_HEADER",
        rows="SELECT 'v' AS value, array(struct(CAST(NULL AS STRING) AS key, X'ff' AS value)) AS headers",
    ),
    "header key of a map, at least once": Wrong(
        code="INVALID_HEADER", rows=f"SELECT 'v' AS value, map({NOT_UTF8}, 'v') AS headers", options=AT_LEAST_ONCE
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_refused_by_its_code_and_shows_no_row(
    spark: SparkSession, servers: str, topic: str, code_of: Callable[[str], str], name: str
) -> None:
    wrong = WRONG[name]
    text = refused(spark.sql(wrong.rows.replace("TOPIC", topic)), servers, topic, wrong.options)
    assert code_of(text) == wrong.code
    assert wrong.where in text
    assert "secret" not in text
    assert read_committed(servers, topic) == []
    assert MISSING not in topic_names(servers)  # although auto.create.topics.enable=true


IGNORED = """id AS topic, array(INTERVAL '1' YEAR) AS ages, INTERVAL '1' DAY AS day, NULL AS nothing, parse_json('{}') AS variant,
    named_struct('a', 1, 'A', 2) AS cases, CAST(id AS DECIMAL(38, 10)) AS money, named_struct('n', map(1, array(NULL))) AS nested"""


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_other_columns_of_any_type_are_ignored(spark: SparkSession, servers: str, topic: str, guarantee: str) -> None:
    deep = f"{'array(' * 62}1{')' * 62} AS deep"
    frame = spark.sql(f"SELECT CAST(id AS STRING) AS value, {IGNORED}, {deep} FROM range(0, 10, 1, 2)")
    save(frame, servers, topic, {"delivery.guarantee": guarantee})
    assert sorted(record.value or b"" for record in read_committed(servers, topic)) == [b"%d" % i for i in range(10)]


def test_failed_write_succeeds_once_with_corrected_input(spark: SparkSession, servers: str, topic: str) -> None:
    transaction = {"txnAppId": f"app-{uuid.uuid4().hex[:8]}", "txnVersion": "1"}
    bad = spark.sql("SELECT CAST(id AS STRING) AS value, CAST(9 AS INT) AS partition FROM range(0, 10, 1, 2)")
    assert "[KAFKA_EOS.NO_SUCH_PARTITION] " in refused(bad, servers, topic, transaction)
    good = spark.sql("SELECT CAST(id AS STRING) AS value, CAST(1 AS INT) AS partition FROM range(0, 10, 1, 2)")
    for _ in range(2):
        save(good, servers, topic, transaction)
        values = sorted(record.value or b"" for record in read_committed(servers, topic))
        assert values == [b"%d" % i for i in range(10)]
