"""How large modules and functions may be, so that a reader can hold each in the head."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "kafka_eos_sink"
MODULE, FUNCTION, PARAMETERS = 450, 60, 6
"""Lines, lines, without self and cls."""


LONG_FUNCTIONS = {
    "write_attempt": "an attempt from its first to its last step, read in one piece",
    "struct_codec": "a codec",
    "recover": "a third is the reference of the command",
}
MANY_PARAMETERS = {
    "audit": "the options of a command",
    "history": "the options of a command",
    "forget": "the options of a command",
    "read_history": "the options of a command",
    "broker": "the options of a command",
    "consume": "the options of a command",
    "recover": "the options of a command",
    "metrics": "the options of a command",
    "resolve": "the options of a command",
    "status": "the options of a command",
    "top": "the options of a command",
}
SOURCES = sorted(PACKAGE.rglob("*.py"))


def lines(path: Path) -> int:
    return len(path.read_text("utf-8").splitlines())


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: str(source.relative_to(PACKAGE)))
def test_module_and_functions_fit_their_budgets(source: Path) -> None:
    assert lines(source) <= MODULE, f"{source.name} has {lines(source)} lines, at most {MODULE}: split it by subject"
    for node in ast.walk(ast.parse(source.read_text("utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            of = node.args
            parameters = [each.arg for each in (*of.posonlyargs, *of.args, *of.kwonlyargs)]
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= FUNCTION or node.name in LONG_FUNCTIONS, (
                f"{node.name} has {length} lines, at most {FUNCTION}: split it, or give LONG_FUNCTIONS the reason"
            )
            own = [each for each in parameters if each not in ("self", "cls")]
            assert len(own) <= PARAMETERS or node.name in MANY_PARAMETERS, (
                f"{node.name} has {len(own)} parameters, at most {PARAMETERS}: group them in a data class"
            )
