"""What each error code asks for, per API: one table for admin, producer and commit (Kafka 4; KIP-360, 588, 890, 1050).

A row is an API, a reaction, and the codes that ask for it. A code without a row is met by its API's strictest reaction:
a newer broker's new code may mean anything. Only where an API merely reads or is idempotent by itself, a code that
Kafka calls retriable may always be tried again.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from kafka_eos_sink.errors import (
    AuthorizationError,
    BrokerRefusedError,
    FencedError,
    KafkaEosError,
    TransactionAbortedError,
)
from kafka_eos_sink.protocol import messages
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.schema import Request


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


_LEADER = """NOT_LEADER_OR_FOLLOWER UNKNOWN_TOPIC_OR_PARTITION UNKNOWN_TOPIC_ID LEADER_NOT_AVAILABLE FENCED_LEADER_EPOCH
    UNKNOWN_LEADER_EPOCH KAFKA_STORAGE_ERROR NETWORK_EXCEPTION REPLICA_NOT_AVAILABLE"""
_COORDINATOR = "COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR"
_AUTHORIZATION = """TOPIC_AUTHORIZATION_FAILED GROUP_AUTHORIZATION_FAILED CLUSTER_AUTHORIZATION_FAILED
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED"""

_ROWS: dict[type[Request[Any]], dict[Reaction, str]] = {
    messages.FindCoordinatorRequest: {
        Reaction.RETRY: "COORDINATOR_NOT_AVAILABLE COORDINATOR_LOAD_IN_PROGRESS REQUEST_TIMED_OUT",
        Reaction.CONFIGURATION: _AUTHORIZATION,
    },
    messages.InitProducerIdRequest: {
        Reaction.RETRY: "CONCURRENT_TRANSACTIONS COORDINATOR_LOAD_IN_PROGRESS REQUEST_TIMED_OUT",
        Reaction.FIND_COORDINATOR: _COORDINATOR,
        Reaction.FENCED: "INVALID_PRODUCER_EPOCH PRODUCER_FENCED",
        Reaction.CONFIGURATION: "INVALID_TRANSACTION_TIMEOUT UNSUPPORTED_VERSION " + _AUTHORIZATION,
        Reaction.ABORT: "TRANSACTION_ABORTABLE",
    },
    messages.AddPartitionsToTxnRequest: {
        Reaction.RETRY: """CONCURRENT_TRANSACTIONS COORDINATOR_LOAD_IN_PROGRESS UNKNOWN_TOPIC_OR_PARTITION
            REQUEST_TIMED_OUT""",
        Reaction.FIND_COORDINATOR: _COORDINATOR,
        Reaction.ABORT: "OPERATION_NOT_ATTEMPTED UNKNOWN_PRODUCER_ID TRANSACTION_ABORTABLE",
        Reaction.ABORT_CONFIGURATION: "TOPIC_AUTHORIZATION_FAILED",
        Reaction.FENCED: """INVALID_PRODUCER_EPOCH PRODUCER_FENCED INVALID_PRODUCER_ID_MAPPING INVALID_TXN_STATE
            TRANSACTIONAL_ID_AUTHORIZATION_FAILED""",
    },
    messages.ProduceRequest: {
        Reaction.SUCCESS: "DUPLICATE_SEQUENCE_NUMBER",
        Reaction.REFRESH_METADATA: _LEADER,
        Reaction.RETRY: """REQUEST_TIMED_OUT NOT_ENOUGH_REPLICAS NOT_ENOUGH_REPLICAS_AFTER_APPEND CORRUPT_MESSAGE
            COORDINATOR_NOT_AVAILABLE COORDINATOR_LOAD_IN_PROGRESS NOT_COORDINATOR CONCURRENT_TRANSACTIONS""",
        Reaction.RETRY_WHILE_EARLIER_UNANSWERED: "OUT_OF_ORDER_SEQUENCE_NUMBER",
        Reaction.ABORT: """UNKNOWN_PRODUCER_ID INVALID_PRODUCER_EPOCH PRODUCER_FENCED INVALID_TXN_STATE
            INVALID_PRODUCER_ID_MAPPING TRANSACTION_ABORTABLE""",
        Reaction.SPLIT: "MESSAGE_TOO_LARGE",
        Reaction.CONFIGURATION: """RECORD_LIST_TOO_LARGE INVALID_RECORD INVALID_TIMESTAMP INVALID_TOPIC_EXCEPTION
            INVALID_REQUIRED_ACKS UNSUPPORTED_FOR_MESSAGE_FORMAT UNSUPPORTED_COMPRESSION_TYPE POLICY_VIOLATION """
        + _AUTHORIZATION,
    },
    messages.AddOffsetsToTxnRequest: {
        Reaction.FIND_COORDINATOR: "REQUEST_TIMED_OUT " + _COORDINATOR,
        Reaction.RETRY: "COORDINATOR_LOAD_IN_PROGRESS CONCURRENT_TRANSACTIONS UNKNOWN_TOPIC_OR_PARTITION",
        Reaction.ABORT_CONFIGURATION: "GROUP_AUTHORIZATION_FAILED",
        Reaction.FENCED: """INVALID_PRODUCER_EPOCH PRODUCER_FENCED INVALID_TXN_STATE INVALID_PRODUCER_ID_MAPPING
            TRANSACTIONAL_ID_AUTHORIZATION_FAILED""",
        Reaction.ABORT: "UNKNOWN_PRODUCER_ID TRANSACTION_ABORTABLE",
    },
    messages.TxnOffsetCommitRequest: {
        Reaction.FIND_COORDINATOR: "REQUEST_TIMED_OUT " + _COORDINATOR,
        Reaction.RETRY: "COORDINATOR_LOAD_IN_PROGRESS CONCURRENT_TRANSACTIONS UNKNOWN_TOPIC_OR_PARTITION",
        Reaction.ABORT_CONFIGURATION: """GROUP_AUTHORIZATION_FAILED TOPIC_AUTHORIZATION_FAILED ILLEGAL_GENERATION
            UNKNOWN_MEMBER_ID FENCED_INSTANCE_ID FENCED_MEMBER_EPOCH STALE_MEMBER_EPOCH GROUP_ID_NOT_FOUND
            OFFSET_METADATA_TOO_LARGE""",
        Reaction.FENCED: """INVALID_PRODUCER_EPOCH PRODUCER_FENCED INVALID_TXN_STATE INVALID_PRODUCER_ID_MAPPING
            TRANSACTIONAL_ID_AUTHORIZATION_FAILED""",
        Reaction.ABORT: "UNKNOWN_PRODUCER_ID TRANSACTION_ABORTABLE",
    },
    messages.EndTxnRequest: {
        Reaction.RETRY: "CONCURRENT_TRANSACTIONS COORDINATOR_LOAD_IN_PROGRESS REQUEST_TIMED_OUT",
        Reaction.FIND_COORDINATOR: _COORDINATOR,
        Reaction.UNKNOWN: """INVALID_PRODUCER_EPOCH PRODUCER_FENCED INVALID_PRODUCER_ID_MAPPING INVALID_TXN_STATE
            UNKNOWN_PRODUCER_ID TRANSACTION_ABORTABLE""",
        Reaction.CONFIGURATION: "TRANSACTIONAL_ID_AUTHORIZATION_FAILED UNSUPPORTED_VERSION",
    },
    messages.MetadataRequest: {Reaction.REFRESH_METADATA: _LEADER},
    messages.ListOffsetsRequest: {Reaction.REFRESH_METADATA: _LEADER, Reaction.RETRY: "OFFSET_NOT_AVAILABLE"},
    messages.FetchRequest: {
        Reaction.REFRESH_METADATA: _LEADER + " INCONSISTENT_TOPIC_ID",
        Reaction.OUT_OF_RANGE: "OFFSET_OUT_OF_RANGE",
    },
    messages.CreateTopicsRequest: {
        Reaction.SUCCESS: "TOPIC_ALREADY_EXISTS",
        Reaction.REFRESH_METADATA: "NOT_CONTROLLER",
        Reaction.RETRY: "REQUEST_TIMED_OUT",
    },
    messages.DescribeConfigsRequest: {Reaction.RETRY: "REQUEST_TIMED_OUT"},
    messages.DescribeProducersRequest: {Reaction.REFRESH_METADATA: _LEADER},
    messages.DescribeTransactionsRequest: {
        Reaction.NOT_FOUND: "TRANSACTIONAL_ID_NOT_FOUND",
        Reaction.FIND_COORDINATOR: _COORDINATOR,
        Reaction.RETRY: "COORDINATOR_LOAD_IN_PROGRESS",
    },
    messages.ListTransactionsRequest: {Reaction.RETRY: "COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE"},
    messages.WriteTxnMarkersRequest: {
        Reaction.REFRESH_METADATA: _LEADER,
        Reaction.RETRY: "REQUEST_TIMED_OUT NOT_ENOUGH_REPLICAS NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    },
    messages.OffsetFetchRequest: {
        Reaction.FIND_COORDINATOR: _COORDINATOR,
        Reaction.RETRY: "COORDINATOR_LOAD_IN_PROGRESS UNSTABLE_OFFSET_COMMIT",
    },
}

_STRICTEST: dict[type[Request[Any]], Reaction] = {
    # Before the decision an attempt can always be given up; after it, nobody may guess.
    messages.InitProducerIdRequest: Reaction.ABORT,
    messages.AddPartitionsToTxnRequest: Reaction.ABORT,
    messages.ProduceRequest: Reaction.ABORT,
    messages.AddOffsetsToTxnRequest: Reaction.ABORT,
    messages.TxnOffsetCommitRequest: Reaction.ABORT,
    messages.EndTxnRequest: Reaction.UNKNOWN,
}

REACTIONS: dict[tuple[type[Request[Any]], ErrorCode], Reaction] = {
    (request, ErrorCode[name]): asked_for
    for request, rows in _ROWS.items()
    for asked_for, names in rows.items()
    for name in names.split()
}
"""(API, code) -> reaction, for the codes that have a row."""


def reaction(request: type[Request[Any]], code: int) -> Reaction:
    """The reaction to `code` (not NONE) in an answer to the request class `request`, e.g. `EndTxnRequest`."""
    error = ErrorCode.of(code)
    row = REACTIONS.get((request, error))
    if row is not None:
        return row
    if error is ErrorCode.THROTTLING_QUOTA_EXCEEDED:
        return Reaction.RETRY
    strictest = _STRICTEST.get(request)
    if strictest is not None:
        return strictest
    return Reaction.RETRY if error.retriable else Reaction.CONFIGURATION


_MISSING_RIGHT = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Write and Describe (to read it: Read; to create it: Create) on the topic",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Write and Describe on the transactional id (or on its prefix)",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Read on the consumer group",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "a right on the cluster (Create, Alter, ClusterAction or IdempotentWrite)",
}

_OWN_CODE = {
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: "INVALID_TRANSACTION_TIMEOUT",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "UNKNOWN_TOPIC",
}


def refusal(request: type[Request[Any]], code: int, what: str, broker_message: str | None = None) -> KafkaEosError:
    """The error to raise where the reaction to `code` ends the matter.

    `what` says in half a sentence what was asked of whom, e.g. "InitProducerId of transactional id 'a.b'". Returns an
    AuthorizationError (code = Kafka's name, e.g. TOPIC_AUTHORIZATION_FAILED) that names the right, a FencedError
    (PRODUCER_FENCED), a TransactionAbortedError (TRANSACTION_ABORTED), or a BrokerRefusedError
    (INVALID_TRANSACTION_TIMEOUT, UNKNOWN_TOPIC, else BROKER_REFUSED with Kafka's name in the text).
    """
    error = ErrorCode.of(code)
    said = f"{what} was answered {error.name}: {broker_message or error.message}"
    if error in _MISSING_RIGHT:
        return AuthorizationError(error.name, f"{said} The principal lacks {_MISSING_RIGHT[error]}; have it granted.")
    asked_for = reaction(request, code)
    if asked_for is Reaction.FENCED:
        return FencedError("PRODUCER_FENCED", f"{said} A newer owner of the transactional id has taken over.")
    if asked_for is Reaction.ABORT:
        return TransactionAbortedError("TRANSACTION_ABORTED", f"{said} A new attempt may succeed.")
    return BrokerRefusedError(_OWN_CODE.get(error, "BROKER_REFUSED"), said)
