"""What a user can get wrong, with a real broker: the error says what, where and what to do; nothing stays open."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from pyspark.sql import DataFrame, SparkSession

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
        ("'v' AS value, localtimestamp() AS timestamp", "cast it to timestamp"),
    ],
)
def test_a_wrong_column_is_refused_before_anything_is_written(
    spark: SparkSession, servers: str, topic: str, columns: str, words: str
) -> None:
    text = refused(spark.sql(f"SELECT {columns}"), servers, topic)
    assert "[KAFKA_EOS.INVALID_COLUMNS] " in text
    assert words in text
    assert read_committed(servers, topic) == []


def test_missing_topic_raises_the_built_in_sinks_message(spark: SparkSession, servers: str) -> None:
    text = refused(spark.sql("SELECT 'v' AS value"), servers, None)
    assert "[KAFKA_EOS.INVALID_COLUMNS] topic option required when no 'topic' attribute is present." in text


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
