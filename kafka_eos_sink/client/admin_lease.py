"""Admins that outlive one use: planner, commit process and Python workers each serve many batches, over one set of connections.

Connecting, ApiVersions, metadata and coordinators cost more than all that a micro-batch asks of a cluster.
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
"""By process, since a forked child must not speak on its parent's sockets."""


@contextmanager
def lease_admin(config: ClientConfig) -> Iterator[Admin]:
    """An admin of this cluster for the time of the block, connected already where this process had one before.

    It is kept for the next user unless the block raised or left a request unanswered: then nobody may meet its answers.
    """
    key = (os.getpid(), config)
    admin = _idle.pop(key, None) or Admin(NetworkClient(config))
    client = admin.client
    try:
        client.poll(0)  # what the brokers closed meanwhile is noticed before something is sent into it
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
        left_over = _idle.pop((pid, oldest))
        if pid == os.getpid():
            left_over.client.close()
