"""Ports on the loopback interface that nobody listens on."""

from __future__ import annotations

import random
import socket
from collections.abc import Collection
from pathlib import Path

from kafka_eos_sink.errors import KafkaEosError

__all__ = ["choose_free_ports", "is_free"]

_LOWEST = 20_000
_ATTEMPTS = 1_000


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen there at this moment."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As Java's server sockets do: connections that linger in TIME_WAIT are no hindrance.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError):
            return False
        return True


def choose_free_ports(host: str, count: int, *, avoid: Collection[int] = ()) -> tuple[int, ...]:
    """`count` different ports below the range from which the kernel takes the ports of outgoing connections.

    A port that the kernel chose (bind to 0) would be in that range: while a broker is down its port could be given
    away, and a client that keeps trying to connect to it can even be connected to itself.
    """
    highest = _ephemeral_start()
    chosen: list[int] = []
    for _ in range(_ATTEMPTS):
        port = random.randrange(_LOWEST, highest)
        if port not in chosen and port not in avoid and is_free(host, port):
            chosen.append(port)
            if len(chosen) == count:
                return tuple(chosen)
    raise KafkaEosError("EMBEDDED_KAFKA_FAILED", f"No {count} free ports were found on {host}; name one with the port.")


def _ephemeral_start() -> int:
    """The first port that the kernel gives to outgoing connections; 32768 on Linux, higher on other systems."""
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return 32_768
    return first if first > _LOWEST + _ATTEMPTS else 65_536
