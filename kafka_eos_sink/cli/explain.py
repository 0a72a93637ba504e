"""``kafka-eos explain``: what an error code means, from ``errors.toml``."""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.markdown import Markdown

from kafka_eos_sink.cli import console
from kafka_eos_sink.commit.refusals import text
from kafka_eos_sink.error_table import table
from kafka_eos_sink.errors import OF_A_COMMAND, printable, safety_of

_OURS = re.compile(r"KAFKA_EOS\.(\w+)", re.IGNORECASE)
_MESSAGE = re.compile(r"KAFKA_EOS\.\w+\W+\w", re.IGNORECASE)
_WARNING = re.compile(r"^> \[!WARNING\]\n((?:> .*\n)+)", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\((?:#[^)]*|([^)]*))\)")
"""Of Markdown: the words, and the page, which is None within errors.md."""
_EXAMPLE = re.compile(r"```text\n\[KAFKA_EOS.*?```", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A code as the page explains it.

    ``text`` is Markdown. An error of Spark that has no code has words of its message instead. The answers on rows are None if the page has
    none: for an error of a command, and for a whole message, whose own ones count.
    """

    code: str
    section: str
    rows_visible: str | None = None
    run_again: str | None = None
    text: str

    @property
    def answers(self) -> str:
        if self.run_again is not None:
            return f"Rows visible: {self.rows_visible}. Safe to run again: {self.run_again}."
        return OF_A_COMMAND if safety_of(self.code) is None else text("explained_message")


def explain(
    code: Annotated[list[str], typer.Argument(metavar="CODE", help="The code, or a message in quotes.")],
    as_json: console.AsJson = False,
) -> None:
    """Explain an error code, offline.

    Prints what happened, whether rows are visible, whether the job can run again, and what to do. CODE is a code in upper or lower
    case, with or without `KAFKA_EOS.`, or a whole message in quotes. It prints a section for each code in a message. In
    that case only the message itself says whether rows are visible, so `--json` has null for both answers. It also has null for an
    error that only commands have. Exit status 2 if it finds no code. docs/errors.md lists all codes.

    Example: kafka-eos explain TRANSACTION_NOT_OPEN

    To see which transactions are open: kafka-eos status
    """
    given = " ".join(" ".join(code).split())
    is_message = _MESSAGE.search(given) is not None
    found = [entry(each, with_answers=not is_message) for each in codes_in(given)]
    if not found:
        raise typer.BadParameter(_unknown(given, table().rows), param_hint="CODE")
    if as_json:
        console.print_json(found)
        return
    shown = [f"**{each.code}**\\\n{each.answers}\n\n{each.text}" for each in found]
    if any(each.run_again is not None for each in found):
        shown.append(text("explained_answers"))
    words = _LINK.sub(lambda link: f"{link[1]} (docs/{link[2]})" if link[2] else link[1], "\n\n".join(shown))
    console.show(Markdown(words, code_theme="ansi_dark"))


def entry(code: str, *, with_answers: bool = True) -> Entry:
    """Return the row of a code, with the warnings of its section."""
    row = table().rows[code]
    visible, again = (with_answers and safety_of(code)) or (None, None)
    warnings = [each.replace("> ", "").strip() for each in _WARNING.findall(f"{table().sections[row.section]}\n")]
    # A command of the page's example is for another write id than that of a message.
    explained = row.explained if with_answers else _EXAMPLE.sub("", row.explained)
    explained = "\n\n".join([explained.strip(), *warnings])
    return Entry(code=code, section=row.section, rows_visible=visible, run_again=again, text=explained)


def codes_in(given: str) -> list[str]:
    """Return the codes in a text, each once."""
    known, words = table().rows, re.findall(r"\w+", given)
    found = [each.upper() for each in _OURS.findall(given) or words]
    if _OURS.search(given):
        found = [each for each in found if each in known]
    elif not known.keys() >= set(found):
        # In a sentence, "ABORTED" is no code.
        found = [each for each in words if "_" in each and each in known]
        found = found or [each for each in known if " " in each and each in given]
    return list(dict.fromkeys(found))


def _unknown(given: str, known: Collection[str]) -> str:
    ours = _OURS.search(given)
    name = given if ours is None else ours[1]
    near = difflib.get_close_matches(name.upper(), known, n=3)
    hint = f"the nearest codes are {', '.join(near)}" if near else text("no_code")
    if ours is not None and _MESSAGE.search(given):
        hint = "a newer sink may have it; follow the message"
    return f"no error code of kafka-eos: {textwrap.shorten(printable(name), 60)!r}; {hint}"
