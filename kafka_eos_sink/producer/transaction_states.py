"""A producer's states and their transitions (Java: ``TransactionManager.State``)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final


class State(Enum):
    UNINITIALIZED = auto()
    READY = auto()
    IN_TRANSACTION = auto()
    PREPARED = auto()
    ABORTING = auto()
    ABORTED = auto()
    ABORTABLE_ERROR = auto()
    FATAL_ERROR = auto()


S = State
TRANSITIONS: Final[Mapping[State, frozenset[State]]] = {
    S.UNINITIALIZED: frozenset({S.READY, S.FATAL_ERROR}),
    # An idempotent producer whose epochs are exhausted gets another producer id.
    S.READY: frozenset({S.READY, S.IN_TRANSACTION, S.FATAL_ERROR}),
    S.IN_TRANSACTION: frozenset({S.PREPARED, S.ABORTING, S.ABORTABLE_ERROR, S.FATAL_ERROR}),
    S.ABORTABLE_ERROR: frozenset({S.ABORTING, S.FATAL_ERROR}),
    S.ABORTING: frozenset({S.ABORTED, S.FATAL_ERROR}),
    # The driver may already have decided the transaction, so this process must not end it.
    S.PREPARED: frozenset(),
    # Below transaction version 2, a second transaction would have the same epoch, so a late request could become part of it.
    S.ABORTED: frozenset(),
    S.FATAL_ERROR: frozenset(),
}


class IllegalTransition(RuntimeError):
    """The state forbids the call: a bug of the caller, never the effect of a response."""
