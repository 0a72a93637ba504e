"""Everything the driver asks a cluster outside the data path: blocking, each call with a deadline.

Deadlines are absolute ms of the client's clock. Codes are met by `reactions.py`; where a deadline passes,
BrokerUnavailableError REQUEST_DEADLINE says what was waited for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from kafka_eos_sink.client.network_client import NetworkClient

TopicPartition = tuple[str, int]
Isolation = Literal["read_committed", "read_uncommitted"]
EARLIEST = -2
LATEST = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionState:
    """What a coordinator says of a transactional id (DescribeTransactions).

    `state` is the coordinator's word: Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort,
    PrepareEpochFence, Dead, or one that a newer broker invents. `start_time_ms` is -1 outside a transaction. `partitions`
    are those of the transaction; while it is being ended, those whose marker is missing.
    """

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_time_ms: int
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTransaction:
    """One line of ListTransactions."""

    transactional_id: str
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransaction:
    """One EndTxn: `version` is the API version, the same at every repeat (5 from transaction version 2, else at most 4)."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTxnResult:
    """The last answer to an EndTxn: the raw error code, None where no answer came by the deadline (it may have happened).

    `producer_id` and `producer_epoch` are those for the next transaction (EndTxn 5), -1 otherwise.
    """

    error_code: int | None
    producer_id: int = -1
    producer_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortedTransaction:
    """A transaction that a read_committed reader must skip from `first_offset` up to its marker."""

    producer_id: int
    first_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResult:
    """One partition's answer to Fetch; `error` is a raw code (0, or OFFSET_OUT_OF_RANGE), `records` whole batches (the last
    one possibly cut)."""

    error: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted_transactions: tuple[AbortedTransaction, ...]
    records: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerState:
    """What a partition leader remembers of a producer; `current_txn_start_offset` is -1 where no transaction is open."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionMarker:
    """A marker to write by hand on one partition; epochs come from DescribeProducers."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int
    transaction_version: int = 0


class Admin:
    """The driver's questions and commands to a cluster, on one NetworkClient."""

    def __init__(self, client: NetworkClient) -> None:
        self.client = client

    # coordinators

    def find_coordinators(self, transactional_ids: Iterable[str], deadline_ms: int) -> dict[str, int]:
        """Transactional id -> node id of its transaction coordinator; cached until `forget`."""
        raise NotImplementedError

    def find_group_coordinator(self, group: str, deadline_ms: int) -> int:
        """The node id of the group's coordinator; not cached."""
        raise NotImplementedError

    def forget(self, transactional_ids: Iterable[str]) -> None:
        """Look the coordinators of these ids up again at their next use."""
        raise NotImplementedError

    # transactions

    def transaction_version(self, deadline_ms: int) -> int:
        """The finalized feature `transaction.version`: 0, 1 or 2 (KIP-890); 0 where the cluster does not have it."""
        raise NotImplementedError

    def init_producer_id(
        self, transactional_id: str | None, transaction_timeout_ms: int, deadline_ms: int
    ) -> tuple[int, int]:
        """A fresh (producer id, producer epoch); fences the id's former owner and aborts what it left open, waiting for it.

        None: an idempotent producer without transactions, at any broker. Raises BrokerRefusedError
        INVALID_TRANSACTION_TIMEOUT, AuthorizationError, FencedError.
        """
        raise NotImplementedError

    def describe_transactions(
        self, transactional_ids: Iterable[str], deadline_ms: int
    ) -> dict[str, TransactionState | None]:
        """What the coordinators say of each id; None where the id is unknown or expired."""
        raise NotImplementedError

    def list_transactions(
        self, *, states: Sequence[str] = ("Ongoing",), id_pattern: str | None = None, deadline_ms: int
    ) -> tuple[ListedTransaction, ...]:
        """The transactions that any coordinator of the cluster holds in one of `states` (empty: all).

        `id_pattern`: a regular expression (RE2) that the whole id must match, filtered by the broker where it can
        (KIP-1152), else here. What the principal may not Describe is silently left out by the broker.
        """
        raise NotImplementedError

    def end_transactions(self, transactions: Sequence[EndTransaction], deadline_ms: int) -> list[EndTxnResult]:
        """End each transaction as told; results in the order given. Pipelined per coordinator, concurrent over brokers.

        Repeats (lost answer, coordinator moved or loading, CONCURRENT_TRANSACTIONS) are identical and go on until the
        deadline; then the last answer is returned as it was. Codes are never raised, errors of the network neither.
        """
        raise NotImplementedError

    # topics, offsets, records

    def create_topic(
        self, name: str, partitions: int, replication_factor: int, configs: Mapping[str, str], deadline_ms: int
    ) -> bool:
        """Create the topic and wait for its leaders; False where it already existed.

        `partitions` and `replication_factor` of -1 are the broker's defaults.
        """
        raise NotImplementedError

    def describe_configs(
        self, resource_type: Literal["topic", "broker"], name: str | None, keys: Sequence[str] | None, deadline_ms: int
    ) -> dict[str, str]:
        """Configuration name -> value as the broker has it in effect; sensitive values are left out.

        For "broker" the name is a node id, None for any broker. Raises AuthorizationError; BrokerRefusedError UNKNOWN_TOPIC.
        """
        raise NotImplementedError

    def leaders(self, partitions: Iterable[TopicPartition], deadline_ms: int) -> dict[TopicPartition, int]:
        """(topic, partition) -> node id of the leader; waits for one to be elected.

        Raises BrokerRefusedError UNKNOWN_TOPIC where the topic or partition did not appear by the deadline.
        """
        raise NotImplementedError

    def list_offsets(
        self,
        partitions: Iterable[TopicPartition],
        deadline_ms: int,
        *,
        isolation: Isolation = "read_committed",
        timestamp: int = LATEST,
    ) -> dict[TopicPartition, int]:
        """Offsets by timestamp: LATEST under read_committed is the last stable offset, else the high watermark; EARLIEST
        the log start."""
        raise NotImplementedError

    def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        deadline_ms: int,
        isolation: Isolation = "read_committed",
        max_wait_ms: int = 500,
        min_bytes: int = 1,
        max_bytes: int = 4 << 20,
    ) -> FetchResult:
        """Records of one partition from `offset` on, from its leader."""
        raise NotImplementedError

    def describe_producers(
        self, partitions: Iterable[TopicPartition], deadline_ms: int
    ) -> dict[TopicPartition, tuple[ProducerState, ...]]:
        """The producers that each partition's leader remembers; needs Read on the topic (AuthorizationError)."""
        raise NotImplementedError

    def write_txn_markers(self, markers: Sequence[TransactionMarker], deadline_ms: int) -> None:
        """Write transaction markers on the partitions' leaders; needs ClusterAction or Alter on the cluster."""
        raise NotImplementedError

    def offset_fetch(
        self, group: str, partitions: Iterable[TopicPartition] | None, deadline_ms: int
    ) -> dict[TopicPartition, int]:
        """The group's committed offsets (None: of all partitions); those of open transactions are waited for."""
        raise NotImplementedError
