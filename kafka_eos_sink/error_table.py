"""The rows of ``errors.toml``: what each error code means, and its messages.

``docs/errors.md``, ``kafka-eos explain`` and the messages of the commit protocol are made from the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

Cell = str | Mapping[str, str]
"""A template, or one for each kind of job: ``batch``, ``random``, ``stream`` or ``other``."""
FILE = "errors.toml"
_TEXTS = "texts"
_SHARED = ("explained", "command", "visible", "again")
"""Of codes with one meaning, one has these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """The templates of a message: what happened, and what to do.

    A case without ``way_out`` has its code's.
    """

    what: Cell
    way_out: Cell = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What an error code means.

    ``visible`` and ``again`` are as in `errors.Visible` and the names of `errors.RunAgain`; None if nothing of the run is visible, or will
    be. An error of a ``command`` says nothing about rows. ``explained`` is Markdown. ``messages`` are by case; there are none if the code
    words its message where it is raised.
    """

    code: str
    section: str
    explained: str
    like: str = ""
    command: bool = False
    visible: str | None = None
    again: str | None = None
    raises: str = ""
    messages: Mapping[str, Message] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """All rows, in the order of the page.

    ``sections`` are what the page says about each section. ``texts`` are fragments of templates, and warnings.
    """

    rows: Mapping[str, Row]
    sections: Mapping[str, str]
    texts: Mapping[str, Cell]


@cache
def table() -> Table:
    """Return the table; empty if the installation lacks its file.

    It is read at the first error of a process, which must not become another error then.
    """
    # Imported here because only an error needs them, and every worker of Spark imports this module.
    import tomllib
    from importlib.resources import files

    try:
        read = tomllib.loads(files(__package__).joinpath(FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Table(rows={}, sections={}, texts={})
    texts = read.pop(_TEXTS)
    sections = {title: section.pop("about", "").strip() for title, section in read.items()}
    rows: dict[str, Row] = {}
    for title, section in read.items():
        for code, given in section.items():
            shared = section[given["like"]] if "like" in given else given
            rows[code] = _row(code, title, given, {key: shared[key] for key in _SHARED if key in shared})
    return Table(rows=rows, sections=sections, texts=texts)


def _row(code: str, section: str, given: Mapping[str, Any], shared: Mapping[str, Any]) -> Row:
    cases: dict[str, Mapping[str, Any]] = {
        key: value for key, value in given.items() if isinstance(value, dict) and key not in ("what", "way_out")
    }
    if "what" in given:
        cases[""] = given
    messages = {
        case: Message(what=each["what"], way_out=each.get("way_out", given.get("way_out", "")))
        for case, each in cases.items()
    }
    own = {key: given[key] for key in ("like", "raises") if key in given}
    shared = {**shared, "explained": shared["explained"].strip()}
    return Row(code=code, section=section, messages=messages, **own, **shared)
