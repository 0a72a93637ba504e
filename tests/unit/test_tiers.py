"""The tiers together are all tests; and `make test` has a case of every stable error code and every invariant."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from documents import error_codes
from tests.tiers import CHECK, RULES, Case, Rule, place

ROOT = Path(__file__).parents[2]
LIST = """
import pytest

class Listing:
    def pytest_collection_finish(self, session):
        print()
        for item in session.items:
            tier = next(name for name in ("check", "test", "all", "exhaustive") if item.get_closest_marker(name))
            print("LISTED", tier, item.nodeid.partition("::")[0].removeprefix("tests/"), item.originalname)

pytest.main(["--collect-only", "-q", "--assert=plain", "-p", "no:cacheprovider", "--tier", "exhaustive", "tests"], plugins=[Listing()])
"""


@cache
def collected() -> set[tuple[str, str, str]]:
    """Return tier, file below ``tests/`` and function of all tests, as pytest collects them in a process of its own."""
    run = subprocess.run(
        [sys.executable, "-c", LIST], cwd=ROOT, capture_output=True, text=True, timeout=300, check=True
    )
    found = {tuple(line.split()[1:]) for line in run.stdout.splitlines() if line.startswith("LISTED ")}
    assert found, run.stdout
    return found  # type: ignore[return-value]


@pytest.fixture(scope="module")
def in_make_test() -> set[tuple[str, str]]:
    """File below ``tests/`` and function of each test of `make test`."""
    return {(file, function) for tier, file, function in collected() if tier in ("check", "test")}


def test_every_rule_has_a_test() -> None:
    tests = {(file, function) for _, file, function in collected()}
    unused = []
    for rule in RULES:
        file, _, function = rule.where.partition("::")
        if not any((path == file or path.startswith(file + "/")) and function in ("", name) for path, name in tests):
            unused.append(rule.where)
    assert not unused, f"tests/tiers.py: no test is at {unused}"


@cache
def constants(file: str) -> dict[str, set[str]]:
    """Function -> the words in capitals of its source, and of everything of its module that it uses."""
    source = (ROOT / "tests" / file).read_text("utf-8")
    parts = _parts(source)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level and node.module:
            beside = _parts((ROOT / "tests" / file).with_name(f"{node.module}.py").read_text("utf-8"))
            parts |= {each.asname or each.name: beside.get(each.name, "") for each in node.names}
    used = {name: set(re.findall(r"\w+", text)) & parts.keys() for name, text in parts.items()}

    def reachable(name: str) -> set[str]:
        found, open_names = set(), {name}
        while open_names:
            at = open_names.pop()
            found.add(at)
            open_names |= used[at] - found
        return found

    found = {name: set(re.findall(r"[A-Z][A-Z_]+", text)) for name, text in parts.items()}
    return {name: {word for other in reachable(name) for word in found[other]} for name in parts if name[:5] == "test_"}


def _parts(source: str) -> dict[str, str]:
    """Name -> source of what a module defines, decorators included."""
    parts: dict[str, str] = {}
    lines = source.splitlines()
    for node in ast.parse(source).body:
        begin = min(each.lineno for each in (node, *getattr(node, "decorator_list", ())))
        for name in _defined(node):
            parts[name] = "\n".join(lines[begin - 1 : node.end_lineno])
    return parts


def _defined(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, (ast.Assign, ast.AnnAssign)):
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            yield from (name.id for name in ast.walk(target) if isinstance(name, ast.Name))


def test_every_error_code_has_a_case_in_make_test(in_make_test: set[tuple[str, str]]) -> None:
    codes = error_codes()
    assert len(codes) > 100
    words: dict[str, set[str]] = defaultdict(set)
    for file, function in in_make_test:
        for word in constants(file).get(function, ()):
            words[word].add(f"{file}::{function}")
    missing = sorted(code for code in codes if not words[code])
    assert not missing, f"use {missing} in a test that `make test` runs: tests/tiers.py gives the tier of a test"


def test_every_invariant_has_a_mutation_in_make_test(in_make_test: set[tuple[str, str]]) -> None:
    sys.path.insert(0, str(ROOT / "tests"))
    from model import invariants
    from model.mutations import MUTATIONS

    assert ("model/test_mutations.py", "test_a_mutation_of_the_protocol_is_caught") in in_make_test
    checked = set(re.findall(r"\bI\d+\b(?=:)", Path(invariants.__file__).read_text()))
    caught = {start.partition(":")[0] for mutation in MUTATIONS for start in mutation.caught}
    missing = sorted(checked - caught)
    assert not missing, f"add a mutation to tests/model/mutations.py that breaks {missing}"


def case(nodeid: str, **params: object) -> Case:
    path, _, function = nodeid.partition("::")
    return Case(nodeid=nodeid + str(params), path=path, function=function, params=dict(params), takes_effort=False)


def test_a_test_without_a_rule_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"no rule for broker/test_x\.py"):
        place([case("broker/test_x.py::test_y")], (Rule("unit", CHECK),))
