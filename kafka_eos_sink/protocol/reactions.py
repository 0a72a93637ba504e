"""The table of reactions to error codes, for all packages.

The codes are Kafka 4's (KIP-360, 588, 890, 1050). A row has an API, a reaction and the codes with that reaction.
``_WITHOUT_ROW`` holds an API's reaction to all other codes: a newer broker's code may mean anything.
APIs outside ``_WITHOUT_ROW`` retry every code that Kafka calls retriable. Sets of codes that other modules test are also here.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from kafka_eos_sink import errors
from kafka_eos_sink.protocol import messages
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.schema import Request


class Reaction(Enum):
    """This client's reaction to an error code."""

    SUCCESS = "the requested state already holds; for Produce only if the batch was sent before"
    RETRY = "resend the identical request after a backoff and the throttle time"
    REFRESH_METADATA = "request fresh metadata, and resend to the leader that metadata or the response names"
    FIND_COORDINATOR = "find the coordinator again, then resend the identical request"
    RETRY_BEHIND_EARLIER_BATCH = (
        "resend after the earlier unacknowledged batch; without one, abort or restart the sequences"
    )
    SPLIT = "split the batch and renumber; a single record is too large for the topic"
    ABORT = "abort this attempt; the next attempt gets a new producer epoch"
    ABORT_CONFIGURATION = "abort this attempt and fail: a new attempt would fail the same way"
    FENCED = "a newer producer uses the transactional id: the task fails its attempt, the driver fails the query"
    CONFIGURATION = "fail: the configuration or a permission is wrong"
    OTHER_SETTINGS = "the cluster rejects these settings of a topic: try others"
    NOT_FOUND = "the topic, partition or transactional id does not exist"
    OUT_OF_RANGE = "the offset is before the start or after the end of the log"
    UNKNOWN = "the outcome is unknown: the commit log proves it"


RETRIES = frozenset({Reaction.RETRY, Reaction.REFRESH_METADATA, Reaction.FIND_COORDINATOR})
COMPLETES = frozenset({Reaction.SUCCESS, Reaction.NOT_FOUND, Reaction.OUT_OF_RANGE})  # the code is the result
CONFIGURATION = frozenset({Reaction.CONFIGURATION, Reaction.ABORT_CONFIGURATION})

_MOVED = """NOT_LEADER_OR_FOLLOWER UNKNOWN_TOPIC_ID LEADER_NOT_AVAILABLE FENCED_LEADER_EPOCH UNKNOWN_LEADER_EPOCH
    KAFKA_STORAGE_ERROR NETWORK_EXCEPTION REPLICA_NOT_AVAILABLE"""
_LEADER = _MOVED + " UNKNOWN_TOPIC_OR_PARTITION"
_OTHER_PRODUCER = "INVALID_PRODUCER_EPOCH PRODUCER_FENCED INVALID_TXN_STATE INVALID_PRODUCER_ID_MAPPING"
_COORDINATOR = "COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR"

_ROWS: dict[type[Request[Any]], dict[Reaction, str]] = {
    messages.FindCoordinatorRequest: {
        Reaction.RETRY: "COORDINATOR_NOT_AVAILABLE COORDINATOR_LOAD_IN_PROGRESS REQUEST_TIMED_OUT",
        Reaction.CONFIGURATION: "TRANSACTIONAL_ID_AUTHORIZATION_FAILED GROUP_AUTHORIZATION_FAILED",
    },
    messages.InitProducerIdRequest: {
        Reaction.RETRY: "CONCURRENT_TRANSACTIONS COORDINATOR_LOAD_IN_PROGRESS REQUEST_TIMED_OUT",
        Reaction.FIND_COORDINATOR: _COORDINATOR,
        Reaction.FENCED: "INVALID_PRODUCER_EPOCH PRODUCER_FENCED",
        Reaction.CONFIGURATION: """INVALID_TRANSACTION_TIMEOUT UNSUPPORTED_VERSION TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            CLUSTER_AUTHORIZATION_FAILED""",
        Reaction.ABORT: "TRANSACTION_ABORTABLE",
    },
    messages.AddPartitionsToTxnRequest: {
        Reaction.RETRY: """CONCURRENT_TRANSACTIONS COORDINATOR_LOAD_IN_PROGRESS UNKNOWN_TOPIC_OR_PARTITION
            REQUEST_TIMED_OUT""",
        Reaction.FIND_COORDINATOR: _COORDINATOR,
        Reaction.ABORT: "OPERATION_NOT_ATTEMPTED UNKNOWN_PRODUCER_ID TRANSACTION_ABORTABLE",
        Reaction.ABORT_CONFIGURATION: "TOPIC_AUTHORIZATION_FAILED",
        Reaction.FENCED: "TRANSACTIONAL_ID_AUTHORIZATION_FAILED " + _OTHER_PRODUCER,
    },
    messages.ProduceRequest: {
        Reaction.SUCCESS: "DUPLICATE_SEQUENCE_NUMBER",
        Reaction.REFRESH_METADATA: _LEADER,
        Reaction.RETRY: """REQUEST_TIMED_OUT NOT_ENOUGH_REPLICAS NOT_ENOUGH_REPLICAS_AFTER_APPEND CORRUPT_MESSAGE
            COORDINATOR_NOT_AVAILABLE COORDINATOR_LOAD_IN_PROGRESS NOT_COORDINATOR CONCURRENT_TRANSACTIONS""",
        Reaction.RETRY_BEHIND_EARLIER_BATCH: "OUT_OF_ORDER_SEQUENCE_NUMBER",
        # These codes do not prove fencing: a leader that lost the producer's state sends them too. Only the coordinator knows.
        Reaction.ABORT: "UNKNOWN_PRODUCER_ID TRANSACTION_ABORTABLE " + _OTHER_PRODUCER,
        Reaction.SPLIT: "MESSAGE_TOO_LARGE",
        Reaction.CONFIGURATION: """RECORD_LIST_TOO_LARGE INVALID_RECORD INVALID_TIMESTAMP INVALID_TOPIC_EXCEPTION
            INVALID_REQUIRED_ACKS UNSUPPORTED_FOR_MESSAGE_FORMAT UNSUPPORTED_COMPRESSION_TYPE POLICY_VIOLATION
            TOPIC_AUTHORIZATION_FAILED TRANSACTIONAL_ID_AUTHORIZATION_FAILED CLUSTER_AUTHORIZATION_FAILED""",
    },
    messages.AddOffsetsToTxnRequest: {
        Reaction.FIND_COORDINATOR: "REQUEST_TIMED_OUT " + _COORDINATOR,
        Reaction.RETRY: "COORDINATOR_LOAD_IN_PROGRESS CONCURRENT_TRANSACTIONS UNKNOWN_TOPIC_OR_PARTITION",
        Reaction.ABORT_CONFIGURATION: "GROUP_AUTHORIZATION_FAILED",
        Reaction.FENCED: "TRANSACTIONAL_ID_AUTHORIZATION_FAILED " + _OTHER_PRODUCER,
        Reaction.ABORT: "UNKNOWN_PRODUCER_ID TRANSACTION_ABORTABLE",
    },
    messages.TxnOffsetCommitRequest: {
        Reaction.FIND_COORDINATOR: "REQUEST_TIMED_OUT " + _COORDINATOR,
        Reaction.RETRY: "COORDINATOR_LOAD_IN_PROGRESS CONCURRENT_TRANSACTIONS UNKNOWN_TOPIC_OR_PARTITION",
        Reaction.ABORT_CONFIGURATION: """GROUP_AUTHORIZATION_FAILED TOPIC_AUTHORIZATION_FAILED ILLEGAL_GENERATION
            UNKNOWN_MEMBER_ID FENCED_INSTANCE_ID FENCED_MEMBER_EPOCH STALE_MEMBER_EPOCH GROUP_ID_NOT_FOUND
            OFFSET_METADATA_TOO_LARGE""",
        Reaction.FENCED: "TRANSACTIONAL_ID_AUTHORIZATION_FAILED " + _OTHER_PRODUCER,
        Reaction.ABORT: "UNKNOWN_PRODUCER_ID TRANSACTION_ABORTABLE",
    },
    messages.OffsetFetchRequest: {
        Reaction.FIND_COORDINATOR: _COORDINATOR,
        Reaction.RETRY: "COORDINATOR_LOAD_IN_PROGRESS UNSTABLE_OFFSET_COMMIT",
    },
    messages.EndTxnRequest: {
        Reaction.RETRY: "CONCURRENT_TRANSACTIONS COORDINATOR_LOAD_IN_PROGRESS REQUEST_TIMED_OUT",
        Reaction.FIND_COORDINATOR: _COORDINATOR,
        # A retry after a lost response also gets these codes: the first request may have succeeded.
        Reaction.UNKNOWN: "UNKNOWN_PRODUCER_ID TRANSACTION_ABORTABLE " + _OTHER_PRODUCER,
        Reaction.CONFIGURATION: "TRANSACTIONAL_ID_AUTHORIZATION_FAILED UNSUPPORTED_VERSION",
    },
    messages.MetadataRequest: {
        Reaction.REFRESH_METADATA: _MOVED,
        Reaction.NOT_FOUND: "UNKNOWN_TOPIC_OR_PARTITION",
    },
    messages.ListOffsetsRequest: {Reaction.REFRESH_METADATA: _LEADER, Reaction.RETRY: "OFFSET_NOT_AVAILABLE"},
    messages.FetchRequest: {
        Reaction.REFRESH_METADATA: _LEADER + " INCONSISTENT_TOPIC_ID",
        Reaction.OUT_OF_RANGE: "OFFSET_OUT_OF_RANGE",
    },
    messages.CreateTopicsRequest: {
        Reaction.SUCCESS: "TOPIC_ALREADY_EXISTS",
        Reaction.REFRESH_METADATA: "NOT_CONTROLLER",
        Reaction.RETRY: "REQUEST_TIMED_OUT",
        Reaction.OTHER_SETTINGS: "INVALID_REPLICATION_FACTOR INVALID_CONFIG POLICY_VIOLATION",
    },
    messages.DescribeConfigsRequest: {
        Reaction.RETRY: "REQUEST_TIMED_OUT",
        Reaction.CONFIGURATION: "UNKNOWN_TOPIC_OR_PARTITION",
    },
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
}

_WITHOUT_ROW: dict[type[Request[Any]], Reaction] = {
    # Before the decision, aborting an attempt is always safe. After the decision, the commit log must prove the outcome.
    messages.InitProducerIdRequest: Reaction.ABORT,
    messages.AddPartitionsToTxnRequest: Reaction.ABORT,
    messages.ProduceRequest: Reaction.ABORT,
    messages.AddOffsetsToTxnRequest: Reaction.ABORT,
    messages.TxnOffsetCommitRequest: Reaction.ABORT,
    messages.EndTxnRequest: Reaction.UNKNOWN,
}

# (API, code) -> reaction, for the codes with a row.
REACTIONS: dict[tuple[type[Request[Any]], ErrorCode], Reaction] = {
    (request, ErrorCode[name]): action
    for request, rows in _ROWS.items()
    for action, names in rows.items()
    for name in names.split()
}


def codes_with(request: type[Request[Any]], action: Reaction) -> frozenset[ErrorCode]:
    """Return an API's codes with this reaction."""
    return frozenset(code for (api, code), row in REACTIONS.items() if api is request and row is action)


# The transaction of this identity is no longer open: an earlier EndTxn committed or aborted it.
END_TXN_REJECTED = codes_with(messages.EndTxnRequest, Reaction.UNKNOWN)
# Another producer has since initialised the transactional id.
FENCED_BY_NEWER_OWNER = codes_with(messages.InitProducerIdRequest, Reaction.FENCED)
# The batch is above the topic's max.message.bytes.
TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
# After these errors of Produce, a log may contain the batch. A leader can lose its role between append and response (DelayedProduce).
MAY_HAVE_BEEN_APPENDED = codes_with(messages.ProduceRequest, Reaction.REFRESH_METADATA) | frozenset(
    {ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.UNKNOWN_SERVER_ERROR}
)
# After these errors of Produce, a non-transactional producer continues with its next epoch (KIP-360).
RESTARTS_SEQUENCES = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)


def reaction(request: type[Request[Any]], code: int) -> Reaction:
    """Return the reaction to an error code in a response to ``request``."""
    error = ErrorCode.of(code)
    row = REACTIONS.get((request, error))
    if row is not None:
        return row
    if error is ErrorCode.THROTTLING_QUOTA_EXCEEDED:
        return Reaction.RETRY
    without_row = _WITHOUT_ROW.get(request)
    if without_row is not None:
        return without_row
    return Reaction.RETRY if error.retriable else Reaction.CONFIGURATION


_IN_WORDS: dict[type[Request[Any]], str] = {
    messages.AddOffsetsToTxnRequest: "adding a consumer group to the transaction of",
    messages.AddPartitionsToTxnRequest: "adding a partition to the transaction of",
    messages.CreateTopicsRequest: "the creation of",
    messages.DescribeConfigsRequest: "the settings of",
    messages.DescribeProducersRequest: "the producers of",
    messages.DescribeTransactionsRequest: "the transaction of",
    messages.EndTxnRequest: "the end of the transaction of",
    messages.FetchRequest: "reading",
    messages.FindCoordinatorRequest: "the coordinator of",
    messages.InitProducerIdRequest: "the initialisation of",
    messages.ListOffsetsRequest: "the offsets of",
    messages.ListTransactionsRequest: "the open transactions of",
    messages.MetadataRequest: "the metadata of",
    messages.OffsetFetchRequest: "the committed offsets of",
    messages.ProduceRequest: "writing to",
    messages.SaslAuthenticateRequest: "the authentication of",
    messages.SaslHandshakeRequest: "the choice of a SASL mechanism of",
    messages.TxnOffsetCommitRequest: "the commit of offsets of",
    messages.WriteTxnMarkersRequest: "writing the marker of",
}


def in_words(request: type[Request[Any]], about: str = "") -> str:
    """Name a request by its purpose, for an error message: users know no API names."""
    words = _IN_WORDS.get(request, request.__name__.removesuffix("Request"))
    return f"{words} {about}" if about else words.removesuffix(" of").removesuffix(" to")


MISSING_RIGHT = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Write and Describe (to read it: Read; to create it: Create) on the topic",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Write and Describe on the transactional id (or on its prefix)",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Read on the consumer group",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Create, Alter, ClusterAction or IdempotentWrite on the cluster",
}

_CREATE = "Create on the cluster, or on the topic"
_OF_CLUSTER = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
_RIGHTS_OF_REQUEST: dict[tuple[type[Request[Any]], ErrorCode], str] = {
    (messages.CreateTopicsRequest, _OF_CLUSTER): _CREATE,
    (messages.MetadataRequest, _OF_CLUSTER): _CREATE,
    (messages.InitProducerIdRequest, _OF_CLUSTER): "IdempotentWrite on the cluster",
    (messages.ProduceRequest, _OF_CLUSTER): "IdempotentWrite on the cluster",
    (messages.WriteTxnMarkersRequest, _OF_CLUSTER): "Alter or ClusterAction on the cluster",
    (messages.DescribeConfigsRequest, _OF_CLUSTER): "DescribeConfigs on the cluster",
    (messages.TxnOffsetCommitRequest, ErrorCode.TOPIC_AUTHORIZATION_FAILED): "Read on the topics of the source",
}
"""What is missing if a request returns such a code; `MISSING_RIGHT` has the others."""

EXPIRED_ID = (
    "the coordinator no longer knows the transactional id: it removes one that was unused for transactional.id.expiration.ms. Raise that "
    "setting of the brokers above the longest time that a batch takes, or write smaller batches"
)
"""The cause of INVALID_PRODUCER_ID_MAPPING for an id of which the client has the newest producer id."""

_STABLE_CODES = {
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: "INVALID_TRANSACTION_TIMEOUT",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "UNKNOWN_TOPIC",
}


def refusal(
    request: type[Request[Any]], code: int, what: str, broker_message: str | None = None
) -> errors.KafkaEosError:
    """Build the error for a code that no retry can resolve.

    Args:
        what: The request and its key in words, e.g. "the initialisation of transactional id 'a.b'".
        broker_message: The broker's error message, if the response has one.

    Returns:
        An AuthorizationError with Kafka's code (e.g. TOPIC_AUTHORIZATION_FAILED) and the missing permission, a FencedError
        (PRODUCER_FENCED), a TransactionAbortedError (TRANSACTION_ABORTED), a TopicSettingsError, or a BrokerRefusedError
        (INVALID_TRANSACTION_TIMEOUT, UNKNOWN_TOPIC or BROKER_REFUSED).
    """
    error = ErrorCode.of(code)
    failure = f"{what} returned {error.name}: {errors.peer_text(broker_message or error.message).rstrip('.')}."
    if error in MISSING_RIGHT:
        right = _RIGHTS_OF_REQUEST.get((request, error), MISSING_RIGHT[error])
        return errors.AuthorizationError(error.name, f"{failure} Grant the principal {right}.")
    action = reaction(request, code)
    if action is Reaction.FENCED:
        or_expired = f" Or {EXPIRED_ID}." if error is ErrorCode.INVALID_PRODUCER_ID_MAPPING else ""
        return errors.FencedError(
            "PRODUCER_FENCED",
            f"{failure} Another producer now uses the transactional id, or its transaction timed out (kafka.transaction.timeout.ms)."
            f"{or_expired}",
        )
    if action is Reaction.ABORT:
        return errors.TransactionAbortedError("TRANSACTION_ABORTED", f"{failure} A new attempt may succeed.")
    if action is Reaction.OTHER_SETTINGS:
        return errors.TopicSettingsError("BROKER_REFUSED", failure)
    return errors.BrokerRefusedError(_STABLE_CODES.get(error, "BROKER_REFUSED"), failure)
