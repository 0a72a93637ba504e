"""SQL: which options Spark hands to the writer of an INSERT, as docs/batch.md has them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_testing import assert_nothing_open, create_topic, read_committed

COLUMNS = "(key STRING, value STRING) USING `kafka-eos` OPTIONS"
ROWS = "SELECT string(id), string(id) FROM range(100)"


@pytest.fixture
def sql(spark: SparkSession) -> Iterator[SparkSession]:
    yield spark
    spark.sql("DROP VIEW IF EXISTS orders_view")
    spark.sql("DROP TABLE IF EXISTS orders_table")


def values(kafka: EmbeddedKafka, topic: str) -> list[int]:
    return sorted(int(record.value or b"") for record in read_committed(kafka.bootstrap_servers, topic))


def test_a_temporary_view_hands_its_options_to_each_insert(sql: SparkSession, kafka: EmbeddedKafka) -> None:
    topic = create_topic(kafka.bootstrap_servers, partitions=2)
    options = f"'kafka.bootstrap.servers' = '{kafka.bootstrap_servers}', 'topic' = '{topic}'"
    sql.sql(f"CREATE TEMPORARY VIEW orders_view {COLUMNS} ({options}, 'txnAppId' = 'sql', 'txnVersion' = '1')")
    for _ in range(2):
        sql.sql(f"INSERT INTO orders_view {ROWS}")
    assert values(kafka, topic) == list(range(100))
    assert_nothing_open(kafka.bootstrap_servers)


def test_the_options_of_an_insert_reach_the_writer(sql: SparkSession, kafka: EmbeddedKafka) -> None:
    topic = create_topic(kafka.bootstrap_servers, partitions=2)
    options = f"'kafka.bootstrap.servers' = '{kafka.bootstrap_servers}', 'topic' = '{topic}'"
    sql.sql(f"CREATE TABLE orders_table {COLUMNS} ({options})")
    for version in (1, 1, 2):
        with_options = f"WITH ({options}, 'txnAppId' = 'sql', 'txnVersion' = '{version}')"
        sql.sql(f"INSERT INTO orders_table {with_options} {ROWS}")
    assert values(kafka, topic) == sorted([*range(100), *range(100)])
    assert_nothing_open(kafka.bootstrap_servers)


def test_the_options_of_a_table_do_not_reach_the_writer(sql: SparkSession, kafka: EmbeddedKafka) -> None:
    """A Spark that hands them over makes docs/batch.md wrong, and INSERT shorter."""
    topic = create_topic(kafka.bootstrap_servers)
    options = f"'kafka.bootstrap.servers' = '{kafka.bootstrap_servers}', 'topic' = '{topic}'"
    sql.sql(f"CREATE TABLE orders_table {COLUMNS} ({options})")
    with pytest.raises(
        Exception,
        match=r"\[KAFKA_EOS\.INVALID_OPTIONS\] 1\. kafka\.bootstrap\.servers is required.*In SQL, Spark passes the OPTIONS",
    ):
        sql.sql(f"INSERT INTO orders_table {ROWS}")
    assert values(kafka, topic) == []
