"""The table in docs/internals/protocol.md of what follows for each range of a decided transaction, from the code that judges it."""

from __future__ import annotations

from pathlib import Path

from kafka_eos_sink.commit.outcome import TABLE, Do, End, Shown

PAGE = Path(__file__).parents[1] / "docs" / "internals" / "protocol.md"
COMMAND = "python -m tools.outcome_table"
BEGIN, END = f"<!-- written by {COMMAND} -->", "<!-- end of the table -->"


def table() -> str:
    """Return the table of `TABLE`, and what its words mean, as markdown."""
    lines = [f"| the partition shows | {' | '.join(end.name for end in End)} |", f"|---{'|---' * len(End)}|"]
    lines += [f"| {shown.name} | {' | '.join(do.name for do in row)} |" for shown, row in TABLE.items()]
    for title, kind in (("the partition shows", Shown), ("the coordinator shows", End), ("what follows", Do)):
        lines += ["", f"| {title} | meaning |", "|---|---|"]
        lines += [f"| {each.name} | {each.value} |" for each in kind]
    return "\n".join(lines)


def page(text: str) -> str:
    """Return the page with the table as it is now."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
