"""TLS and SASL properties of an embedded Kafka's nodes and of its clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kafka_eos_sink.client.security import Secret
from kafka_eos_sink.embedded.broker_security import (
    BrokerSecurity,
)


@pytest.mark.parametrize(
    "arguments",
    [
        {"protocol": "SSL", "users": (("a", Secret("b")),)},
        {"protocol": "SASL_PLAINTEXT", "certificate": Path("/x")},
        {"protocol": "SASL_PLAINTEXT", "client_authorities": Path("/x")},
        {"protocol": "SASL_SSL", "users": (('a"', Secret("b")),)},
        {"protocol": "SASL_SSL", "users": (("a", Secret("hunter2, ")),)},
        {"protocol": "SASL_SSL", "users": (("a", Secret("")),)},
    ],
)
def test_invalid_listener_raises_value_error(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError) as refused:
        BrokerSecurity(**arguments)
    assert "hunter2" not in str(refused.value)
