"""Draws docs/images/dashboard.png: the panels of conf/grafana-dashboard.json, with the results of their queries in a running Prometheus.

PYTHONPATH=.:tests python tests/dashboard_picture.py http://localhost:9090 --minutes 12
"""

from __future__ import annotations

import argparse
import json
import math
import re
import time
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

ROOT = Path(__file__).parents[1]
DASHBOARD = ROOT / "conf" / "grafana-dashboard.json"
PICTURE = ROOT / "docs" / "images" / "dashboard.png"
VARIABLES = {"$instance": ".*", "$app_id": ".*", "$__rate_interval": "60s"}
STEPS = 240
"""Points of each line."""
COLUMNS, INCHES_PER_COLUMN, INCHES_PER_ROW = 24, 0.62, 0.3
LONGEST_LEGEND = 6
BACKGROUND, FRAME, TEXT = "#ffffff", "#d8dce2", "#23272e"


class Prometheus:
    """The HTTP API of a Prometheus, with the variables of the dashboard replaced."""

    def __init__(self, url: str, seconds: float) -> None:
        self.url, self.seconds, self.until = url.rstrip("/"), seconds, time.time()

    def now(self, expression: str) -> list[Any]:
        return self._result("query", expression, time=self.until)

    def over_time(self, expression: str) -> list[Any]:
        span = {"start": self.until - self.seconds, "end": self.until, "step": self.seconds / STEPS}
        return self._result("query_range", expression, **span)

    def _result(self, kind: str, expression: str, **more: float) -> list[Any]:
        for name, value in VARIABLES.items():
            expression = expression.replace(name, value)
        query = urllib.parse.urlencode({"query": expression, **more})
        with urllib.request.urlopen(f"{self.url}/api/v1/{kind}?{query}", timeout=30) as response:
            result: list[Any] = json.load(response)["data"]["result"]
        return result


def draw(prometheus: Prometheus, panels: Sequence[dict[str, Any]]) -> Figure:
    """Lay the panels out as Grafana does: 24 columns, ``gridPos`` in columns and rows."""
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    figure = plt.figure(figsize=(COLUMNS * INCHES_PER_COLUMN, height * INCHES_PER_ROW), facecolor=BACKGROUND)
    for panel in panels:
        at = panel["gridPos"]
        left, bottom = at["x"] / COLUMNS, 1 - (at["y"] + at["h"]) / height
        width, tall = at["w"] / COLUMNS, at["h"] / height
        if panel["type"] == "row":
            figure.text(left + 0.005, bottom + tall / 2, panel["title"], va="center", weight="bold", color=TEXT)
            continue
        title, legend = 0.8 / height, 1.2 / height
        axes = figure.add_axes((left + 0.035, bottom + legend, width - 0.05, tall - title - 2 * legend))
        axes.set_title(panel["title"], loc="left", fontsize=9, color=TEXT)
        {"stat": stat, "timeseries": lines, "table": table}[panel["type"]](prometheus, panel, axes)
    return figure


def stat(prometheus: Prometheus, panel: dict[str, Any], axes: Axes) -> None:
    found = prometheus.now(panel["targets"][0]["expr"])
    text = shown(float(found[0]["value"][1]), unit(panel)) if found else "none"
    axes.axis("off")
    axes.text(0.5, 0.4, text, ha="center", va="center", fontsize=20, color=TEXT, transform=axes.transAxes)


def lines(prometheus: Prometheus, panel: dict[str, Any], axes: Axes) -> None:
    drawn = 0
    for target in panel["targets"]:
        for series in prometheus.over_time(target["expr"]):
            minutes, values = without_gaps(series["values"], prometheus.until, prometheus.seconds / STEPS)
            label = target.get("legendFormat", "")
            for name, value in series["metric"].items():
                label = label.replace(f"{{{{{name}}}}}", value if len(value) < 30 else f"{value[:18]}…")
            axes.plot(
                minutes,
                values,
                ".-",
                markersize=2,
                linewidth=1,
                label=re.sub(r"{{.*?}}", "other", label).strip() if drawn < LONGEST_LEGEND else None,
            )
            drawn += 1
    axes.set_ylim(0, 1.4 * axes.get_ylim()[1])  # room for the legend
    axes.set_xlim(-prometheus.seconds / 60, 0)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f} min" if value else "now")
    axes.yaxis.set_major_formatter(lambda value, _: shown(value, unit(panel)))
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.tick_params(labelsize=7, colors=TEXT)
    axes.grid(color=FRAME, linewidth=0.5)
    for spine in axes.spines.values():
        spine.set_color(FRAME)
    if drawn:
        axes.legend(fontsize=6, frameon=False, loc="upper left", ncols=2)


def without_gaps(points: Sequence[Any], until: float, step_s: float) -> tuple[list[float], list[float]]:
    """Minutes before now, and values; a value that is no number where Prometheus has none, so that no line crosses it."""
    minutes: list[float] = []
    values: list[float] = []
    for at, value in points:
        minute = (float(at) - until) / 60
        if minutes and minute - minutes[-1] > 1.5 * step_s / 60:
            minutes.append(minute)
            values.append(math.nan)
        minutes.append(minute)
        values.append(float(value))
    return minutes, values


def table(prometheus: Prometheus, panel: dict[str, Any], axes: Axes) -> None:
    rows: dict[tuple[str, ...], list[str]] = {}
    for number, target in enumerate(panel["targets"]):
        for series in prometheus.now(target["expr"]):
            row = rows.setdefault(tuple(series["metric"].values()), [""] * len(panel["targets"]))
            row[number] = f"{float(series['value'][1]):,.0f}"
    axes.axis("off")
    for number, (labels, values) in enumerate(sorted(rows.items())[:8]):
        for column, text in enumerate((" ".join(labels), *values)):
            x, side = (0.0, "left") if not column else (0.58 + 0.14 * column, "right")
            axes.text(x, 0.95 - number * 0.13, text, ha=side, va="top", fontsize=7, color=TEXT)


def unit(panel: dict[str, Any]) -> str:
    return str(panel["fieldConfig"]["defaults"].get("unit", "none"))


def shown(value: float, of: str) -> str:
    """A value as Grafana shows it: ``1.5 K``, ``12 min``."""
    if of == "s":
        return (
            f"{value * 1000:.0f} ms" if 0 < value < 1 else f"{value / 60:.3g} min" if value >= 60 else f"{value:.3g} s"
        )
    power = min(3, int(math.log10(abs(value)) // 3)) if abs(value) >= 1_000 else 0
    text = f"{value / 1000**power:.3g}{('', ' K', ' M', ' G')[power]}"
    return f"{text}B/s" if of == "Bps" else text


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("prometheus", help="its URL")
    parser.add_argument("--minutes", type=float, default=12.0, help="what the panels show")
    given = parser.parse_args()
    found = json.loads(DASHBOARD.read_text("utf-8"))["panels"]
    draw(Prometheus(given.prometheus, 60 * given.minutes), found).savefig(PICTURE, dpi=80)
