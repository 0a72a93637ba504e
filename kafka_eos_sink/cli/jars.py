"""``kafka-eos jars``: the jars of Spark's own Kafka source for ``spark-submit``."""

from __future__ import annotations

import typer

from kafka_eos_sink.embedded.distribution import resolve_coordinates
from kafka_eos_sink.embedded.download_progress import shown_progress
from kafka_eos_sink.jobs.spark_kafka_source import KAFKA_SOURCE_JARS


def jars() -> None:
    """Print the jars of Spark's own Kafka source for spark-submit --jars.

    Prints the paths of the four jars, comma-separated, and downloads the jars on first use:
    spark-submit --jars "$(kafka-eos jars)" job.py. Do not use --packages: it requests a version that does not exist.

    Example: kafka-eos jars

    For a Kafka to read from: kafka-eos broker
    """
    # Progress goes to standard error: `$(kafka-eos jars)` takes standard output as the value of --jars.
    with shown_progress() as progress:
        paths = resolve_coordinates(KAFKA_SOURCE_JARS, progress=progress)
    typer.echo(",".join(map(str, paths)))
