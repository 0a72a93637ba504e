from __future__ import annotations

import pickle
from typing import Any

import pytest

from kafka_eos_sink.errors import ConfigurationError
from kafka_eos_sink.producer.config import ProducerConfig


def test_the_defaults_have_no_problems_and_travel() -> None:
    config = ProducerConfig()
    assert pickle.loads(pickle.dumps(config)) == config


@pytest.mark.feature("idempotence")
@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"batch_size": 0}, "batch.size must be from 1"),
        ({"max_in_flight": 6}, "max.in.flight.requests.per.connection must be from 1 to 5, not 6"),
        ({"retries": 0}, "retries must be from 1"),
        ({"acks": 1}, "acks must be all"),
        ({"compression": "brotli"}, "compression.type must be one of none, gzip, snappy, lz4, zstd, not 'brotli'"),
        ({"compression": "gzip", "compression_level": 10}, "compression.gzip.level must be from 1 to 9, not 10"),
        ({"compression": "snappy", "compression_level": 1}, "snappy has no levels"),
        ({"partitioner": "murmur"}, "partitioner must be default, round-robin or package.module:callable"),
        ({"interceptors": ("a.b",)}, "interceptors must be package.module:Class, comma-separated, not 'a.b'"),
    ],
)
def test_a_value_that_cannot_work_is_named(setting: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match="INVALID_CONFIG") as raised:
        ProducerConfig(**setting)
    assert words in str(raised.value)


def test_all_problems_are_named_at_once() -> None:
    with pytest.raises(ConfigurationError) as raised:
        ProducerConfig(acks=0, linger_ms=-1, max_in_flight=0)
    assert len(raised.value.message.split("; ")) == 3


def test_levels_at_the_ends_of_their_ranges_are_taken() -> None:
    for codec, level in (("gzip", -1), ("gzip", 9), ("lz4", 17), ("zstd", 22), ("zstd", -131072)):
        ProducerConfig(compression=codec, compression_level=level)


def test_interceptor_options_stay_out_of_the_repr() -> None:
    config = ProducerConfig(interceptor_options=(("kafka.sasl.password", "hush"),))
    assert "hush" not in repr(config)
