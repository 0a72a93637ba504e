"""The story of a failed write, read from its log: what was lost, what was resent, and why the commit succeeded."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

import pytest

from kafka_eos_sink.protocol import messages as m
from kafka_eos_sink.protocol.error_codes import ErrorCode

from .bench import Bench, write_whole
from .fault_proxy import Answer, LoseResponse, Rule


def assert_in_order(lines: Sequence[str], patterns: Sequence[str]) -> None:
    """Each pattern matches a whole line behind the line of the pattern before it."""
    at = 0
    for pattern in patterns:
        found = next((index for index in range(at, len(lines)) if re.fullmatch(pattern, lines[index])), None)
        assert found is not None, f"no {pattern!r} in\n" + "\n".join(lines[at:])
        at = found + 1


def test_debug_log_names_lost_produce_and_moved_coordinator(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    topic = bench.topic()
    settings = bench.write_settings(topic)
    client = settings.client.client_id
    bench.proxy.inject(
        Rule(m.ProduceRequest, LoseResponse(), client=f"{client}-task-0"),
        Rule(m.EndTxnRequest, Answer(ErrorCode.NOT_COORDINATOR), client=f"{client}-committer"),
    )
    with caplog.at_level(logging.DEBUG, "kafka_eos_sink"):
        write_whole(settings)
    assert not bench.proxy.unfired
    bench.assert_exactly_once(topic)
    lines = [record.getMessage() for record in caplog.records]
    on_node, ok = r"v\d+, node \d+, correlation id \d+", r"\d+ ms: no error"
    log = re.escape("{}-{}".format(*settings.write.commit_log))
    task, committer = re.escape(f"[{client}-task-0]"), re.escape(f"[{client}-committer]")
    assert_in_order(
        lines,
        [
            rf"{task} step DescribeTransactions: .*",
            rf"{task} request: InitProducerId {on_node}",
            rf"{task} step InitProducerId: .*\.0\.\d; commit log {log}; \S+ ms: .*\.0\.\d \(producer id \d+, epoch \d+\)",
            rf"{task} request: Produce {on_node}",
            rf"{task} lost response: Produce {on_node}: broker .* closed by the broker",
            rf"{task} connection lost, \d+ in flight: broker .* closed by the broker",
            rf"{task} request: ApiVersions {on_node}",
            rf"{task} request: Produce {on_node}",
            rf"{task} response: Produce {on_node}, {ok}",
            rf"{committer} request: EndTxn {on_node}",
            rf"{committer} response: EndTxn {on_node}, \d+ ms: NOT_COORDINATOR",
            rf"{committer} request: FindCoordinator {on_node}",
            rf"{committer} response: FindCoordinator {on_node}, {ok}",
            rf"{committer} request: EndTxn {on_node}",
            rf"{committer} response: EndTxn {on_node}, {ok}",
            rf"{committer} step EndTransactions: commit .*; commit log {log}; \S+ ms: NONE",
            rf"{committer} step ReadLog: from offset \d+; commit log {log}; \S+ ms: \d+ entries, next offset \d+",
        ],
    )
    # Names, numbers and error codes: no line of an exchange has room for the contents of a request or a response.
    exchanges = [line for line in lines if re.match(r"\[[^\]]*\] (request|response|lost response): ", line)]
    codes = r"(no error|[A-Z_]+( x \d+)?(, [A-Z_]+( x \d+)?)*(, \.\.\.)?)"
    call = r"\w+ v\d+, node -?\d+, correlation id \d+"
    shapes = (
        rf"\S+ request: {call}",
        rf"\S+ response: {call}, \d+ ms: {codes}",
        rf"\S+ lost response: {call}: broker .*",
    )
    assert [line for line in exchanges if not any(re.fullmatch(shape, line) for shape in shapes)] == []
