"""The four figures of the tour."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from IPython.display import Image
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from tour.kafka_log import Attempt, LoggedBatch, Sample
from tour.orders import EOS, NAMES
from tour.stage import Count, Kill

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Of Okabe and Ito: also told apart by colour-blind readers, and in grey.
BLUE, SKY, RED, GREY, INK = "#0072B2", "#9BD0F0", "#D55E00", "#8C8C8C", "#222222"
_WIDTH, _DPI = 9.0, 140
_STYLE: Any = {"fontsize": 10, "color": INK}


def offsets(samples: Sequence[Sample], batch: LoggedBatch) -> Image:
    """Draw last stable offset and high watermark through one batch: as a whole, and its last moments."""
    figure, (whole, end) = _figure(
        3.6, "Rows reach the log at once; consumers see them only after the decision", columns=2
    )
    began = samples[0].at_ms
    for axes, unit in ((whole, 1000.0), (end, 1.0)):
        zero = began if axes is whole else batch.decided_ms
        at = [(each.at_ms - zero) / unit for each in samples]
        stable, high = [each.last_stable for each in samples], [each.high_watermark for each in samples]
        axes.fill_between(at, stable, high, step="post", color=SKY, alpha=0.5, linewidth=0)
        axes.step(at, high, where="post", color=INK, linewidth=1.6)
        axes.step(at, stable, where="post", color=BLUE, linewidth=2.4)
        for ms in (batch.prepared_ms, batch.decided_ms, batch.ended_ms):
            axes.axvline((ms - zero) / unit, color=GREY, linewidth=0.9, linestyle=(0, (4, 3)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.set_ylim(0, max(high) * 1.2)
    top = max(each.high_watermark for each in samples)
    middle = (batch.began_ms + batch.prepared_ms) / 2
    whole.set_xlabel("seconds since save() was called", **_STYLE)
    whole.set_ylabel("offset, all partitions", **_STYLE)
    whole.text(0.03, 0.93, "high watermark: what is in the log", transform=whole.transAxes, va="top", **_STYLE)
    whole.text(
        0.03,
        0.03,
        "last stable offset: what consumers see",
        transform=whole.transAxes,
        va="bottom",
        fontsize=10,
        color=BLUE,
    )
    whole.text((middle - began) / 1000, top * 0.22, "written,\nnot yet visible", ha="left", fontsize=9.5, color=BLUE)
    before, after = batch.prepared_ms - batch.decided_ms, batch.ended_ms - batch.decided_ms
    room = max(after - before, 40) * 0.35
    end.set_xlim(before - room, after + room)
    end.set_xlabel("milliseconds around the decision", **_STYLE)
    for ms, name, side in ((before, "prepared ", "right"), (0, " decided", "left"), (after, " ended", "left")):
        end.text(ms, top * 1.12, name, ha=side, va="center", **_STYLE)
    return _image(figure, "Last stable offset and high watermark through one batch")


def counts(found: Sequence[Count]) -> Image:
    """Draw what consumers see after each failure: rows once, rows again, rows missing."""
    failures = list(dict.fromkeys(each.failure for each in found))
    doubled = sum(each.duplicates for each in found if each.sink != NAMES[EOS])
    wrong = sum(each.duplicates + each.missing for each in found if each.sink == NAMES[EOS])
    title = f"{len(failures)} failures: Spark's own sink doubles {doubled:,} rows, kafka-eos {wrong:,}"
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
        errors = [
            f"{count:,} {name}" for count, name in ((each.duplicates, "doubled"), (each.missing, "missing")) if count
        ]
        axes.text(
            once + max(each.duplicates, each.missing) + widest * 0.01,
            y,
            ", ".join(errors) or "no row doubled or missing",
            va="center",
            fontsize=9,
            color=RED if errors else BLUE,
        )
    sent = found[0].sent
    axes.axvline(sent, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
    axes.text(sent, -0.62, f"sent: {sent:,}", ha="center", va="bottom", **_STYLE)
    axes.set_yticks(range(len(failures)), failures, **_STYLE)
    axes.set_ylim(len(failures) - 0.5, -0.55)
    axes.set_xlim(0, widest * 1.16)
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
    finished = (batch.attempts[first].last_row_ms - batch.began_ms) / 1000
    axes.text(
        finished, first, "  prepared: all rows in Kafka, the transaction stays open", va="center", fontsize=9, color=INK
    )
    decided = (batch.decided_ms - batch.began_ms) / 1000
    axes.axvline(decided, color=INK, linewidth=1.1, linestyle=(0, (4, 3)))
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
    wrong = sum(each.doubled + each.lost for each in found if each.sink == NAMES[EOS])
    steps = sum(each.sink == NAMES[EOS] for each in found)
    title = f"Killed at each of {steps} steps, kafka-eos loses or doubles {wrong:,} rows"
    figure, (axes,) = _figure(0.9 + 0.27 * len(found), title)
    widest = max(each.doubled + each.lost for each in found) or 1
    for y, each in enumerate(found):
        colour = BLUE if each.sink == NAMES[EOS] else RED
        axes.barh(y, each.doubled, 0.55, color=colour)
        axes.barh(y, -each.lost, 0.55, color=colour, hatch="////")
        count = each.doubled + each.lost
        axes.plot(0, y, "o", color=colour, markersize=6, clip_on=False)
        then = "the same write ran again" if each.save_failed else "Spark ran the task again"
        text = f"{count:,} rows  " if count else "0 rows  "
        axes.text(max(0, each.doubled) + widest * 0.025, y, text, va="center", fontsize=9, color=colour, weight="bold")
        axes.text(widest * 1.42, y, then, va="center", ha="right", fontsize=8.5, color=GREY)
    axes.axhline(steps - 0.5, color=GREY, linewidth=0.8)
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.text(widest * 0.5, (steps - 1) / 2, "kafka-eos", ha="center", va="center", fontsize=12, color=BLUE)
    axes.set_yticks(range(len(found)), [each.step for each in found], fontsize=9, color=INK)
    axes.set_ylim(len(found) - 0.5, -0.6)
    axes.set_xlim(-widest * 0.08, widest * 1.45)
    axes.xaxis.set_visible(False)
    axes.spines[["bottom", "left"]].set_visible(False)
    axes.tick_params(length=0)
    return _image(figure, title)


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
    png = io.BytesIO()
    figure.savefig(png, format="png", metadata={"Software": None})
    return Image(png.getvalue(), width=int(_WIDTH * 100), alt=text)  # type: ignore[no-untyped-call]
