"""What a cluster must offer, behind a proxy that hides it: a write is refused when it is planned, or goes on with less."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kafka_eos_sink.client.admin import connected
from kafka_eos_sink.errors import ConfigurationError, MissingApiError
from kafka_eos_sink.operations.cluster_check import CheckResult, check_cluster
from kafka_eos_sink.protocol import messages as m
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.schema import Request
from kafka_eos_sink.runtime import session
from kafka_testing import unique_topic

from .bench import Bench, write_whole
from .fault_proxy import Answer, Change, Rule

BROKER = 4
"""The resource type of DescribeConfigs."""


def offering(api: type[Request[Any]], highest: int) -> Rule:
    """The broker's ApiVersions with this API up to a version, or (-1) without it."""

    def changed(answer: m.ApiVersionsResponse) -> m.ApiVersionsResponse:
        keys = [replace(each, max_version=highest) if each.api_key == api.API_KEY else each for each in answer.api_keys]
        return replace(answer, api_keys=tuple(each for each in keys if each.max_version >= 0))

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


def test_plan_fails_if_brokers_lack_the_setting(bench_of: Callable[[int], Bench]) -> None:
    bench = bench_of(0)
    bench.proxy.inject(VERIFICATION_HIDDEN, BEFORE_36)
    with pytest.raises(ConfigurationError, match=r"TRANSACTIONS_NOT_VERIFIED\] nothing .* shows .*Kafka 3\.6 or newer"):
        session.plan(bench.write_settings(bench.topic()))
    assert m.InitProducerIdRequest not in {seen.api for seen in bench.proxy.requests}


@pytest.mark.parametrize(
    ("api", "highest"),
    [
        (m.ProduceRequest, 7),
        (m.DescribeTransactionsRequest, -1),
        (m.DescribeProducersRequest, -1),
        (m.EndTxnRequest, 2),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_plan_fails_without_an_api_before_anything_is_written(
    bench_of: Callable[[int], Bench], api: type[Request[Any]], highest: int
) -> None:
    bench = bench_of(2)
    given = bench.write_settings(bench.topic(), commit_log=unique_topic("commits"))
    bench.proxy.inject(offering(api, highest))
    name = api.__name__.removesuffix("Request")
    with pytest.raises(MissingApiError, match=rf"MISSING_API\].* {name} "):
        session.plan(given)
    assert {seen.api for seen in bench.proxy.requests} <= {m.ApiVersionsRequest, m.MetadataRequest}
    with connected(bench.proxy.bootstrap_servers) as admin:
        found = check_cluster(admin, topic=given.batch.topic, commit_log_topic=given.write.log_topic, timeout_ms=30_000)
    (fails,) = (each for each in found if each.result is CheckResult.FAILS)
    assert f"{name} " in fails.meaning


def reporting(operations: int) -> Rule:
    """The broker's Metadata with these bits as what the principal may do on each topic."""

    def changed(answer: m.MetadataResponse) -> m.MetadataResponse:
        topics = tuple(replace(each, topic_authorized_operations=operations) for each in answer.topics)
        return replace(answer, topics=topics)

    return Rule(m.MetadataRequest, Change(changed), count=None)


EVERYTHING = sum(1 << operation for operation in m.AclOperation)
READ, DESCRIBE = (1 << operation for operation in (m.AclOperation.READ, m.AclOperation.DESCRIBE))


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
