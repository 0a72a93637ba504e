"""What a repetition says when its deadline has passed."""

from __future__ import annotations

from typing import Any

import pytest

from kafka_eos_sink.client.config import ClientConfig
from kafka_eos_sink.client.connection import RequestTimedOut
from kafka_eos_sink.client.retry import Retry
from kafka_eos_sink.errors import BrokerUnavailableError
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.messages import FindCoordinatorRequest


class Clock:
    """As much of a client as a `Retry` needs; waiting takes as long as it is told."""

    def __init__(self) -> None:
        self.now = 0
        self.config = ClientConfig(bootstrap_servers=(("localhost", 9092),))

    def clock(self) -> int:
        return self.now

    def wait(self, ms: int, deadline_ms: int) -> None:
        self.now = min(self.now + ms, deadline_ms)

    def request_metadata_update(self) -> None:
        pass


def said_at_the_deadline(*, answered: bool, lost_at: int) -> str:
    client: Any = Clock()
    retry = Retry(client, "FindCoordinator", 1_000)
    if answered:
        retry.on_code(FindCoordinatorRequest, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, retry.what)
    client.now = lost_at
    retry.on_error(RequestTimedOut("REQUEST_TIMED_OUT", "no answer within the request timeout"))
    client.now = 1_000
    with pytest.raises(BrokerUnavailableError) as raised:
        retry.pause()
    return raised.value.message


def test_try_cut_short_by_deadline_keeps_the_earlier_response() -> None:
    """Its request had the few milliseconds that were left, which says nothing about the cluster."""
    assert "last: FindCoordinator returned COORDINATOR_LOAD_IN_PROGRESS" in said_at_the_deadline(
        answered=True, lost_at=1_000
    )


def test_response_lost_before_deadline_is_the_last_known_state() -> None:
    assert "last: no answer within" in said_at_the_deadline(answered=True, lost_at=990)


def test_lost_response_is_named_when_none_ever_arrived() -> None:
    assert "last: no answer within" in said_at_the_deadline(answered=False, lost_at=1_000)
