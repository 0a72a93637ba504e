"""A real Apache Kafka (KRaft) in child processes, for tests, notebooks and ``kafka-eos broker``."""

from kafka_eos_sink.embedded.cluster import EmbeddedKafka

__all__ = ["EmbeddedKafka"]
