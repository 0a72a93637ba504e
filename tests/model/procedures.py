"""Suspended procedures as values that can be compared.

A generator cannot be copied, so a procedure's state is the list of answers that it was sent, and it is made again by
sending them again: the procedures are deterministic. Two lists of answers that leave it with the same future are one
*node*: the future depends on where each frame of the chain is suspended and on its live locals, nothing else. Live is
decided by a data-flow analysis of the byte code, so that a value that was read and is never looked at again (an older clock, an
older description) does not make two states out of one. The steps from node to node are remembered, so the procedure itself runs
only once per (node, answer).

What keeps this sound: locals are compared by value, never by identity. The variables of a loop and the names that its iterable is
made of count as live wherever the loop can go on, since they stand for the hidden iterator and its position. The last exception that
was thrown in is part of the key, since a handler holds it on the stack. No other value on the stack is seen: a procedure yields into a
variable, and never among the arguments of a call. `still_holds` did once, and the search found violations that do not exist;
test_procedures.py holds the rule. `Step.__iter__` is one more frame in the chain, with no live local: it adds no state.

The byte code differs from Python to Python. An instruction that concerns a local and does not stand in the tables below is an
error: if it counted as one that reads nothing, it would make one state out of two, and the search would miss violations or invent them.
"""

from __future__ import annotations

import ast
import dis
import linecache
import sys
from collections.abc import Callable, Generator
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, GeneratorType
from typing import Any

BOUNDED = {("verify_visible", "looks"): 2}
"""Counters of polling loops, and the value from which on the procedure only waits longer between two looks: time does not pass in
a simulated wait, so all larger values have the same future."""

READ, WRITE = "read", "write"
_LOCALS: dict[str, tuple[str, ...]] = {
    "LOAD_FAST": (READ,),
    "LOAD_FAST_CHECK": (READ,),
    "LOAD_FAST_AND_CLEAR": (READ,),  # from 3.12 on: a comprehension saves the local of that name, and restores it
    "LOAD_FAST_LOAD_FAST": (READ, READ),  # from 3.13 on, as the two below
    "STORE_FAST_LOAD_FAST": (WRITE, READ),
    "STORE_FAST_STORE_FAST": (WRITE, WRITE),
    "STORE_FAST": (WRITE,),
    "DELETE_FAST": (READ,),
    "LOAD_CLOSURE": (READ,),
    "LOAD_DEREF": (READ,),
    "STORE_DEREF": (WRITE,),
    "DELETE_DEREF": (READ,),
    "MAKE_CELL": (),
}
"""What an instruction does with the locals that it names, in their order."""

_NEVER_FALL_THROUGH = {
    "RETURN_VALUE",
    "RETURN_CONST",
    "RERAISE",
    "RAISE_VARARGS",
    "JUMP_FORWARD",
    "JUMP_BACKWARD",
    "JUMP_BACKWARD_NO_INTERRUPT",
}
"""Not JUMP_IF_FALSE_OR_POP and JUMP_IF_TRUE_OR_POP of 3.11: behind them stands the right operand of `and` and `or`."""

_CONCERN_LOCALS = {*dis.haslocal, *dis.hasfree}

Factory = Callable[[], Generator[Any, Any, Any]]


def _locals_of(instruction: dis.Instruction) -> list[tuple[str, str]]:
    """The locals that an instruction concerns, each with READ or WRITE, in their order."""
    if instruction.opcode not in _CONCERN_LOCALS:
        return []
    actions = _LOCALS.get(instruction.opname)
    if actions is None:
        version = ".".join(map(str, sys.version_info[:2]))
        raise NotImplementedError(
            f"{instruction.opname} of Python {version}: add to _LOCALS in {Path(__file__).name} what it does with the locals it names"
        )
    named = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
    return list(zip(named, actions, strict=True)) if actions else []


def _loop_variables(instructions: list[dis.Instruction], after: int) -> set[str]:
    """The locals that a FOR_ITER fills; only the stack holds the iterator, and they tell how far it has come."""
    found: set[str] = set()
    for instruction in instructions[after:]:
        if instruction.opname in ("UNPACK_SEQUENCE", "UNPACK_EX", "EXTENDED_ARG"):
            continue
        concerned = _locals_of(instruction)
        for name, action in concerned:
            if action != WRITE:
                return found
            found.add(name)
        if not concerned:
            break
    return found


@cache
def _iterables(source: str) -> dict[tuple[int | None, ...], set[str]]:
    """Where a loop of a source stands, to the names in the expression that it iterates over."""
    loops = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.For)]
    return {
        # A FOR_ITER has the position of its iterable from Python 3.13 on, that of the whole loop before.
        (place.lineno, place.end_lineno, place.col_offset, place.end_col_offset): {
            node.id for node in ast.walk(loop.iter) if isinstance(node, ast.Name)
        }
        for loop in loops
        for place in (loop, loop.iter)
    }


@cache
def _live_at(code: CodeType) -> dict[int, frozenset[str]]:
    """Byte offset of each instruction to the names of locals that are live after it."""
    instructions = list(dis.get_instructions(code))
    index_of = {instruction.offset: index for index, instruction in enumerate(instructions)}
    count = len(instructions)
    successors: list[list[int]] = [[] for _ in range(count)]
    uses: list[set[str]] = [set() for _ in range(count)]
    kills: list[set[str]] = [set() for _ in range(count)]
    source = "".join(linecache.getlines(code.co_filename))
    assert source, f"{code.co_filename}: no source tells what the loops of {code.co_qualname} iterate over"
    for index, instruction in enumerate(instructions):
        if instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs:
            successors[index].append(index_of[instruction.argval])
        if instruction.opname not in _NEVER_FALL_THROUGH and index + 1 < count:
            successors[index].append(index + 1)
        for name, action in _locals_of(instruction):
            if action == WRITE:
                kills[index].add(name)
            elif name not in kills[index]:
                uses[index].add(name)
        if instruction.opname == "FOR_ITER":
            names = _iterables(source).get(tuple(instruction.positions or ()), set())
            held = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
            uses[index] |= _loop_variables(instructions, index + 1) | (names & held)
    for entry in dis._parse_exception_table(code):  # type: ignore[attr-defined]
        for index, instruction in enumerate(instructions):
            if entry.start <= instruction.offset < entry.end and entry.target in index_of:
                successors[index].append(index_of[entry.target])
    live_in: list[set[str]] = [set() for _ in range(count)]
    changed = True
    while changed:
        changed = False
        for index in range(count - 1, -1, -1):
            after = set().union(*(live_in[successor] for successor in successors[index]))
            before = uses[index] | (after - kills[index])
            if before != live_in[index]:
                live_in[index], changed = before, True
    return {
        instruction.offset: frozenset().union(*(live_in[successor] for successor in successors[index]))
        for index, instruction in enumerate(instructions)
    }


def _value(thing: Any) -> Any:
    """A hashable value that is equal exactly where the thing is equal."""
    if thing is None or isinstance(thing, (int, str, bytes, bool, Enum)):
        return thing
    if isinstance(thing, (tuple, list)):
        return (type(thing).__name__, *(_value(part) for part in thing))
    if isinstance(thing, dict):
        # The order of a dict is what its readers iterate over.
        return ("dict", *((_value(key), _value(part)) for key, part in thing.items()))
    if isinstance(thing, (set, frozenset)):
        return ("set", frozenset(_value(part) for part in thing))
    if isinstance(thing, GeneratorType):
        return frames_key(thing)
    if isinstance(thing, FunctionType):
        cells = thing.__closure__ or ()
        return (thing.__qualname__, *(_value(cell.cell_contents) for cell in cells))
    if isinstance(thing, BaseException):
        return (type(thing).__name__, *map(str, thing.args))
    if is_dataclass(thing) and not isinstance(thing, type):
        if thing.__dataclass_params__.frozen:  # type: ignore[attr-defined]
            try:
                hash(thing)
                return thing
            except TypeError:
                pass
        return (type(thing).__name__, *(_value(getattr(thing, field.name)) for field in fields(thing)))
    hash(thing)
    return thing


def frames_key(generator: Generator[Any, Any, Any]) -> Any:
    """Where a suspended generator and those that it delegates to stand, with the locals that their future depends on."""
    frames = []
    current: Any = generator
    while isinstance(current, GeneratorType):
        frame = current.gi_frame
        if frame is None:
            break
        live = _live_at(frame.f_code)[frame.f_lasti]
        held = frame.f_locals
        frames.append(
            (
                frame.f_code.co_qualname,
                frame.f_lasti,
                tuple(
                    (name, min(held[name], BOUNDED[frame.f_code.co_name, name]))
                    if (frame.f_code.co_name, name) in BOUNDED
                    else (name, _value(held[name]))
                    for name in sorted(live)
                    if name in held
                ),
            )
        )
        current = current.gi_yieldfrom
    return tuple(frames)


class Node:
    """A procedure at a step, or at its end: then ``step`` is None and ``result`` or ``failure`` is set."""

    __slots__ = ("factory", "failure", "history", "kind", "live", "memory", "number", "result", "step")

    def __init__(self, number: int, factory: Factory, kind: str) -> None:
        self.memory: Any = None
        """What an observer wants to know of the answers so far, though the procedure itself may have forgotten it."""
        self.number = number
        self.factory = factory
        self.kind = kind
        self.history: tuple[Node, Any] | None = None
        self.live: Generator[Any, Any, Any] | None = None
        self.step: Any = None
        self.result: Any = None
        self.failure: BaseException | None = None

    @property
    def ended(self) -> bool:
        return self.step is None


class Throw:
    """An answer that is an error raised into the procedure."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


class Procedures:
    """All nodes met so far, and the steps between them."""

    def __init__(self, remember: Callable[[str, Any, Any, Any], Any] = lambda kind, memory, step, answer: None) -> None:
        self._remember = remember
        self.nodes: list[Node] = []
        self._by_key: dict[Any, Node] = {}
        self._steps: dict[tuple[int, Any], Node] = {}
        self._starts: dict[Any, Node] = {}
        self.runs = 0
        """How often a procedure really ran, instead of being looked up."""

    def start(self, kind: str, name: Any, factory: Factory) -> Node:
        """The node before the first step is answered; ``name`` determines the factory."""
        found = self._starts.get((kind, name))
        if found is None:
            generator = factory()
            found = self._starts[kind, name] = self._arrive(kind, factory, generator, None, None, None)
        return found

    def advance(self, node: Node, key: Any, answer: Any) -> Node:
        """The node after an answer; ``key`` is a hashable value that determines the answer."""
        found = self._steps.get((node.number, key))
        if found is None:
            generator = node.live
            node.live = None
            if generator is None:
                generator = self._replay(node)
            found = self._steps[node.number, key] = self._arrive(
                node.kind, node.factory, generator, node, answer, answer.error if isinstance(answer, Throw) else None
            )
        return found

    def _replay(self, node: Node) -> Generator[Any, Any, Any]:
        answers = []
        current = node
        while current.history is not None:
            current, answer = current.history
            answers.append(answer)
        generator = node.factory()
        next(generator)
        for answer in reversed(answers):
            _send(generator, answer)
        return generator

    def _arrive(
        self,
        kind: str,
        factory: Factory,
        generator: Generator[Any, Any, Any],
        parent: Node | None,
        answer: Any,
        thrown: Exception | None,
    ) -> Node:
        self.runs += 1
        step = result = failure = None
        try:
            step = next(generator) if parent is None else _send(generator, answer)
        except StopIteration as stop:
            result = stop.value
        except Exception as error:
            failure = error
        memory = None if parent is None else self._remember(kind, parent.memory, parent.step, answer)
        if step is not None:
            key: Any = (kind, frames_key(generator), step, getattr(thrown, "code", None), memory)
        elif failure is not None:
            key = (kind, "failed", type(failure).__name__, getattr(failure, "code", str(failure)))
        else:
            key = (kind, "ended", _value(result))
        node = self._by_key.get(key)
        if node is None:
            node = Node(len(self.nodes), factory, kind)
            node.step, node.result, node.failure, node.memory = step, result, failure, memory
            if parent is not None:
                node.history = (parent, answer)
            self.nodes.append(node)
            self._by_key[key] = node
        if node.live is None and step is not None:
            node.live = generator
        return node


def _send(generator: Generator[Any, Any, Any], answer: Any) -> Any:
    return generator.throw(answer.error) if isinstance(answer, Throw) else generator.send(answer)
