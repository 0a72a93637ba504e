"""Faults for the next requests of an API, planned while the client is at work: what `FaultProxy` and a simulated network ask."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from kafka_eos_sink.protocol.schema import Request

from .fault_proxy import Action


@dataclass(slots=True)
class _Planned:
    api: type[Request[Any]]
    action: Action
    times: int


class PlannedFaults:
    """A queue of faults per API: each is done to the next requests of its API, as often as it says, and then forgotten.

    The proxy asks from its own thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._planned: list[_Planned] = []
        self._fired: list[tuple[type[Request[Any]], Action]] = []

    def plan(self, api: type[Request[Any]], action: Action, times: int = 1) -> None:
        with self._lock:
            self._planned.append(_Planned(api, action, times))

    def clear(self, *, more_than: int = 0) -> None:
        """Forget what is planned, or only what is still to be done more than so often."""
        with self._lock:
            self._planned = [planned for planned in self._planned if planned.times <= more_than]

    @property
    def fired(self) -> tuple[tuple[type[Request[Any]], Action], ...]:
        """What was done, in order."""
        with self._lock:
            return tuple(self._fired)

    def choose(self, api: type[Request[Any]], _occurrence: int) -> Action | None:
        with self._lock:
            for at, planned in enumerate(self._planned):
                if planned.api is api:
                    planned.times -= 1
                    if planned.times <= 0:
                        del self._planned[at]
                    self._fired.append((api, planned.action))
                    return planned.action
        return None
