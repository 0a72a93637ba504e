"""What each error code asks for, per API: one table for admin, producer and commit (Kafka 4.x; KIP-360, 588, 890, 1050).

A row is (API, code). A code that has no row falls back to the API's strictest reaction, but for read-only APIs, where
a retriable code may always be retried. A new code of a newer broker is met by the same rule.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from kafka_eos_sink.errors import KafkaEosError


class Reaction(Enum):
    """What to do about an error code."""

    SUCCESS = "what was asked for is already so"
    RETRY = "repeat the identical request with backoff, honouring the throttle time"
    REFRESH_METADATA = "refresh metadata, then repeat the identical request"
    FIND_COORDINATOR = "find the coordinator again, then repeat the identical request"
    RETRY_WHILE_EARLIER_UNANSWERED = "repeat while an earlier batch of the partition is unanswered, else abort"
    SPLIT = "split the batch and renumber; a single record is too large for the topic"
    ABORT = "abort this attempt; a new attempt takes a fresh producer id and epoch"
    ABORT_CONFIGURATION = "abort this attempt, then fail with a plain sentence: a new attempt meets the same"
    FENCED = "this identity is superseded: the task fails its attempt, the driver fails the query"
    CONFIGURATION = "configuration or rights: fail with a plain sentence"
    NOT_FOUND = "what was asked about does not exist"
    OUT_OF_RANGE = "the log does not reach to this offset (any more)"
    UNKNOWN = "the outcome is unknown: the witness decides"


def reaction(request: type[Any], code: int) -> Reaction:
    """The reaction to `code` (not NONE) in an answer to the request class `request`, e.g. `EndTxnRequest`."""
    raise NotImplementedError


def refusal(request: type[Any], code: int, what: str, broker_message: str | None = None) -> KafkaEosError:
    """The error to raise where the reaction to `code` ends the matter.

    `what` says in half a sentence what was asked of whom, e.g. "InitProducerId of transactional id 'a.b'". Returns an
    AuthorizationError (code = Kafka's name, e.g. TOPIC_AUTHORIZATION_FAILED) that names the right, a FencedError
    (PRODUCER_FENCED), a TransactionAbortedError (TRANSACTION_ABORTED), or a BrokerRefusedError (INVALID_TRANSACTION_TIMEOUT,
    UNKNOWN_TOPIC, else BROKER_REFUSED with Kafka's name in the text).
    """
    raise NotImplementedError
