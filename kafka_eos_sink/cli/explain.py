"""``kafka-eos explain``: what an error code means, from ``errors.toml``."""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import typer

from kafka_eos_sink.cli import console
from kafka_eos_sink.error_table import table
from kafka_eos_sink.errors import OF_A_COMMAND, UNDECIDED, RunAgain, Visible, printable, safety_of

_MESSAGE = re.compile(
    r"\[?KAFKA_EOS\.(?P<code>\w+)(?:.{0,20000}?\(kafka- ?eos explain (?P=code)\)|(?:(?!\[KAFKA_EOS\.).)*)",
    re.IGNORECASE,
)
"""A message with the causes in it; one without its last words ends at the next message."""
_ANSWERS = re.compile(r"(?:Rows visible: (\w+)|This run wrote nothing of the batch)\. Safe to run again: ([^.]+)\.")
_VISIBLE_RANK: dict[str, int] = {Visible.NO: 0, Visible.MAYBE: 1, Visible.YES: 2}
_AGAIN_RANK: dict[str, int] = {RunAgain.YES: 0, RunAgain.REFUSED: 2, RunAgain.TWICE: 3}
"""How grave an answer is; 1 for a run that is safe under conditions."""
_WARNING = re.compile(r"^> \[!WARNING\]\n((?:> .*\n)+)", re.MULTILINE)
_IN_GENERAL = "In general (where it differs, the message counts):"
_OWN_ANSWERS = """\
The answers are for this run of an exactly-once write; an earlier run may have written the rows. yes: no row is written twice, but
correct the cause first. If the message itself answers differently, as with at-least-once, follow the message. If it stands inside
another error, follow that error. A command's error without answers says nothing about rows."""
_NO_ANSWERS = (
    "The message says nothing about rows: it is of a command, or of a step before the write, or its end is missing. If its end is missing, "
    "find it first."
)
_NO_CODE = (
    "docs/errors.md lists all codes, and grep KAFKA_EOS LOG finds those of a log. Without a code, run the job again if it has txnAppId or "
    "is a stream; if not, see what it left: kafka-eos status"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A code as the page explains it, or as a message has it.

    ``text`` is Markdown. An error of Spark that has no code has words of its message instead. The answers on rows are None for an error of
    a command. ``has_own`` is true if they are of the message, and ``is_silent`` if the message has none.
    """

    code: str
    section: str = ""
    rows_visible: str | None = UNDECIDED.visible
    run_again: str | None = UNDECIDED.run_again
    text: str = ""
    has_own: bool = False
    is_silent: bool = False

    @property
    def answers(self) -> str:
        if self.rows_visible is None:
            return OF_A_COMMAND
        return (
            _NO_ANSWERS
            if self.is_silent
            else f"Rows visible: {self.rows_visible}. Safe to run again: {self.run_again}."
        )

    @property
    def rank(self) -> tuple[int, int]:
        """How grave it is; for a message without answers those of the page count."""
        if self.run_again is None or self.rows_visible is None:
            return -1, -1
        return _AGAIN_RANK.get(self.run_again, 1), _VISIBLE_RANK[self.rows_visible]

    def as_json(self) -> dict[str, str | None]:
        shown = replace(self, rows_visible=None, run_again=None) if self.is_silent else self
        return console.fields(shown, "code", "section", "rows_visible", "run_again", "text")


def explain(
    code: Annotated[list[str], typer.Argument(metavar="CODE", help="The code, or a message in quotes.")],
    as_json: console.AsJson = False,
) -> None:
    """Explain an error code, offline.

    Prints what happened, whether rows are visible, whether the job can run again, and what to do. An error that only commands have, and a
    whole message without answers, say nothing about rows: `--json` then has null for both. CODE is a code in upper or lower case, with or
    without `KAFKA_EOS.`, or a whole message in quotes, whose own answers count. Of several errors, explains the gravest. Exit
    status 2 if it finds none. docs/errors.md lists all codes.

    Example: kafka-eos explain TRANSACTION_NOT_OPEN

    To see which transactions are open: kafka-eos status
    """
    known = entries()
    text = " ".join(" ".join(code).split())
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
    typer.echo(f"{gravest.code}\n{gravest.answers}\n\n{gravest.text}")
    if not gravest.has_own and not gravest.is_silent and gravest.run_again is not None:
        typer.echo(f"\n{_OWN_ANSWERS}")
    for each in also:
        typer.echo(f"\nThe message also has {each}: kafka-eos explain {each}")


def entries() -> dict[str, Entry]:
    """Return the rows of all codes, each with the warnings of its section."""
    found: dict[str, Entry] = {}
    for code, row in table().rows.items():
        visible, again = safety_of(code) or (None, None)
        warnings = [each.replace("> ", "").strip() for each in _WARNING.findall(f"{table().sections[row.section]}\n")]
        text = "\n\n".join([row.explained.strip(), *warnings])
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
        text = entry.text if own == entry else f"    {printable(message.strip())}\n\n{_IN_GENERAL}\n\n{entry.text}"
        return replace(own, text=text, has_own=True)
    # Of a command, of a step before the write, or cut. The page's answers are for jobs.
    return replace(entry, is_silent=" " in message.strip())


def _unknown(found: Entry | None, text: str, known: Mapping[str, Entry]) -> str:
    name = text if found is None else found.code
    near = difflib.get_close_matches(name.upper(), known, n=3)
    hint = f"the nearest codes are {', '.join(near)}" if near else _NO_CODE
    if found is not None and found.has_own:
        hint = f"a newer sink may have it. The message says: rows visible: {found.rows_visible}; safe to run again: {found.run_again}"
    return f"no error code of kafka-eos: {textwrap.shorten(printable(name), 60)!r}; {hint}"
