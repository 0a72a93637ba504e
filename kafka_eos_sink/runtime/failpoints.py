"""Points of the protocol at which a test has a process die or fail; nothing happens unless the environment asks for it.

``KAFKA_EOS_FAILPOINTS`` holds ``point=action`` pairs separated by ``;``. Actions: ``kill`` (SIGKILL to this process), ``raise``,
``hang`` (go no further: the test kills the whole driver), each with ``:FILE``, which acts once: only for the process that
manages to create that file, which then holds its process id; and ``wait:FILE``, which goes on once the file that it made is
removed. The points are the names that the procedures pass to `Reached`, ``task.writing`` (after each delivered batch of rows)
and ``commit.between_ends`` (after the first EndTxn of a pass).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping

from kafka_eos_sink.errors import KafkaEosError

VARIABLE = "KAFKA_EOS_FAILPOINTS"


def _actions(environment: Mapping[str, str]) -> dict[str, str]:
    text = environment.get(VARIABLE, "")
    return dict(pair.split("=", 1) for pair in text.split(";") if "=" in pair)


def is_set(point: str) -> bool:
    return VARIABLE in os.environ and point in _actions(os.environ)


def reached(point: str) -> None:
    """Act on a point if the environment names it. Raises `KafkaEosError` ``FAILPOINT``, or ends this process."""
    if VARIABLE not in os.environ or (action := _actions(os.environ).get(point)) is None:
        return
    kind, _, once = action.partition(":")
    if once:
        try:
            made = os.open(once, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return
        os.write(made, b"%d" % os.getpid())
        os.close(made)
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    while kind == "hang":
        signal.pause()
    if kind == "wait":
        while os.path.exists(once):
            time.sleep(0.02)
        return
    raise KafkaEosError("FAILPOINT", f"{VARIABLE} asks for a failure at {point}")
