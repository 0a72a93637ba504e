"""The order of measured runs: in turns, so that a slow phase hits all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

__all__ = ["turns"]

T = TypeVar("T")


def turns(runs: Sequence[T], rounds: int) -> Iterator[tuple[int, T]]:
    """Yield every run once per round, with the number of the round."""
    # Each round begins with another run, because the first run of a round may be slower.
    for number in range(rounds):
        start = number % len(runs)
        for run in (*runs[start:], *runs[:start]):
            yield number, run
