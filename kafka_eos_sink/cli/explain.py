"""``kafka-eos explain``: what an error code means, from ``errors.toml``."""

from __future__ import annotations

import difflib
import itertools
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
_AGAIN_RANK: dict[str, int] = {RunAgain.YES: 0, RunAgain.REFUSED: 2, RunAgain.TWICE: 3}
"""How grave an answer is; 1 for a run that is safe under conditions."""
_WARNING = re.compile(r"^> \[!WARNING\]\n((?:> .*\n)+)", re.MULTILINE)
_IN_GENERAL = "In general (where it differs, the message counts):"
_CUT = "The message is cut: its own answers count, not these. Find the rest of it first."
_OWN_ANSWERS = (
    "The answers are for this run of an exactly-once write; an earlier run may have written the rows. yes: no row is written twice, but "
    "correct the cause first. If the message itself answers differently, as with at-least-once, follow the message. If it stands inside "
    "another error, follow that error. A command's error without answers says nothing about rows."
)
_NO_ANSWERS = "The message says nothing about rows: it is of a command, or of a step before the write."
_NO_CODE = "run the job again if it has txnAppId or is a stream; if not, see what it left: kafka-eos status. kafka-eos explain lists all"
_IN_LOG = "to find the errors of a log: grep KAFKA_EOS LOG"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A code as the page explains it, or as a message has it.

    ``text`` is plain: a paragraph or list item per line. An error of Spark that has no code has words of its message instead. The answers
    on rows are None for an error of a command, and for a whole message without them. ``has_own`` is true if they are of the message, and
    ``is_cut`` if it has words, but not its answers.
    """

    code: str
    section: str = ""
    rows_visible: str | None = UNDECIDED.visible
    run_again: str | None = UNDECIDED.run_again
    text: str = ""
    has_own: bool = False
    is_cut: bool = False

    @property
    def answers(self) -> str:
        if self.rows_visible is None:
            return OF_A_COMMAND if safety_of(self.code) is None else _NO_ANSWERS
        return f"Rows visible: {self.rows_visible}. Safe to run again: {self.run_again}."

    @property
    def rank(self) -> tuple[int, int]:
        if self.run_again is None or self.rows_visible is None:
            return -1, -1
        return _AGAIN_RANK.get(self.run_again, 1), _VISIBLE_RANK[self.rows_visible]

    @property
    def summary(self) -> str:
        """The first sentence; a colon before a list ends it, too."""
        sentence = re.split(r"(?<=[.!?])\s", self.text.partition("\n")[0], maxsplit=1)[0]
        return re.sub(":$", ".", sentence.replace(_UNBROKEN, " "))

    def as_json(self) -> dict[str, str | None]:
        text = self.text.replace(_UNBROKEN, " ")
        return {**console.fields(self, "code", "section", "rows_visible", "run_again"), "text": text}


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
    known = entries()
    text = " ".join(" ".join(code or []).split())
    if not text:
        console.print_json([*known.values()]) if as_json else _print_list(known.values())
        return
    seen = errors_in(text, known)
    # The last of equal ones: a task that was retried comes before the job.
    gravest = max(reversed(seen), key=lambda each: each.rank, default=None)
    if gravest is None or gravest.code not in known:
        raise typer.BadParameter(_unknown(gravest, text, known), param_hint="CODE")
    named = re.findall(r"KAFKA_EOS\.(\w+)", text, re.IGNORECASE) or [each.code for each in seen]
    also = [each for each in dict.fromkeys(map(str.upper, named)) if each in known and each != gravest.code]
    if as_json:
        console.print_json({**gravest.as_json(), "also": also})
        return
    if gravest.is_cut:
        gravest = replace(gravest, text=f"{_CUT}\n{gravest.text}")
    elif not gravest.has_own and gravest.run_again is not None:
        gravest = replace(gravest, text=f"{gravest.text}\n{_OWN_ANSWERS}")
    typer.echo("\n".join(lines_of(gravest, min(console.output_console().width, _WIDTH))))
    for each in also:
        typer.echo(f"\nThe message also has {each}: kafka-eos explain {each}")


def entries() -> dict[str, Entry]:
    """Return the rows of all codes, each with the warnings of its section."""
    found: dict[str, Entry] = {}
    for code, row in table().rows.items():
        visible, again = safety_of(code) or (None, None)
        warnings = [each.replace("> ", " ") for each in _WARNING.findall(f"{table().sections[row.section]}\n")]
        text = "\n".join(_plain("\n\n".join([row.explained, *warnings])))
        found[code] = Entry(code=code, section=row.section, rows_visible=visible, run_again=again, text=text)
    return found


def errors_in(text: str, known: Mapping[str, Entry]) -> Sequence[Entry]:
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


def _seen(code: str, known: Mapping[str, Entry], message: str = "") -> Entry:
    code = code if code in known else code.upper()
    entry = known.get(code, Entry(code=code))
    if answers := _ANSWERS.search(message):
        own = replace(entry, rows_visible=answers[1] or Visible.NO, run_again=answers[2])
        text = entry.text if own == entry else f"    {printable(message.strip())}\n{_IN_GENERAL}\n{entry.text}"
        return replace(own, text=text, has_own=True)
    if " " not in message.strip():
        return entry
    if _END.search(message) is None:
        return replace(entry, is_cut=True)
    # Of a command, or of a step before the write. The page's answers are for jobs.
    return replace(entry, rows_visible=None, run_again=None)


def _unknown(found: Entry | None, text: str, known: Mapping[str, Entry]) -> str:
    name = text if found is None else found.code
    near = difflib.get_close_matches(name.upper(), known, n=3)
    if found is not None and found.has_own:
        hint = f"a newer sink may have it. The message says: rows visible: {found.rows_visible}; safe to run again: {found.run_again}"
    elif name.upper() in ErrorCode.__members__:
        hint = f"it is a code of Kafka itself; {_IN_LOG}"
    elif near:
        hint = f"the nearest codes are {', '.join(near)}"
    elif " " in name:
        hint = _NO_CODE
    else:
        hint = f"kafka-eos explain lists all codes; {_IN_LOG}"
    return f"no error code of kafka-eos: {textwrap.shorten(printable(name), 60)!r}; {hint}"


def _print_list(known: Iterable[Entry]) -> None:
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
