"""Runs of a driver for tests that call the procedures of commit/ themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar
from uuid import UUID

from kafka_eos_sink.commit.steps import Procedure, Step
from kafka_eos_sink.commit.transactional_id import random_write_id
from kafka_eos_sink.commit.values import DEFAULT_TOPIC, PROOFS_WITHIN_MS, Run, Write

T = TypeVar("T")

RANDOM = random_write_id(None, str(UUID(int=7)))
"""The write id of a batch write without txnAppId."""
WRITE = Write("w", DEFAULT_TOPIC, "--bootstrap-servers ...")


def run_of(
    nonce: str = "barrier",
    *,
    write: Write = WRITE,
    within_ms: int = PROOFS_WITHIN_MS,
    timeout_ms: int = 900_000,
    version: int = 2,
) -> Run:
    """Return a run that differs from all others by its nonce; ``version`` is transaction.version."""
    return Run(
        write=write,
        nonce=nonce,
        within_ms=within_ms,
        transaction_timeout_ms=timeout_ms,
        transaction_version=version,
    )


def drive(procedure: Procedure[T], perform: Callable[[Step[Any]], Any]) -> T:
    """Run a procedure; what ``perform`` returns or raises is the result of each step."""
    result: Any = None
    failure: Exception | None = None
    while True:
        try:
            step = procedure.send(result) if failure is None else procedure.throw(failure)
        except StopIteration as stop:
            returned: T = stop.value
            return returned
        result, failure = None, None
        try:
            result = perform(step)
        except Exception as error:
            failure = error
