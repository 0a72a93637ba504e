"""The requests of one micro-batch as a time line, by process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.timed import COMMIT, PLAN, TASK, Span

__all__ = ["Timeline", "draw_timeline", "timeline_of"]

_PARTS = {PLAN: "planner", TASK: "task", COMMIT: "commit process"}
_COLOURS = {PLAN: "C0", TASK: "C1", COMMIT: "C2"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Spark's trigger of a micro-batch, and its parts, each with its requests.

    ``began`` is in seconds of the wall clock, ``ms`` the duration of the trigger.
    """

    began: float
    ms: float
    parts: tuple[tuple[Span, tuple[Span, ...]], ...]


def timeline_of(progress: Mapping[str, Any], spans: Sequence[Span]) -> Timeline:
    """Return the time line of the micro-batch that Spark's progress describes."""
    began = datetime.fromisoformat(progress["timestamp"]).timestamp()
    ms = float(progress["durationMs"]["triggerExecution"])
    # The timestamp has milliseconds.
    within = sorted(
        (each for each in spans if began - 0.001 <= each.began <= began + ms / 1_000), key=lambda each: each.began
    )
    parts = [
        (
            part,
            # A Python worker runs several tasks, one after the other.
            tuple(
                each
                for each in within
                if each.what not in _PARTS and each.pid == part.pid and part.began <= each.began <= part.ended
            ),
        )
        for part in within
        if part.what in _PARTS
    ]
    return Timeline(began=began, ms=ms, parts=tuple(parts))


def draw_timeline(timeline: Timeline, file: Path, title: str) -> None:
    """Draw a PNG with a row per part of the micro-batch and per request."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [
        row
        for part, requests in timeline.parts
        for row in (
            (part, part, f"{_PARTS[part.what]}, {part.ms:.0f} ms"),
            *((part, each, f"{each.what} {each.ms:.1f}") for each in requests),
        )
    ]
    figure, axes = pyplot.subplots(figsize=(10, 1 + 0.17 * len(rows)), layout="constrained")
    for place, (part, span, text) in enumerate(rows):
        begins = (span.began - timeline.began) * 1_000
        is_part = span is part
        axes.barh(place, span.ms, left=begins, height=0.8, color=_COLOURS[part.what], alpha=0.25 if is_part else 1)
        axes.annotate(
            text,
            (begins + span.ms, place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=7,
            weight="bold" if is_part else "normal",
        )
    axes.set_xlim(0, timeline.ms * 1.15)
    axes.set_ylim(len(rows), -1)
    axes.axvline(timeline.ms, color="0.5", linewidth=1)
    axes.set_yticks([])
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_xlabel("ms since the trigger of the micro-batch; the line is its end")
    figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    figure.savefig(file, dpi=150)
    pyplot.close(figure)
