"""The producer's settings, with the names and meaning of Java's producer.

A default that differs from Java's has its reason here. ``settings/`` reads the option strings. Only this module defines
the ranges and defaults.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from kafka_eos_sink.errors import ConfigurationError
from kafka_eos_sink.protocol.compression import Compression

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1

DEFAULT_BATCH_SIZE: Final = 1_000_000
"""``batch.size`` in uncompressed bytes.

Java's 16,384 suits single sends, but Spark delivers ten thousand rows at a time. Each batch has a fixed cost. The client
pays for header, checksum, compressor and Arrow calls, and the broker for index, producer state and response entry.
Measured processor seconds per million rows (100-byte values, 8 partitions, lz4): 1.1 at 128 KiB, 0.72 at 256 KiB, 0.64 at
512 KiB, 0.57 at this size. A broker rejects a compressed batch above the topic's ``max.message.bytes`` (default
1,048,588), and the producer then splits the batch. This default is the largest round number that fits Kafka's limit even
if the rows do not compress.
"""

DEFAULT_LINGER_MS: Final = 500
"""``linger.ms``. Java's 5 ms trades batch size for latency.

Here readers see rows only when the transaction ends. The end flushes at once, so lingering costs no latency and keeps
the batches of many partitions large. The value only bounds how long brokers idle while a slow source fills the first batches.
"""

RANGES: Final = {
    "batch_size": ("batch.size", 1, INT32_MAX),
    "linger_ms": ("linger.ms", 0, INT32_MAX),
    "buffer_memory": ("buffer.memory", 1, INT64_MAX),
    # Java accepts 0 here and for the delivery timeout. No write can succeed by it, and the user would read of slow brokers.
    "max_block_ms": ("max.block.ms", 1, INT64_MAX),
    "max_request_size": ("max.request.size", 1, INT32_MAX),
    "delivery_timeout_ms": ("delivery.timeout.ms", 1, INT32_MAX),
    # Idempotence needs at least one retry. A leader recognises duplicates only among a producer's last five batches.
    "retries": ("retries", 1, INT32_MAX),
    "max_in_flight": ("max.in.flight.requests.per.connection", 1, 5),
    "transaction_timeout_ms": ("transaction.timeout.ms", 1, INT32_MAX),
}
"""Option, lowest and highest value per field of ``ProducerConfig``."""

CODEC_NAMES: Final = tuple(codec.name.lower() for codec in Compression)

OBJECT_NAME: Final = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
"""``package.module:name``, the form in which an option gives a Python object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """The settings of one task's producer. Durations in milliseconds, sizes in bytes.

    Raises:
        ConfigurationError: ``INVALID_CONFIG``, with every number outside its range. The reader of the options checks the texts.
    """

    batch_size: int = DEFAULT_BATCH_SIZE
    """Uncompressed bytes of records per batch. A larger record gets its own batch."""
    linger_ms: int = DEFAULT_LINGER_MS
    """How long an open batch waits for more rows, checked when rows arrive."""
    buffer_memory: int = 33_554_432
    """Bytes of rows and unacknowledged batches. ``write`` waits above this limit."""
    max_block_ms: int = 60_000
    """How long ``write`` may wait for the metadata of a topic, or for memory."""
    max_request_size: int = 1_048_576
    """Bytes of one Produce request, and of one uncompressed record."""
    compression: str = "none"
    """``none``, ``gzip``, ``snappy``, ``lz4`` or ``zstd``."""
    compression_level: int | None = None
    """None selects the codec's default."""
    delivery_timeout_ms: int = 120_000
    """Time from the closing of a batch to its acknowledgement, retries included."""
    retries: int = INT32_MAX
    """Retries of one batch. ``delivery_timeout_ms`` usually ends them first."""
    max_in_flight: int = 5
    """Requests in flight per connection, and batches in flight per partition."""
    partitioner: str = "default"
    """``default``, ``round-robin`` or ``package.module:callable``."""
    partitioner_ignore_keys: bool = False
    """True places rows with a key like rows without one (``partitioner.ignore.keys``)."""
    transaction_timeout_ms: int | None = None
    """None: the task executor lowers the timeout until the broker accepts it."""
    dead_letter_topic: str | None = None
    """The topic for rows that Kafka cannot store. If None, such a row fails the task."""
    own_topics: frozenset[str] = frozenset()
    """The topics that hold only the sink's own records, which a row could forge."""
    interceptors: tuple[str, ...] = ()
    """``package.module:Class`` each."""
    interceptor_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Options for each interceptor's ``configure``, not in the repr: they can hold secrets."""

    def __post_init__(self) -> None:
        problems = [
            f"{option} must be from {low} to {high}, not {value}"
            for name, (option, low, high) in RANGES.items()
            if (value := getattr(self, name)) is not None and not low <= value <= high
        ]
        if problems:
            raise ConfigurationError("INVALID_CONFIG", problems)
