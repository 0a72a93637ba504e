"""The id of an embedded cluster."""

from __future__ import annotations

import uuid

from kafka_eos_sink.embedded.cluster import random_kafka_id


def test_no_cluster_id_looks_like_an_option() -> None:
    """One in 64 random ids began with a dash, and Kafka's storage tool refused it."""
    dashed, plain = uuid.UUID(bytes=b"\xf8" + bytes(15)), uuid.UUID(bytes=b"\x01" + bytes(15))
    drawn = iter((dashed, plain))
    assert random_kafka_id(lambda: next(drawn)) == "AQAAAAAAAAAAAAAAAAAAAA"
    assert len(random_kafka_id()) == 22
