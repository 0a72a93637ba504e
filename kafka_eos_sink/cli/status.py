"""``kafka-eos status``: the newest version of each write. ``kafka-eos commits`` is its older name."""

from kafka_eos_sink.cli.commits import commits as status

__all__ = ["status"]
