"""Log set-up by ``KAFKA_EOS_LOG``, warnings once per process, any encoding."""

from __future__ import annotations

import io
import logging
import math
import os
import sys
import time
from collections.abc import Callable

from kafka_eos_sink.errors import one_line, printable

VARIABLE = "KAFKA_EOS_LOG"
ROOT = "kafka_eos_sink"

_FORMAT = "%(asctime)s %(levelname)s [%(process)d] %(name)s: %(message)s"

log = logging.getLogger(ROOT)

AGAIN_AFTER_S = 60.0

_KEPT = 1_000
"""Warnings that are remembered: other programs choose the write ids in some of them."""
_silent_until: dict[object, float] = {}
"""Until when (monotonic) not to warn, by the text of a warning or what it is about."""


class _PrintableFormatter(logging.Formatter):
    """Makes lines printable: other clients choose names, and terminals show them."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        # Before the stack trace is added, which has its own lines. A line feed in a name must not add a false line.
        return one_line(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def configure() -> None:
    """Apply ``KAFKA_EOS_LOG`` to this process; without the variable, change nothing.

    The value is a list of levels, comma-separated: ``debug`` for the whole package, ``kafka_eos_sink.client=debug`` for one
    logger. A handler writes to standard error. Records still reach the root logger, so that Spark's
    ``spark.sql.pyspark.worker.logging.enabled`` captures them too.
    """
    value = os.environ.get(VARIABLE, "").strip()
    if not value or log.handlers:
        return
    # Not sys.stderr: while Spark captures a worker's output, it records each line written there as one more log record.
    handler = logging.StreamHandler(sys.__stderr__)
    handler.setFormatter(_PrintableFormatter(_FORMAT))
    log.addHandler(handler)
    for entry in value.split(","):
        name, _, level = entry.strip().rpartition("=")
        try:
            logging.getLogger(name.strip() or ROOT).setLevel(level.strip().upper())
        except ValueError:
            # An import must not fail on this variable: it would hide the data source from Spark.
            log.warning(
                "kafka-eos: %s: %r is not a level such as debug, info or warning, or LOGGER=LEVEL; ignored",
                VARIABLE,
                entry,
            )


def warn_once(warning: str | Callable[[], str], about: object = None) -> None:
    """Log a warning that this process has not logged yet.

    A stream's planner process would repeat it with every batch. The prefix is the package, because Spark mixes the logs of
    Python workers with its own lines.

    Args:
        warning: The text, or a function that finds it out, called only if it is logged; then ``about`` is required.
        about: What the warning is about, if that may change and the text contains a batch: then one per minute.
    """
    now, key = time.monotonic(), warning if about is None else about
    for each in [each for each, until in list(_silent_until.items()) if until <= now]:  # copied: sweeps run in threads
        _silent_until.pop(each, None)
    if key not in _silent_until:
        _silent_until[key] = math.inf if about is None else now + AGAIN_AFTER_S
        while len(_silent_until) > _KEPT:
            _silent_until.pop(next(iter(list(_silent_until))), None)
        log.warning("kafka-eos: %s", printable(warning if isinstance(warning, str) else warning()))


def forget() -> None:
    """Log every warning again; for tests."""
    _silent_until.clear()


def escape_unencodable() -> None:
    """Let standard output and error escape the characters that their encoding lacks.

    Rows and ids hold any text, and a terminal, a pipe or a file may be Latin-1 or ASCII.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="backslashreplace")
