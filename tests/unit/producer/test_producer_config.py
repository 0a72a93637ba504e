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
    ],
)
def test_a_value_that_cannot_work_is_named(setting: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match="INVALID_CONFIG") as raised:
        ProducerConfig(**setting)
    assert words in str(raised.value)
