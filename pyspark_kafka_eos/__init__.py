"""How Spark finds the data source ``kafka-eos`` without registration.

Spark imports every top-level module whose name begins with ``pyspark_`` and uses its ``DefaultSource``. An exception here
would hide the data sources of all packages. This module therefore imports nothing until Spark reads ``DefaultSource``, and
reports a failure as one line on standard error.
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
        # Spark calls hasattr(): only an AttributeError lets it continue with the other data sources.
        raise AttributeError(name) from error
    return KafkaEosDataSource
