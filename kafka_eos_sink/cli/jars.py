"""``kafka-eos jars``: Spark's own Kafka source for ``spark-submit --jars``, which ``--packages`` cannot resolve."""

from __future__ import annotations

import typer

from kafka_eos_sink.embedded.distribution import resolve_coordinates
from kafka_eos_sink.embedded.download_progress import shown_progress
from kafka_eos_sink.jobs.spark_kafka_source import KAFKA_SOURCE_JARS

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("jars", short_help="Print the jars of Spark's own Kafka source for spark-submit --jars.")(jars)


def jars() -> None:
    """Print the paths of the four jars of Spark's own Kafka source, comma-separated; downloads them once.

    For spark-submit --jars "$(kafka-eos jars)". --packages cannot resolve them: they need a version that does not exist.
    """
    with shown_progress() as progress:
        paths = resolve_coordinates(KAFKA_SOURCE_JARS, progress=progress)
    typer.echo(",".join(map(str, paths)))
