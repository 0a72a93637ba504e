"""Admins that outlive one batch.

Planner, commit process and Python workers serve many batches over one set of connections.
To connect, agree on versions, and look up metadata and coordinators takes longer than all other requests of a micro-batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.config import ClientConfig
from kafka_eos_sink.client.network_client import NetworkClient

MAX_IDLE = 4

_idle: dict[tuple[int, ClientConfig], Admin] = {}
"""Keyed by process id as well: a forked child must not use its parent's sockets."""


@contextmanager
def lease_admin(config: ClientConfig) -> Iterator[Admin]:
    """Yield an admin of this cluster, already connected if this process has kept one.

    The admin is kept for the next caller, unless the block raised or left a request in flight: the next caller must not receive
    that request's response.
    """
    key = (os.getpid(), config)
    admin = _idle.pop(key, None) or Admin(NetworkClient(config))
    client = admin.client
    try:
        # Notice connections that brokers have closed meanwhile, before a request is sent into one and its response is lost.
        client.poll(0)
        yield admin
    except BaseException:
        client.close()
        raise
    if client.has_unanswered or key in _idle:
        client.close()
        return
    _idle[key] = admin
    while len(_idle) > MAX_IDLE:
        pid, oldest = next(iter(_idle))
        evicted = _idle.pop((pid, oldest))
        # A parent's admin is dropped without closing it: the parent still uses the connection behind the shared socket.
        if pid == os.getpid():
            evicted.client.close()
