"""Where the commands print their tables."""

from __future__ import annotations

from rich.console import Console

__all__ = ["output_console"]

_WIDTH_ELSEWHERE = 140


def output_console(*, stderr: bool = False) -> Console:
    """The terminal as wide as it is; a file or a pipe gets lines that no table has to be squeezed into."""
    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH_ELSEWHERE
    return console
