"""The report of ``kafka-eos audit`` as a web page that loads nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from kafka_eos_sink.errors import one_line
from kafka_eos_sink.operations.audit import BatchAudit

# If a name from Kafka ever escaped the escaping, the policy would still block its scripts.
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }}
h1, .t {{ overflow-wrap: anywhere; }} .t {{ min-width: 12rem; }} .w {{ white-space: nowrap; }}
table {{ border-collapse: collapse; width: 100%; }}
th, td {{ text-align: left; vertical-align: top; padding: .3rem .6rem; border-bottom: 1px solid #8885; }}
.n {{ text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }}
.batch {{ font-weight: 600; }}
.good {{ color: #188038; }} .partly {{ color: #b06000; }} .bad {{ color: #d93025; }}
svg {{ width: 100%; height: auto; font: 13px system-ui, sans-serif; }} svg text {{ fill: currentColor; }}
.decided {{ fill: #9aa0a6; }} .found {{ fill: #4285f4; }}
</style>
</head>
<body>
<h1>{title}</h1>
<p>{summary}</p>
<h2>Rows decided (grey) and found (blue)</h2>
{chart}
<h2>Batches and partitions</h2>
<table>
<thead><tr><th class="n">version</th><th class="w">finished (UTC)</th><th>topic-partition</th><th class="n">offsets</th>
<th class="n">decided</th><th class="n">found</th><th class="n">missing</th><th class="n">not readable</th><th>result</th></tr></thead>
<tbody>
{rows}
</tbody>
</table>
</body>
</html>
"""
_WIDTH, _LINE, _BAR = 900, 56, 14
_ROOM = 110
"""Width for the number at the end of the longest bar."""


def page(write_id: str, audits: Sequence[BatchAudit]) -> str:
    """Build the page. Every text is escaped, because names come from Kafka."""
    wrong = sum(not each.is_as_decided for each in audits)
    hidden = sum(each.result == "not readable" for each in audits)
    complete = len(audits) - wrong - hidden
    summary = f"Batches: {len(audits)}. Complete: {complete}. Not fully readable: {hidden}. Not as decided: {wrong}."
    return _PAGE.format(
        title=_text(f"Audit of {write_id}"),
        summary=_text(summary),
        chart=_chart(_bars(audits)),
        rows="\n".join(row for each in audits for row in _rows(each)),
    )


def _text(text: object) -> str:
    return escape(one_line(str(text)))


def _bars(audits: Sequence[BatchAudit]) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield labels with their bars: each batch, and the partitions of a lone batch."""
    for each in audits:
        yield f"version {each.record.version}", {"decided": each.record.rows, "found": each.found}
    if len(audits) == 1:
        yield from ((f"{part.topic}-{part.partition}", {"found": part.found}) for part in audits[0].partitions)


def _chart(bars: Iterable[tuple[str, dict[str, int]]]) -> str:
    shown = list(bars)
    longest = max((rows for _, each in shown for rows in each.values()), default=0) or 1
    lines = []
    for at, (label, each) in enumerate(shown):
        top = at * _LINE
        lines.append(f'<text x="0" y="{top + 14}">{_text(label)}</text>')
        for below, (kind, rows) in enumerate(each.items()):
            y, width = top + 20 + below * (_BAR + 2), round((_WIDTH - _ROOM) * rows / longest, 1)
            lines.append(f'<rect class="{kind}" x="0" y="{y}" width="{width}" height="{_BAR}" rx="2"/>')
            lines.append(f'<text x="{width + 6}" y="{y + 12}">{rows:,}</text>')
    return f'<svg role="img" aria-label="Rows decided and found" viewBox="0 0 {_WIDTH} {len(shown) * _LINE}">{"".join(lines)}</svg>'


def _rows(audit: BatchAudit) -> Iterator[str]:
    record = audit.record
    style = "good" if audit.result == "complete" else "partly" if audit.is_as_decided else "bad"
    finished = record.finished_at[:19].replace("T", " ")
    figures = (record.rows, audit.found, audit.missing, audit.not_readable)
    yield (
        f'<tr class="batch"><td class="n">{record.version}</td><td class="w">{_text(finished)}</td><td></td><td></td>'
        + "".join(f'<td class="n">{each:,}</td>' for each in figures)
        + f'<td class="{style}">{audit.result}</td></tr>'
    )
    for part in audit.partitions:
        hidden = f"{part.hidden:,} offsets not readable: {part.reason}" if part.reason else ""
        yield (
            f'<tr><td></td><td></td><td class="t">{_text(f"{part.topic}-{part.partition}")}</td>'
            f'<td class="n">{part.first_offset}..{part.last_offset}</td><td></td><td class="n">{part.found:,}</td><td></td><td></td>'
            f"<td>{_text(hidden)}</td></tr>"
        )
