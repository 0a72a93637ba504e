"""The producer's settings: Java's names and meaning, Java's defaults except where a reason is given.

``settings/`` reads option strings. This module holds the values, their ranges and their defaults, and nothing else repeats them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

from kafka_eos_sink.errors import ConfigurationError
from kafka_eos_sink.protocol.compression import LEVELS, Codec

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1

DEFAULT_BATCH_SIZE: Final = 1_000_000
"""``batch.size`` in uncompressed bytes. Java's 16,384 suits single sends; here rows arrive ten thousand at a time.

Each batch costs a fixed sum on both sides: header, checksum, compressor and Arrow calls here; index, producer state and
a response entry at the broker. Processor seconds per million rows, measured with 100-byte values to 8 partitions and lz4:
1.1 at 128 KiB, 0.72 at 256 KiB, 0.64 at 512 KiB, 0.57 at this size. A broker rejects batches above the topic's
``max.message.bytes`` (default 1,048,588, counted after compression), and the producer then splits them. This is the
largest round number that Kafka's default accepts even if nothing can be compressed.
"""

DEFAULT_LINGER_MS: Final = 500
"""``linger.ms``. Java's 5 ms gives up batch size for latency. Here rows become visible when the transaction ends.

The end of the transaction flushes at once, so waiting costs no latency and keeps batches of many partitions large.
The value only bounds how long the brokers idle while a slow source fills the first batches.
"""

RANGES: Final = {
    "batch_size": ("batch.size", 1, INT32_MAX),
    "linger_ms": ("linger.ms", 0, INT32_MAX),
    "buffer_memory": ("buffer.memory", 1, INT64_MAX),
    "max_block_ms": ("max.block.ms", 0, INT64_MAX),
    "max_request_size": ("max.request.size", 1, INT32_MAX),
    "delivery_timeout_ms": ("delivery.timeout.ms", 0, INT32_MAX),
    # Idempotence needs at least one retry, and a broker recognises only the last five batches of a producer.
    "retries": ("retries", 1, INT32_MAX),
    "max_in_flight": ("max.in.flight.requests.per.connection", 1, 5),
    "transaction_timeout_ms": ("transaction.timeout.ms", 1, INT32_MAX),
}
"""Field of ``ProducerConfig``: the option's name, its least and its greatest value. The settings table reads them from here."""

CODEC_NAMES: Final = tuple(codec.name.lower() for codec in Codec)

OBJECT_NAME: Final = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
"""``package.module:name``, how an option names a Python object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """The settings of one task's producer. Durations in milliseconds, sizes in bytes.

    Raises:
        ConfigurationError: INVALID_CONFIG, naming every value out of range at once.
    """

    batch_size: int = DEFAULT_BATCH_SIZE
    """Uncompressed bytes of records that one batch may hold; a larger record gets a batch of its own."""
    linger_ms: int = DEFAULT_LINGER_MS
    """How long a batch waits for more rows before it closes. The producer checks the time when rows arrive."""
    buffer_memory: int = 33_554_432
    """Bytes of rows and unacknowledged batches. ``write`` blocks above it."""
    max_block_ms: int = 60_000
    """How long ``write`` may wait for metadata of a topic, or for memory."""
    max_request_size: int = 1_048_576
    """Bytes of one Produce request, and of one uncompressed record."""
    compression: str = "none"
    """``none``, ``gzip``, ``snappy``, ``lz4`` or ``zstd``."""
    compression_level: int | None = None
    """None: the codec's default."""
    delivery_timeout_ms: int = 120_000
    """From the closing of a batch to its acknowledgement, retries included."""
    retries: int = INT32_MAX
    """Retries of one batch. ``delivery_timeout_ms`` usually ends them first."""
    max_in_flight: int = 5
    """Requests per connection, and batches per partition."""
    partitioner: str = "default"
    """``default``, ``round-robin`` or ``package.module:callable``."""
    partitioner_ignore_keys: bool = False
    """Keyed rows are placed like rows without a key (``partitioner.ignore.keys``)."""
    transaction_timeout_ms: int | None = None
    """None: as long as the broker allows, resolved before InitProducerId."""
    dead_letter_topic: str | None = None
    """Receives the rows that Kafka rejects. None: such a row fails the task."""
    interceptors: tuple[str, ...] = ()
    """``package.module:Class`` each."""
    interceptor_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """The options that ``configure`` of an interceptor receives. Not in the repr: options can hold secrets."""
    acks: int = -1
    """Always all in-sync replicas: an idempotent producer needs every acknowledgement."""

    def __post_init__(self) -> None:
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        if problems := config_problems(values):
            raise ConfigurationError("INVALID_CONFIG", "; ".join(problems))


def config_problems(values: dict[str, Any]) -> tuple[str, ...]:
    """Return one sentence per value of ``ProducerConfig`` that cannot work.

    Args:
        values: Values by field name. Fields may be missing, so the options reader can check some before it builds a config.
    """
    found = [
        f"{option} must be from {low} to {high}, not {values[name]}"
        for name, (option, low, high) in RANGES.items()
        if values.get(name) is not None and not low <= values[name] <= high
    ]
    if values.get("acks", -1) != -1:
        found.append("acks must be all (-1): an idempotent producer needs every in-sync replica's acknowledgement")
    name, level = values.get("compression", "none"), values.get("compression_level")
    if name not in CODEC_NAMES:
        found.append(f"compression.type must be one of {', '.join(CODEC_NAMES)}, not {name!r}")
    elif level is not None:
        allowed = LEVELS.get(Codec[name.upper()])
        if allowed is None:
            found.append(f"compression.type {name} has no levels, but level {level} was given")
        elif level not in allowed:
            found.append(f"compression.{name}.level must be from {allowed.minimum} to {allowed.maximum}, not {level}")
    partitioner = values.get("partitioner", "default")
    if partitioner not in ("default", "round-robin") and OBJECT_NAME.fullmatch(partitioner) is None:
        found.append(f"partitioner must be default, round-robin or package.module:callable, not {partitioner!r}")
    found += [
        f"interceptors must be package.module:Class, comma-separated, not {spec!r}"
        for spec in values.get("interceptors", ())
        if OBJECT_NAME.fullmatch(spec) is None
    ]
    return tuple(found)
