"""Every stable code that the package can raise has a row and an anchor in docs/errors.md, to which its message leads."""

from __future__ import annotations

import ast
import pickle
import re
from pathlib import Path

from documents import anchors
from kafka_eos_sink import errors

ROOT = Path(__file__).parents[2]
CODE = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+|PROTOCOL|FENCED|UNRESOLVED|FAILPOINT|ABORTED|TAINTED")
RAISERS = {name for name in vars(errors) if name.endswith("Error")} | {
    "_bad",
    "refused",
    "LostResponse",
    "BadRows",
    "TopicProblem",
    "_reject",
}


def raised_codes() -> set[str]:
    """Codes among the arguments of error classes, of functions that make errors, and of what errors are made from."""
    found: set[str] = set()
    for path in (ROOT / "kafka_eos_sink").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if name in RAISERS or name.endswith("Error"):
                    arguments = (*node.args, *(keyword.value for keyword in node.keywords))
                    texts = {
                        each.value
                        for each in arguments
                        if isinstance(each, ast.Constant) and isinstance(each.value, str)
                    }
                    found |= {text for text in texts if CODE.fullmatch(text)}
    return found


def documented_codes() -> set[str]:
    rows = re.findall(r"^\| (`.*?`) \|", (ROOT / "docs" / "errors.md").read_text(), re.MULTILINE)
    return {code for row in rows for code in re.findall(r"`([A-Z_]+)`", row)}


def test_every_code_that_is_raised_is_documented() -> None:
    raised = raised_codes()
    assert len(raised) > 30, f"the search for codes is broken: {sorted(raised)}"
    assert sorted(raised - documented_codes()) == []


def test_every_message_ends_with_the_anchor_of_its_code() -> None:
    page = anchors(ROOT / errors.PAGE)
    for code in raised_codes() | documented_codes():
        text = str(errors.KafkaEosError(code, "what happened"))
        link = re.fullmatch(rf"\[KAFKA_EOS\.{code}\] what happened \((docs/errors\.md)#([a-z0-9_]+)\)", text)
        assert link, text
        assert link[2] in page, code


def test_error_within_an_error_leaves_only_the_outer_link() -> None:
    inner = errors.BrokerUnavailableError("REQUEST_DEADLINE", "not in time")
    outer = errors.DecisionPendingError("DECISION_UNKNOWN", f"the marker did not appear: {inner}; run again")
    assert str(outer) == (
        "[KAFKA_EOS.DECISION_UNKNOWN] the marker did not appear: [KAFKA_EOS.REQUEST_DEADLINE] not in time; run again "
        "(docs/errors.md#decision_unknown)"
    )
    assert str(pickle.loads(pickle.dumps(outer))) == str(outer)
