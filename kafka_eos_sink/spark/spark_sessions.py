"""Spark sessions in programs with several threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def activate_session(spark: SparkSession) -> None:
    """Make ``spark`` the active session of the calling thread.

    Spark looks up Python data sources in the active session of the JVM's thread. Only the first thread of a driver has one. Under Spark
    Connect the server sets it, and this function does nothing.
    """
    session: Any = getattr(spark, "_jsparkSession", None)
    if session is not None:
        jvm: Any = spark._jvm
        jvm.SparkSession.setActiveSession(session)
