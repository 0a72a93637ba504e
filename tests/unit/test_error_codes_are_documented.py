"""Every stable code that the package can raise has a section in docs/errors.md, which the command in its message shows."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from documents import ERRORS, ROOT, anchors, error_codes, read
from kafka_eos_sink import errors
from kafka_eos_sink.commit import resolve_refusals
from kafka_eos_sink.commit.admission import admit
from kafka_eos_sink.commit.log_view import LoggedDecision, VersionState
from kafka_eos_sink.commit.refusals import describe_ranges, refused
from kafka_eos_sink.commit.transactional_id import BATCH_QUERY_ID
from kafka_eos_sink.commit.values import (
    DEFAULT_TOPIC,
    BatchIdentity,
    Decision,
    DecisionStatus,
    Plan,
    ResolveRequest,
    SettledDecision,
    Write,
)
from kafka_eos_sink.errors import InvalidRowError, Job, KafkaEosError
from kafka_eos_sink.producer.produce_errors import clock_skew_error
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.messages import ProduceResponse
from kafka_eos_sink.runtime.topics import require_topic
from kafka_eos_sink.settings.options import read_options
from tests.messages import QUERY, decision_of
from tests.runs import run_of
from tools import error_pages

CODE = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+|PROTOCOL|FENCED|UNRESOLVED|FAILPOINT|ABORTED|TAINTED")
RAISERS = {name for name in vars(errors) if name.endswith("Error")} | {
    "_bad",
    "refused",
    "LostResponse",
    "BadRows",
    "TopicProblem",
    "_reject",
}
SERVERS = "--bootstrap-servers localhost:9092"
ORDERS = Write("kafka-eos/nightly-orders/orders", DEFAULT_TOPIC, SERVERS)
LAG = Write(f"kafka-eos-{QUERY}", DEFAULT_TOPIC, SERVERS)


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


def test_every_code_that_is_raised_is_documented() -> None:
    raised = raised_codes()
    assert len(raised) > 30, f"the search for codes is broken: {sorted(raised)}"
    missing = sorted(raised - set(error_codes()))
    assert not missing, f"add a row to kafka_eos_sink/errors.toml for each of {missing}, and run {error_pages.COMMAND}"


def test_every_code_has_one_heading_and_its_anchor() -> None:
    codes = error_codes()
    assert len(codes) == len(set(codes))
    assert {code.lower() for code in codes} <= anchors(ERRORS)


def test_page_is_made_from_the_rows() -> None:
    text = ERRORS.read_text("utf-8")
    assert error_pages.page(text) == text, f"run {error_pages.COMMAND}"


def batch(version: int, **changes: Any) -> BatchIdentity:
    made = BatchIdentity(
        query_id=BATCH_QUERY_ID, version=version, topic="orders", schema="value string", offsets_hash=None
    )
    return replace(made, **changes)


def no_topic() -> KafkaEosError:
    """The error of a plan for a topic that no broker knows."""
    times = iter(range(0, 10_000_000, 1_000))
    client = SimpleNamespace(clock=lambda: next(times), wait=lambda *_: None)
    settings: Any = SimpleNamespace(
        batch=SimpleNamespace(topic="orders"), producer=SimpleNamespace(max_block_ms=60_000)
    )
    admin: Any = SimpleNamespace(client=client, topic=lambda *_: None)
    with pytest.raises(InvalidRowError) as raised:
        require_topic(settings, admin)
    raised.value.concern(Job.BATCH, has_plan=False)
    return raised.value


def wrong_options() -> KafkaEosError:
    with pytest.raises(KafkaEosError) as raised:
        read_options({"kafka.bootstrap.servers": "localhost:9092", "topics": "orders", "kafka.acks": "1"})
    return raised.value


def wrong_clock(monkeypatch: pytest.MonkeyPatch) -> KafkaEosError:
    monkeypatch.setattr("platform.node", lambda: "worker-7")
    text = "Timestamp 1795230131482 of message with offset 0 is out of range. The timestamp should be within [-1, 1795228930917]"
    response = ProduceResponse.Topic.Partition(
        index=0, error_code=ErrorCode.INVALID_TIMESTAMP, base_offset=-1, error_message=text
    )
    client: Any = SimpleNamespace(config=SimpleNamespace(bootstrap_servers_text="localhost:9092"))
    error = clock_skew_error(("orders", 0), response, client)
    assert error is not None
    error.concern(Job.BATCH)
    return error


def older_version() -> KafkaEosError:
    """The error of a resolution of a version that was decided before the newest one."""
    newest = LoggedDecision(decision_of(ORDERS, BATCH_QUERY_ID, 20261121), 0)
    query: Any = SimpleNamespace(
        query_id=BATCH_QUERY_ID, newest=newest, undecided=(), state_of=lambda _: VersionState.FINISHED
    )
    request = ResolveRequest(run=run_of(write=ORDERS), query_id=None, version=20261119, resolution="rewrite")
    return resolve_refusals.nothing_to_resolve(request, query, ())


def plan_with(write: Write, newest: Decision) -> Plan:
    """A plan of a write whose commit log has one decision, which is finished."""
    settled = SettledDecision(decision=newest, status=DecisionStatus.FINISHED, rows=1, topics=("orders",))
    return Plan(
        write=write,
        nonce="n",
        driver=newest.driver,
        started_ms=0,
        transaction_timeout_ms=60_000,
        log_offset=0,
        decisions=(settled,),
    )


def examples(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, KafkaEosError]:
    """Heading -> the error of the message below it."""
    version = decision_of(ORDERS, BATCH_QUERY_ID, 20261121)
    of_version = {"write": ORDERS, "decision": version}
    commit = f"the coordinator has not confirmed the commit of {ORDERS.id}.1.0 in time (REQUEST_TIMED_OUT)"
    begins = "orders-0 begins at offset 20000, after the lost rows"
    too_late = "the finished transaction of partition 3 was aborted while other tasks still wrote"
    stream = {"query_id": QUERY, "streaming": True}
    with pytest.raises(KafkaEosError) as different:
        admit(plan_with(ORDERS, version), batch(20261121))
    concerned = {
        "read-a-message": refused("DECIDED_NOT_FINISHED", **of_version, why=commit),
        "transaction_too_old": refused("TRANSACTION_TOO_OLD", elapsed=905.0, limit=900.0, why=too_late),
        "fenced": refused("FENCED", write=ORDERS, why=f"it holds {ORDERS.driver_id}"),
        "different_batch": different.value,
        "lost_parts": refused(
            "LOST_PARTS",
            **of_version,
            rows=12_345,
            aborted="1 of its 4 transactions was",
            ranges=describe_ranges(version.transactions),
            why=begins,
        ),
    }
    for error in concerned.values():
        error.concern(Job.BATCH)
    after_another_sink = refused("COMMIT_LOG_LOST.unknown_query", write=LAG, batch=batch(42, **stream))
    after_another_sink.concern(Job.STREAM)
    with pytest.raises(KafkaEosError) as rolled_back:
        admit(plan_with(LAG, decision_of(LAG, QUERY, 42)), batch(41, **stream))
    rolled_back.value.concern(Job.STREAM)
    return {
        **concerned,
        "checkpoint_rolled_back": rolled_back.value,
        "clock_skew": wrong_clock(monkeypatch),
        "commit_log_lost": after_another_sink,
        "nothing_to_resolve": older_version(),
        "unknown_topic": no_topic(),
        "invalid_options": wrong_options(),
    }


def test_page_shows_messages_as_the_code_makes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines are broken for the page; a real message has one line."""
    shown = {
        (block.section if block.section != "producer_fenced" else "fenced"): " ".join(block.text.split())
        for block in read(ERRORS).blocks
        if block.text.startswith("[KAFKA_EOS.")
    }
    assert shown == {section: " ".join(str(error).split()) for section, error in examples(monkeypatch).items()}


def test_page_on_the_change_of_a_sink_shows_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    (shown,) = [
        block.text for block in read(ROOT / "docs" / "migrate.md").blocks if block.text.startswith("[KAFKA_EOS.")
    ]
    begin = " ".join(shown.split()).removesuffix(" ...")
    assert str(examples(monkeypatch)["commit_log_lost"]).startswith(begin)
    assert begin.endswith("--version 41 --as committed --query-id " + QUERY + ";")


def test_runbook_shows_the_message_of_a_decided_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    (shown,) = [
        block.text for block in read(ROOT / "docs" / "runbooks.md").blocks if block.text.startswith("[KAFKA_EOS.")
    ]
    assert " ".join(shown.split()) == str(examples(monkeypatch)["read-a-message"])
