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
from kafka_eos_sink.logs import configure

if TYPE_CHECKING:
    from kafka_eos_sink.settings.kafka_properties import options_from_file
    from kafka_eos_sink.spark.data_source import KafkaEosDataSource
    from kafka_eos_sink.spark.foreach_batch import for_each_batch
    from kafka_eos_sink.spark.partitioning import partition_for_topic
    from kafka_eos_sink.spark.spark_sessions import activate_session

# At import, because Spark starts planner, task and commit processes that run no other code of this package first.
configure()

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
    "activate_session",
    "for_each_batch",
    "options_from_file",
    "partition_for_topic",
]

_LAZY = {
    "activate_session": "kafka_eos_sink.spark.spark_sessions",
    "for_each_batch": "kafka_eos_sink.spark.foreach_batch",
    "KafkaEosDataSource": "kafka_eos_sink.spark.data_source",
    "options_from_file": "kafka_eos_sink.settings.kafka_properties",
    "partition_for_topic": "kafka_eos_sink.spark.partitioning",
}


def __getattr__(name: str) -> Any:
    # Loaded on first use: the command line needs no Spark, and importing pyspark takes longer than most commands.
    if name in _LAZY:
        try:
            return getattr(import_module(_LAZY[name]), name)
        except ModuleNotFoundError as error:
            if error.name != "pyspark":
                raise
            from kafka_eos_sink.extras import install_command

            raise ConfigurationError(
                "PYSPARK_MISSING",
                f"{name} needs PySpark, and this Python does not have it. Run: {install_command('spark')}",
            ) from None
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
