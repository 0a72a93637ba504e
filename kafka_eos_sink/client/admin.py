"""Everything the driver asks a cluster outside the data path: blocking, each call with a deadline.

Deadlines are absolute ms of the client's clock. Codes are met by `reactions.py`; where a deadline passes,
BrokerUnavailableError REQUEST_DEADLINE says what was waited for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kafka_eos_sink.client.config import ClientConfig, parse_bootstrap_servers
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.client.topics_admin import EARLIEST, LATEST, AbortedTransaction, FetchResult, Isolation, TopicsAdmin
from kafka_eos_sink.client.transactions_admin import (
    EndTransaction,
    EndTxnResult,
    ListedTransaction,
    TransactionsAdmin,
    TransactionState,
)
from kafka_eos_sink.protocol.identity import TopicPartition, TransactionMarker
from kafka_eos_sink.protocol.messages import ProducerState

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
    "connected",
]


class Admin(TransactionsAdmin, TopicsAdmin):
    """The driver's questions and commands to a cluster, on one NetworkClient."""


@contextmanager
def connected(cluster: str | ClientConfig) -> Iterator[Admin]:
    """An Admin on a client of its own, for bootstrap servers or a whole configuration; the client is closed after."""
    if isinstance(cluster, str):
        cluster = ClientConfig(bootstrap_servers=parse_bootstrap_servers(cluster), client_id="kafka-eos-cli")
    with NetworkClient(cluster) as client:
        yield Admin(client)
