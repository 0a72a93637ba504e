"""Client settings with Java's names and, but for two, defaults; backoff."""

from __future__ import annotations

import random
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from kafka_eos_sink.client.security import PLAINTEXT, SecurityConfig
from kafka_eos_sink.errors import ConfigurationError

_BOOTSTRAP_SERVER = re.compile(
    r"(?:[A-Za-z0-9_.-]+://)?(?:\[(?P<ipv6>[0-9A-Fa-f:.%A-Za-z_-]+)\]|(?P<host>[A-Za-z0-9_.%-]+)):(?P<port>[0-9]{1,5})"
)

_OPTION = re.compile(r"(?<![\w.])(?:security\.protocol|reconnect\.backoff\.ms|(?:ssl|sasl)\.[a-z][a-z.]*[a-z*])")
SERVERS = (
    "a comma-separated list such as broker1:9092,broker2:9092, with IPv6 addresses in brackets, such as [::1]:9092"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Settings of ``NetworkClient`` by Java's names: durations in ms, sizes in bytes.

    A socket buffer of -1 bytes leaves the size to the operating system. ``settings/table.py`` checks the ranges.
    """

    bootstrap_servers: tuple[tuple[str, int], ...]
    client_id: str = "kafka-eos"
    request_timeout_ms: int = 30_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    reconnect_backoff_ms: int = 50
    reconnect_backoff_max_ms: int = 1_000
    metadata_max_age_ms: int = 300_000
    metadata_max_idle_ms: int = 300_000
    metadata_recovery_strategy: Literal["rebootstrap", "none"] = "rebootstrap"
    metadata_recovery_rebootstrap_trigger_ms: int = 300_000
    connections_max_idle_ms: int = 540_000
    socket_connection_setup_timeout_ms: int = 10_000
    socket_connection_setup_timeout_max_ms: int = 30_000
    send_buffer_bytes: int = -1
    """Java's 131,072 suits a client with a thread that sends. This one sends between two batches: what the kernel does not take of a
    request of 1 MB waits until the next batch is encoded. Linux lets the buffer grow to 4 MB (``net.ipv4.tcp_wmem``)."""
    receive_buffer_bytes: int = 32_768
    client_dns_lookup: Literal["use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"] = "use_all_dns_ips"
    security: SecurityConfig = PLAINTEXT
    properties_file: str | None = None
    """The Java-style properties file that these settings come from, for the commands in messages."""
    prefix: str = ""
    """Precedes the names of options in messages: ``kafka.`` for options of a job, nothing for a properties file."""

    @property
    def bootstrap_servers_text(self) -> str:
        """The bootstrap servers as ``host:port,host:port``, for messages."""
        return ",".join(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.bootstrap_servers
        )

    @property
    def command_options(self) -> str:
        """The options with which ``kafka-eos`` reaches this cluster, for a shell.

        Credentials that did not come from a file stand in none: FILE is for the user to write, and pasted as it is the command fails.
        """
        file = self.properties_file
        if file is None and self.security != PLAINTEXT:
            file = "FILE"
        servers = f"--bootstrap-servers {self.bootstrap_servers_text}"
        return servers if file is None else f"{servers} --properties {shlex.quote(file)}"


def with_prefix(prefix: str, text: str) -> str:
    """Write names of options of a connection in a text as the user types them."""
    return _OPTION.sub(rf"{prefix}\g<0>", text)


def parse_bootstrap_servers(text: str) -> tuple[tuple[str, int], ...]:
    """Parse ``host:port,[ipv6]:port,...`` into pairs, as Java's ClientUtils.

    Raises:
        ConfigurationError: BOOTSTRAP_SERVERS, naming the entry that is not an address.
    """
    servers: list[tuple[str, int]] = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        match = _BOOTSTRAP_SERVER.fullmatch(entry)
        if match is None or not 0 < int(match["port"]) < 65_536:
            raise ConfigurationError(
                "BOOTSTRAP_SERVERS",
                f"kafka.bootstrap.servers: {entry!r} is not host:port; give {SERVERS}",
            )
        servers.append((match["ipv6"] or match["host"], int(match["port"])))
    if not servers:
        raise ConfigurationError(
            "BOOTSTRAP_SERVERS",
            f"kafka.bootstrap.servers is empty; give {SERVERS}",
        )
    return tuple(servers)


@dataclass(frozen=True, slots=True)
class ExponentialBackoff:
    """Delays of ``initial_ms`` · 2^attempts up to ``maximum_ms`` (KIP-580).

    As Java's ExponentialBackoff. ``uniform`` draws from [0, 1).
    """

    initial_ms: int
    maximum_ms: int
    # Varies each delay by up to ± this part of it, so that clients that failed together do not retry together.
    jitter: float = 0.2
    uniform: Callable[[], float] = random.random

    def delay_ms(self, attempts: int) -> int:
        """Return the delay in ms; the first failure in a row has ``attempts`` 0."""
        # As in Java, an initial delay above the maximum counts as the maximum.
        delay = min(self.initial_ms << min(attempts, 32), self.maximum_ms)
        return max(0, min(round(delay * (1 + self.jitter * (2 * self.uniform() - 1))), self.maximum_ms))
