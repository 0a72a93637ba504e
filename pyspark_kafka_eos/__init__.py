"""How Spark finds the data source ``kafka-eos`` without registration.

Spark imports every top-level module whose name begins with ``pyspark_`` and takes its ``DefaultSource``. An exception
here would hide the data sources of all packages, so nothing is imported before Spark asks, and what goes wrong then
is one line on standard error.
"""

from __future__ import annotations

import sys
from typing import Any


def __getattr__(name: str) -> Any:
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from kafka_eos_sink.spark.data_source import KafkaEosDataSource
    except Exception as error:
        print(f"kafka-eos is not available in this Spark: {type(error).__name__}: {error}", file=sys.stderr)
        # Spark asks with hasattr(): to have no DefaultSource is the one answer that leaves the other sources alone.
        raise AttributeError(name) from error
    return KafkaEosDataSource
