"""``kafka-eos explain``: what an error code means, from ``docs/errors.md``."""

from __future__ import annotations

import difflib
import gzip
import io
import itertools
import os
import re
import shlex
import stat
import sys
import textwrap
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from kafka_eos_sink.cli import EXIT_FAILURE, console
from kafka_eos_sink.errors import ANSWERS, OF_A_COMMAND, PAGE, UNDECIDED, RunAgain, Visible, printable
from kafka_eos_sink.protocol.error_codes import ErrorCode

_HERE = Path(__file__)
FOLDERS = _HERE.parents[1], _HERE.parents[2]
"""Where the page may be: in the installed package, or in a clone."""
_WIDTH = 100
"""Characters; longer lines are hard to read."""
_HEADING = re.compile(r"^(##|###) (.+)$", re.MULTILINE)
_SAFETY = re.compile(
    rf"(?:Rows visible: \**([a-z ]+)\**\. Safe to run again: \**([\w, ]+)\**\.|{re.escape(OF_A_COMMAND)})\n+"
)
_ITEM = re.compile(r"(\d+\.|-) ")
_UNBROKEN = "\N{NO-BREAK SPACE}"
_MESSAGE = re.compile(
    r"\[?KAFKA_EOS\.(?P<code>\w+)(?:.{0,20000}?\(kafka- ?eos explain (?P=code)\)|(?:(?!\[KAFKA_EOS\.).)*)",
    re.IGNORECASE,
)
"""A message with the causes in it; one without its last words ends at the next message."""
_ANSWERS = re.compile(r"(?:Rows visible: (\w+)|This run wrote nothing of the batch)\. Safe to run again: ([^.]+)\.")
_END = re.compile(r"\(kafka- ?eos explain (\w+)\)")
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_VISIBLE_RANK: dict[str, int] = {Visible.NO: 0, Visible.MAYBE: 1, Visible.YES: 2}
_AGAIN_RANK: dict[str, int] = {RunAgain.YES: 0, "no": 2, RunAgain.REFUSED: 2, RunAgain.TWICE: 3}
"""How grave an answer is; 1 for a run that is safe under conditions. Messages of older versions have "no" alone."""
_WARNING = re.compile(r"^> \[!WARNING\]\n((?:> .*\n)+)", re.MULTILINE)
_WRITE_ID = re.compile(r"write id '([^']+)'")
_IN_GENERAL = "In general (where it differs, the message counts):"
_CUT = "The message is cut: its own answers count, not these. Find the rest of it first."
_OWN_ANSWERS = (
    "If the message itself answers differently, follow the message. If it stands inside another error, follow that error. If a command "
    "printed it, it says nothing about rows."
)
_GZIP, _UTF_16 = b"\x1f\x8b", (b"\xff\xfe", b"\xfe\xff")
_MOST_LINES = 30
"""Of a message that something has broken into lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The section of a code. ``text`` is plain: a paragraph or list item per line.

    An error of Spark that has no code has words of its message instead. The answers on rows are None for an error of a command.
    """

    code: str
    section: str
    rows_visible: str | None
    run_again: str | None
    text: str

    @property
    def answers(self) -> str:
        if self.rows_visible is None:
            return OF_A_COMMAND
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

    Both answers are None for an error of a command.
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
        typer.Argument(metavar="CODE", help="The code, a quoted or piped message, or log files.", show_default=False),
    ] = None,
    as_json: console.AsJson = False,
) -> None:
    """Explain an error code, offline.

    Prints what happened, whether rows are visible, whether the job can run again, and what to do. An error that only commands have says
    nothing about rows: `--json` then has null for both. CODE is a code in upper or lower case, with or without `KAFKA_EOS.`, or a whole
    message in quotes. Explains the gravest error of log files or a piped log, of equal ones the last. Alone, lists all codes. Exit
    status 2 if it finds none.

    Example: kafka-eos explain UNKNOWN_TOPIC

    To see which transactions are open: kafka-eos status
    """
    known = {each.code: each for each in entries(*_page())}
    words = [] if code == ["-"] else code or []
    files = [each for each in words if os.path.isfile(each)]
    if files and files != words:
        others = shlex.join(each for each in words if each not in files)
        raise typer.BadParameter(f"no file: {others}. Nothing was read: give log files only", param_hint="CODE")
    is_log = files == words
    text = "\n".join(_logs(words, known)) if is_log else " ".join(" ".join(words).split())
    if not text.strip() and not words:
        everything = [*known.values()]
        console.print_json(everything) if as_json else _print_list(everything)
        return
    seen = errors_in(text, known, is_log=is_log)
    # A log may have the error of a task that was tried again, and then the error of the job.
    gravest = max(reversed(seen), key=lambda each: each.rank, default=None)
    if gravest is None or gravest.code not in known:
        raise typer.BadParameter(_unknown(gravest or text, known, is_log=is_log), param_hint="CODE")
    entry = known[gravest.code]
    shown = replace(entry, rows_visible=gravest.rows_visible, run_again=gravest.run_again)
    if gravest.message and (is_log or shown != entry):
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
        typer.echo(f"\nThe {'log' if is_log else 'message'} also has {each}: kafka-eos explain {each}")
    for about in dict.fromkeys(_about(each) for each in seen if is_log and each.code == entry.code):
        if about != _about(gravest):
            typer.echo(f"\nThe log also has {entry.code}, which needs its own answer: {about}")


def entries(page: str, folder: Path = FOLDERS[1]) -> list[Entry]:
    """Return the sections of all codes, in the order of the page.

    Args:
        folder: A link to a page that this folder lacks is left out, because the installed package has this page only.
    """
    text_of = partial(_without_markup, folder=folder)
    found: list[Entry] = []
    shared: list[str] = []
    section, warnings = "", list[str]()
    # Of each heading: its marks, its words, and the text up to the next one.
    parts = iter(_HEADING.split(page)[1:])
    for marks, heading, text in zip(parts, parts, parts, strict=True):
        if marks == "##":
            section = heading
            warnings = [text_of(" ".join(each.replace("> ", " ").split())) for each in _WARNING.findall(text)]
            continue
        shared.append(heading)
        if not text.strip():
            continue  # codes with one meaning share the text below their last heading
        safety = _SAFETY.match(text.strip())
        if safety is None:
            raise ValueError(f"{heading} does not begin with the answers on rows")
        plain = "\n".join([*_plain(text.strip()[safety.end() :], text_of), *warnings])
        found += [
            Entry(code=each, section=section, rows_visible=safety[1], run_again=safety[2], text=plain)
            for each in shared
        ]
        shared.clear()
    return found


def errors_in(text: str, known: Mapping[str, Entry], *, is_log: bool = False) -> Sequence[Seen]:
    """Return the errors in a text, whose codes need not exist."""
    found = [_seen(message["code"], known, message[0]) for message in _MESSAGE.finditer(text)]
    if found:
        return found
    words = re.findall(r"\w+", text)
    named = [word.upper() for word in words]
    if len(words) != 1 and (is_log or not known.keys() >= set(named)):
        # In a sentence, "ABORTED" is no code, and a log is full of words.
        named = [] if is_log else [word for word in words if "_" in word and word in known]
        named = named or [each for each in known if " " in each and each in text]
    return [_seen(each, known) for each in named]


def _seen(code: str, known: Mapping[str, Entry], message: str = "") -> Seen:
    code = code if code in known else code.upper()
    answers = _ANSWERS.search(message)
    visible: str | None
    again: str | None
    if answers:
        visible, again = answers[1] or Visible.NO, answers[2]
    elif code in known:
        visible, again = known[code].rows_visible, known[code].run_again
    else:
        visible, again = UNDECIDED
    text = printable(message.strip()) if answers else ""
    # A whole message without answers is of a command, or of a step before the write.
    is_cut = not answers and " " in message.strip() and not _END.search(message)
    return Seen(code=code, message=text, rows_visible=visible, run_again=again, is_cut=is_cut)


def _about(seen: Seen) -> str:
    found = _WRITE_ID.search(seen.message)
    return f"write id {found[1]}" if found else textwrap.shorten(seen.message or "a message that is cut", 120)


def _logs(files: Sequence[str], known: Iterable[str]) -> Iterator[str]:
    """Yield the messages of log files, or of standard input, each on one line."""
    if not files:
        try:
            mode = os.fstat(sys.stdin.fileno()).st_mode
        except (OSError, ValueError, AttributeError):  # closed, or not a file
            return
        # Not any standard input that is no terminal: a service's may never end.
        if not (stat.S_ISFIFO(mode) or stat.S_ISREG(mode)):
            return
    sources: Sequence[str | int] = files or [sys.stdin.fileno()]
    for source in sources:
        with open(source, "rb", closefd=bool(files)) as stream:
            yield from _messages(stream, known)


def _messages(stream: io.BufferedReader, known: Iterable[str]) -> Iterable[str]:
    """Return each message of a log once; if there is none, the first line."""
    marks = ["KAFKA_EOS.", *(each for each in known if " " in each)]
    first, kept = "", dict[str, None]()
    begun: list[str] = []  # a message that something has broken into lines, at blanks or anywhere

    def is_marked(line: str) -> bool:
        return any(mark in line for mark in marks)

    def keep(lines: Iterable[str]) -> None:
        for each in filter(is_marked, lines):
            kept[each] = kept.pop(each, None)

    for raw in _decoded(stream):
        plain = _COLOUR.sub("", raw).rstrip("\n")
        first = first or plain.strip()
        if not begun and not is_marked(plain):
            continue
        begun.append(plain)
        before, whole = _whole(begun)
        if whole:
            keep([*begun[:before], whole])
            begun.clear()
        elif len(begun) > _MOST_LINES:
            keep(begun[:1])
            begun[:] = itertools.dropwhile(lambda each: not is_marked(each), begun[1:])
    keep(begun)
    return kept or [first]


def _whole(lines: Sequence[str]) -> tuple[int, str]:
    """Return how many lines come before a message that ends with them, and it.

    The message is in one line. A line within it may begin with the code of its cause. Without a message: all lines, and nothing.
    """
    stripped = [each.strip() for each in lines]
    ways = (" ", stripped), ("", lines)
    # A line may have ended inside a word of the answer, so a known answer counts more than another version's.
    for is_known, (glue, parts) in itertools.product((True, False), ways):
        end = _END.search(glue.join(parts[-2:]))
        code = f"KAFKA_EOS.{end[1]}]" if end else ""
        for before in reversed(range(len(parts))) if code else ():
            text = glue.join(parts[before:])
            answers = _ANSWERS.search(text)
            if answers and code in text and (not is_known or answers[2] in ANSWERS):
                return before, text.strip()
    return len(lines), ""


def _decoded(stream: io.BufferedReader) -> Iterator[str]:
    try:
        unpacked: Any = gzip.GzipFile(fileobj=stream) if stream.peek(2)[:2] == _GZIP else stream
        head = unpacked.peek(2)[:2]
        without_mark = "utf-16-be" if head[:1] == b"\0" else "utf-16-le" if head[1:] == b"\0" else "utf-8"
        encoding = "utf-16" if head in _UTF_16 else without_mark
        yield from io.TextIOWrapper(unpacked, encoding, errors="replace")
    except (OSError, EOFError, zlib.error) as failure:
        raise typer.BadParameter(f"the log cannot be read: {failure}", param_hint="CODE") from None


def _page() -> tuple[str, Path]:
    """Return the page, and the folder in which it is."""
    files = [folder / PAGE for folder in FOLDERS]
    for folder, file in zip(FOLDERS, files, strict=True):
        if file.is_file():
            return file.read_text("utf-8"), folder
    # Without a code: it would refer to the page that is missing.
    console.echo(
        f"kafka-eos: this installation lacks the page of the error codes ({' or '.join(map(str, files))}). Install kafka-eos-sink again, "
        f"or read {PAGE} in a clone of the repository",
        err=True,
    )
    raise typer.Exit(EXIT_FAILURE)


def _unknown(what: str | Seen, known: Mapping[str, Entry], *, is_log: bool) -> str:
    text = what if isinstance(what, str) else what.code
    near = difflib.get_close_matches(text.upper(), known, n=3)
    to_do = "run the job again if it has txnAppId or is a stream; if not, see what it left: kafka-eos status"
    if isinstance(what, Seen) and what.message:
        hint = f"a newer sink may have it. The message says: rows visible: {what.rows_visible}; safe to run again: {what.run_again}"
    elif is_log and (not text.strip() or "\N{REPLACEMENT CHARACTER}" in text):
        return "the log is empty, or no text"
    elif is_log and not (near or text.isalnum()):
        return f"the log has no error of kafka-eos (errors are on standard error: 2>&1): {to_do}; if that shows nothing, read the topic"
    elif text.upper() in ErrorCode.__members__:
        hint = "it is a code of Kafka itself; search the log for KAFKA_EOS"
    elif os.path.exists(text) or os.path.dirname(text) or os.path.splitext(text)[1][1:].isalpha():
        hint = "it is no file"
    elif near:
        hint = f"the nearest codes are {', '.join(near)}"
    elif " " in text:
        hint = f"{to_do}. kafka-eos explain lists all codes"
    else:
        hint = "kafka-eos explain lists all codes"
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


def _plain(markdown: str, text_of: Callable[[str], str]) -> Iterator[str]:
    """Yield paragraphs, list items and lines of code, without markup."""
    for number, part in enumerate(re.split(r"^```\w*(?:\n|$)", markdown, flags=re.MULTILINE)):
        if number % 2:
            yield from textwrap.indent(part.rstrip(), "    ").splitlines()
            continue
        for block in re.split(r"\n\s*\n|\n(?=(?:\d+\.|-) )", part):
            if block.strip():
                yield text_of(" ".join(block.split()))


def _without_markup(text: str, folder: Path) -> str:
    def linked(link: re.Match[str]) -> str:
        is_there = (folder / "docs" / link[2].partition("#")[0]).is_file()
        return f"{link[1]} (docs/{link[2]})" if is_there else link[1]

    # A command must not be broken into lines.
    text = re.sub(r"`([^`]+)`", lambda code: code[1].replace(" ", _UNBROKEN), text.replace("**", ""))
    text = re.sub(r"\[([^\]]+)\]\(#[^)]*\)", r"\1", text)
    return re.sub(r"\[([^\]]+)\]\(([^)]+)\)", linked, text)
