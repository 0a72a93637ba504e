"""Repeating what a cluster could not do yet: one `Retry` per operation, until its deadline."""

from __future__ import annotations

from typing import Any

from kafka_eos_sink.client.backoff import ExponentialBackoff
from kafka_eos_sink.client.connection import LostAnswer
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.errors import BrokerUnavailableError, KafkaEosError
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.messages import MetadataRequest
from kafka_eos_sink.protocol.reactions import Reaction, reaction, refusal
from kafka_eos_sink.protocol.schema import Request

_TRY_AGAIN = (Reaction.RETRY, Reaction.REFRESH_METADATA, Reaction.FIND_COORDINATOR)


class Retry:
    """The repetitions of one operation: what stood in the way last, and how long to pause.

    `what` names the operation for messages; `first_ms` is the first pause where `retry.backoff.ms` is too long for what
    is waited for (a transaction's markers take a few ms, not 100).
    """

    def __init__(self, client: NetworkClient, what: str, deadline_ms: int, *, first_ms: int | None = None) -> None:
        self.what = what
        self.deadline_ms = deadline_ms
        self.reason = "no answer"
        self._client = client
        self._attempts = 0
        self._was_answered = False
        self._metadata_is_old = False
        config = client.config
        self._backoff = ExponentialBackoff(
            config.retry_backoff_ms if first_ms is None else min(first_ms, config.retry_backoff_ms),
            config.retry_backoff_max_ms,
        )

    def failed(self, error: KafkaEosError) -> None:
        """A request had no answer: remembered, to be repeated. Raises what no repetition can mend."""
        if not isinstance(error, (LostAnswer, BrokerUnavailableError)):
            raise error
        # A try that the deadline itself cut short says less than the answer before it.
        if not (self._was_answered and self.expired):
            self.reason = error.message
        self._client.request_metadata_update()

    def answered(
        self, request: type[Request[Any]], code: int, about: str | None = None, broker_message: str | None = None
    ) -> Reaction:
        """A request was answered with an error code: RETRY, REFRESH_METADATA (which `pause` does), FIND_COORDINATOR, or
        what else is no failure. Raises where the code ends the matter."""
        asked_for = reaction(request, code)
        what = self.what if about is None else about
        if asked_for in _TRY_AGAIN:
            self._was_answered = True
            self.reason = f"{what} was answered {ErrorCode.of(code).name}"
            # To repeat a Metadata request is to refresh.
            self._metadata_is_old |= asked_for is Reaction.REFRESH_METADATA and request is not MetadataRequest
        elif asked_for not in (Reaction.SUCCESS, Reaction.NOT_FOUND, Reaction.OUT_OF_RANGE):
            raise refusal(request, code, what, broker_message)
        return asked_for

    @property
    def expired(self) -> bool:
        """Whether the deadline has passed."""
        return self._client.clock() >= self.deadline_ms

    def timeout(self) -> BrokerUnavailableError:
        """The error that says that the deadline passed, and what stood in the way."""
        return BrokerUnavailableError("REQUEST_DEADLINE", f"{self.what} was not done in time; last: {self.reason}")

    def pause(self) -> None:
        """Back off before the next try, while the pump goes on. Raises `timeout()` when the deadline passes over it.

        A node that was the wrong one is not asked again before metadata newer than its answer has come.
        """
        self._client.wait(self._backoff.delay_ms(self._attempts), self.deadline_ms)
        self._attempts += 1
        if self._metadata_is_old:
            self._metadata_is_old = not self._client.wait_for_metadata(self.deadline_ms)
        if self.expired:
            raise self.timeout()


def ask_any_node(client: NetworkClient, request: Request[Any], retry: Retry) -> Any:
    """The answer of any node; lost answers are retried until the deadline."""
    while True:
        node_id = client.any_node(retry.deadline_ms)
        (result,) = client.call_all([(node_id, request, None)], retry.deadline_ms)
        if not isinstance(result, KafkaEosError):
            return result
        retry.failed(result)
        retry.pause()
