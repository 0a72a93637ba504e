"""A member of a share group (KIP-932), which only Kafka's own client knows."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.embedded.java import find_java
from kafka_testing import PATIENCE_S


@contextmanager
def share_reader(kafka: EmbeddedKafka, jars: Path, group: str, topic: str) -> Iterator[Iterator[list[str]]]:
    """Kafka's own share consumer; yields offset and value of what it gets."""
    program = [str(Path(__file__).with_name("ShareReader.java")), kafka.bootstrap_servers, group, topic]
    command = [str(find_java().executable), "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*", *program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as reader:
        assert reader.stdout is not None
        stuck = Timer(PATIENCE_S, reader.kill)
        stuck.start()
        try:
            yield (line.rstrip("\n").split(" ", 1) for line in reader.stdout)
        finally:
            stuck.cancel()
            reader.kill()
