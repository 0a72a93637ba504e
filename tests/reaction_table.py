"""The reactions to error codes, written by hand from Kafka's protocol and docs/internals/protocol.md, as an independent check.

Nothing here is taken from `kafka_eos_sink/protocol/reactions.py`: `tests/unit/protocol/test_reactions.py` compares the two tables, and
`tests/faults/test_error_reactions.py` must hold a case of each row. A row that either loses is missed.

Importable from every test as ``reaction_table`` (pytest's ``pythonpath`` names the folder).
"""

from __future__ import annotations

from typing import Any

from kafka_eos_sink.protocol import messages as m
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.reactions import Reaction
from kafka_eos_sink.protocol.schema import Request

LEADER = """NOT_LEADER_OR_FOLLOWER UNKNOWN_TOPIC_OR_PARTITION UNKNOWN_TOPIC_ID LEADER_NOT_AVAILABLE FENCED_LEADER_EPOCH
    UNKNOWN_LEADER_EPOCH KAFKA_STORAGE_ERROR NETWORK_EXCEPTION REPLICA_NOT_AVAILABLE"""
COORDINATOR = "COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR"

LISTED: dict[type[Request[Any]], dict[Reaction, str]] = {
    m.FindCoordinatorRequest: {
        Reaction.RETRY: "COORDINATOR_NOT_AVAILABLE COORDINATOR_LOAD_IN_PROGRESS REQUEST_TIMED_OUT",
        Reaction.CONFIGURATION: "TRANSACTIONAL_ID_AUTHORIZATION_FAILED GROUP_AUTHORIZATION_FAILED",
    },
    m.InitProducerIdRequest: {
        Reaction.RETRY: "CONCURRENT_TRANSACTIONS COORDINATOR_LOAD_IN_PROGRESS REQUEST_TIMED_OUT",
        Reaction.FIND_COORDINATOR: COORDINATOR,
        Reaction.FENCED: "INVALID_PRODUCER_EPOCH PRODUCER_FENCED",
        Reaction.CONFIGURATION: """INVALID_TRANSACTION_TIMEOUT TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            CLUSTER_AUTHORIZATION_FAILED UNSUPPORTED_VERSION""",
        Reaction.ABORT: "TRANSACTION_ABORTABLE",
    },
    m.AddPartitionsToTxnRequest: {
        Reaction.RETRY: """CONCURRENT_TRANSACTIONS COORDINATOR_LOAD_IN_PROGRESS UNKNOWN_TOPIC_OR_PARTITION
            REQUEST_TIMED_OUT""",
        Reaction.FIND_COORDINATOR: COORDINATOR,
        Reaction.ABORT: "OPERATION_NOT_ATTEMPTED UNKNOWN_PRODUCER_ID TRANSACTION_ABORTABLE",
        Reaction.ABORT_CONFIGURATION: "TOPIC_AUTHORIZATION_FAILED",
        Reaction.FENCED: """INVALID_PRODUCER_EPOCH PRODUCER_FENCED INVALID_PRODUCER_ID_MAPPING INVALID_TXN_STATE
            TRANSACTIONAL_ID_AUTHORIZATION_FAILED""",
    },
    m.ProduceRequest: {
        Reaction.SUCCESS: "DUPLICATE_SEQUENCE_NUMBER",
        Reaction.REFRESH_METADATA: LEADER,
        Reaction.RETRY: """REQUEST_TIMED_OUT NOT_ENOUGH_REPLICAS NOT_ENOUGH_REPLICAS_AFTER_APPEND CORRUPT_MESSAGE
            COORDINATOR_NOT_AVAILABLE COORDINATOR_LOAD_IN_PROGRESS NOT_COORDINATOR CONCURRENT_TRANSACTIONS""",
        Reaction.RETRY_BEHIND_EARLIER_BATCH: "OUT_OF_ORDER_SEQUENCE_NUMBER",
        Reaction.ABORT: """UNKNOWN_PRODUCER_ID INVALID_PRODUCER_EPOCH PRODUCER_FENCED INVALID_TXN_STATE
            INVALID_PRODUCER_ID_MAPPING TRANSACTION_ABORTABLE""",
        Reaction.SPLIT: "MESSAGE_TOO_LARGE",
        Reaction.CONFIGURATION: """RECORD_LIST_TOO_LARGE INVALID_RECORD INVALID_TIMESTAMP INVALID_TOPIC_EXCEPTION
            INVALID_REQUIRED_ACKS UNSUPPORTED_FOR_MESSAGE_FORMAT UNSUPPORTED_COMPRESSION_TYPE POLICY_VIOLATION
            TOPIC_AUTHORIZATION_FAILED TRANSACTIONAL_ID_AUTHORIZATION_FAILED CLUSTER_AUTHORIZATION_FAILED""",
    },
    m.AddOffsetsToTxnRequest: {
        Reaction.FIND_COORDINATOR: f"{COORDINATOR} REQUEST_TIMED_OUT",
        Reaction.RETRY: "COORDINATOR_LOAD_IN_PROGRESS CONCURRENT_TRANSACTIONS UNKNOWN_TOPIC_OR_PARTITION",
        Reaction.ABORT: "UNKNOWN_PRODUCER_ID TRANSACTION_ABORTABLE",
        Reaction.ABORT_CONFIGURATION: "GROUP_AUTHORIZATION_FAILED",
        Reaction.FENCED: """INVALID_PRODUCER_EPOCH PRODUCER_FENCED INVALID_TXN_STATE INVALID_PRODUCER_ID_MAPPING
            TRANSACTIONAL_ID_AUTHORIZATION_FAILED""",
    },
    m.TxnOffsetCommitRequest: {
        Reaction.FIND_COORDINATOR: f"{COORDINATOR} REQUEST_TIMED_OUT",
        Reaction.RETRY: "COORDINATOR_LOAD_IN_PROGRESS CONCURRENT_TRANSACTIONS UNKNOWN_TOPIC_OR_PARTITION",
        Reaction.ABORT: "UNKNOWN_PRODUCER_ID TRANSACTION_ABORTABLE",
        Reaction.ABORT_CONFIGURATION: """GROUP_AUTHORIZATION_FAILED TOPIC_AUTHORIZATION_FAILED ILLEGAL_GENERATION
            UNKNOWN_MEMBER_ID FENCED_INSTANCE_ID FENCED_MEMBER_EPOCH STALE_MEMBER_EPOCH GROUP_ID_NOT_FOUND
            OFFSET_METADATA_TOO_LARGE""",
        Reaction.FENCED: """INVALID_PRODUCER_EPOCH PRODUCER_FENCED INVALID_TXN_STATE INVALID_PRODUCER_ID_MAPPING
            TRANSACTIONAL_ID_AUTHORIZATION_FAILED""",
    },
    m.OffsetFetchRequest: {
        Reaction.RETRY: "COORDINATOR_LOAD_IN_PROGRESS UNSTABLE_OFFSET_COMMIT",
        Reaction.FIND_COORDINATOR: COORDINATOR,
    },
    m.EndTxnRequest: {
        Reaction.RETRY: "CONCURRENT_TRANSACTIONS COORDINATOR_LOAD_IN_PROGRESS REQUEST_TIMED_OUT",
        Reaction.FIND_COORDINATOR: COORDINATOR,
        Reaction.UNKNOWN: """INVALID_PRODUCER_EPOCH PRODUCER_FENCED INVALID_PRODUCER_ID_MAPPING INVALID_TXN_STATE
            UNKNOWN_PRODUCER_ID TRANSACTION_ABORTABLE""",
        Reaction.CONFIGURATION: "TRANSACTIONAL_ID_AUTHORIZATION_FAILED UNSUPPORTED_VERSION",
    },
    m.MetadataRequest: {
        Reaction.REFRESH_METADATA: LEADER.replace("UNKNOWN_TOPIC_OR_PARTITION", ""),
        Reaction.NOT_FOUND: "UNKNOWN_TOPIC_OR_PARTITION",
        Reaction.CONFIGURATION: "TOPIC_AUTHORIZATION_FAILED",
    },
    m.ListOffsetsRequest: {
        Reaction.REFRESH_METADATA: LEADER,
        Reaction.RETRY: "OFFSET_NOT_AVAILABLE",
        Reaction.CONFIGURATION: "TOPIC_AUTHORIZATION_FAILED",
    },
    m.FetchRequest: {
        Reaction.REFRESH_METADATA: f"{LEADER} INCONSISTENT_TOPIC_ID",
        Reaction.OUT_OF_RANGE: "OFFSET_OUT_OF_RANGE",
        Reaction.CONFIGURATION: "TOPIC_AUTHORIZATION_FAILED",
    },
    m.CreateTopicsRequest: {
        Reaction.SUCCESS: "TOPIC_ALREADY_EXISTS",
        Reaction.OTHER_SETTINGS: "INVALID_REPLICATION_FACTOR INVALID_CONFIG POLICY_VIOLATION",
        Reaction.RETRY: "REQUEST_TIMED_OUT",
        Reaction.REFRESH_METADATA: "NOT_CONTROLLER",
        Reaction.CONFIGURATION: "CLUSTER_AUTHORIZATION_FAILED TOPIC_AUTHORIZATION_FAILED",
    },
    m.DescribeConfigsRequest: {
        Reaction.RETRY: "REQUEST_TIMED_OUT",
        Reaction.CONFIGURATION: "CLUSTER_AUTHORIZATION_FAILED TOPIC_AUTHORIZATION_FAILED UNKNOWN_TOPIC_OR_PARTITION",
    },
    m.DescribeProducersRequest: {
        Reaction.REFRESH_METADATA: LEADER,
        Reaction.CONFIGURATION: "TOPIC_AUTHORIZATION_FAILED",
    },
    m.DescribeTransactionsRequest: {
        Reaction.NOT_FOUND: "TRANSACTIONAL_ID_NOT_FOUND",
        Reaction.RETRY: "COORDINATOR_LOAD_IN_PROGRESS",
        Reaction.FIND_COORDINATOR: COORDINATOR,
    },
    m.ListTransactionsRequest: {Reaction.RETRY: "COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE"},
    m.WriteTxnMarkersRequest: {
        Reaction.REFRESH_METADATA: LEADER,
        Reaction.RETRY: "REQUEST_TIMED_OUT NOT_ENOUGH_REPLICAS NOT_ENOUGH_REPLICAS_AFTER_APPEND",
        Reaction.CONFIGURATION: "TRANSACTION_COORDINATOR_FENCED CLUSTER_AUTHORIZATION_FAILED",
    },
}
"""Codes of an API by their reaction. The codes of ApiVersions, SaslHandshake and SaslAuthenticate are no reactions of this table."""

UNLISTED = {
    m.InitProducerIdRequest: Reaction.ABORT,
    m.AddPartitionsToTxnRequest: Reaction.ABORT,
    m.ProduceRequest: Reaction.ABORT,
    m.AddOffsetsToTxnRequest: Reaction.ABORT,
    m.TxnOffsetCommitRequest: Reaction.ABORT,
    m.EndTxnRequest: Reaction.UNKNOWN,
}
"""The reaction to a code that is not listed and that Kafka does not call retriable; CONFIGURATION for any other API."""

FROM_A_NEWER_BROKER = "9999"
UNLISTED_CODES = f"UNKNOWN_SERVER_ERROR {FROM_A_NEWER_BROKER}"


def codes_of(text: str) -> list[int]:
    """Return the codes of names, and of numbers without a name."""
    return [int(name) if name.isdecimal() else ErrorCode[name].value for name in text.split()]


REACTIONS: dict[tuple[type[Request[Any]], int], Reaction] = {
    (api, code): reaction
    for api, rows in LISTED.items()
    for reaction, names in rows.items()
    for code in codes_of(names)
}
for api in LISTED:
    REACTIONS[api, ErrorCode.THROTTLING_QUOTA_EXCEEDED.value] = Reaction.RETRY
    REACTIONS |= {(api, code): UNLISTED.get(api, Reaction.CONFIGURATION) for code in codes_of(UNLISTED_CODES)}
