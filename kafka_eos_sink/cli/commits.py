"""``kafka-eos commits``: the older name of ``kafka-eos status``."""

from kafka_eos_sink.cli.status import status as commits

__all__ = ["commits"]
