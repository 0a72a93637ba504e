"""Acknowledge at once what Spark's JVM sends to a task over TCP.

The JVM sends the command of a task and its first rows in two small segments. Nagle's algorithm holds the second one back until the first
is acknowledged. Linux delays that acknowledgement by 40 ms, because the last segment of the worker was a response (``pingpong`` in
``tcp_input.c``). TCP_QUICKACK sends it now, and those that follow until the worker responds. The planner and the commit process need no
such option: the JVM has sent all that they read before the sink's code runs, and without a wait.
"""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress
from functools import lru_cache
from ipaddress import ip_address

from kafka_eos_sink.logs import log

VARIABLE = "KAFKA_EOS_QUICKACK"
"""Environment variable of the workers; ``off`` leaves the connections as Spark made them."""
UNIX_SOCKETS = "spark.python.unix.domain.socket.enabled"
"""Spark's setting, from 4.1 on: the JVM and its Python processes use Unix sockets, without any delayed acknowledgement."""
DELAYED = (
    f"TCP with delayed acknowledgements, so that the first rows of a task on an idle worker come 40 ms late; with Spark 4.1 or newer, set "
    f"{UNIX_SOCKETS}=true"
)

_DESCRIPTORS = "/proc/self/fd"


def hand_over() -> str:
    """Describe the connection over which this process gets its rows from Spark."""
    # Spark 4.1 and newer set it in their Python processes.
    if os.environ.get("PYTHON_UNIX_DOMAIN_ENABLED", "").lower() == "true":
        return "Unix sockets"
    return "TCP, acknowledged at once" if _can_acknowledge() else DELAYED


@lru_cache(maxsize=1_000)
def log_hand_over(write_id: str) -> None:
    """Log once per write what delayed acknowledgements cost, and the way out."""
    if (found := hand_over()) is DELAYED:
        log.info("%s: Spark sends rows to Python over %s", write_id, found)


def _can_acknowledge() -> bool:
    # A default timeout would make each socket below, and so Spark's own descriptor of it, non-blocking.
    wanted = os.environ.get(VARIABLE, "").strip().lower() != "off" and socket.getdefaulttimeout() is None
    return wanted and hasattr(socket, "TCP_QUICKACK") and os.path.isdir(_DESCRIPTORS)


def acknowledge_at_once() -> None:
    """Send the delayed acknowledgements of this process to Spark's JVM; never raises.

    It concerns blocking TCP connections to a loopback address on Linux. It changes no Unix socket and no connection of the sink's client.
    """
    if not _can_acknowledge():
        return
    with suppress(Exception):
        for name in os.listdir(_DESCRIPTORS):
            with suppress(OSError, ValueError):
                _acknowledge(int(name))


def _acknowledge(descriptor: int) -> None:
    # No duplicate of a file: its close would release the process's POSIX locks, for example SQLite's. A socket has none.
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        return
    # A duplicate, because another thread may close the descriptor, and Spark closes its own. AF_INET6 has room for both kinds of address.
    with socket.fromfd(descriptor, socket.AF_INET6, socket.SOCK_STREAM) as connection:
        if _comes_from_spark(connection):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def _comes_from_spark(connection: socket.socket) -> bool:
    # Spark reads its connections as files, which must block; the client's never block.
    if not os.get_blocking(connection.fileno()):
        return False
    domain, protocol = (
        connection.getsockopt(socket.SOL_SOCKET, each) for each in (socket.SO_DOMAIN, socket.SO_PROTOCOL)
    )
    if domain not in (socket.AF_INET, socket.AF_INET6) or protocol != socket.IPPROTO_TCP:
        return False
    address = ip_address(connection.getpeername()[0])
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback
