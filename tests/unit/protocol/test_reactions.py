"""Each error code is met as the table of reactions says, per API, and a code that nobody knows by the strictest row."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

import reaction_table
from kafka_eos_sink.protocol import messages, reactions
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.reactions import (
    REACTIONS,
    Reaction,
    reaction,
)
from kafka_eos_sink.protocol.schema import Request


def name_of(value: object) -> str:
    return value.__name__.removesuffix("Request") if isinstance(value, type) else ErrorCode.of(value).name


@pytest.mark.parametrize(("api", "code"), reaction_table.REACTIONS, ids=name_of)
def test_error_code_has_the_reaction_of_its_api(api: type[Request[Any]], code: int) -> None:
    message = "kafka_eos_sink/protocol/reactions.py and tests/reaction_table.py differ: Kafka's protocol decides which is right"
    assert reaction(api, code) is reaction_table.REACTIONS[api, code], message


def test_no_reaction_is_missing_in_the_independent_table() -> None:
    missing = [f"{name_of(api)} {name_of(code)}" for api, code in REACTIONS.keys() - reaction_table.REACTIONS.keys()]
    assert not missing, f"write these rows of reactions.py by hand into LISTED of tests/reaction_table.py: {missing}"


def test_every_api_has_its_rows() -> None:
    """Kills the mutations that remove an API from one of the tables: messages would name the class, and no case would exist."""
    handshake = {messages.ApiVersionsRequest, messages.SaslHandshakeRequest, messages.SaslAuthenticateRequest}
    missing = [name_of(api) for api in messages.REQUESTS if api not in {*reaction_table.LISTED, *handshake}]
    assert not missing, f"add a row for {missing} to LISTED of tests/reaction_table.py"
    unnamed = [
        name_of(api) for api in messages.REQUESTS if api not in {*reactions._IN_WORDS, messages.ApiVersionsRequest}
    ]
    assert not unnamed, f"add a row for {unnamed} to _IN_WORDS of kafka_eos_sink/protocol/reactions.py"


def test_unlisted_retriable_code_does_not_retry_a_state_change() -> None:
    code = ErrorCode.INVALID_REQUEST
    assert reaction(messages.EndTxnRequest, ErrorCode.LISTENER_NOT_FOUND) is Reaction.UNKNOWN
    assert reaction(messages.ListOffsetsRequest, ErrorCode.LISTENER_NOT_FOUND) is Reaction.RETRY
    assert reaction(messages.ListOffsetsRequest, code) is Reaction.CONFIGURATION


def test_end_txn_error_never_proves_an_abort() -> None:
    met = {asked_for for (request, _), asked_for in REACTIONS.items() if request is messages.EndTxnRequest}
    assert met == {Reaction.RETRY, Reaction.FIND_COORDINATOR, Reaction.UNKNOWN, Reaction.CONFIGURATION}


def error_codes_in(node: ast.AST) -> list[str]:
    return [
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id == "ErrorCode"
    ]


def test_no_module_has_a_set_of_error_codes_of_its_own() -> None:
    """Every literal that names two codes or more stands in `reactions.py`, where a row can be seen to disagree with it."""
    table = Path(reactions.__file__)
    package = table.parents[1]
    literals = (ast.Set, ast.List, ast.Tuple, ast.Dict)
    found = [
        f"{source.relative_to(package)}:{node.lineno}"
        for source in sorted(package.rglob("*.py"))
        if source != table and source.name != "error_codes.py"
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8")))
        if isinstance(node, literals) and len(set(error_codes_in(node)) - {"NONE", "of"}) > 1
    ]
    assert not found, f"move these sets of error codes to kafka_eos_sink/protocol/reactions.py: {found}"
