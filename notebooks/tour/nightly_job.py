"""A Spark job in a process of its own that writes the same orders with both sinks, to be killed whole.

python -m tour.nightly_job SERVERS FOLDER VERSION FAILPOINTS [OPTION=VALUE ...]
"""

from __future__ import annotations

import sys
from pathlib import Path

from kafka_eos_sink.demo.quiet_spark import quiet_spark
from kafka_eos_sink.embedded.distribution import resolve_coordinates
from kafka_eos_sink.jobs.spark_kafka_source import KAFKA_SOURCE_JARS
from kafka_eos_sink.runtime import failpoints
from tour.orders import EOS, SINKS, orders, topic_of, write


def main(servers: str, folder: str, version: str, fail: str, *options: str) -> None:
    of_eos = dict(option.split("=", 1) for option in options)
    jars = resolve_coordinates(KAFKA_SOURCE_JARS)
    with quiet_spark("local[2]", Path(folder), jars, {}, {failpoints.VARIABLE: fail}) as spark:
        for sink in reversed(SINKS):  # Spark's own first: when this job dies, it has written all rows
            frame = orders(spark, int(version))
            write(frame, sink, servers, topic_of(sink), int(version), **(of_eos if sink == EOS else {}))


if __name__ == "__main__":
    main(*sys.argv[1:])
