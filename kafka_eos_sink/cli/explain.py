"""``kafka-eos explain``: what an error code means, from ``errors.toml``."""

from __future__ import annotations

import difflib
import itertools
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from kafka_eos_sink.cli import console
from kafka_eos_sink.error_table import table
from kafka_eos_sink.errors import OF_A_COMMAND, UNDECIDED, RunAgain, Visible, printable, safety_of
from kafka_eos_sink.protocol.error_codes import ErrorCode

DOCS = Path(__file__).parents[2] / "docs"
"""Where the pages are that a row refers to: in a clone. The installed package has none."""
_WIDTH = 100
"""Characters; longer lines are hard to read."""
_ITEM = re.compile(r"(\d+\.|-) ")
_UNBROKEN = "\N{NO-BREAK SPACE}"
_MESSAGE = re.compile(
    r"\[?KAFKA_EOS\.(?P<code>\w+)(?:.{0,20000}?\(kafka- ?eos explain (?P=code)\)|(?:(?!\[KAFKA_EOS\.).)*)",
    re.IGNORECASE,
)
"""A message with the causes in it; one without its last words ends at the next message."""
_ANSWERS = re.compile(r"(?:Rows visible: (\w+)|This run wrote nothing of the batch)\. Safe to run again: ([^.]+)\.")
_END = re.compile(r"\(kafka- ?eos explain (\w+)\)")
_VISIBLE_RANK: dict[str, int] = {Visible.NO: 0, Visible.MAYBE: 1, Visible.YES: 2}
_AGAIN_RANK: dict[str, int] = {RunAgain.YES: 0, "no": 2, RunAgain.REFUSED: 2, RunAgain.TWICE: 3}
"""How grave an answer is; 1 for a run that is safe under conditions. Messages of older versions have "no" alone."""
_WARNING = re.compile(r"^> \[!WARNING\]\n((?:> .*\n)+)", re.MULTILINE)
_IN_GENERAL = "In general (where it differs, the message counts):"
_CUT = "The message is cut: its own answers count, not these. Find the rest of it first."
_OWN_ANSWERS = (
    "The answers are for this run of an exactly-once write; an earlier run may have written the rows. yes: no row is written twice, but "
    "correct the cause first. If the message itself answers differently, as with at-least-once, follow the message. If it stands inside "
    "another error, follow that error. A command's error without answers says nothing about rows."
)
_NO_ANSWERS = "The message says nothing about rows: it is of a command, or of a step before the write."
_IN_LOG = "to find the errors of a log: grep KAFKA_EOS LOG"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The section of a code. ``text`` is plain: a paragraph or list item per line.

    An error of Spark that has no code has words of its message instead. The answers on rows are None for an error of a command, and for a
    whole message without them.
    """

    code: str
    section: str
    rows_visible: str | None
    run_again: str | None
    text: str

    @property
    def answers(self) -> str:
        if self.rows_visible is None:
            return OF_A_COMMAND if safety_of(self.code) is None else _NO_ANSWERS
        return f"Rows visible: {self.rows_visible}. Safe to run again: {self.run_again}."

    @property
    def summary(self) -> str:
        return re.split(r"(?<=[.!?:])\s", self.text, maxsplit=1)[0].replace(_UNBROKEN, " ")

    def as_json(self) -> dict[str, str | None]:
        text = self.text.replace(_UNBROKEN, " ")
        return {**console.fields(self, "code", "section", "rows_visible", "run_again"), "text": text}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A code in a text, with the answers of its message, else of the page.

    Both answers are None for an error of a command, and for a whole message without them.
    """

    code: str
    message: str
    rows_visible: str | None
    run_again: str | None
    is_cut: bool = False
    """It has words, but not its answers."""

    @property
    def rank(self) -> tuple[int, int]:
        if self.run_again is None or self.rows_visible is None:
            return -1, -1
        return _AGAIN_RANK.get(self.run_again, 1), _VISIBLE_RANK.get(self.rows_visible, 1)


def explain(
    code: Annotated[
        list[str] | None,
        typer.Argument(metavar="CODE", help="The code, or a message in quotes.", show_default=False),
    ] = None,
    as_json: console.AsJson = False,
) -> None:
    """Explain an error code, offline.

    Prints what happened, whether rows are visible, whether the job can run again, and what to do. An error that only commands have, and a
    whole message without answers, say nothing about rows: `--json` then has null for both. CODE is a code in upper or lower case, with or
    without `KAFKA_EOS.`, or a whole message in quotes, whose own answers count. Of several errors, explains the gravest. Alone, lists all
    codes. Exit status 2 if it finds none.

    Example: kafka-eos explain UNKNOWN_TOPIC

    To see which transactions are open: kafka-eos status
    """
    known = {each.code: each for each in entries()}
    text = " ".join(" ".join(code or []).split())
    if not text:
        everything = [*known.values()]
        console.print_json(everything) if as_json else _print_list(everything)
        return
    seen = errors_in(text, known)
    # The last of equal ones: a task that was retried comes before the job.
    gravest = max(reversed(seen), key=lambda each: each.rank, default=None)
    if gravest is None or gravest.code not in known:
        raise typer.BadParameter(_unknown(gravest or text, known), param_hint="CODE")
    entry = known[gravest.code]
    shown = replace(entry, rows_visible=gravest.rows_visible, run_again=gravest.run_again)
    if gravest.message and shown != entry:
        shown = replace(shown, text=f"    {gravest.message}\n{_IN_GENERAL}\n{entry.text}")
    named = re.findall(r"KAFKA_EOS\.(\w+)", text, re.IGNORECASE) or [each.code for each in seen]
    also = [each for each in dict.fromkeys(map(str.upper, named)) if each in known and each != entry.code]
    if as_json:
        console.print_json({**shown.as_json(), "also": also})
        return
    if not gravest.message and gravest.run_again is not None:
        shown = replace(shown, text=f"{_CUT}\n{entry.text}" if gravest.is_cut else f"{entry.text}\n{_OWN_ANSWERS}")
    typer.echo("\n".join(lines_of(shown, min(console.output_console().width, _WIDTH))))
    for each in also:
        typer.echo(f"\nThe message also has {each}: kafka-eos explain {each}")


def entries() -> list[Entry]:
    """Return the rows of all codes, each with the warnings of its section."""
    about = {title: [*_warnings(text)] for title, text in table().sections.items()}
    found: list[Entry] = []
    for row in table().rows.values():
        visible, again = safety_of(row.code) or (None, None)
        text = "\n".join([*_plain(row.explained), *about[row.section]])
        found.append(Entry(code=row.code, section=row.section, rows_visible=visible, run_again=again, text=text))
    return found


def _warnings(about: str) -> Iterator[str]:
    for each in _WARNING.findall(f"{about}\n"):
        yield _without_markup(" ".join(each.replace("> ", " ").split()))


def errors_in(text: str, known: Mapping[str, Entry]) -> Sequence[Seen]:
    """Return the errors in a text, whose codes need not exist."""
    found = [_seen(message["code"], known, message[0]) for message in _MESSAGE.finditer(text)]
    if found:
        return found
    words = re.findall(r"\w+", text)
    named = [word.upper() for word in words]
    if len(words) != 1 and not known.keys() >= set(named):
        # In a sentence, "ABORTED" is no code.
        named = [word for word in words if "_" in word and word in known]
        named = named or [each for each in known if " " in each and each in text]
    return [_seen(each, known) for each in named]


def _seen(code: str, known: Mapping[str, Entry], message: str = "") -> Seen:
    code = code if code in known else code.upper()
    answers = _ANSWERS.search(message)
    has_words, has_end = " " in message.strip(), _END.search(message) is not None
    visible: str | None
    again: str | None
    if answers:
        visible, again = answers[1] or Visible.NO, answers[2]
    elif has_words and has_end:
        # Of a command, or of a step before the write. The page's answers are for jobs.
        visible = again = None
    elif code in known:
        visible, again = known[code].rows_visible, known[code].run_again
    else:
        visible, again = UNDECIDED
    text = printable(message.strip()) if answers else ""
    is_cut = not answers and has_words and not has_end
    return Seen(code=code, message=text, rows_visible=visible, run_again=again, is_cut=is_cut)


def _unknown(what: str | Seen, known: Mapping[str, Entry]) -> str:
    text = what if isinstance(what, str) else what.code
    near = difflib.get_close_matches(text.upper(), known, n=3)
    if isinstance(what, Seen) and what.message:
        hint = f"a newer sink may have it. The message says: rows visible: {what.rows_visible}; safe to run again: {what.run_again}"
    elif text.upper() in ErrorCode.__members__:
        hint = f"it is a code of Kafka itself; {_IN_LOG}"
    elif near:
        hint = f"the nearest codes are {', '.join(near)}"
    elif " " in text:
        hint = (
            "run the job again if it has txnAppId or is a stream; if not, see what it left: kafka-eos status. kafka-eos explain lists all "
            "codes"
        )
    else:
        hint = f"kafka-eos explain lists all codes; {_IN_LOG}"
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
    yield entry.answers
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
    def linked(link: re.Match[str]) -> str:
        is_there = (DOCS / link[2].partition("#")[0]).is_file()
        return f"{link[1]} (docs/{link[2]})" if is_there else link[1]

    # A command must not be broken into lines.
    text = re.sub(r"`([^`]+)`", lambda code: code[1].replace(" ", _UNBROKEN), text.replace("**", ""))
    text = re.sub(r"\[([^\]]+)\]\(#[^)]*\)", r"\1", text)
    return re.sub(r"\[([^\]]+)\]\(([^)]+)\)", linked, text)
