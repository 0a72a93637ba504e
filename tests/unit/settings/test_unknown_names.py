"""An unknown option gets the way out that fits it, and never the name of another refused option."""

from __future__ import annotations

import re

import pytest

from kafka_eos_sink.errors import ConfigurationError
from kafka_eos_sink.settings.options import read_options
from kafka_eos_sink.settings.table import JAVA, SINK
from kafka_eos_sink.settings.unknown_names import OTHER_CLIENTS, about_unknown

REQUIRED = {"kafka.bootstrap.servers": "localhost:9092", "topic": "orders"}
STREAM = REQUIRED | {"checkpointLocation": "/checkpoint"}
READS = "is an option of Spark's Kafka source: give it to the query that reads"
STREAMS = "is an option of streaming queries: remove it"


def problem(name: str, *, streaming: bool = False) -> str:
    """What a user reads, by the name as Spark passes it: in lower case."""
    with pytest.raises(ConfigurationError) as caught:
        read_options((STREAM if streaming else REQUIRED) | {name.lower(): "x"}, streaming=streaming)
    return caught.value.message


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        "assign",
        "subscribe",
        "subscribePattern",
        "startingOffsets",
        "startingOffsetsByTimestamp",
        "startingOffsetsByTimestampStrategy",
        "startingTimestamp",
        "endingOffsets",
        "endingOffsetsByTimestamp",
        "endingTimestamp",
        "failOnDataLoss",
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
        "kafkaConsumer.pollTimeoutMs",
        "maxOffsetsPerTrigger",
        "minOffsetsPerTrigger",
        "maxRecordsPerPartition",
        "maxTriggerDelay",
        "minPartitions",
        "groupIdPrefix",
        "includeHeaders",
        "kafka.group.id",
    ],
)
def test_option_of_sparks_source_is_named_as_such(name: str, streaming: bool) -> None:
    assert problem(name, streaming=streaming).startswith(f"{name} {READS}")


@pytest.mark.parametrize(
    "name",
    ["checkpointLocation", "queryName", "asyncProgressTrackingEnabled", "asyncProgressTrackingCheckpointIntervalMs"],
)
def test_option_of_streams_is_named_as_such_in_a_batch(name: str) -> None:
    found = problem(name)
    assert found.lower().startswith(f"{name} {STREAMS}".lower())
    assert "is not known" not in found


@pytest.mark.parametrize("name", ["mode", "outputMode", "trigger"])
@pytest.mark.parametrize("streaming", [False, True])
def test_method_of_a_writer_is_named_as_such(name: str, streaming: bool) -> None:
    assert f"{name} is no option: call .{name}(" in problem(name, streaming=streaming)


@pytest.mark.parametrize("name", sorted(OTHER_CLIENTS - {"group.id"}))
def test_option_of_another_client_is_named_as_such(name: str) -> None:
    assert problem(f"kafka.{name}") == (
        f"kafka.{name} is an option of Kafka's consumer or admin client, and the sink only writes: remove it"
    )
    assert problem(name).startswith(f"{name} is an option of Kafka's consumer or admin client")


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("topics", "topic"),
        ("kafka.topic", "topic"),
        ("txn_app_id", "txnAppId"),
        ("txnAppIds", "txnAppId"),
        ("transactionalIdPrefix", "transactional.id.prefix"),
        ("kafka.transactional.id.prefix", "transactional.id.prefix"),
        ("deadLetterTopic", "dead.letter.topic"),
        ("interceptor", "interceptors"),
        ("acks", "kafka.acks"),
        ("linger", "kafka.linger.ms"),
        ("batch_size", "kafka.batch.size"),
        ("compression", "kafka.compression.type"),
        ("bootstrap.server", "kafka.bootstrap.servers"),
        ("kafka.sasl.mechanisms", "kafka.sasl.mechanism"),
        ("kafka.lingr.ms", "kafka.linger.ms"),
    ],
)
def test_near_name_is_a_hint(name: str, known: str) -> None:
    assert problem(name) == f"{name.lower()} is not known; the nearest known name is {known}"


@pytest.mark.parametrize(
    "name",
    [
        "kafka.rack",
        "kafka.message.timeout.ms",
        "kafka.queue.buffering.max.ms",
        "kafka.key.serialiser",
        "kafka.transactional.i",
        "numPartitions",
        "header",
        "password",
        "x" * 10_000,
    ],
)
def test_name_without_a_near_one_gets_no_hint(name: str) -> None:
    assert (
        problem(name)
        == f"{name.lower()} is not known; no known name is near it; help(KafkaEosDataSource) shows the usual ones"
    )


@pytest.mark.parametrize("name", sorted(JAVA))
def test_hint_is_never_a_refused_name(name: str) -> None:
    """Also for a name that is nearest to a refused one."""
    for wrong in (f"kafka.{name}s", f"kafka.{name[:-1]}", f"kafka.{name.replace('.', '_')}", name.title()):
        found = re.search("nearest known name is (.*)", about_unknown(wrong))
        if found is None or found[1] in SINK:
            continue
        row = JAVA[found[1].removeprefix("kafka.")]
        assert row.group not in ("refused", "without effect")
        assert row.name not in ("key.serializer", "value.serializer", "transactional.id")


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("interceptor.classes", "is not possible: it names a Java class"),
        ("transactional.id", "is not possible: tasks with the same id"),
        ("partitioner.class", "has no effect: choose the partitioner with the option partitioner"),
    ],
)
def test_refused_name_of_java_without_its_prefix_gets_the_reason(name: str, what: str) -> None:
    assert problem(name).startswith(f"{name} {what}")
