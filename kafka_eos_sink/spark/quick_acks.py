"""Acknowledge at once what Spark's JVM sends to a task over TCP.

The JVM sends the command of a task and its first rows in two small segments. Nagle's algorithm holds the second one back until the first
is acknowledged. Linux delays that acknowledgement by 40 ms, because the last segment of the worker was a response (``pingpong`` in
``tcp_input.c``). TCP_QUICKACK sends it now, and those that follow until the worker responds. The planner and the commit process need no
such option: the JVM has sent all that they read, in one piece, before the sink's code runs.
"""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress
from ipaddress import ip_address

VARIABLE = "KAFKA_EOS_QUICKACK"
"""Environment variable of the workers; ``off`` leaves the connections as Spark made them."""

_DESCRIPTORS = "/proc/self/fd"


def acknowledge_at_once() -> None:
    """Send the delayed acknowledgements of this process to Spark's JVM; never raises.

    It concerns blocking TCP connections to a loopback address on Linux. It changes no Unix socket and no connection of the sink's client.
    """
    # A default timeout would make each socket below, and so Spark's own descriptor of it, non-blocking.
    if os.environ.get(VARIABLE, "").strip().lower() == "off" or socket.getdefaulttimeout() is not None:
        return
    with suppress(Exception):
        for name in os.listdir(_DESCRIPTORS):
            with suppress(OSError, ValueError):
                _acknowledge(int(name))


def _acknowledge(descriptor: int) -> None:
    # The close of a duplicate releases the POSIX locks of a file, for example SQLite's, but changes nothing for a socket.
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
