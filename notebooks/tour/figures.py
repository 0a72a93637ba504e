"""The figures of the tour."""

from __future__ import annotations

import io
from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal

import PIL.Image
from IPython.display import Image
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from tour.kafka_log import Attempt, LoggedBatch, Sample
from tour.orders import EOS, NAMES, SPARKS
from tour.stage import Count, Kill, Speed
from tour.visible_rows import VisibleRows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Of Okabe and Ito: also told apart by colour-blind readers, and in grey.
BLUE, SKY, RED, GREY, INK = "#0072B2", "#9BD0F0", "#D55E00", "#8C8C8C", "#222222"
_WIDTH, _DPI = 9.0, 140
_DASHED = (0, (4, 3))
_STYLE: Any = {"fontsize": 10, "color": INK}


def offsets(samples: Sequence[Sample], batch: LoggedBatch) -> Image:
    """Draw last stable offset and high watermark through one batch: as a whole, and its last moments."""
    title = "Rows reach the log at once; consumers see them only after the decision"
    figure, (whole, end) = _figure(3.4, title, columns=2)
    after, top = batch.ended_ms - batch.decided_ms, max(each.high_watermark for each in samples)
    for axes, zero, unit in ((whole, batch.began_ms, 1000), (end, batch.decided_ms, 1)):
        at = [(each.at_ms - zero) / unit for each in samples]
        stable, high = [each.last_stable for each in samples], [each.high_watermark for each in samples]
        axes.fill_between(at, stable, high, step="post", color=SKY, alpha=0.5, linewidth=0)
        axes.step(at, high, where="post", color=INK, linewidth=1.6)
        axes.step(at, stable, where="post", color=BLUE, linewidth=2.4)
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.set_ylim(0, top * 1.2)
    seconds, prepared = (batch.ended_ms - batch.began_ms) / 1000, (batch.prepared_ms - batch.began_ms) / 1000
    left = -0.5 * seconds
    whole.set_xlim(left * 1.07, seconds * 1.12)
    _mark(whole, top, prepared, "prepared ", "right")
    _mark(whole, top, seconds, "ended", "center")
    whole.set_xlabel("seconds since the first row", **_STYLE)
    whole.set_ylabel("offset, all partitions", **_STYLE)
    whole.text(left, top * 0.75, "high watermark:\nall that is in the log", va="center", **_STYLE)
    whole.text(left, top * 0.11, "last stable offset:\nwhat consumers see", va="center", fontsize=10, color=BLUE)
    whole.text((prepared + seconds) / 2, top * 0.4, "written,\nnot yet\nvisible", ha="center", fontsize=9.5, color=BLUE)
    end.set_xlim(-after * 1.6 - 10, after * 2.6 + 10)
    end.set_xlabel("milliseconds since the decision", **_STYLE)
    end.tick_params(labelleft=False)
    _mark(end, top, 0, "decided ", "right")
    _mark(end, top, after, " ended", "left")
    return _image(figure, title)


def _mark(axes: Axes, top: int, at: float, name: str, side: Literal["left", "right", "center"]) -> None:
    axes.axvline(at, color=GREY, linewidth=0.9, linestyle=_DASHED, ymax=0.9)
    axes.text(at, top * 1.13, name, ha=side, va="center", **_STYLE)


def counts(found: Sequence[Count]) -> Image:
    """Draw what consumers see after each failure: rows once, rows again, rows missing."""
    failures = list(dict.fromkeys(each.failure for each in found))
    doubled = sum(each.duplicates for each in found if each.sink != NAMES[EOS])
    wrong = sum(each.duplicates + each.missing for each in found if each.sink == NAMES[EOS])
    title = f"{len(failures)} failures: Spark's own sink doubles {doubled:,} rows, kafka-eos {wrong or 'none'}"
    figure, (axes,) = _figure(0.5 + 0.95 * len(failures), title)
    widest = max(each.sent + each.duplicates for each in found)
    for each in found:
        y = failures.index(each.failure) + (-0.17 if each.sink == NAMES[EOS] else 0.17)
        once = each.visible - each.duplicates
        axes.barh(y, once, 0.3, color=BLUE if each.sink == NAMES[EOS] else GREY)
        axes.barh(y, each.duplicates, 0.3, left=once, color=RED)
        axes.barh(y, each.missing, 0.3, left=once, color="none", edgecolor=RED, hatch="////")
        axes.text(
            each.sent * 0.015, y, f"{each.sink}: {each.visible:,} visible", va="center", color="white", fontsize=9
        )
        axes.text(
            once + max(each.duplicates, each.missing) + widest * 0.01,
            y,
            f"{each.duplicates:,} doubled, {each.missing:,} missing",
            va="center",
            fontsize=9,
            color=RED if each.duplicates + each.missing else BLUE,
        )
    sent = found[0].sent
    axes.axvline(sent, color=INK, linewidth=0.9, linestyle=_DASHED)
    axes.text(sent, -0.62, f"sent: {sent:,}", ha="center", va="bottom", **_STYLE)
    axes.set_yticks(range(len(failures)), [fill(each, 22) for each in failures], **_STYLE)
    axes.set_ylim(len(failures) - 0.5, -0.55)
    axes.set_xlim(0, widest * 1.24)
    axes.xaxis.set_visible(False)
    axes.spines[["bottom", "left"]].set_visible(False)
    axes.tick_params(length=0)
    return _image(figure, title)


def visible(watched: VisibleRows, title: str) -> Image:
    """Draw the rows that a consumer has seen of each topic over time, and what happened meanwhile."""
    figure, (axes,) = _figure(3.0, title)
    top = max(samples[-1][1] for samples in watched.samples.values())
    for topic, samples in reversed(watched.samples.items()):
        of_spark = topic.endswith(f"-{SPARKS}")
        seconds, rows = zip(*samples, strict=True)
        axes.step(seconds, rows, where="post", color=RED if of_spark else BLUE, linewidth=1.6 if of_spark else 2.6)
        name = NAMES[SPARKS if of_spark else EOS]
        axes.text(
            seconds[-1], rows[-1], f" {name}:\n {rows[-1]:,}", va="center", fontsize=9, color=RED if of_spark else BLUE
        )
    for number, mark in enumerate(watched.marks):
        axes.axvline(mark.at_s, color=GREY, linewidth=0.9, linestyle=_DASHED, ymax=0.86)
        axes.text(
            mark.at_s, top * (1.22 - 0.09 * (number % 2)), mark.text, ha="center", va="center", fontsize=9, color=INK
        )
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.set_ylim(-top * 0.03, top * 1.28)
    axes.set_xlim(0, max(samples[-1][0] for samples in watched.samples.values()) * 1.17)
    axes.set_xlabel("seconds", **_STYLE)
    axes.set_ylabel("rows that a consumer has seen", **_STYLE)
    return _image(figure, title)


def speeds(found: Sequence[Speed]) -> Image:
    """Draw rows per second of a large batch and milliseconds of a small one, for each sink."""
    title = "The price: what a batch takes without a failure"
    figure, (large, small) = _figure(1.3, title, columns=2)
    for axes, of, head in (
        (large, [each.rows_per_second for each in found], "rows per second, 200,000 rows of 1 kB"),
        (small, [each.small_ms for each in found], "milliseconds, 400 rows"),
    ):
        for y, (each, value) in enumerate(zip(found, of, strict=True)):
            axes.barh(y, value, 0.6, color=BLUE if each.sink == NAMES[EOS] else GREY)
            axes.text(value, y, f" {value:,.0f}", va="center", **_STYLE)
        axes.set_title(head, loc="left", fontsize=9.5, color=INK)
        axes.set_yticks(range(len(found)), [each.sink for each in found] if axes is large else ["", ""], **_STYLE)
        axes.set_ylim(len(found) - 0.5, -0.5)
        axes.set_xlim(0, max(of) * 1.2)
        axes.xaxis.set_visible(False)
        axes.spines[["bottom", "left"]].set_visible(False)
        axes.tick_params(length=0)
    return _image(figure, title)


def transactions(batch: LoggedBatch) -> Image:
    """Draw the transactions of a batch as a Gantt chart; those of lost attempts are grey."""
    lost = sum(each.rows for each in batch.aborted)
    title = f"The killed attempt left {lost:,} rows in the log, and no consumer ever sees one"
    figure, (axes,) = _figure(0.9 + 0.42 * len(batch.attempts), title)
    names = []
    for y, each in enumerate(batch.attempts):
        begin, last, end = ((ms - batch.began_ms) / 1000 for ms in (each.first_row_ms, each.last_row_ms, each.ended_ms))
        names.append(_name(each, batch.attempts))
        if each.is_committed:
            axes.barh(y, last - begin, 0.55, left=begin, color=BLUE)
            axes.barh(y, end - last, 0.55, left=last, color=SKY)
        else:
            axes.barh(y, last - begin, 0.55, left=begin, color=GREY)
            axes.barh(y, end - last, 0.55, left=last, color=GREY, alpha=0.35)
            axes.text(
                last, y, f"  killed after {each.rows:,} rows; aborted, not decided", va="center", fontsize=9, color=INK
            )
    first = next(y for y, each in enumerate(batch.attempts) if each.is_committed)
    written = batch.attempts[first]
    middle = ((written.first_row_ms + written.last_row_ms) / 2 - batch.began_ms) / 1000
    axes.text(middle, first, "writes", ha="center", va="center", fontsize=9, color="white")
    finished = (written.last_row_ms - batch.began_ms) / 1000
    axes.text(
        finished, first, "  prepared: all rows in Kafka, the transaction stays open", va="center", fontsize=9, color=INK
    )
    decided = (batch.decided_ms - batch.began_ms) / 1000
    axes.axvline(decided, color=INK, linewidth=1.1, linestyle=_DASHED)
    axes.text(decided, -0.65, "decided ", ha="right", va="bottom", **_STYLE)
    axes.set_yticks(range(len(names)), names, **_STYLE)
    axes.set_ylim(len(names) - 0.5, -0.6)
    axes.set_xlim(0, None)
    axes.set_xlabel("seconds since the first row", **_STYLE)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return _image(figure, title)


def _name(attempt: Attempt, attempts: Sequence[Attempt]) -> str:
    same = [each for each in attempts if each.task == attempt.task]
    return f"task {attempt.task}" + (f", attempt {same.index(attempt) + 1}" if len(same) > 1 else "")


def kills(found: Sequence[Kill]) -> Image:
    """Draw the rows that were lost or doubled by a kill at each step."""
    of_eos = [each for each in found if each.sink == NAMES[EOS]]
    others = [each for each in found if each.sink != NAMES[EOS]]
    wrong = sum(each.doubled + each.lost for each in of_eos)
    title = f"Killed at each of {len(of_eos)} steps, kafka-eos loses or doubles {wrong or 'no'} rows"
    figure, (axes,) = _figure(0.265 * (len(found) + 2), title)
    widest = max(each.doubled + each.lost for each in found) or 1
    ticks: dict[int, str] = {}
    y = -1
    for group, head in ((of_eos, "kafka-eos, killed at"), (others, "Spark's own sink, killed after")):
        y += 1
        axes.text(-widest * 0.06, y, head, ha="right", va="center", fontsize=9.5, color=INK, weight="bold")
        for each in group:
            y += 1
            ticks[y] = each.step
            _draw_kill(axes, y, each, widest)
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.set_yticks(list(ticks), list(ticks.values()), fontsize=9, color=INK)
    axes.set_ylim(y + 0.5, -0.6)
    axes.set_xlim(-max(each.lost for each in found) - widest * 0.05, widest * 1.92)
    axes.xaxis.set_visible(False)
    axes.spines[["bottom", "left"]].set_visible(False)
    axes.tick_params(length=0)
    return _image(figure, title)


def _draw_kill(axes: Axes, y: int, kill: Kill, widest: int) -> None:
    colour = BLUE if kill.sink == NAMES[EOS] else RED
    axes.barh(y, kill.doubled, 0.55, color=colour)
    axes.barh(y, -kill.lost, 0.55, color=colour, hatch="////")
    if not kill.doubled + kill.lost:
        axes.plot(0, y, "o", color=colour, markersize=6, clip_on=False)
    text = f"{kill.doubled:,} doubled, {kill.lost:,} lost"
    axes.text(kill.doubled + widest * 0.03, y, text, va="center", fontsize=9, color=colour)
    then = "the same write ran again" if kill.save_failed else "Spark ran the task again"
    axes.text(widest * 1.9, y, then, va="center", ha="right", fontsize=8.5, color=GREY)


def _figure(height: float, title: str, columns: int = 1) -> tuple[Figure, tuple[Axes, ...]]:
    figure = Figure(figsize=(_WIDTH, height + 0.4), dpi=_DPI, layout="constrained")
    figure.suptitle(title, fontsize=12.5, fontweight="bold", color=INK, x=0.01, ha="left")
    ratios = [1.6, 1.0][:columns]
    axes = figure.subplots(1, columns, squeeze=False, width_ratios=ratios)[0]
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
        each.tick_params(colors=INK, labelsize=9)
    return figure, tuple(axes)


def _image(figure: Figure, text: str) -> Image:
    """Return the figure as a PNG of few colours, which is a third of the size."""
    drawn, small = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png")
    PIL.Image.open(drawn).convert("RGB").quantize(64).save(small, format="png", optimize=True)
    return Image(small.getvalue(), width=int(_WIDTH * 100), alt=text)  # type: ignore[no-untyped-call]
