"""A principal without Read on a topic with rows: no way of writing makes a row visible, and the error names the topic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka.admin as confluent
import pytest
from pyspark.sql import DataFrame, SparkSession

from kafka_eos_sink.client.security import Secret
from kafka_eos_sink.embedded.broker_security import BrokerSecurity
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_testing import assert_nothing_open, create_topic, read_committed, unique_topic, wait_until

PASSWORD = "correct-horse"
PREFIXED, ALLOW = confluent.ResourcePatternType.PREFIXED, confluent.AclPermissionType.ALLOW
TOPIC, ID = confluent.ResourceType.TOPIC, confluent.ResourceType.TRANSACTIONAL_ID
OPERATIONS = confluent.AclOperation
RIGHTS = [
    confluent.AclBinding(*thing, PREFIXED, "User:writer", "*", operation, ALLOW)
    for thing, operation in (
        ((ID, "kafka-eos"), OPERATIONS.WRITE),
        ((TOPIC, "__kafka_eos"), OPERATIONS.ALL),
        ((TOPIC, "unread-"), OPERATIONS.WRITE),
    )
]


@pytest.fixture(scope="module")
def guarded() -> Iterator[EmbeddedKafka]:
    """The user writer may do all that a write needs, but not Read the topics whose name begins with unread-."""
    security = BrokerSecurity(protocol="SASL_PLAINTEXT", users=(("writer", Secret(PASSWORD)),), mechanisms=("PLAIN",))
    properties = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with EmbeddedKafka(security=security, properties=properties) as started:
        admin = confluent.AdminClient({"bootstrap.servers": started.plaintext_servers})
        for future in admin.create_acls(RIGHTS).values():
            future.result(30)
        writers = confluent.AclBindingFilter(
            confluent.ResourceType.ANY,
            None,
            confluent.ResourcePatternType.ANY,
            "User:writer",
            None,
            OPERATIONS.ANY,
            confluent.AclPermissionType.ANY,
        )
        wait_until(lambda: len(admin.describe_acls(writers).result(30)) == len(RIGHTS), "the ACLs")
        yield started


def batch(rows: DataFrame, options: dict[str, str], _folder: Path) -> None:
    rows.write.format("kafka-eos").options(**options).mode("append").save()


def stream(rows: DataFrame, options: dict[str, str], folder: Path) -> None:
    rows.write.parquet(f"{folder}/rows")
    source = rows.sparkSession.readStream.schema(rows.schema).parquet(f"{folder}/rows")
    writer = (
        source.writeStream.format("kafka-eos").options(**options).option("checkpointLocation", f"{folder}/checkpoint")
    )
    writer.trigger(availableNow=True).start().awaitTermination()


def foreach_batch(rows: DataFrame, options: dict[str, str], folder: Path) -> None:
    def function(frame: DataFrame, number: int) -> None:
        batch(frame, {**options, "txnAppId": "unread", "txnVersion": str(number)}, folder)

    rows.write.parquet(f"{folder}/rows")
    source = rows.sparkSession.readStream.schema(rows.schema).parquet(f"{folder}/rows")
    writer = source.writeStream.foreachBatch(function).option("checkpointLocation", f"{folder}/checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()


@pytest.mark.parametrize("names_topic", ["option", "column"])
@pytest.mark.parametrize("write", [batch, stream, foreach_batch])
def test_write_to_a_topic_without_read_shows_no_row(
    spark: SparkSession,
    guarded: EmbeddedKafka,
    tmp_path: Path,
    code_of: Callable[[str], str],
    write: Callable[[DataFrame, dict[str, str], Path], None],
    names_topic: str,
) -> None:
    topic = create_topic(guarded.plaintext_servers, unique_topic("unread"))
    options = {
        "kafka.bootstrap.servers": guarded.bootstrap_servers,
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.username": "writer",
        "kafka.sasl.password": PASSWORD,
    }
    rows = spark.range(0, 1_000, 1, 4).selectExpr("CAST(id AS STRING) AS value")
    if names_topic == "option":
        options["topic"] = topic
    else:
        rows = rows.selectExpr(f"'{topic}' AS topic", "value")
    with pytest.raises(Exception) as raised:
        write(rows, options, tmp_path)
    assert code_of(str(raised.value)) == "TOPIC_AUTHORIZATION_FAILED"
    assert f"the principal may not Read {topic}. " in str(raised.value)
    assert f". Safe to run again: yes. Grant the principal Read on {topic} (" in str(raised.value)
    assert read_committed(guarded.plaintext_servers, topic) == []
    assert_nothing_open(guarded.plaintext_servers)
