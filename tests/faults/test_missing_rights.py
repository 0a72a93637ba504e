"""What a write does without rights that it can do without: it says what it can no longer see, once, and goes on."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from kafka_eos_sink.protocol import messages as m
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_testing import unique_topic

from .bench import Bench, write_whole
from .fault_proxy import Answer, Rule

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


def test_without_read_commit_is_proven_by_last_stable_offset(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    topic = bench.topic()
    bench.proxy.inject(Rule(m.DescribeProducersRequest, REFUSED, count=None))
    with caplog.at_level(logging.WARNING):
        write_whole(bench.write_settings(topic))
    assert not bench.proxy.unfired
    bench.assert_exactly_once(topic)
    bench.assert_nothing_open(topic)
    assert said(caplog, f"without the right to Read {topic} it cannot be checked") == 1
    assert said(caplog, "not proven that readers see the committed rows") == 0


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
