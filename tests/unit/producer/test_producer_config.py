from __future__ import annotations

from typing import Any

import pytest

from kafka_eos_sink.errors import ConfigurationError
from kafka_eos_sink.producer.config import ProducerConfig


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"batch_size": 0}, "batch.size must be from 1"),
        ({"max_in_flight": 6}, "max.in.flight.requests.per.connection must be from 1 to 5, not 6"),
        ({"retries": 0}, "retries must be from 1"),
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
