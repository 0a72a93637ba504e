"""The templates of errors.toml: each can be rendered, is used, and gets from its callers just the fields that it names."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from documents import ROOT
from kafka_eos_sink import error_table, errors
from kafka_eos_sink.commit.refusals import refused, text
from kafka_eos_sink.error_table import table
from kafka_eos_sink.errors import Job
from tests.messages import SERVERS, WRITES, keys, sample, samples

FLAGS = {"--allow-duplicates", "--abort-unknown", "--discard"}
ALL = [(key, job) for key in keys() for job in WRITES]


@pytest.mark.parametrize(("key", "job"), ALL)
def test_template_renders_to_a_message_of_its_code(key: str, job: Job) -> None:
    error = sample(key, job)
    code = key.partition(".")[0]
    assert isinstance(error, getattr(errors, table().rows[code].raises))
    assert error.code == code
    assert len(error.message) > 20
    for part in (error.message, error.way_out):
        assert re.search(r"[{}\n]|  |\.\.|[.;] *[.;]|[.;]$", part) is None, part
    assert error.way_out[:1] == error.way_out[:1].upper()


@pytest.mark.parametrize(("key", "job"), ALL)
def test_every_command_can_be_pasted(key: str, job: Job) -> None:
    """A shell takes each command as it stands, up to the end of the text or a semicolon, and it names one outcome."""
    way_out = sample(key, job).way_out
    assert "|" not in way_out
    for each in re.findall(r"kafka-eos (?:recover|resolve|status|history|offsets) --[^;]*", way_out):
        words = shlex.split(each)
        assert words[words.index("--bootstrap-servers") :][:2] == SERVERS.split()
        if "--write-id" in words:
            assert words[words.index("--write-id") + 1] == WRITES[job].id
        if "resolve" in words:
            assert words[words.index("--as") + 1] in ("committed", "rewrite")
        # Every word belongs to an option: no prose stands behind the command.
        rest = [word for word in words[2:] if word not in FLAGS]
        assert all(name.startswith("--") for name in rest[::2]), each


DECIDED = [
    key
    for key in keys()
    if issubclass(getattr(errors, table().rows[key.partition(".")[0]].raises), errors.DecisionPendingError)
]


@pytest.mark.parametrize("key", [*DECIDED, "NOT_THIS_COMMIT_LOG", "NOT_THIS_COMMIT_LOG.created_again"])
def test_decided_batch_without_an_id_runs_again_only_under_a_condition(key: str) -> None:
    """Its next run has another write id, and would write the rows a second time."""
    if key == "ALL_PARTS_LOST":
        return  # none of its rows will ever be visible
    for part in re.split(r"[.;] ", sample(key, Job.RANDOM).way_out):
        if "un the job again" in part:
            assert re.search(r"\bif\b|\bTo\b|o not run|then run the job again: kafka-eos resolve", part), part


def given(call: ast.Call) -> dict[str, Any]:
    """Sample values of the fields that a call gives."""
    known = samples(Job.STREAM)
    return {keyword.arg: known[keyword.arg] for keyword in call.keywords if keyword.arg}


def key_pattern(node: ast.expr) -> str:
    """A regular expression of the keys that an argument may be."""
    match node:
        case ast.Constant(value=str() as text):
            return re.escape(text)
        case ast.JoinedStr(values=values):
            return "".join(map(key_pattern, values))
        case ast.FormattedValue(value=value):
            return key_pattern(value)
        case ast.IfExp(body=body, orelse=orelse):
            return f"(?:{key_pattern(body)}|{key_pattern(orelse)})"
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return key_pattern(left) + key_pattern(right)
        case _:
            return ".*"


def calls() -> Iterator[tuple[str, ast.Call]]:
    """The calls of `refused` and `text`: the function's name and the call."""
    for path in sorted((ROOT / "kafka_eos_sink").rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        names = {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module == "kafka_eos_sink.commit.refusals"
            for alias in node.names
        } & {"refused", "text"}
        if path.name == "refusals.py":
            names = {"text"}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
                yield node.func.id, node


def rendered(function: str, key: str, fields: dict[str, Any]) -> str | None:
    """What a call makes; None if a template needs another field."""
    try:
        return text(key, **fields) if function == "text" else str(refused(key, **fields))
    except KeyError:
        return None


def test_callers_give_their_templates_just_the_fields_that_they_name() -> None:
    every = {"refused": list(keys()), "text": [*table().texts, "the_version"]}
    used = set[str]()
    for function, call in calls():
        pattern, fields, source = key_pattern(call.args[0]), given(call), ast.unparse(call)
        matching = [key for key in every[function] if re.fullmatch(pattern, key)]
        assert matching, source
        used.update(matching)
        assert [key for key in matching if rendered(function, key, fields) is None] == [], source
        for name in fields.keys() - {"write"}:  # its commands may come and go
            others = {key: value for key, value in fields.items() if key != name}
            assert any(rendered(function, key, others) != rendered(function, key, fields) for key in matching), source
    assert set(keys()) <= used


@pytest.fixture
def without_file(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(error_table, "FILE", "absent.toml")
    table.cache_clear()
    yield
    table.cache_clear()


@pytest.mark.usefixtures("without_file")
def test_error_of_a_package_without_its_texts_keeps_code_and_facts() -> None:
    """As with a zip of the modules alone: the failure of a task must not hide behind a missing file, nor be called safe."""
    error = refused("LOST_PARTS", write=WRITES[Job.BATCH], rows=7)
    error.concern(Job.BATCH)
    said = str(error)
    assert said.startswith("[KAFKA_EOS.LOST_PARTS] ")
    assert "'rows': 7" in said
    assert "Rows visible: maybe. Safe to run again: only with the same txnAppId" in said
    assert "lacks the file errors.toml" in said
    assert "discarded" in text("discarded", held="w.0.0 on t-0")
