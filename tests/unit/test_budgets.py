"""How large packages, modules and functions may be; a feature that needs more raises its budget in the same commit and says why."""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "kafka_eos_sink"
LINES = {
    "protocol": 3_200,
    "client": 3_500,
    "producer": 2_800,
    "runtime": 1_300,
    "settings": 1_000,
    "spark": 1_200,
    "jobs": 700,
    "embedded": 1_300,
    "demo": 600,
    "cli": 1_200,
}
ALL_LINES = 20_500
MODULE, FUNCTION, PARAMETERS, COMMENTS = 450, 60, 6, 0.03
"""Lines, lines, without self and cls; comment lines per line."""
SOURCES = sorted(PACKAGE.rglob("*.py"))


def lines(path: Path) -> int:
    return len(path.read_text("utf-8").splitlines())


@pytest.mark.parametrize("package", LINES)
def test_package_fits_its_budget(package: str) -> None:
    assert sum(map(lines, (PACKAGE / package).rglob("*.py"))) <= LINES[package]


def test_product_fits_its_budget() -> None:
    assert sum(map(lines, SOURCES)) <= ALL_LINES


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: str(source.relative_to(PACKAGE)))
def test_module_and_functions_fit_their_budgets(source: Path) -> None:
    assert lines(source) <= MODULE
    for node in ast.walk(ast.parse(source.read_text("utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            of = node.args
            parameters = [each.arg for each in (*of.posonlyargs, *of.args, *of.kwonlyargs)]
            assert (node.end_lineno or 0) - node.lineno < FUNCTION, node.name
            assert len([name for name in parameters if name not in ("self", "cls")]) <= PARAMETERS, node.name


def test_comments_are_three_lines_in_a_hundred() -> None:
    comments = 0
    for source in SOURCES:
        tokens = tokenize.generate_tokens(io.StringIO(source.read_text("utf-8")).readline)
        comments += sum(token.type == tokenize.COMMENT for token in tokens)
    assert comments >= COMMENTS * sum(map(lines, SOURCES))
