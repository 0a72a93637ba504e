"""The producer's settings: Java's names and meaning, Java's defaults except where a reason is given.

Parsing of option strings belongs to the sink; here are the values, their ranges and what they mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from kafka_eos_sink.errors import ConfigurationError
from kafka_eos_sink.protocol.compression import LEVELS, Codec

INT32_MAX: Final = 2**31 - 1

DEFAULT_BATCH_SIZE: Final = 1_000_000
"""``batch.size`` in uncompressed bytes. Java's 16,384 suits single sends; here rows arrive ten thousand at a time.

Each batch costs a fixed sum on both sides: header, checksum, compressor and Arrow calls here; index, producer state and
a response entry at the broker. Measured with 100-byte values to 8 partitions, lz4, processor seconds per million rows:
1.1 at 128 KiB, 0.72 at 256 KiB, 0.64 at 512 KiB, 0.57 at this. More than the topic's ``max.message.bytes`` (1,048,588
unless configured, counted after compression) would be refused and split, so this is the largest round number that every
topic with Kafka's defaults takes even where nothing can be compressed.
"""

DEFAULT_LINGER_MS: Final = 500
"""``linger.ms``. Java's 5 ms trades latency for batches; here nothing is visible before the transaction ends, and the
end flushes at once, so waiting costs no latency and keeps batches of many partitions large. It only bounds how long
the brokers idle while a slow source fills the first batches."""

_RANGES: Final = {
    "batch_size": ("batch.size", 1, INT32_MAX),
    "linger_ms": ("linger.ms", 0, INT32_MAX),
    "buffer_memory": ("buffer.memory", 1, 2**63 - 1),
    "max_block_ms": ("max.block.ms", 0, 2**63 - 1),
    "max_request_size": ("max.request.size", 1, INT32_MAX),
    "delivery_timeout_ms": ("delivery.timeout.ms", 0, INT32_MAX),
    "retries": ("retries", 1, INT32_MAX),
    "max_in_flight": ("max.in.flight.requests.per.connection", 1, 5),
    "transaction_timeout_ms": ("transaction.timeout.ms", 1, INT32_MAX),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """What one task's producer is told. Durations in milliseconds, sizes in bytes.

    Raises ``ConfigurationError`` (``INVALID_CONFIG``) naming every value out of range at once.
    """

    batch_size: int = DEFAULT_BATCH_SIZE
    """Uncompressed bytes of records that one batch may hold; a larger record gets a batch of its own."""
    linger_ms: int = DEFAULT_LINGER_MS
    """How long rows of a partition may wait for company before their batch is closed; looked at as rows arrive."""
    buffer_memory: int = 33_554_432
    """Bytes of rows and batches that wait for a broker's answer before ``write`` blocks."""
    max_block_ms: int = 60_000
    """How long ``write`` may wait for metadata of a topic, or for memory."""
    max_request_size: int = 1_048_576
    """Bytes of one Produce request, and of one uncompressed record."""
    compression: str = "none"
    """``none``, ``gzip``, ``snappy``, ``lz4`` or ``zstd``."""
    compression_level: int | None = None
    """None: the codec's default."""
    delivery_timeout_ms: int = 120_000
    """From the closing of a batch to its acknowledgement, all repeats included."""
    retries: int = INT32_MAX
    """Repeats of one batch; ``delivery_timeout_ms`` ends them sooner as a rule."""
    max_in_flight: int = 5
    """Requests per connection, and batches per partition; brokers recognise a repeat of the last five batches."""
    partitioner: str = "default"
    """``default``, ``round-robin`` or ``package.module:callable``."""
    partitioner_ignore_keys: bool = False
    """Keyed rows are placed like rows without a key (``partitioner.ignore.keys``)."""
    transaction_timeout_ms: int | None = None
    """None: as long as the broker allows; resolved before a producer id is asked for."""
    dead_letter_topic: str | None = None
    """Where rows go that Kafka cannot take; None: they fail the task."""
    interceptors: tuple[str, ...] = ()
    """``package.module:Class`` each."""
    interceptor_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """What ``configure`` of an interceptor is given. Not in the repr: options can hold secrets."""
    acks: int = -1
    """Always all in-sync replicas: idempotence means nothing with less."""

    def __post_init__(self) -> None:
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        if problems := config_problems(values):
            raise ConfigurationError("INVALID_CONFIG", "; ".join(problems))


def config_problems(values: dict[str, Any]) -> tuple[str, ...]:
    """One sentence per value of ``ProducerConfig`` that cannot work; empty when all are fine.

    ``values`` maps field names to values and may leave out fields; so the sink can report these problems beside its
    own before it builds anything.
    """
    found = [
        f"{option} must be from {low} to {high}, not {values[name]}"
        for name, (option, low, high) in _RANGES.items()
        if values.get(name) is not None and not low <= values[name] <= high
    ]
    if values.get("acks", -1) != -1:
        found.append("acks must be all (-1): an idempotent producer needs every in-sync replica's acknowledgement")
    name, level = values.get("compression", "none"), values.get("compression_level")
    known = {codec.name.lower(): codec for codec in Codec}
    if name not in known:
        found.append(f"compression.type must be one of {', '.join(known)}, not {name!r}")
    elif level is not None:
        allowed = LEVELS.get(known[name])
        if allowed is None:
            found.append(f"compression.type {name} has no levels, but level {level} was given")
        elif level not in allowed:
            found.append(f"compression.{name}.level must be from {allowed.minimum} to {allowed.maximum}, not {level}")
    partitioner = values.get("partitioner", "default")
    if partitioner not in ("default", "round-robin") and ":" not in partitioner:
        found.append(f"partitioner must be default, round-robin or package.module:callable, not {partitioner!r}")
    found += [
        f"interceptors takes package.module:Class, not {spec!r}"
        for spec in values.get("interceptors", ())
        if ":" not in spec
    ]
    return tuple(found)
