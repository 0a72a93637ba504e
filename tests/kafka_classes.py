"""An archive of Kafka's classes beside its jars (JEP 350), with which nodes start in two thirds of the time."""

from __future__ import annotations

import os

import pytest

from dead_writes import write_all, write_settings
from kafka_eos_sink.embedded import distribution
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.embedded.java import find_java
from kafka_eos_sink.embedded.node import class_archive
from kafka_testing import create_topic


def archive_kafka_classes() -> None:
    """Make the archive from a node that has served a write. This takes some seconds, once per cache."""
    jars = distribution.resolve()
    archive = class_archive(jars, find_java())
    if archive.exists() or " " in str(jars):
        return
    made = archive.with_suffix(f".{os.getpid()}")
    with pytest.MonkeyPatch.context() as patch:
        options = f"-XX:ArchiveClassesAtExit={made} -Xlog:cds=off -Xlog:cds+dynamic=off"
        patch.setenv("JDK_JAVA_OPTIONS", options)
        with EmbeddedKafka(transaction_version=2) as kafka:
            write_all(write_settings(kafka, create_topic(kafka.bootstrap_servers)))
            (node_id,) = kafka.node_ids
            kafka.stop_node(node_id)
    if made.exists():  # missing if the node took too long to end and was killed
        made.replace(archive)
