"""Draws docs/images/throughput.svg: rows per second of kafka-eos and of Spark's sink, in the cells of docs/performance.md with JSON.

python tests/throughput_picture.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "throughput.svg"
SINKS = {
    "kafka-eos": "#0072B2",
    "Spark's sink, equal settings": "#E69F00",
    "Spark's sink, its defaults": "#D55E00",
}
CELLS = {
    "keys, lz4": (0.61, 0.55, 0.35),
    "keys, no codec": (0.63, 0.69, 0.40),
    "no keys, lz4": (0.73, 0.64, 0.38),
    "no keys, no codec": (0.75, 0.72, 0.46),
}
"""Million rows per second, of the run that docs/internals/benchmarks.md names."""
WIDTH, LEFT, LONGEST, BAR, GAP, TOP = 720, 150, 480, 20, 18, 44
TEXT = "#7d8590"
"""Readable on white and on black, as the picture has no background."""


def drawn() -> Iterator[str]:
    height = TOP + len(CELLS) * (len(SINKS) * BAR + GAP) + 16
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">'
    yield "  <title>Million rows per second of kafka-eos and of Spark's sink</title>"
    yield f"  <style>text {{ fill: {TEXT}; font: 14px system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif }}</style>"
    for number, (sink, colour) in enumerate(SINKS.items()):
        x = 20 + 235 * number
        yield f'  <rect x="{x}" y="10" width="14" height="14" fill="{colour}"/><text x="{x + 20}" y="22">{sink}</text>'
    for place, (cell, values) in enumerate(CELLS.items()):
        y = TOP + place * (len(SINKS) * BAR + GAP)
        yield f'  <text x="{LEFT - 12}" y="{y + 35}" text-anchor="end">{cell}</text>'
        for number, (value, colour) in enumerate(zip(values, SINKS.values(), strict=True)):
            top, width = y + number * BAR, round(value * LONGEST)
            yield f'  <rect x="{LEFT}" y="{top}" width="{width}" height="{BAR - 3}" fill="{colour}"/>'
            yield f'  <text x="{LEFT + width + 8}" y="{top + 14}">{value:.2f}</text>'
    yield f'  <text x="{LEFT}" y="{height - 6}">million rows per second, JSON of 100 bytes, 4 tasks, 4 partitions</text>'
    yield "</svg>\n"


if __name__ == "__main__":
    PICTURE.write_text("\n".join(drawn()), "utf-8")
