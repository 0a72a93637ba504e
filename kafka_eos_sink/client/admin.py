"""Every request outside the data path, blocking, each with a deadline.

Deadlines are absolute ms of the client's clock. `requests.py` retries and reacts to error codes; past a deadline it raises
BrokerUnavailableError REQUEST_DEADLINE, which names the last problem.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kafka_eos_sink.client.config import ClientConfig, parse_bootstrap_servers
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.client.topics_admin import (
    EARLIEST,
    LATEST,
    AbortedTransaction,
    FetchedPartition,
    Isolation,
    TopicsAdmin,
)
from kafka_eos_sink.client.transactions_admin import EndTransaction, EndTxnResult, TransactionsAdmin

__all__ = [
    "EARLIEST",
    "LATEST",
    "AbortedTransaction",
    "Admin",
    "EndTransaction",
    "EndTxnResult",
    "FetchedPartition",
    "Isolation",
    "connected",
]


class Admin(TransactionsAdmin, TopicsAdmin):
    """The driver's queries and commands to one cluster, on one `NetworkClient`."""


@contextmanager
def connected(cluster: str | ClientConfig) -> Iterator[Admin]:
    """Yield an `Admin` on a client of its own, which is closed after.

    Args:
        cluster: Bootstrap servers, or a whole configuration.
    """
    if isinstance(cluster, str):
        cluster = ClientConfig(bootstrap_servers=parse_bootstrap_servers(cluster), client_id="kafka-eos-cli")
    with NetworkClient(cluster) as client:
        yield Admin(client)
