"""Named points of the protocol at which a test kills, fails or stops a process.

``KAFKA_EOS_FAILPOINTS`` holds ``point=action`` pairs separated by ``;``; without it no point acts. The actions:

kill        send SIGKILL to this process
raise       raise `KafkaEosError` FAILPOINT
hang        stop for ever; the test kills the whole driver
wait:FILE   create the file, and continue once the test removes it

``kill``, ``raise`` and ``hang`` with ``:FILE`` act once, in the process that creates the file; the file then holds its process id.
The points are the names that the procedures pass to `Reached`, ``task.writing`` (after each batch of rows), ``commit.between_ends`` (after
the first EndTxn of a decision) and ``abort.between_ends`` (after the first of those that abort).
"""

from __future__ import annotations

import os
import signal
import time

from kafka_eos_sink.errors import KafkaEosError

VARIABLE = "KAFKA_EOS_FAILPOINTS"


def _action(point: str) -> str | None:
    pairs = os.environ.get(VARIABLE, "").split(";")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair).get(point)


def is_set(point: str) -> bool:
    """Whether the environment has the point."""
    return _action(point) is not None


def reached(point: str) -> None:
    """Perform the point's action if the environment has one."""
    if (action := _action(point)) is None:
        return
    kind, _, once = action.partition(":")
    if once:
        try:
            # "x" picks one process out of all that reach the point.
            with open(once, "x") as made:
                made.write(str(os.getpid()))
        except FileExistsError:
            return
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    while kind == "hang":
        signal.pause()
    if kind == "wait":
        while os.path.exists(once):
            time.sleep(0.02)
        return
    raise KafkaEosError("FAILPOINT", f"{VARIABLE} sets a failure at {point}")
