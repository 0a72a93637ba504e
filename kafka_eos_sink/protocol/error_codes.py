"""Kafka's error codes."""

from __future__ import annotations

from enum import IntEnum


class ErrorCode(IntEnum):
    """An error code as brokers send it (``org.apache.kafka.common.protocol.Errors``).

    The members are those that a response to one of this client's requests can have. Fetch sessions, group members, share groups,
    delegation tokens and the requests between brokers have codes of their own.

    ``retriable`` means that the Java client's exception extends RetriableException. This client's reaction also depends on
    the API: see ``reactions``.

    A newer broker may send another code. ``of`` then makes a member ``UNKNOWN_CODE_<n>``, which is not retriable and not part of the
    iteration.
    """

    retriable: bool
    message: str

    def __new__(cls, code: int, retriable: bool, message: str) -> ErrorCode:
        member = int.__new__(cls, code)
        member._value_ = code
        member.retriable = retriable
        member.message = message
        return member

    @classmethod
    def of(cls, code: int) -> ErrorCode:
        """Return the member of a code, known or not."""
        return cls(code)  # type: ignore[call-arg]

    @classmethod
    def _missing_(cls, value: object) -> ErrorCode | None:
        if not isinstance(value, int) or not -(2**15) <= value < 2**15:
            return None
        member = int.__new__(cls, value)
        member._name_ = f"UNKNOWN_CODE_{value}".replace("-", "MINUS_")
        member._value_ = value
        member.retriable = False
        member.message = "The broker, perhaps a newer one, sent a code that this client does not know."
        # One member per code, so that ``is`` works as for known codes. There are at most 2^16 codes.
        return cls._value2member_map_.setdefault(value, member)  # type: ignore[return-value]

    UNKNOWN_SERVER_ERROR = -1, False, "The broker had an unexpected error; see its log."
    NONE = 0, False, "No error."
    OFFSET_OUT_OF_RANGE = 1, False, "The offset is outside the log of the partition."
    CORRUPT_MESSAGE = 2, True, "The batch failed its checksum, its size or key is not allowed, or it is damaged."
    UNKNOWN_TOPIC_OR_PARTITION = 3, True, "The broker has no such topic or partition."
    INVALID_FETCH_SIZE = 4, False, "The fetch size is not allowed."
    LEADER_NOT_AVAILABLE = 5, True, "The partition has no leader at the moment."
    NOT_LEADER_OR_FOLLOWER = 6, True, "The broker is not the leader, or not a replica, of the partition."
    REQUEST_TIMED_OUT = 7, True, "The broker did not complete the request in time."
    BROKER_NOT_AVAILABLE = 8, False, "The broker is not available."
    REPLICA_NOT_AVAILABLE = 9, True, "The replica of the partition is not available."
    MESSAGE_TOO_LARGE = 10, False, "The batch is larger than the topic or the broker allows."
    OFFSET_METADATA_TOO_LARGE = 12, False, "The metadata of the committed offset is too large."
    NETWORK_EXCEPTION = 13, True, "The connection ended before the response."
    COORDINATOR_LOAD_IN_PROGRESS = 14, True, "The coordinator is still loading its state."
    COORDINATOR_NOT_AVAILABLE = 15, True, "The coordinator is not available."
    NOT_COORDINATOR = 16, True, "The broker is not the coordinator."
    INVALID_TOPIC_EXCEPTION = 17, False, "The topic name is not allowed, or clients must not write to the topic."
    RECORD_LIST_TOO_LARGE = 18, False, "The batch is larger than a log segment."
    NOT_ENOUGH_REPLICAS = 19, True, "Fewer replicas are in sync than min.insync.replicas; nothing was appended."
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, True, "Appended, but to fewer than min.insync.replicas replicas."
    INVALID_REQUIRED_ACKS = 21, False, "The value of acks is not allowed."
    ILLEGAL_GENERATION = 22, False, "The group has moved on to another generation."
    INVALID_GROUP_ID = 24, False, "The group id is not allowed."
    UNKNOWN_MEMBER_ID = 25, False, "The coordinator does not know the member."
    REBALANCE_IN_PROGRESS = 27, False, "The group is rebalancing."
    INVALID_COMMIT_OFFSET_SIZE = 28, False, "The offsets to commit are too large."
    TOPIC_AUTHORIZATION_FAILED = 29, False, "The principal lacks a permission on the topic."
    GROUP_AUTHORIZATION_FAILED = 30, False, "The principal lacks a permission on the group."
    CLUSTER_AUTHORIZATION_FAILED = 31, False, "The principal lacks a permission on the cluster."
    INVALID_TIMESTAMP = 32, False, "The timestamp is outside the topic's limits."
    UNSUPPORTED_SASL_MECHANISM = 33, False, "The broker does not offer the SASL mechanism."
    ILLEGAL_SASL_STATE = 34, False, "The request does not fit the state of the SASL exchange."
    UNSUPPORTED_VERSION = 35, False, "The broker does not support this version of the API."
    TOPIC_ALREADY_EXISTS = 36, False, "The topic exists already."
    INVALID_PARTITIONS = 37, False, "The number of partitions is not allowed."
    INVALID_REPLICATION_FACTOR = 38, False, "The replication factor is below one or beyond the number of brokers."
    INVALID_REPLICA_ASSIGNMENT = 39, False, "The assignment of replicas is not allowed."
    INVALID_CONFIG = 40, False, "The configuration is not allowed."
    NOT_CONTROLLER = 41, True, "The broker is not the controller."
    INVALID_REQUEST = 42, False, "The broker cannot interpret the request."
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, False, "The log's message format is too old for the request."
    POLICY_VIOLATION = 44, False, "A policy of the broker forbids the request."
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, False, "The sequence number does not follow the last one of the producer."
    DUPLICATE_SEQUENCE_NUMBER = 46, False, "The batch has already been appended."
    INVALID_PRODUCER_EPOCH = 47, False, "The producer's epoch is old."
    INVALID_TXN_STATE = 48, False, "The transaction's state does not allow the request."
    INVALID_PRODUCER_ID_MAPPING = 49, False, "The producer id does not belong to the transactional id."
    INVALID_TRANSACTION_TIMEOUT = 50, False, "The transaction timeout is longer than transaction.max.timeout.ms."
    CONCURRENT_TRANSACTIONS = 51, True, "The last operation on the transaction is not finished."
    TRANSACTION_COORDINATOR_FENCED = 52, False, "The marker comes from a coordinator that was replaced."
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, False, "The principal may not use the transactional id."
    OPERATION_NOT_ATTEMPTED = 55, False, "Not attempted, because another part of the request failed."
    KAFKA_STORAGE_ERROR = 56, True, "The broker's disk failed."
    SASL_AUTHENTICATION_FAILED = 58, False, "The broker rejected the credentials."
    UNKNOWN_PRODUCER_ID = 59, False, "The broker has no state of the producer."
    GROUP_ID_NOT_FOUND = 69, False, "There is no such group."
    LISTENER_NOT_FOUND = 72, True, "The leader has no listener of the requested name."
    FENCED_LEADER_EPOCH = 74, True, "The leader epoch of the request is older than the broker's."
    UNKNOWN_LEADER_EPOCH = 75, True, "The leader epoch of the request is newer than the broker's."
    UNSUPPORTED_COMPRESSION_TYPE = 76, False, "The peer does not support the compression type."
    OFFSET_NOT_AVAILABLE = 78, True, "The new leader does not know yet how much of the log is replicated."
    FENCED_INSTANCE_ID = 82, False, "Another member now uses the group instance id."
    INVALID_RECORD = 87, False, "The broker rejected the batch because of an invalid record."
    UNSTABLE_OFFSET_COMMIT = 88, True, "Offsets of the group are part of an open transaction."
    THROTTLING_QUOTA_EXCEEDED = 89, True, "The quota is used up; retry after the throttle time."
    PRODUCER_FENCED = 90, False, "A newer producer uses the transactional id."
    UNKNOWN_TOPIC_ID = 100, True, "The broker does not know the topic id."
    INCONSISTENT_TOPIC_ID = 103, True, "The topic id differs from the log's."
    TRANSACTIONAL_ID_NOT_FOUND = 105, False, "The coordinator does not know the transactional id."
    FENCED_MEMBER_EPOCH = 110, False, "The group coordinator fenced the member."
    STALE_MEMBER_EPOCH = 113, False, "The member's epoch is old; the member must use the new one."
    TRANSACTION_ABORTABLE = 120, False, "The transaction must be aborted; its transactional id stays usable."
    INVALID_REGULAR_EXPRESSION = 128, False, "The regular expression is not allowed."
    REBOOTSTRAP_REQUIRED = 129, False, "The client's metadata is too old; start again at the bootstrap servers."
