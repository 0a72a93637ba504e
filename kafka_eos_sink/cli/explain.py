"""``kafka-eos explain``: what an error code means, from ``docs/errors.md``."""

from __future__ import annotations

import difflib
import itertools
import os
import re
import stat
import sys
import textwrap
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from kafka_eos_sink.cli import EXIT_FAILURE, console
from kafka_eos_sink.errors import PAGE, printable

_HERE = Path(__file__)
FOLDERS = _HERE.parents[1], _HERE.parents[2]
"""Where the page may be: in the installed package, or in a clone."""
_WIDTH = 100
"""Characters; longer lines are hard to read."""
_HEADING = re.compile(r"^(##|###) (.+)$", re.MULTILINE)
_SAFETY = re.compile(r"Rows visible: \**([a-z ]+)\**\. Safe to run again: \**([\w ]+)\**\.\n+")
_ITEM = re.compile(r"(\d+\.|-) ")
_UNBROKEN = "\N{NO-BREAK SPACE}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The section of a code. ``text`` is plain: a paragraph or list item per line.

    An error of Spark that has no code has words of its message instead.
    """

    code: str
    section: str
    rows_visible: str
    run_again: str
    text: str

    @property
    def summary(self) -> str:
        return re.split(r"(?<=[.!?])\s", self.text, maxsplit=1)[0].replace(_UNBROKEN, " ")

    def as_json(self) -> dict[str, str]:
        text = self.text.replace(_UNBROKEN, " ")
        return {**console.fields(self, "code", "section", "rows_visible", "run_again"), "text": text}


def explain(
    code: Annotated[
        list[str] | None,
        typer.Argument(metavar="CODE", help="The code, or a quoted or piped message with it.", show_default=False),
    ] = None,
    as_json: console.AsJson = False,
) -> None:
    """Explain an error code, offline.

    Prints what happened, whether rows are visible, whether the job can run again, and what to do. CODE is a code in upper or lower
    case, with or without `KAFKA_EOS.`, or a whole message in quotes. Without CODE, explains a piped log, or lists all codes. Exit
    status 2 if there is no such code.

    Example: kafka-eos explain UNKNOWN_TOPIC

    To see which transactions are open: kafka-eos status
    """
    known = {each.code: each for each in entries(_page())}
    text = " ".join(code or [_piped()])
    if not text.strip():
        everything = [*known.values()]
        console.print_json(everything) if as_json else _print_list(everything)
        return
    named = codes_in(text, known)
    if not named or named[0] not in known:
        raise typer.BadParameter(_unknown(named[0] if named else text, known), param_hint="CODE")
    entry, *causes = [known[each] for each in named if each in known]
    if as_json:
        console.print_json(entry)
        return
    typer.echo("\n".join(lines_of(entry, min(console.output_console().width, _WIDTH))))
    for cause in causes:
        typer.echo(f"\nThe message also has {cause.code}: kafka-eos explain {cause.code}")


def entries(page: str) -> list[Entry]:
    """Return the sections of all codes, in the order of the page."""
    found: list[Entry] = []
    shared: list[str] = []
    section = ""
    # Of each heading: its marks, its words, and the text up to the next one.
    parts = iter(_HEADING.split(page)[1:])
    for marks, heading, text in zip(parts, parts, parts, strict=True):
        if marks == "##":
            section = heading
            continue
        shared.append(heading)
        if not text.strip():
            continue  # codes with one meaning share the text below their last heading
        safety = _SAFETY.match(text.strip())
        if safety is None:
            raise ValueError(f"{heading} does not begin with the answers on rows")
        plain = "\n".join(_plain(text.strip()[safety.end() :]))
        found += [
            Entry(code=each, section=section, rows_visible=safety[1], run_again=safety[2], text=plain)
            for each in shared
        ]
        shared.clear()
    return found


def codes_in(text: str, known: Collection[str]) -> list[str]:
    """Return the codes in a text, the outermost error's first; they need not exist."""
    found = re.findall(r"KAFKA_EOS\.(\w+)", text, re.IGNORECASE)
    words = re.findall(r"\w+", text)
    if not found and len(words) == 1:
        found = words
    # In a sentence, "aborted" is no code.
    found = found or [word for word in words if word in known]
    if found:
        return list(dict.fromkeys(each.upper() for each in found))
    return [each for each in known if " " in each and each in text]


def _piped() -> str:
    """Return what another program or a file sends to this command."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError, AttributeError):  # closed, or not a file
        return ""
    # Not any standard input that is no terminal: a service's may never end.
    is_sent = stat.S_ISFIFO(mode) or stat.S_ISREG(mode)
    return sys.stdin.buffer.read().decode(errors="replace") if is_sent else ""


def _page() -> str:
    files = [folder / PAGE for folder in FOLDERS]
    for file in files:
        if file.is_file():
            return file.read_text("utf-8")
    # Without a code: it would refer to the page that is missing.
    console.echo(
        f"kafka-eos: this installation lacks the page of the error codes ({' or '.join(map(str, files))}). Install kafka-eos-sink again, "
        f"or read {PAGE} in a clone of the repository",
        err=True,
    )
    raise typer.Exit(EXIT_FAILURE)


def _unknown(text: str, known: dict[str, Entry]) -> str:
    near = difflib.get_close_matches(text.upper(), known, n=3)
    hint = f"the nearest codes are {', '.join(near)}" if near else "kafka-eos explain lists all codes"
    return f"no error code of kafka-eos: {textwrap.shorten(printable(text), 60)!r}; {hint}"


def _print_list(known: list[Entry]) -> None:
    out = console.output_console()
    width = max(len(each.code) for each in known) + 2
    for section, members in itertools.groupby(known, lambda each: each.section):
        typer.echo(f"{section}\n")
        for each in members:
            line = f"  {each.code:{width}}{each.summary}"
            # A file keeps the whole line.
            cut = out.is_terminal and len(line) > out.width
            typer.echo(f"{line[: out.width - 1]}…" if cut else line)
        typer.echo()


def lines_of(entry: Entry, width: int) -> Iterator[str]:
    """Yield what a terminal of this width shows; code and commands stay whole."""
    yield entry.code
    yield f"Rows visible: {entry.rows_visible}. Safe to run again: {entry.run_again}."
    before = ""
    for line in entry.text.split("\n"):
        item = _ITEM.match(line)
        if not (item and _ITEM.match(before)) and not (_is_code(line) and _is_code(before)):
            yield ""
        hanging = " " * item.end() if item else ""
        wrapped = textwrap.wrap(line, width, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False)
        yield from [line] if _is_code(line) else [each.replace(_UNBROKEN, " ") for each in wrapped]
        before = line


def _is_code(line: str) -> bool:
    return line.startswith("    ")


def _plain(markdown: str) -> Iterator[str]:
    """Yield paragraphs, list items and lines of code, without markup."""
    for number, part in enumerate(re.split(r"^```\w*(?:\n|$)", markdown, flags=re.MULTILINE)):
        if number % 2:
            yield from textwrap.indent(part.rstrip(), "    ").splitlines()
            continue
        for block in re.split(r"\n\s*\n|\n(?=(?:\d+\.|-) )", part):
            if block.strip():
                yield _without_markup(" ".join(block.split()))


def _without_markup(text: str) -> str:
    # A command must not be broken into lines.
    text = re.sub(r"`([^`]+)`", lambda code: code[1].replace(" ", _UNBROKEN), text.replace("**", ""))
    text = re.sub(r"\[([^\]]+)\]\(#[^)]*\)", r"\1", text)
    return re.sub(r"\[([^\]]+)\]\(([^)]+)\)", r"\1 (docs/\2)", text)
