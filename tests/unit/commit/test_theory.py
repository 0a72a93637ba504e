"""The theory of operation names what exists, and nothing else explains KAFKA-20734."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
from model.mutations import MUTATIONS

import kafka_eos_sink.commit

THEORY = kafka_eos_sink.commit.__doc__ or ""
PACKAGE = Path(kafka_eos_sink.commit.__file__).parents[1]
COMMIT = [source for source in sorted((PACKAGE / "commit").rglob("*.py")) if source.name != "__init__.py"]
HAZARDS = re.findall(r"^([A-Z ]+): ", THEORY, re.MULTILINE)


def test_mutations_in_the_theory_exist() -> None:
    named = re.findall(r'"([^"]+)"', " ".join(THEORY.split()))
    assert len(named) > 20
    assert set(named) - {mutation.name for mutation in MUTATIONS} == {"rewrite"}


def test_functions_in_the_theory_exist() -> None:
    named = set(re.findall(r"\b_?[a-z]+(?:_[a-z]+)+\b(?!\.py)", THEORY))
    code = "\n".join(source.read_text("utf-8") for source in COMMIT)
    assert len(named) > 15
    assert [name for name in sorted(named) if not re.search(rf"(\bdef |^    ){name}\b[(:]", code, re.MULTILINE)] == []


def explanations(source: Path) -> Iterator[str]:
    """Return the comments of a module, its docstrings, and the texts behind fields and constants."""
    text = source.read_text("utf-8")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


@pytest.mark.parametrize("hazard", HAZARDS)
def test_code_that_meets_a_hazard_names_it(hazard: str) -> None:
    assert any(re.search(rf"\b{hazard}\b", text) for source in COMMIT for text in explanations(source))
