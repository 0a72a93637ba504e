"""What a cluster must offer, behind a proxy that hides it: a write is refused when it is planned, or goes on with less."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kafka_eos_sink.errors import ConfigurationError
from kafka_eos_sink.protocol import messages as m
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.schema import Request
from kafka_eos_sink.runtime import session

from .bench import Bench, write_whole
from .fault_proxy import Answer, Change, Rule

BROKER = 4
"""The resource type of DescribeConfigs."""


def offering(api: type[Request[Any]], highest: int) -> Rule:
    """The broker's ApiVersions with this API up to a version, or (-1) without it."""

    def changed(answer: m.ApiVersionsResponse) -> m.ApiVersionsResponse:
        others = tuple(each for each in answer.api_keys if each.api_key != api.API_KEY)
        own = m.ApiVersionsResponse.ApiVersion(api_key=api.API_KEY, min_version=0, max_version=highest)
        return replace(answer, api_keys=others if highest < 0 else (*others, own))

    return Rule(m.ApiVersionsRequest, Change(changed), count=None)


def without_setting(hidden: str) -> Rule:
    def changed(answer: m.DescribeConfigsResponse) -> m.DescribeConfigsResponse:
        (result,) = answer.results
        return replace(
            answer, results=(replace(result, configs=tuple(c for c in result.configs if hidden not in c.name)),)
        )

    return Rule(m.DescribeConfigsRequest, Change(changed), count=None, where=of_a_broker)


def of_a_broker(request: Any) -> bool:
    return any(resource.resource_type == BROKER for resource in request.resources)


ALL_HIDDEN = Rule(
    m.DescribeConfigsRequest, Answer(ErrorCode.CLUSTER_AUTHORIZATION_FAILED), count=None, where=of_a_broker
)
VERIFICATION_HIDDEN = without_setting("verification")
NONE_SHOWN = without_setting("")
BEFORE_36 = offering(m.AddPartitionsToTxnRequest, 3)


@pytest.mark.parametrize("hidden", [ALL_HIDDEN, VERIFICATION_HIDDEN, NONE_SHOWN], ids=["all", "verification", "empty"])
def test_api_versions_prove_verification_if_settings_are_hidden(
    bench_of: Callable[[int], Bench], hidden: Rule, caplog: pytest.LogCaptureFixture
) -> None:
    bench = bench_of(0)
    topic = bench.topic()
    bench.proxy.inject(hidden)
    with caplog.at_level(logging.WARNING):
        write_whole(bench.write_settings(topic))
    assert not bench.proxy.unfired
    bench.assert_exactly_once(topic)
    assert "verify transactional appends" not in caplog.text


@pytest.mark.parametrize("hidden", [ALL_HIDDEN, NONE_SHOWN], ids=["all", "empty"])
def test_unknown_verification_is_a_warning(
    bench_of: Callable[[int], Bench], hidden: Rule, caplog: pytest.LogCaptureFixture
) -> None:
    bench = bench_of(0)
    topic = bench.topic()
    bench.proxy.inject(hidden, BEFORE_36)
    with caplog.at_level(logging.WARNING):
        write_whole(bench.write_settings(topic))
    assert not bench.proxy.unfired
    bench.assert_exactly_once(topic)
    assert caplog.text.count("whether the brokers verify transactional appends is unknown") == 1


def test_plan_fails_where_brokers_do_not_know_the_setting(bench_of: Callable[[int], Bench]) -> None:
    bench = bench_of(0)
    bench.proxy.inject(VERIFICATION_HIDDEN, BEFORE_36)
    with pytest.raises(ConfigurationError, match=r"TRANSACTIONS_NOT_VERIFIED\].*Kafka 3\.6 or newer"):
        session.plan(bench.write_settings(bench.topic()))
    assert m.InitProducerIdRequest not in {seen.api for seen in bench.proxy.requests}


def test_transaction_version_2_needs_no_verification(
    bench_of: Callable[[int], Bench], caplog: pytest.LogCaptureFixture
) -> None:
    bench = bench_of(2)
    topic = bench.topic()
    bench.proxy.inject(VERIFICATION_HIDDEN, BEFORE_36)
    with caplog.at_level(logging.WARNING):
        write_whole(bench.write_settings(topic))
    bench.assert_exactly_once(topic)
    assert not bench.proxy.unfired
    assert "verify" not in caplog.text
