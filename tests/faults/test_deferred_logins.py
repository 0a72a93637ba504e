"""Logins that a broker rejects for the moment: the write retries them, and keeps its other connections.

The proxy plays the listener's SASL. The broker behind it takes none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from dead_writes import varied
from kafka_eos_sink.client.admin import Admin, lease_admin
from kafka_eos_sink.client.security import (
    PasswordCredentials,
    SaslConfig,
    Secret,
    SecurityConfig,
)
from kafka_eos_sink.errors import KafkaEosError
from kafka_eos_sink.protocol import messages as m
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.runtime import session

from .bench import Bench, write_tasks, write_whole
from .fault_proxy import LoseRequest, Reply, Rule, Seen

TOO_MANY = "[74909301-1b7d-44fe-b02e-fe699c66c073]: Too many connects"
PASSWORD = "not to be told"
CREDENTIALS = PasswordCredentials(username="alice", password=Secret(PASSWORD))
CLIENT = {
    "security": SecurityConfig(protocol="SASL_PLAINTEXT", sasl=SaslConfig(mechanism="PLAIN", credentials=CREDENTIALS))
}
HANDSHAKE = Reply(lambda request: m.SaslHandshakeResponse(error_code=0, mechanisms=(request.mechanism,)))
LOGGED_IN = Reply(lambda _: m.SaslAuthenticateResponse(error_code=0, error_message=None, auth_bytes=b""))


def rejected(message: str | None, code: ErrorCode = ErrorCode.SASL_AUTHENTICATION_FAILED) -> Reply:
    return Reply(lambda _: m.SaslAuthenticateResponse(error_code=code, error_message=message, auth_bytes=b""))


def logins(bench: Bench) -> list[Seen]:
    return [each for each in bench.proxy.requests if each.api is m.SaslAuthenticateRequest]


def handshakes_then(*rules: Rule) -> tuple[Rule, ...]:
    """Handshakes succeed, and so do the logins that no rule takes."""
    return (
        *rules,
        Rule(m.SaslHandshakeRequest, HANDSHAKE, count=None),
        Rule(m.SaslAuthenticateRequest, LOGGED_IN, count=None),
    )


FOR_NOW: dict[str, Any] = {
    "MSK": rejected(TOO_MANY),
    "quota": rejected(None, ErrorCode.THROTTLING_QUOTA_EXCEEDED),
    "code-of-a-starting-broker": rejected(None, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    "closed": LoseRequest(),
}


@pytest.mark.parametrize("reason", FOR_NOW)
def test_write_retries_login_that_is_rejected_for_now(bench_of: Callable[[int], Bench], reason: str) -> None:
    bench = bench_of(2)
    topic = bench.topic()
    bench.proxy.inject(*handshakes_then(Rule(m.SaslAuthenticateRequest, FOR_NOW[reason], count=7)))
    write_whole(bench.write_settings(topic, client=CLIENT))
    assert not bench.proxy.unfired
    bench.assert_exactly_once(topic)
    bench.assert_nothing_open(topic)


def test_login_is_retried_after_the_longest_backoff(bench_of: Callable[[int], Bench]) -> None:
    """A quick retry is one more login above the limit."""
    bench = bench_of(2)
    bench.proxy.inject(*handshakes_then(Rule(m.SaslAuthenticateRequest, rejected(TOO_MANY), count=3)))
    backoffs = {"reconnect_backoff_ms": 1, "reconnect_backoff_max_ms": 500}
    settings = bench.write_settings(bench.topic(), client={**CLIENT, **backoffs})
    with lease_admin(settings.client) as admin:
        admin.client.any_node(admin.client.clock() + 60_000)
    came = [each.at for each in logins(bench)]
    assert len(came) >= 4
    assert min(later - earlier for earlier, later in pairwise(came[:4])) >= 0.5 * 0.75


def test_reauthentication_rejected_for_now_connects_again(bench_of: Callable[[int], Bench]) -> None:
    """KIP-368: the broker closes the connection of a failed re-authentication, and the requests in flight are resent."""
    bench = bench_of(2)
    topic = bench.topic()
    short = Reply(
        lambda _: m.SaslAuthenticateResponse(error_code=0, error_message=None, auth_bytes=b"", session_lifetime_ms=1)
    )
    settings = bench.write_settings(topic, client=CLIENT)
    # The first logins last for a millisecond, so that each next request begins with a re-authentication.
    bench.proxy.inject(
        *handshakes_then(
            Rule(m.SaslAuthenticateRequest, rejected(TOO_MANY), nth=2),
            Rule(m.SaslAuthenticateRequest, rejected(TOO_MANY), nth=5, count=2),
            Rule(m.SaslAuthenticateRequest, rejected(TOO_MANY), nth=9),
            Rule(m.SaslAuthenticateRequest, short, count=12),
        )
    )
    write_whole(settings)
    assert not bench.proxy.unfired
    bench.assert_exactly_once(topic)
    bench.assert_nothing_open(topic)


def test_failed_attempt_keeps_the_connections_of_its_process(bench_of: Callable[[int], Bench]) -> None:
    bench = bench_of(2)
    topic = bench.topic()
    settings = bench.write_settings(topic, client=CLIENT)
    bench.proxy.inject(*handshakes_then())
    plan = session.plan(settings)
    before = len(logins(bench))
    for _ in range(3):
        with pytest.raises(KafkaEosError, match="UNKNOWN_TOPIC"):
            session.plan(
                varied(settings, topic="no-such-topic", producer=replace(settings.producer, max_block_ms=1_000))
            )
    assert len(logins(bench)) == before
    session.commit(settings, plan, write_tasks(settings, plan))
    bench.assert_exactly_once(topic)


def test_request_of_a_failed_attempt_ends_with_its_connection(bench_of: Callable[[int], Bench]) -> None:
    """The next attempt must not get its response."""
    bench = bench_of(2)
    settings = bench.write_settings(bench.topic(), client=CLIENT)
    bench.proxy.inject(*handshakes_then())
    left: list[tuple[Admin, int]] = []

    def fail_with_a_request_in_flight() -> None:
        with lease_admin(settings.client) as admin:
            client = admin.client
            assert client.wait_for_metadata(client.clock() + 60_000)
            node_id = client.any_node(client.clock() + 60_000)
            left.append((admin, client.send(node_id, m.ListTransactionsRequest()).node_id))
            raise KafkaEosError("FOR_TEST", "the attempt fails")

    with pytest.raises(KafkaEosError, match="FOR_TEST"):
        fail_with_a_request_in_flight()
    before = len(logins(bench))
    with lease_admin(settings.client) as again:
        ((admin, node_id),) = left
        assert again is admin
        assert again.client.in_flight(node_id) == 0
        assert again.client.any_node(again.client.clock() + 60_000) == node_id
        again.client.pump(0)
        assert not again.client._completions
    assert len(logins(bench)) == before + 1
