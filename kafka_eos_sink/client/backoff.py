"""Exponential backoff with jitter, as the Java client's ExponentialBackoff (KIP-580)."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExponentialBackoff:
    """Delays of ``initial_ms`` · 2^attempts up to ``maximum_ms``, each varied by up to ± ``jitter`` of itself.

    The jitter spreads the retries of clients that failed together. ``uniform`` draws from [0, 1).
    """

    initial_ms: int
    maximum_ms: int
    jitter: float = 0.2
    uniform: Callable[[], float] = random.random

    def delay_ms(self, attempts: int) -> int:
        """Return the delay in ms after ``attempts`` earlier failures in a row (0 after the first failure)."""
        # An initial delay above the maximum is the constant maximum, as in Java.
        delay = min(self.initial_ms << min(attempts, 32), self.maximum_ms)
        return max(0, min(round(delay * (1 + self.jitter * (2 * self.uniform() - 1))), self.maximum_ms))
