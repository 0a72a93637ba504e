"""Exactly-once writes from Apache Spark to Apache Kafka."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kafka_eos_sink.errors import (
    AuthenticationError,
    AuthorizationError,
    BrokerRefusedError,
    BrokerUnavailableError,
    ConfigurationError,
    DecisionPendingError,
    FencedError,
    InvalidRowError,
    KafkaEosError,
    ProtocolError,
    SchemaError,
    TransactionAbortedError,
    WriteRefusedError,
)

if TYPE_CHECKING:
    from kafka_eos_sink.spark.data_source import KafkaEosDataSource

__version__ = "0.1.0"

__all__ = [
    "AuthenticationError",
    "AuthorizationError",
    "BrokerRefusedError",
    "BrokerUnavailableError",
    "ConfigurationError",
    "DecisionPendingError",
    "FencedError",
    "InvalidRowError",
    "KafkaEosDataSource",
    "KafkaEosError",
    "ProtocolError",
    "SchemaError",
    "TransactionAbortedError",
    "WriteRefusedError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    # The command line needs no Spark, and importing pyspark takes longer than most commands.
    if name == "KafkaEosDataSource":
        return import_module("kafka_eos_sink.spark.data_source").KafkaEosDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
