"""An unknown option gets the way out that fits it, and never the name of another refused option."""

from __future__ import annotations

import re

import pytest

from kafka_eos_sink.errors import ConfigurationError
from kafka_eos_sink.settings.options import read_options
from kafka_eos_sink.settings.table import JAVA, SINK
from kafka_eos_sink.settings.unknown_names import about_unknown

REQUIRED = {"kafka.bootstrap.servers": "localhost:9092", "topic": "orders"}
STREAM = REQUIRED | {"checkpointLocation": "/checkpoint"}
READS = "is an option of Spark's Kafka source: give it to the query that reads"


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
        "startingOffsets",
        "failOnDataLoss",
        "kafkaConsumer.pollTimeoutMs",
        "includeHeaders",
        "kafka.group.id",
    ],
)
def test_option_of_sparks_source_is_named_as_such(name: str, streaming: bool) -> None:
    assert problem(name, streaming=streaming).startswith(f"{name} {READS}")


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("kafka.topic", "topic"),
        ("txnAppIds", "txnAppId"),
        ("transactionalIdPrefix", "transactional.id.prefix"),
        ("acks", "kafka.acks"),
        ("batch_size", "kafka.batch.size"),
        ("bootstrap.server", "kafka.bootstrap.servers"),
        ("kafka.lingr.ms", "kafka.linger.ms"),
    ],
)
def test_near_name_is_a_hint(name: str, known: str) -> None:
    assert problem(name) == f"{name.lower()} is not known; the nearest known name is {known}"


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
