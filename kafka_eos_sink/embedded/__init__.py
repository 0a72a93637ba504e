"""A real Apache Kafka in child processes, for tests, notebooks and the command."""

from kafka_eos_sink.embedded.cluster import EmbeddedKafka

__all__ = ["EmbeddedKafka"]
