"""What a user can get wrong, with a real broker: the error says what, where and what to do; nothing stays open."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col

from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_testing import assert_nothing_open, create_topic, read_committed, topic_names

PARTITIONS = 3


@pytest.fixture
def servers(kafka: EmbeddedKafka) -> Iterator[str]:
    """The bootstrap servers; afterwards no transaction is open and nobody's reader is held up."""
    yield kafka.bootstrap_servers
    assert_nothing_open(kafka.bootstrap_servers)


@pytest.fixture
def topic(servers: str) -> str:
    return create_topic(servers, partitions=PARTITIONS)


def save(frame: DataFrame, servers: str, topic: str | None, **options: str) -> None:
    given = {"kafka.bootstrap.servers": servers}
    if topic is not None:
        given["topic"] = topic
    given |= {name.replace("__", "."): value for name, value in options.items()}
    frame.write.format("kafka-eos").options(**given).mode("append").save()


def refused(frame: DataFrame, servers: str, topic: str | None, **options: str) -> str:
    """The text that the caller of save() catches."""
    with pytest.raises(Exception) as raised:
        save(frame, servers, topic, **options)
    return str(raised.value)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ("1 AS value", "value attribute unsupported type int. value must be a(n) string or binary"),
        ("'k' AS key", "Required attribute 'value' not found"),
        ("'v' AS value, 1 AS key", "key attribute unsupported type int. key must be a(n) string or binary"),
        ("'v' AS value, 1L AS partition", "partition attribute unsupported type bigint. partition must be a(n) int"),
        ("'v' AS value, map('a', 1) AS headers", "headers must be a(n) array<struct<key:string,value:binary>> or map"),
        ("struct(1 AS a) AS value", 'df.withColumn("value", to_json("value"))'),
        ("'v' AS value, array(1) AS key", 'df.withColumn("key", to_avro("key"))'),
        ("'v' AS value, current_date() AS timestamp", "timestamp attribute unsupported type date"),
        ("'v' AS value, localtimestamp() AS timestamp", 'cast("timestamp")), in the session\'s time zone'),
        ("'v' AS value, 1L AS timestamp", 'df.withColumn("timestamp", timestamp_millis("timestamp"))'),
        ("'v' AS value, NULL AS timestamp", 'or drop it: df.drop("timestamp")'),
        ("'v' AS value, 1 AS id, 2 AS id", "2 columns are called 'id': PySpark hands every column to Python"),
        ("'v' AS value, 1 AS topic, 2 AS topic", "2 columns are called 'topic'"),
        ("'v' AS value, array(named_struct('a', 1, 'a', 2)) AS s", "column 's.element' has 2 fields called 'a'"),
        ("'v' AS value, INTERVAL '1-1' YEAR TO MONTH AS age", "column 'age' is an interval year to month"),
    ],
)
def test_a_wrong_column_is_refused_before_anything_is_written(
    spark: SparkSession, servers: str, topic: str, columns: str, words: str
) -> None:
    text = refused(spark.sql(f"SELECT {columns}"), servers, topic)
    assert "[KAFKA_EOS.INVALID_COLUMNS] " in text
    assert words in text
    assert read_committed(servers, topic) == []


IGNORED = """id AS topic, array(INTERVAL '1' YEAR) AS ages, INTERVAL '1' DAY AS day, NULL AS nothing, parse_json('{}') AS variant,
    named_struct('a', 1, 'A', 2) AS cases, CAST(id AS DECIMAL(38, 10)) AS money, named_struct('n', map(1, array(NULL))) AS nested"""


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_other_columns_of_any_type_are_ignored(spark: SparkSession, servers: str, topic: str, guarantee: str) -> None:
    deep = f"{'array(' * 62}1{')' * 62} AS deep"
    frame = spark.sql(f"SELECT CAST(id AS STRING) AS value, {IGNORED}, {deep} FROM range(0, 10, 1, 2)")
    save(frame, servers, topic, delivery__guarantee=guarantee)
    assert sorted(record.value or b"" for record in read_committed(servers, topic)) == [b"%d" % i for i in range(10)]


def test_at_least_once_refuses_column_that_python_cannot_get(spark: SparkSession, servers: str, topic: str) -> None:
    left = spark.range(3).selectExpr("id", "'v' AS value")
    joined = left.join(spark.range(3).withColumnRenamed("id", "number"), left.id == col("number")).select("*", left.id)
    text = refused(joined, servers, topic, delivery__guarantee="at-least-once")
    assert "[KAFKA_EOS.INVALID_COLUMNS] 2 columns are called 'id'" in text
    assert "DUPLICATED_FIELD_NAME_IN_ARROW_STRUCT" not in text
    save(joined.drop("id"), servers, topic, delivery__guarantee="at-least-once")  # as the message says
    assert len(read_committed(servers, topic)) == 3


def test_missing_topic_raises_the_built_in_sinks_message(spark: SparkSession, servers: str) -> None:
    text = refused(spark.sql("SELECT 'v' AS value"), servers, None)
    assert "[KAFKA_EOS.INVALID_COLUMNS] topic option required when no 'topic' attribute is present." in text


@pytest.mark.feature("idempotence")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kafka__acks": "1"}, "kafka.acks=1 contradicts exactly-once"),
        ({"kafka__enable__idempotence": "false"}, "kafka.enable.idempotence=false contradicts exactly-once"),
        ({"kafka__transactional__id": "mine"}, "kafka.transactional.id=mine contradicts exactly-once"),
        ({"kafka__lingerms": "1"}, "the nearest known name is kafka.linger.ms"),
        ({"topics": "x"}, "the nearest known name is topic"),
        ({"txnAppId": "a"}, "txnAppId is given without txnVersion"),
        ({"partitioner": "no_such_module:f"}, "no_such_module"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_written(
    spark: SparkSession, servers: str, topic: str, options: dict[str, str], words: str
) -> None:
    text = refused(spark.sql("SELECT 'v' AS value"), servers, topic, **options)
    assert "[KAFKA_EOS.INVALID_OPTIONS] " in text
    assert words in text
    assert read_committed(servers, topic) == []


def test_timeout_above_broker_maximum_names_the_maximum(spark: SparkSession, servers: str, topic: str) -> None:
    text = refused(spark.sql("SELECT 'v' AS value"), servers, topic, kafka__transaction__timeout__ms="2000000000")
    assert "[KAFKA_EOS.INVALID_TRANSACTION_TIMEOUT] " in text
    assert "transaction.max.timeout.ms" in text
    assert read_committed(servers, topic) == []


@pytest.mark.feature("retries and errors")
def test_a_missing_topic_is_named(spark: SparkSession, servers: str) -> None:
    text = refused(spark.sql("SELECT 'v' AS value"), servers, "no-such-topic", kafka__max__block__ms="15000")
    assert "[KAFKA_EOS.UNKNOWN_TOPIC] " in text
    assert "no-such-topic" in text
    assert "create it" in text
    assert "no-such-topic" not in topic_names(servers)


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_missing_topic_of_a_column_is_named_and_not_created(spark: SparkSession, servers: str, guarantee: str) -> None:
    """Although the broker has Kafka's default, auto.create.topics.enable=true."""
    text = refused(
        spark.sql("SELECT 'v' AS value, 'no-such-topic' AS topic"),
        servers,
        None,
        delivery__guarantee=guarantee,
        kafka__max__block__ms="5000",
    )
    assert "[KAFKA_EOS.UNKNOWN_TOPIC] " in text
    assert "no-such-topic" in text
    assert "no-such-topic" not in topic_names(servers)


def test_a_broker_that_cannot_be_reached_is_named(spark: SparkSession, servers: str) -> None:
    text = refused(spark.sql("SELECT 'v' AS value"), "127.0.0.1:1", "orders", kafka__max__block__ms="1500")
    assert "[KAFKA_EOS.BROKER_UNREACHABLE] " in text
    assert "127.0.0.1:1" in text


@pytest.mark.feature("retries and errors")
def test_record_above_maximum_is_named_and_batch_is_invisible(spark: SparkSession, servers: str, topic: str) -> None:
    frame = spark.sql("SELECT IF(id = 700, repeat('secret', 400), 'v') AS value FROM range(0, 1000, 1, 2)")
    text = refused(frame, servers, topic, kafka__max__request__size="2000")
    assert "[KAFKA_EOS.RECORD_TOO_LARGE] row 200 of the task" in text
    assert topic in text
    assert "max.request.size" in text
    assert "secretsecret" not in text
    assert read_committed(servers, topic) == []


@pytest.mark.parametrize("partition", [-1, PARTITIONS])
def test_missing_partition_is_named_and_batch_is_invisible(
    spark: SparkSession, servers: str, topic: str, partition: int
) -> None:
    frame = spark.sql(
        f"SELECT 'v' AS value, CAST(IF(id = 7, {partition}, id % 3) AS INT) AS partition FROM range(0, 10, 1, 2)"
    )
    text = refused(frame, servers, topic)
    assert "[KAFKA_EOS.NO_SUCH_PARTITION] row 2 of the task" in text
    assert f"partition {partition})" in text
    assert f"topic {topic} has 3" in text
    assert read_committed(servers, topic) == []


def test_null_topic_is_named_and_batch_is_invisible(spark: SparkSession, servers: str, topic: str) -> None:
    frame = spark.sql(f"SELECT 'v' AS value, IF(id = 7, NULL, '{topic}') AS topic FROM range(0, 10, 1, 2)")
    text = refused(frame, servers, None)
    assert "[KAFKA_EOS.NULL_TOPIC] row 2 of the task" in text
    assert read_committed(servers, topic) == []


def test_a_time_before_1970_is_named(spark: SparkSession, servers: str, topic: str) -> None:
    text = refused(spark.sql("SELECT 'v' AS value, TIMESTAMP '1969-12-31 23:59:59' AS timestamp"), servers, topic)
    assert "[KAFKA_EOS.INVALID_TIMESTAMP] " in text
    assert read_committed(servers, topic) == []


def test_a_header_without_a_key_is_named(spark: SparkSession, servers: str, topic: str) -> None:
    frame = spark.sql(
        "SELECT 'v' AS value, array(named_struct('key', CAST(NULL AS STRING), 'value', CAST('x' AS BINARY))) AS headers"
    )
    text = refused(frame, servers, topic)
    assert "[KAFKA_EOS.INVALID_HEADER] " in text
    assert read_committed(servers, topic) == []


NOT_UTF8 = "CAST(X'6bff' AS STRING)"
HEADERS_NOT_UTF8 = {
    "array of binary": f"array(struct({NOT_UTF8} AS key, X'ff' AS value))",
    "array of string": f"array(struct('k' AS key, 'v' AS value), struct({NOT_UTF8} AS key, {NOT_UTF8} AS value))",
    "map of binary": f"map('k', X'ff', {NOT_UTF8}, X'ff')",
    "map of string": f"map({NOT_UTF8}, 'v')",
}


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
@pytest.mark.parametrize("headers", HEADERS_NOT_UTF8)
def test_header_key_that_is_not_utf8_never_reaches_a_reader(
    spark: SparkSession, servers: str, topic: str, headers: str, guarantee: str
) -> None:
    dead = create_topic(servers, partitions=1)
    bad = HEADERS_NOT_UTF8[headers]
    good_headers = bad.replace(NOT_UTF8, "'ключ'")
    frame = spark.sql(f"SELECT 'bad' AS value, {bad} AS headers UNION ALL SELECT 'good', {good_headers}").coalesce(1)
    large = {"spark.sql.execution.arrow.useLargeVarTypes": str(headers.startswith("map")).lower()}
    for name, value in large.items():
        spark.conf.set(name, value)
    try:
        text = refused(frame, servers, topic, delivery__guarantee=guarantee)
        assert (
            f"[KAFKA_EOS.INVALID_HEADER] row 0 of the task (topic {topic}) has a header whose key is not UTF-8" in text
        )
        assert read_committed(servers, topic) == []
        save(frame, servers, topic, delivery__guarantee=guarantee, dead__letter__topic=dead)
    finally:
        for name in large:
            spark.conf.unset(name)
    for reader in ("confluent", "kafka-python"):
        (good,) = read_committed(servers, topic, reader=reader)
        (letter,) = read_committed(servers, dead, reader=reader)
        assert good.value == b"good"
        assert "ключ" in dict(good.headers)
        assert letter.value == b"bad"
        assert dict(letter.headers)["kafka-eos.error"] == b"INVALID_HEADER"
        assert "k\ufffd" in dict(letter.headers)


def test_a_null_value_is_a_tombstone(spark: SparkSession, servers: str, topic: str) -> None:
    frame = spark.sql("SELECT 'k' AS key, CAST(NULL AS STRING) AS value UNION ALL SELECT 'e', ''")
    save(frame, servers, topic)
    assert {record.key: record.value for record in read_committed(servers, topic)} == {b"k": None, b"e": b""}


def test_failed_write_succeeds_once_with_corrected_input(spark: SparkSession, servers: str, topic: str) -> None:
    transaction = {"txnAppId": f"app-{uuid.uuid4().hex[:8]}", "txnVersion": "1"}
    bad = spark.sql("SELECT CAST(id AS STRING) AS value, CAST(9 AS INT) AS partition FROM range(0, 10, 1, 2)")
    assert "[KAFKA_EOS.NO_SUCH_PARTITION] " in refused(bad, servers, topic, **transaction)
    good = spark.sql("SELECT CAST(id AS STRING) AS value, CAST(1 AS INT) AS partition FROM range(0, 10, 1, 2)")
    for _ in range(2):
        save(good, servers, topic, **transaction)
        assert sorted(record.value or b"" for record in read_committed(servers, topic)) == [
            b"%d" % i for i in range(10)
        ]
