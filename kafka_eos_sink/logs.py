"""Warnings that hold for as long as a process lives: a planner of a stream would repeat them with every batch."""

from __future__ import annotations

import logging

__all__ = ["forget", "warn_once"]

log = logging.getLogger("kafka_eos_sink")

_said: set[str] = set()


def warn_once(warning: str) -> None:
    """Log what this process has not logged yet; what Python workers log stands among Spark's lines, hence the name before it."""
    if warning not in _said:
        _said.add(warning)
        log.warning("kafka-eos: %s", warning)


def forget() -> None:
    """Say everything again, for tests."""
    _said.clear()
