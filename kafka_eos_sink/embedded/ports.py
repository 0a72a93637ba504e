"""Free ports on the loopback interface."""

from __future__ import annotations

import random
import socket
from collections.abc import Collection
from pathlib import Path

from kafka_eos_sink.errors import KafkaEosError

_LOWEST = 20_000
_ATTEMPTS = 1_000


def is_free(host: str, port: int) -> bool:
    """Return True if a server could listen on this port at this moment."""
    with socket.socket() as probe:
        # Java's server sockets set this too: connections in TIME_WAIT do not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError):
            return False
        return True


def choose_free_ports(host: str, count: int, *, avoid: Collection[int] = ()) -> tuple[int, ...]:
    """Choose ``count`` free ports below the kernel's range for outgoing connections.

    Raises:
        KafkaEosError: ``EMBEDDED_KAFKA_FAILED`` if too few ports are free.
    """
    # A port from that range (bind to 0) is unsafe. The kernel may give it to another process while the broker is down,
    # and a client that keeps connecting to it can even connect to itself.
    highest = _first_ephemeral_port()
    chosen: list[int] = []
    for _ in range(_ATTEMPTS):
        port = random.randrange(_LOWEST, highest)
        if port not in chosen and port not in avoid and is_free(host, port):
            chosen.append(port)
            if len(chosen) == count:
                return tuple(chosen)
    raise KafkaEosError("EMBEDDED_KAFKA_FAILED", f"{host} has fewer than {count} free ports; stop other servers on it.")


def _first_ephemeral_port() -> int:
    # 32768 on Linux by default, higher on other systems.
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return 32_768
    return first if first > _LOWEST + _ATTEMPTS else 65_536
