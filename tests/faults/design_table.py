"""The reactions to error codes as they were designed, as data: what `test_error_reactions.py` must hold a case of, and what
its cases must see between an answer and the repeat.

Written down by hand, not made of `protocol/reactions.py`: a row that is lost there, or in the cases, is missed here.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from kafka_eos_sink.protocol import messages as m
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.schema import Request

FROM_A_NEWER_BROKER = "9999"


class Asks(Enum):
    """What a code asks for."""

    RETRY = "R"
    REFRESH_METADATA = "L"
    FIND_COORDINATOR = "C"
    ABORT = "A"
    FENCED = "F"
    REFUSED = "X"
    UNKNOWN = "?"
    DONE = "success, or done without"
    SPLIT = "smaller batches"


LEADER = """NOT_LEADER_OR_FOLLOWER UNKNOWN_TOPIC_OR_PARTITION UNKNOWN_TOPIC_ID LEADER_NOT_AVAILABLE FENCED_LEADER_EPOCH
    UNKNOWN_LEADER_EPOCH KAFKA_STORAGE_ERROR NETWORK_EXCEPTION REPLICA_NOT_AVAILABLE"""
COORDINATOR = "COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR"

DESIGN: dict[type[Request[Any]], dict[Asks, str]] = {
    m.FindCoordinatorRequest: {
        Asks.RETRY: "COORDINATOR_NOT_AVAILABLE COORDINATOR_LOAD_IN_PROGRESS REQUEST_TIMED_OUT",
        Asks.REFUSED: "TRANSACTIONAL_ID_AUTHORIZATION_FAILED GROUP_AUTHORIZATION_FAILED",
    },
    m.InitProducerIdRequest: {
        Asks.RETRY: "CONCURRENT_TRANSACTIONS COORDINATOR_LOAD_IN_PROGRESS REQUEST_TIMED_OUT",
        Asks.FIND_COORDINATOR: COORDINATOR,
        Asks.FENCED: "INVALID_PRODUCER_EPOCH PRODUCER_FENCED",
        Asks.REFUSED: """INVALID_TRANSACTION_TIMEOUT TRANSACTIONAL_ID_AUTHORIZATION_FAILED CLUSTER_AUTHORIZATION_FAILED
            UNSUPPORTED_VERSION""",
        Asks.ABORT: "TRANSACTION_ABORTABLE",
    },
    m.AddPartitionsToTxnRequest: {
        Asks.RETRY: """CONCURRENT_TRANSACTIONS COORDINATOR_LOAD_IN_PROGRESS UNKNOWN_TOPIC_OR_PARTITION
            REQUEST_TIMED_OUT""",
        Asks.FIND_COORDINATOR: COORDINATOR,
        Asks.ABORT: """OPERATION_NOT_ATTEMPTED TOPIC_AUTHORIZATION_FAILED UNKNOWN_PRODUCER_ID
            TRANSACTION_ABORTABLE""",
        Asks.FENCED: """INVALID_PRODUCER_EPOCH PRODUCER_FENCED INVALID_PRODUCER_ID_MAPPING INVALID_TXN_STATE
            TRANSACTIONAL_ID_AUTHORIZATION_FAILED""",
    },
    m.ProduceRequest: {
        Asks.DONE: "DUPLICATE_SEQUENCE_NUMBER",
        Asks.REFRESH_METADATA: LEADER,
        Asks.RETRY: """REQUEST_TIMED_OUT NOT_ENOUGH_REPLICAS NOT_ENOUGH_REPLICAS_AFTER_APPEND CORRUPT_MESSAGE
            COORDINATOR_NOT_AVAILABLE COORDINATOR_LOAD_IN_PROGRESS NOT_COORDINATOR CONCURRENT_TRANSACTIONS""",
        # OUT_OF_ORDER_SEQUENCE_NUMBER: but while an earlier batch is unanswered, which no single answer can tell.
        Asks.ABORT: """OUT_OF_ORDER_SEQUENCE_NUMBER UNKNOWN_PRODUCER_ID INVALID_PRODUCER_EPOCH PRODUCER_FENCED
            INVALID_TXN_STATE INVALID_PRODUCER_ID_MAPPING TRANSACTION_ABORTABLE""",
        Asks.SPLIT: "MESSAGE_TOO_LARGE",
        Asks.REFUSED: """RECORD_LIST_TOO_LARGE INVALID_RECORD INVALID_TIMESTAMP INVALID_TOPIC_EXCEPTION
            INVALID_REQUIRED_ACKS UNSUPPORTED_FOR_MESSAGE_FORMAT UNSUPPORTED_COMPRESSION_TYPE POLICY_VIOLATION
            TOPIC_AUTHORIZATION_FAILED TRANSACTIONAL_ID_AUTHORIZATION_FAILED CLUSTER_AUTHORIZATION_FAILED""",
    },
    m.AddOffsetsToTxnRequest: {
        Asks.FIND_COORDINATOR: f"{COORDINATOR} REQUEST_TIMED_OUT",
        Asks.RETRY: "COORDINATOR_LOAD_IN_PROGRESS CONCURRENT_TRANSACTIONS UNKNOWN_TOPIC_OR_PARTITION",
        Asks.ABORT: "GROUP_AUTHORIZATION_FAILED",
        Asks.FENCED: "INVALID_PRODUCER_EPOCH PRODUCER_FENCED INVALID_TXN_STATE INVALID_PRODUCER_ID_MAPPING",
    },
    m.TxnOffsetCommitRequest: {
        Asks.FIND_COORDINATOR: f"{COORDINATOR} REQUEST_TIMED_OUT",
        Asks.RETRY: "COORDINATOR_LOAD_IN_PROGRESS CONCURRENT_TRANSACTIONS UNKNOWN_TOPIC_OR_PARTITION",
        Asks.ABORT: """GROUP_AUTHORIZATION_FAILED ILLEGAL_GENERATION UNKNOWN_MEMBER_ID FENCED_INSTANCE_ID
            FENCED_MEMBER_EPOCH STALE_MEMBER_EPOCH GROUP_ID_NOT_FOUND""",
        Asks.FENCED: "INVALID_PRODUCER_EPOCH PRODUCER_FENCED INVALID_TXN_STATE INVALID_PRODUCER_ID_MAPPING",
    },
    m.EndTxnRequest: {
        Asks.RETRY: "CONCURRENT_TRANSACTIONS COORDINATOR_LOAD_IN_PROGRESS REQUEST_TIMED_OUT",
        Asks.FIND_COORDINATOR: COORDINATOR,
        Asks.UNKNOWN: """INVALID_PRODUCER_EPOCH PRODUCER_FENCED INVALID_PRODUCER_ID_MAPPING INVALID_TXN_STATE
            UNKNOWN_PRODUCER_ID TRANSACTION_ABORTABLE""",
        Asks.REFUSED: "TRANSACTIONAL_ID_AUTHORIZATION_FAILED UNSUPPORTED_VERSION",
    },
    m.ApiVersionsRequest: {Asks.DONE: "UNSUPPORTED_VERSION"},
    m.MetadataRequest: {Asks.REFRESH_METADATA: LEADER, Asks.REFUSED: "TOPIC_AUTHORIZATION_FAILED"},
    m.ListOffsetsRequest: {Asks.REFRESH_METADATA: LEADER, Asks.REFUSED: "TOPIC_AUTHORIZATION_FAILED"},
    m.FetchRequest: {
        Asks.REFRESH_METADATA: LEADER,
        Asks.UNKNOWN: "OFFSET_OUT_OF_RANGE",
        Asks.REFUSED: "TOPIC_AUTHORIZATION_FAILED",
    },
    m.CreateTopicsRequest: {
        # Settings that are refused: done with others.
        Asks.DONE: "TOPIC_ALREADY_EXISTS INVALID_REPLICATION_FACTOR INVALID_CONFIG POLICY_VIOLATION",
        Asks.REFUSED: "CLUSTER_AUTHORIZATION_FAILED TOPIC_AUTHORIZATION_FAILED",
    },
    m.DescribeConfigsRequest: {Asks.DONE: "CLUSTER_AUTHORIZATION_FAILED TOPIC_AUTHORIZATION_FAILED"},
    m.DescribeProducersRequest: {Asks.DONE: "TOPIC_AUTHORIZATION_FAILED"},
    m.DescribeTransactionsRequest: {Asks.DONE: "TRANSACTIONAL_ID_NOT_FOUND"},
    m.ListTransactionsRequest: {Asks.RETRY: "COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE"},
    m.WriteTxnMarkersRequest: {Asks.REFUSED: "TRANSACTION_COORDINATOR_FENCED CLUSTER_AUTHORIZATION_FAILED"},
}
"""API -> what is asked for -> codes. SaslHandshake and SaslAuthenticate have a test of their own."""

WITHOUT_SAYING: dict[type[Request[Any]], dict[Asks, str]] = {
    m.ListOffsetsRequest: {Asks.RETRY: "OFFSET_NOT_AVAILABLE"},
    m.FetchRequest: {Asks.REFRESH_METADATA: "INCONSISTENT_TOPIC_ID"},
    m.CreateTopicsRequest: {Asks.RETRY: "REQUEST_TIMED_OUT", Asks.REFRESH_METADATA: "NOT_CONTROLLER"},
    m.DescribeConfigsRequest: {Asks.RETRY: "REQUEST_TIMED_OUT"},
    m.DescribeProducersRequest: {Asks.REFRESH_METADATA: LEADER},
    m.DescribeTransactionsRequest: {
        Asks.RETRY: "COORDINATOR_LOAD_IN_PROGRESS",
        Asks.FIND_COORDINATOR: COORDINATOR,
    },
    m.WriteTxnMarkersRequest: {
        Asks.REFRESH_METADATA: LEADER,
        Asks.RETRY: "REQUEST_TIMED_OUT NOT_ENOUGH_REPLICAS NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    },
}
"""What the design leaves to the meaning of the codes: whom a request goes to, and what Kafka calls retriable."""

OF_ANY = f"THROTTLING_QUOTA_EXCEEDED UNKNOWN_SERVER_ERROR {FROM_A_NEWER_BROKER}"
"""Of every API of `DESIGN`: again after the throttle time, and as the API's strictest row."""


def codes_of(text: str) -> list[int]:
    """Names, and numbers that have none."""
    return [int(name) if name.isdecimal() else ErrorCode[name].value for name in text.split()]


ASKS: dict[tuple[type[Request[Any]], int], Asks] = {
    (api, code): asks
    for table in (DESIGN, WITHOUT_SAYING)
    for api, rows in table.items()
    for asks, names in rows.items()
    for code in codes_of(names)
} | {(api, ErrorCode.THROTTLING_QUOTA_EXCEEDED.value): Asks.RETRY for api in DESIGN}

FIRST = "as the first answer"
BEHIND = "behind another"

WANTED = {(api, code, when) for api, code in ASKS for when in (FIRST, BEHIND)} | {
    (api, code, when) for api in DESIGN for code in codes_of(OF_ANY) for when in (FIRST, BEHIND)
}
"""What there must be a case of: an API, a code, and when it comes."""
