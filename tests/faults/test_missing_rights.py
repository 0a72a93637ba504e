"""Rights that a broker denies or does not report: a write fails without Read on its topics, and works with warnings without others."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from dead_writes import tasks
from kafka_eos_sink.errors import AuthorizationError
from kafka_eos_sink.protocol import messages as m
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.runtime import session
from kafka_testing import unique_topic

from .bench import Bench, write_whole
from .fault_proxy import Answer, Change, Rule

BROKER = 4
"""The resource type of DescribeConfigs."""
REFUSED = Answer(ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def said(caplog: pytest.LogCaptureFixture, what: str) -> int:
    return sum(what in record.getMessage() for record in caplog.records)


def test_unreadable_commit_log_policy_is_logged_once(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    commit_log = unique_topic("commits")

    def of_the_log(request: Any) -> bool:
        return any(resource.resource_name == commit_log for resource in request.resources)

    with caplog.at_level(logging.WARNING):
        for number in range(3):  # of three write ids; the first creates the log
            bench.proxy.inject(Rule(m.DescribeConfigsRequest, REFUSED, count=None, where=of_the_log))
            topic = bench.topic()
            write_whole(bench.write_settings(topic, commit_log=commit_log))
            assert number == 0 or not bench.proxy.unfired
            bench.assert_exactly_once(topic)
    assert said(caplog, f"the cleanup.policy of the commit log topic {commit_log!r} may not be read") == 1


def test_batch_is_not_decided_after_read_was_taken_away(bench: Bench) -> None:
    topic = bench.topic()
    given = bench.write_settings(topic)
    plan = session.plan(given)
    messages = tasks(given, plan)
    bench.proxy.inject(Rule(m.DescribeProducersRequest, REFUSED, count=None))
    with pytest.raises(
        AuthorizationError, match=rf"TOPIC_AUTHORIZATION_FAILED\] the principal may not Read {topic}\. "
    ):
        session.commit(given, plan, messages)
    session.abort(given, plan, messages)
    assert not bench.proxy.unfired
    bench.assert_exactly_once(topic, 0)
    bench.assert_nothing_open(topic)
    bench.proxy.inject()
    write_whole(given)
    bench.assert_exactly_once(topic)


def reporting(operations: int) -> Rule:
    """The broker's Metadata with these bits as what the principal may do on each topic."""

    def changed(answer: m.MetadataResponse) -> m.MetadataResponse:
        topics = tuple(replace(each, topic_authorized_operations=operations) for each in answer.topics)
        return replace(answer, topics=topics)

    return Rule(m.MetadataRequest, Change(changed), count=None)


EVERYTHING = sum(1 << operation for operation in m.AclOperation)
READ, DESCRIBE = (1 << operation for operation in (m.AclOperation.READ, m.AclOperation.DESCRIBE))


def test_plan_refuses_a_topic_without_read(bench: Bench) -> None:
    topic = bench.topic()
    bench.proxy.inject(reporting(EVERYTHING - READ))
    with pytest.raises(
        AuthorizationError, match=rf"TOPIC_AUTHORIZATION_FAILED\] the principal may not Read {topic}\. "
    ):
        session.plan(bench.write_settings(topic))
    assert m.InitProducerIdRequest not in {seen.api for seen in bench.proxy.requests}


@pytest.mark.parametrize(
    "operations", [m.UNKNOWN_AUTHORIZED_OPERATIONS, 0, EVERYTHING - READ - DESCRIBE], ids=["unset", "none", "not ours"]
)
def test_rights_that_the_broker_does_not_report_refuse_nothing(bench: Bench, operations: int) -> None:
    """A broker that shows a topic has granted Describe: without that bit it reports no rights."""
    topic = bench.topic()
    bench.proxy.inject(reporting(operations))
    write_whole(bench.write_settings(topic))
    assert not bench.proxy.unfired
    bench.assert_exactly_once(topic)


def test_unreadable_max_transaction_timeout_is_logged_once(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    def of_a_broker(request: Any) -> bool:
        return any(resource.resource_type == BROKER for resource in request.resources)

    bench.proxy.inject(Rule(m.DescribeConfigsRequest, REFUSED, count=None, where=of_a_broker))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):  # three writes of a process
            topic = bench.topic()
            write_whole(bench.write_settings(topic))
            bench.assert_exactly_once(topic)
    assert not bench.proxy.unfired
    assert said(caplog, "transaction.max.timeout.ms may not be read") == 1
