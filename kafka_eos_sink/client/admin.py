"""Every request outside the data path, blocking, each with a deadline.

Deadlines are absolute ms of the client's clock. `requests.py` retries and reacts to error codes; past a deadline it raises
BrokerUnavailableError REQUEST_DEADLINE, which shows the last problem.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from kafka_eos_sink.client.config import ClientConfig, parse_bootstrap_servers
from kafka_eos_sink.client.coordinator_topics import GROUPS, TRANSACTIONS, coordinator_state
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.client.requests import Route
from kafka_eos_sink.client.topics_admin import TopicsAdmin
from kafka_eos_sink.client.transactions_admin import TransactionsAdmin
from kafka_eos_sink.errors import ConfigurationError, KafkaEosError, MissingApiError

_MAX_IDLE = 4
_WHY_MS = 5_000


class Admin(TransactionsAdmin, TopicsAdmin):
    """The driver's queries and commands to one cluster, on one `NetworkClient`."""

    def _why_no_coordinator(self, route: Route) -> str:
        topic = GROUPS if route is Route.GROUP_COORDINATOR else TRANSACTIONS
        # The caller's deadline has passed, so the queries have their own.
        try:
            return coordinator_state(self, topic, self.client.clock() + _WHY_MS).text
        except KafkaEosError:
            return ""


_idle: OrderedDict[tuple[int, ClientConfig], Admin] = OrderedDict()
"""Kept by `lease_admin`. The process id is part of the key: a forked child must not use its parent's sockets."""


@contextmanager
def connected(cluster: str | ClientConfig) -> Iterator[Admin]:
    """Yield an `Admin` on its own client, which is closed after.

    Args:
        cluster: Bootstrap servers, or a whole configuration.
    """
    if isinstance(cluster, str):
        cluster = ClientConfig(bootstrap_servers=parse_bootstrap_servers(cluster), client_id="kafka-eos-cli")
    with NetworkClient(cluster) as client:
        yield Admin(client)


@contextmanager
def lease_admin(config: ClientConfig, cluster_id: str | None = None) -> Iterator[Admin]:
    """Yield an admin of this cluster, already connected if this process has kept one.

    Planner, commit process and Python workers serve many batches over one set of connections. To connect, agree on versions, and
    look up metadata and coordinators takes longer than all other requests of a micro-batch.

    The admin is kept for the next caller, also if the block raises an error of ours: a service such as MSK limits logins per second.
    Only connections with a request in flight end, so that the next caller cannot receive its response.

    Args:
        cluster_id: The cluster to reach. If metadata name another one, every call raises ConfigurationError OTHER_CLUSTER.
    """
    key = (os.getpid(), config)
    admin = _idle.pop(key, None) or Admin(NetworkClient(config))
    client = admin.client
    try:
        client.expect_cluster(cluster_id)
        # Notice connections that brokers have closed meanwhile, before a request is sent into one and its response is lost.
        client.pump(0)
        yield admin
    except BaseException as error:
        # What the cluster is, and what its brokers offer, may have changed before the next call.
        if isinstance(error, KafkaEosError) and not isinstance(error, (ConfigurationError, MissingApiError)):
            _keep(key, admin)
        else:
            client.close()
        raise
    _keep(key, admin)


def _keep(key: tuple[int, ClientConfig], admin: Admin) -> None:
    """Keep a leased admin for the next caller, without requests in flight."""
    if key in _idle:
        admin.client.close()
        return
    admin.client.abandon_requests()
    _idle[key] = admin
    while len(_idle) > _MAX_IDLE:
        # One atomic step, because the sweep of another query runs in its own thread.
        (pid, _), evicted = _idle.popitem(last=False)
        # A parent's admin is dropped without closing it: the parent still uses the connection of the shared socket.
        if pid == os.getpid():
            evicted.client.close()
