"""Retries with backoff until a deadline."""

from __future__ import annotations

import logging
from typing import Any

from kafka_eos_sink.client.config import ExponentialBackoff
from kafka_eos_sink.client.connection import LostResponse
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.errors import BrokerUnavailableError, KafkaEosError
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.messages import MetadataRequest
from kafka_eos_sink.protocol.reactions import RETRIES, Reaction, reaction
from kafka_eos_sink.protocol.schema import Request

log = logging.getLogger(__name__)


class Retry:
    """The backoff, the deadline and the last problem of one operation.

    Args:
        what: The operation's name for messages.
        deadline_ms: Absolute time of the client's clock.
        first_ms: The first backoff, if ``retry.backoff.ms`` is longer than the operation usually takes.
    """

    def __init__(self, client: NetworkClient, what: str, deadline_ms: int, *, first_ms: int | None = None) -> None:
        self.what = what
        self.deadline_ms = deadline_ms
        self.reason = "no response"
        self._client = client
        self._attempts = 0
        self.last_code: ErrorCode | None = None
        self._metadata_is_old = False
        self._node: int | None = None
        config = client.config
        self._backoff = ExponentialBackoff(
            config.retry_backoff_ms if first_ms is None else min(first_ms, config.retry_backoff_ms),
            config.retry_backoff_max_ms,
        )

    def on_error(self, error: KafkaEosError, node_id: int | None = None) -> None:
        """Record why a request got no response; raise the error if no retry can help."""
        if not isinstance(error, (LostResponse, BrokerUnavailableError)):
            raise error
        # The deadline itself cut the last try short. An earlier error code describes the cluster better.
        if not (self.last_code is not None and self.expired):
            self.reason = error.message
            self._node = node_id
        # The broker may be down. Fresh metadata lists the brokers that are up.
        self._client.request_metadata_update()

    def on_code(self, request: type[Request[Any]], code: int, what: str, node_id: int | None = None) -> Reaction:
        """Return the reaction to an error code, and record the code of a retry."""
        action = reaction(request, code)
        if action in RETRIES:
            self.last_code = ErrorCode.of(code)
            self.reason = f"{what} returned {ErrorCode.of(code).name}"
            self._node = node_id
            # A retry of a Metadata request is itself the refresh.
            self._metadata_is_old |= action is Reaction.REFRESH_METADATA and request is not MetadataRequest
        return action

    @property
    def expired(self) -> bool:
        return self._client.clock() >= self.deadline_ms

    def timeout(self) -> BrokerUnavailableError:
        """Return the error for a passed deadline, with the last problem."""
        return BrokerUnavailableError(
            "REQUEST_DEADLINE", f"{self.what} did not succeed before its deadline; last: {self.reason}"
        )

    def pause(self) -> None:
        """Back off before the next try; the client keeps pumping meanwhile.

        Raises:
            BrokerUnavailableError: REQUEST_DEADLINE once the deadline has passed.
        """
        delay_ms = self._backoff.delay_ms(self._attempts)
        log.debug("%s: retry in %d ms (broker %s): %s", self.what, delay_ms, self._node, self.reason)
        self._client.wait(delay_ms, self.deadline_ms)
        self._attempts += 1
        if self._metadata_is_old:
            # Without metadata newer than the rejection, the next try would go to the same wrong node.
            self._metadata_is_old = not self._client.wait_for_metadata(self.deadline_ms)
        if self.expired:
            raise self.timeout()
