"""The id of an embedded cluster."""

from __future__ import annotations

import uuid

from kafka_eos_sink.embedded.cluster import random_kafka_id


def test_cluster_id_never_begins_with_a_dash() -> None:
    """One in 64 random ids would begin with a dash, which Kafka's storage tool takes for an option."""
    dashed, plain = uuid.UUID(bytes=b"\xf8" + bytes(15)), uuid.UUID(bytes=b"\x01" + bytes(15))
    drawn = iter((dashed, plain))
    assert random_kafka_id(lambda: next(drawn)) == "AQAAAAAAAAAAAAAAAAAAAA"
    assert len(random_kafka_id()) == 22
