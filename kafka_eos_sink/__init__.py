"""Exactly-once writes from Apache Spark to Apache Kafka."""

from __future__ import annotations

__version__ = "0.1.0"
