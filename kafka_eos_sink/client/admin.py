"""Everything the driver asks a cluster outside the data path: blocking, each call with a deadline.

Deadlines are absolute ms of the client's clock. Codes are met by `reactions.py`; where a deadline passes,
BrokerUnavailableError REQUEST_DEADLINE says what was waited for.
"""

from __future__ import annotations

from kafka_eos_sink.client.topics_admin import (
    EARLIEST,
    LATEST,
    AbortedTransaction,
    FetchResult,
    Isolation,
    ProducerState,
    TopicPartition,
    TopicsAdmin,
    TransactionMarker,
)
from kafka_eos_sink.client.transactions_admin import (
    EndTransaction,
    EndTxnResult,
    ListedTransaction,
    TransactionsAdmin,
    TransactionState,
)

__all__ = [
    "EARLIEST",
    "LATEST",
    "AbortedTransaction",
    "Admin",
    "EndTransaction",
    "EndTxnResult",
    "FetchResult",
    "Isolation",
    "ListedTransaction",
    "ProducerState",
    "TopicPartition",
    "TransactionMarker",
    "TransactionState",
]


class Admin(TransactionsAdmin, TopicsAdmin):
    """The driver's questions and commands to a cluster, on one NetworkClient."""
