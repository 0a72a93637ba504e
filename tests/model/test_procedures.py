"""What two suspended procedures must differ in: every local that their future depends on, and no other."""

from __future__ import annotations

import ast
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

import kafka_eos_sink
from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.steps import Step

from . import procedures
from .procedures import frames_key

Suspended = Generator[Any, Any, Any]
HERE = steps.Reached("here")


def returns_it() -> Suspended:
    value = yield "value"
    yield "here"
    return value


def reads_it_right_of_and() -> Suspended:
    value = yield "value"
    flag = yield "here"
    return flag and value


def loads_it_second_of_two() -> Suspended:
    value = yield "value"
    other = yield "here"
    return other + value


def loads_it_after_a_store() -> Suspended:
    value = yield "value"
    found = yield "here"
    kept = found
    return value, kept


def loads_it_in_a_handler() -> Suspended:
    value = yield "value"
    try:
        yield "here"
    except ValueError:
        return value
    return None


def loads_it_in_finally() -> Suspended:
    value = yield "value"
    try:
        yield "here"
    finally:
        print(value)


def loads_it_in_a_comprehension() -> Suspended:
    value = yield "value"
    others = yield "here"
    return [each + value for each in others]


def loads_it_in_a_closure() -> Suspended:
    value = yield "value"
    yield "here"
    return lambda: value


def loads_it_in_the_next_round() -> Suspended:
    value = yield "value"
    for _ in range(2):
        print(value)
        yield "here"


def stands_in_a_loop_over_it() -> Suspended:
    value = yield "value"
    for each in (value, 3):
        print(each)
        yield "here"


def stands_in_a_loop_that_comes_to_it() -> Suspended:
    value = yield "value"
    for each in (3, value):
        print(each)
        yield "here"


def stands_in_a_loop_that_comes_to_it_by_a_comprehension() -> Suspended:
    value = yield "value"
    for each in sorted([other + value for other in (3, 4)]):
        print(each - value)
        yield "here"


def stands_in_a_loop_that_copies_it() -> Suspended:
    value = yield "value"
    for each in (value, 3):
        copied = each
        print(copied)
        yield "here"


def writes_it_again() -> Suspended:
    value = yield "value"
    print(value)
    value = yield "here"
    return value


def writes_it_again_at_once_and_reads_another() -> Suspended:
    value = yield "value"
    other = len(str(value))
    value = yield "here"
    return other, value


def performs_a_step_by_yield_from() -> Suspended:
    value = yield "value"
    found = yield from HERE
    return value, found


def has_read_it_when_it_performs_a_step() -> Suspended:
    value = yield "value"
    print(value)
    return (yield from HERE)


def raises_without_it() -> Suspended:
    value = yield "value"
    yield "here"
    if value is not value:
        raise ValueError
    return None


def returns_none_before_it() -> Suspended:
    value = yield "value"
    if isinstance(value, int):
        yield "here"
        return None
    return value


LIVE = [
    returns_it,
    reads_it_right_of_and,
    loads_it_second_of_two,
    loads_it_after_a_store,
    loads_it_in_a_handler,
    loads_it_in_finally,
    loads_it_in_a_comprehension,
    loads_it_in_a_closure,
    loads_it_in_the_next_round,
    stands_in_a_loop_over_it,
    stands_in_a_loop_that_comes_to_it,
    stands_in_a_loop_that_comes_to_it_by_a_comprehension,
    stands_in_a_loop_that_copies_it,
    performs_a_step_by_yield_from,
    raises_without_it,
]
DEAD = [
    has_read_it_when_it_performs_a_step,
    writes_it_again,
    writes_it_again_at_once_and_reads_another,
    returns_none_before_it,
]


def _key_after(procedure: Callable[[], Suspended], value: Any) -> Any:
    suspended = procedure()
    assert next(suspended) == "value"
    assert suspended.send(value) in ("here", HERE)
    return frames_key(suspended)


@pytest.mark.parametrize("procedure", LIVE, ids=lambda each: each.__name__)
def test_two_states_differ_in_a_local_that_is_read_later(procedure: Callable[[], Suspended]) -> None:
    assert _key_after(procedure, 1) != _key_after(procedure, 2)


@pytest.mark.parametrize("procedure", DEAD, ids=lambda each: each.__name__)
def test_two_states_are_one_if_a_local_is_not_read_again(procedure: Callable[[], Suspended]) -> None:
    assert _key_after(procedure, 1) == _key_after(procedure, 2)


def test_an_instruction_that_is_not_known_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def suspends() -> Suspended:
        value = yield "here"
        return value

    monkeypatch.delitem(procedures._LOCALS, "STORE_FAST")
    suspended = suspends()
    next(suspended)
    with pytest.raises(NotImplementedError, match=r"STORE_FAST of Python 3\.\d+: add to _LOCALS in procedures.py"):
        frames_key(suspended)


PACKAGE = Path(kafka_eos_sink.__file__).parent
SOURCES = list((PACKAGE / "commit").rglob("*.py"))
STEPS = {name for name, kind in vars(steps).items() if isinstance(kind, type) and issubclass(kind, Step)}


def _first_evaluated(parent: ast.AST) -> list[ast.AST]:
    """The parts of an expression or statement before which none of its others is evaluated and kept on the stack."""
    match parent:
        case ast.Compare():
            return [parent.left]
        case ast.BinOp():
            return [parent.left]
        case ast.Subscript() | ast.Attribute() | ast.Assign() | ast.AnnAssign() | ast.NamedExpr():
            return [parent.value] if parent.value else []
        case ast.Expr() | ast.Return() | ast.YieldFrom() | ast.Yield():
            return [parent.value] if parent.value else []
        case ast.If() | ast.While() | ast.Assert():
            return [parent.test]
        case ast.BoolOp() | ast.UnaryOp() | ast.IfExp():
            return list(ast.iter_child_nodes(parent))
    return []


def _kept_on_the_stack(tree: ast.AST) -> set[str]:
    """Expressions that are half evaluated where a procedure yields."""
    parents = {child: parent for parent in ast.walk(tree) for child in ast.iter_child_nodes(parent)}
    found = set()
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Yield, ast.YieldFrom)):
            continue
        child: ast.AST = node
        while not isinstance(child, ast.stmt):
            parent = parents[child]
            if child not in _first_evaluated(parent):
                found.add(ast.unparse(parent))
                break
            child = parent
    return found


HOLDS_VALUES = [
    "f(a, (yield))",
    "x = a + (yield)",
    "x += yield",
    "x = a, (yield)",
    "x = a == (yield)",
    "f'{a}{(yield)}'",
    "x = a[(yield)]",
    "x = {a: (yield)}",
    "x = [a, (yield)]",
    "for x in (yield): pass",
    "with (yield): pass",
    "x = not f((yield from a))",
]


@pytest.mark.parametrize("line", HOLDS_VALUES)
def test_the_rule_notices_a_yield_with_values_on_the_stack(line: str) -> None:
    assert _kept_on_the_stack(ast.parse(line))


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: str(source.relative_to(PACKAGE)))
def test_procedures_yield_with_nothing_on_the_stack(source: Path) -> None:
    assert not _kept_on_the_stack(ast.parse(source.read_text("utf-8")))


def _without_a_type(tree: ast.AST) -> set[str]:
    """What procedures do with steps that mypy does not check: only the result of ``yield from`` has the step's type."""
    found = set()
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.returns]
    for function in functions:
        for node in ast.walk(function) if "Procedure[" in ast.unparse(function.returns) else ():
            match node:
                case ast.Yield() | ast.AnnAssign(value=ast.YieldFrom()):
                    found.add(ast.unparse(node))
                case ast.Expr(value=ast.Call(func=ast.Name(id=name))) if name in STEPS:
                    found.add(ast.unparse(node))  # made, and never performed
    return found


@pytest.mark.parametrize(
    "line", ["x = yield Now()", "x: int = yield from Now()", "Reached('x')", "if a: yield Wait(1)"]
)
def test_the_rule_notices_a_step_without_a_type(line: str) -> None:
    assert _without_a_type(ast.parse(f"def f() -> Procedure[None]:\n    {line}"))


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: str(source.relative_to(PACKAGE)))
def test_procedures_perform_steps_by_yield_from(source: Path) -> None:
    assert not _without_a_type(ast.parse(source.read_text("utf-8")))
