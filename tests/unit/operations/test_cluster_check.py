"""What a hostile or broken broker sends to ``kafka-eos check`` is an error or one line of the report."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kafka_eos_sink.client.connection import BrokerVersions
from kafka_eos_sink.errors import AuthenticationError, ProtocolError
from kafka_eos_sink.operations import cluster_check
from kafka_eos_sink.protocol.messages import ApiVersionsResponse
from kafka_eos_sink.runtime.requirements import MAX_TIMEOUT, transaction_timeout

LINE = "x\nexecutor db7, process 1: ok"


def admin(*, level: int = 30, **settings: str) -> Any:
    feature = ApiVersionsResponse.SupportedFeature(name="metadata.version", min_version=0, max_version=level)
    versions = ApiVersionsResponse(error_code=0, api_keys=(), supported_features=(feature,))
    broker = SimpleNamespace(node_id=1, host=LINE, port=9092)
    client = SimpleNamespace(
        metadata=SimpleNamespace(brokers={1: broker}, cluster_id=LINE),
        clock=lambda: 0,
        call=lambda *_, **__: versions,
        any_node=lambda _: 1,
        versions=lambda _: BrokerVersions(api_versions={}),
        config=SimpleNamespace(bootstrap_servers_text="a:1"),
        finalized_features=dict,
    )
    shown = {name.replace("_", "."): value for name, value in settings.items()}
    return SimpleNamespace(
        client=client, transaction_version=lambda _: 2, describe_configs=lambda *_: {"cleanup.policy": LINE, **shown}
    )


def test_names_of_the_cluster_and_its_brokers_are_one_line() -> None:
    found = list(cluster_check._brokers(admin(), 0))
    assert sum("executor db7" in each.found for each in found) == 2
    assert not any("\n" in each.found + each.what for each in found)


def test_broker_that_rejects_the_login_is_named_with_the_code() -> None:
    def call(*_: object, **__: object) -> None:
        raise AuthenticationError("SASL_AUTHENTICATION_FAILED", "wrong password")

    given = admin()
    given.client.call = call
    (found,) = (each for each in cluster_check._brokers(given, 0) if each.result is cluster_check.CheckResult.FAILS)
    assert "[KAFKA_EOS.SASL_AUTHENTICATION_FAILED] wrong password" in found.meaning


@pytest.mark.parametrize("value", ["", "15 minutes", LINE, "1" * 5_000])
def test_setting_that_is_no_number_is_a_protocol_error(value: str) -> None:
    topic: Any = SimpleNamespace(partitions=(), replication_factor=0)
    with pytest.raises(ProtocolError, match=r"min\.insync\.replicas is .* not a number") as caught:
        list(cluster_check._configs(admin(), "topic t", topic, {"min.insync.replicas": value}, False))
    assert "\n" not in caught.value.message
    with pytest.raises(ProtocolError, match="not a number"):
        list(cluster_check._transactions(admin(transaction_max_timeout_ms=value), 0))
    settings: Any = SimpleNamespace(producer=SimpleNamespace(transaction_timeout_ms=None))
    with pytest.raises(ProtocolError, match="not a number"):
        transaction_timeout(settings, {MAX_TIMEOUT: value})
