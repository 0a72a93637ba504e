"""Feeds every decoder with bytes that a broker, another program or a file might hold, and looks that nothing but our errors comes out.

    PYTHONPATH=.:tests .venv/bin/python tests/fuzz/decoders.py --cases 10000000
    PYTHONPATH=.:tests .venv/bin/python tests/fuzz/decoders.py --cases 1000000 --guided    # after pip install atheris

A case begins as something valid. Its bits, bytes and lengths are changed, pieces are cut, doubled, and joined with those of another one;
batches get a right length and CRC afterwards, or the reader would not get beyond them. A decoder must return, or raise the errors that it
declares, within a second of CPU time, and the process must stay below 64 MiB beyond its beginning. ``--guided`` lets atheris choose the
changes by the code that they reach.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, find, settings
from hypothesis.errors import NoSuchExample

from kafka_eos_sink.client import oauth, sasl
from kafka_eos_sink.client.committed_records import AbortedTransaction, committed_batches
from kafka_eos_sink.client.security import PasswordCredentials, Secret
from kafka_eos_sink.commit import log_records
from kafka_eos_sink.errors import AuthenticationError, ConfigurationError, KafkaEosError, ProtocolError
from kafka_eos_sink.protocol.compression import Compression, compress, decompress
from kafka_eos_sink.protocol.framing import FrameReader, decode_response, response_header_version
from kafka_eos_sink.protocol.messages import REQUESTS
from kafka_eos_sink.protocol.record_batch import (
    encode_rows,
    headers_of,
    read_blocks,
    read_each_batch,
    read_record_batches,
    seal,
)
from kafka_eos_sink.protocol.schema import encode, is_flexible
from kafka_eos_sink.runtime.batch_record import parse_record, record_of
from kafka_eos_sink.settings.jaas import parse_jaas
from kafka_eos_sink.settings.java_properties import parse_properties
from kafka_eos_sink.spark import checkpoint
from tests.fuzz.hostile_log import VICTIM, history, reset_peak, resident, signed, template
from tests.unit.protocol.test_fuzz_messages import messages

MOST_MEMORY = 64 << 20
SLOWEST_S = 1.0
PROCESSES = 2
LIMIT = 1 << 20
"""What a decoder that takes a limit may decompress."""
SEEDS = 24
"""Valid inputs of each target."""
INTERESTING = (
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0x8000,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    2**63 - 1,
    2**63,
    2**64 - 1,
)
VARINTS = (b"\x00", b"\x01", b"\xff\xff\xff\xff\x0f", b"\xfe\xff\xff\xff\x0f", b"\x80" * 9 + b"\x01", b"\xff" * 10)


@dataclass(frozen=True, slots=True)
class Target:
    """A decoder, what it may raise, and valid inputs; ``mend`` makes what is checked before the rest fit."""

    name: str
    decode: Callable[[bytes], object]
    raises: tuple[type[Exception], ...]
    seeds: Sequence[bytes]
    mend: Callable[[bytes], bytes] = bytes
    weight: float = 1.0


# valid inputs


def examples(strategy: Any, count: int) -> list[Any]:
    """Draw from a strategy as hypothesis does, without a test around it."""
    found: list[Any] = []

    def collect(value: Any) -> bool:
        found.append(value)
        return len(found) >= count

    with contextlib.suppress(NoSuchExample):
        find(
            strategy,
            collect,
            settings=settings(
                max_examples=4 * count,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
                derandomize=True,
            ),
        )
    return found


def responses() -> list[Target]:
    made = []
    for request in REQUESTS:
        for version in request.VERSIONS:
            flexible = is_flexible(request.RESPONSE, version)
            header = bytes(4) + b"\0" * response_header_version(request, version)
            values = examples(messages(request.RESPONSE, version, flexible), SEEDS)
            seeds = [header + encode(value, version) for value in values]
            decode = partial(decode_response, request, version, correlation_id=0)
            made.append(Target(f"{request.RESPONSE.__name__} v{version}", decode, (ProtocolError,), seeds))
    return made


def batches() -> list[bytes]:
    rows = [(b"key", b"value" * 20, [("header", b"1"), ("\u00e9", None)]), (None, None, []), (b"", b"", [])]
    found = []
    for codec in Compression:
        for transactional in (True, False):
            block = encode_rows(rows, 1_700_000_000_000, codec=codec)
            found.append(
                b"".join(seal(block, producer_id=7, producer_epoch=1, base_sequence=0, transactional=transactional))
            )
    _, logged = history(VICTIM, 40)
    return found + [batch for batch, _ in logged]


ABORTED = [AbortedTransaction(producer_id=7, first_offset=0)]


def with_right_checksum(data: bytes) -> bytes:
    if len(data) < 61:
        return data
    batch = bytearray(data)
    batch[16] = 2
    return signed(batch)


def each_batch(data: bytes) -> None:
    # Each alone, because the first error ends the others.
    for read in (
        lambda: list(headers_of(data)),
        lambda: list(read_each_batch(data, max_bytes=LIMIT, max_records=1_000)),
        lambda: list(read_blocks(data)),
        lambda: list(read_record_batches(data, max_decompressed_bytes=LIMIT)),
        lambda: list(committed_batches(read_record_batches(data, max_decompressed_bytes=LIMIT), ABORTED)),
    ):
        try:
            read()
        except ProtocolError:
            continue


def frames(data: bytes) -> None:
    reader = FrameReader(LIMIT)
    for at in range(0, len(data), 7):
        reader.feed(data[at : at + 7])
        while reader.next_frame() is not None:
            pass


def scram(data: bytes) -> None:
    """Both messages of a server, split at a zero byte."""
    first, _, final = data.partition(b"\0")
    dialogue = sasl.scram("sha256", PasswordCredentials(username="u", password=Secret("p")), nonce="abcdef")
    next(dialogue)
    try:
        dialogue.send(first)
        dialogue.send(final)
    except StopIteration:
        raise AssertionError("a server without the password was believed") from None


def logged(data: bytes) -> None:
    """A key and a value of the commit log and of the history, split at a zero byte."""
    key, _, value = data.partition(b"\0")
    parse_record(key, value)
    for name in (key, *_KEYS):
        if (found := log_records.parse_key(name)) is not None:
            fields = log_records.parse_value(found, value)
            if fields is not None and "body" in fields:
                log_records.parse_decision(fields["body"], found, (40, 1))


_DECISION, _ = history(VICTIM, 40)
_KEYS = [template(kind, _DECISION).key for kind in ("barrier", "part", "decision", "done")]


def targets() -> list[Target]:
    records = [template(kind, _DECISION) for kind in ("barrier", "part", "decision", "done")]
    batch_record = record_of(_DECISION, 1_700_000_000_000, plan_ms=3, write_ms=4)
    log_seeds = [record.key + b"\0" + (record.value or b"") for record in records]
    log_seeds.append(batch_record.write_id.encode() + b"\0" + batch_record.encoded())
    sections = [bytes(compress(codec, None, b"rows of a section" * 40)) for codec in Compression if codec]
    texts = [
        'org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="b\\"c";',
        "a.b=c\\\n  d\nx\\u0041 : y",
    ]
    return [
        *responses(),
        Target(
            "frames",
            frames,
            (ProtocolError,),
            [struct.pack(">i", 9) + b"123456789", struct.pack(">i", 0) * 3],
            weight=5,
        ),
        Target("record batches", each_batch, (), batches(), with_right_checksum, weight=60),
        *(
            Target(
                f"compressed by {codec.name.lower()}",
                partial(decompress, codec, limit=LIMIT),
                (ProtocolError,),
                [section],
                weight=5,
            )
            for codec, section in zip([codec for codec in Compression if codec], sections, strict=True)
        ),
        Target("commit log and history", logged, (), log_seeds, weight=40),
        Target(
            "SCRAM",
            scram,
            (AuthenticationError,),
            [b"r=abcdefghi,s=c2FsdA==,i=4096\0v=c2ln", b"r=abcdefghi,s=c2FsdA==,i=4096\0e=other-error"],
            weight=0.02,
        ),
        Target(
            "token response",
            oauth._json_object,
            (),
            [b'{"access_token":"t","expires_in":60}', b'{"error":"invalid_client","error_description":"no"}'],
        ),
        Target(
            "JAAS",
            lambda data: parse_jaas(data.decode(errors="replace")),
            (ConfigurationError, ValueError),
            [texts[0].encode()],
        ),
        Target(
            "properties",
            lambda data: parse_properties(data.decode(errors="replace")),
            (ConfigurationError, ValueError),
            [texts[1].encode()],
        ),
        Target(
            "offsets of a checkpoint",
            lambda data: checkpoint._kafka_offsets(data.decode(errors="replace")),
            (KafkaEosError,),
            [b'{"orders":{"0":12,"1":-1}}', b'{"logOffset":3}', b"-"],
        ),
    ]


# changes


def changed(seed: bytes, other: bytes, chance: random.Random) -> bytes:
    data = bytearray(seed)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 5))):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(9):
            case 0 if data:
                data[at % len(data)] ^= 1 << chance.randrange(8)
            case 1 if data:
                data[at % len(data)] = chance.randrange(256)
            case 2:
                width = chance.choice((1, 2, 4, 8))
                data[at : at + width] = (chance.choice(INTERESTING) & (256**width - 1)).to_bytes(width, "big")
            case 3:
                data[at:at] = chance.choice(VARINTS)
            case 4:
                del data[at:]
            case 5:
                del data[at : at + chance.randint(1, 8)]
            case 6:
                data[at:at] = data[chance.randrange(len(data) + 1) :][: chance.randint(1, 64)]
            case 7:
                data[at:] = other[chance.randrange(len(other) + 1) :]
            case 8:
                data[at:at] = chance.randbytes(chance.randint(1, 16))
    return bytes(data[: LIMIT // 4])


def tried(target: Target, data: bytes) -> None:
    began = time.process_time()
    try:
        target.decode(data)
    except target.raises:
        pass
    except BaseException as failure:
        raise AssertionError(f"{target.name}: {failure!r} for {data[:2_000].hex()}") from failure
    took = time.process_time() - began
    if took > SLOWEST_S:
        raise AssertionError(f"{target.name} took {took:.1f} s for {data[:2_000].hex()}")


def run(cases: int, seed: int) -> tuple[int, dict[str, int]]:
    """Try so many cases; return the bytes of memory beyond the beginning, and the cases of each target."""
    found = targets()
    chance = random.Random(seed)
    for target in found:
        for valid in target.seeds:
            tried(target, valid)
    reset_peak()
    before = resident("VmRSS")
    counts = dict.fromkeys((target.name for target in found), 0)
    weights = [target.weight for target in found]
    done = 0
    while done < cases:
        (target,) = chance.choices(found, weights)
        many = min(200, cases - done)
        for _ in range(many):
            data = changed(chance.choice(target.seeds), chance.choice(target.seeds), chance)
            tried(target, target.mend(data) if chance.random() < 0.9 else data)
        counts[target.name] += many
        done += many
        if resident("VmHWM") - before > MOST_MEMORY:
            raise AssertionError(f"{target.name}: {(resident('VmHWM') - before) >> 20} MiB more than before")
    return resident("VmHWM") - before, counts


def guided(cases: int, names: str) -> None:
    """Let atheris choose the changes, for the targets whose names contain the text."""
    import atheris

    chosen = [target for target in targets() if names in target.name]

    def one(data: bytes) -> None:
        if data:
            target = chosen[data[0] % len(chosen)]
            tried(target, target.mend(data[1:]))

    with tempfile.TemporaryDirectory(prefix="kafka-eos-fuzz-") as corpus:
        for at, target in enumerate(chosen):
            for number, valid in enumerate(target.seeds):
                Path(corpus, f"{at}-{number}").write_bytes(bytes((at,)) + valid)
        atheris.instrument_all()
        options = [f"-runs={cases}", "-max_len=4096", "-print_final_stats=1", "-verbosity=0"]
        atheris.Setup([sys.argv[0], *options, corpus], one)
        atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--guided", action="store_true")
    parser.add_argument("--targets", default="", help="with --guided: a part of the targets' names")
    given = parser.parse_args()
    if given.guided:
        guided(given.cases, given.targets)
        return 0
    print(f"{given.cases:,} cases, seed {given.seed}", flush=True)
    began, share = time.monotonic(), -(-given.cases // PROCESSES)
    with ProcessPoolExecutor(PROCESSES) as pool:
        results = list(pool.map(run, [share] * PROCESSES, [given.seed + number for number in range(PROCESSES)]))
    most = max(memory for memory, _ in results)
    minutes, decoders = (time.monotonic() - began) / 60, len(results[0][1])
    print(
        f"{share * PROCESSES:,} cases of {decoders} decoders in {minutes:.0f} minutes: only errors of ours; {most / 2**20:.1f} MiB"
    )
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    sys.exit(main())
