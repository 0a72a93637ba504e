"""Feeds the reader of the commit log with records that somebody else might write, and looks that nothing but our errors comes out.

    PYTHONPATH=.:tests .venv/bin/python tests/fuzz/hostile_log.py --cases 1000000

A case is a batch of a hostile producer. It begins as records of ours. A producer that may Write changes their JSON, their bytes, their
batch, or all of it, and signs the batch with a right CRC. Some of them lie in one log, among the whole histories of two write ids.
The reader is the executor, the view, the parser of decisions and ``kafka-eos status``; only the network is missing.

What must hold: reading raises nothing. A decision that counts names its own write only, in the transaction of its own driver. The write id
under whose keys nothing was written reads as if the hostile producer were not there. And the reader stays below 64 MiB.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import re
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from crc32c import crc32c
from rich.console import Console, Group

from kafka_eos_sink.cli.view import tables
from kafka_eos_sink.client.topics_admin import FetchedPartition
from kafka_eos_sink.commit import log_records, steps
from kafka_eos_sink.commit.log_access import read_to_end
from kafka_eos_sink.commit.log_view import LoggedDecision, LogView
from kafka_eos_sink.commit.transactional_id import parse
from kafka_eos_sink.commit.values import Decision, OffsetRange, PreparedTransaction
from kafka_eos_sink.commit.write_states import writes_in
from kafka_eos_sink.errors import WriteRefusedError
from kafka_eos_sink.operations.cluster_view import ClusterView, write_lines
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.protocol import messages as m
from kafka_eos_sink.protocol.compression import Compression, compress
from kafka_eos_sink.protocol.framing import encode_request
from kafka_eos_sink.protocol.identity import ProducerIdentity
from kafka_eos_sink.protocol.record_batch import encode_rows, seal
from kafka_eos_sink.protocol.varints import encode_varint
from kafka_eos_sink.protocol.wire_types import ZERO_UUID
from kafka_eos_sink.runtime.executor import Executor

MOST_MEMORY = 64 << 20
BYSTANDER, VICTIM = "kafka-eos/nightly/orders", "kafka-eos/hourly/payments"
HOSTILE = (666, 0)
"""Producer id and epoch."""
RECORD_TYPES = ("barrier", "part", "decision", "done", "tombstone")

Row = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]


def identity(transactional_id: str, producer_id: int, epoch: int = 0) -> ProducerIdentity:
    return ProducerIdentity(
        transactional_id=transactional_id, producer_id=producer_id, producer_epoch=epoch, transaction_version=2
    )


class HostileLog:
    """A partition of the commit log, as its leader returns it."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, bytes]] = []
        self.end = 0

    def append(self, batch: bytes, records: int = 1) -> int:
        """Append a batch, as the leader does: with its offset, which no CRC covers."""
        offset = self.end
        self.end += max(records, 1)
        self.batches.append((self.end - 1, struct.pack(">q", offset) + batch[8:]))
        return offset

    def write(self, *records: steps.LogRecord, producer: tuple[int, int] | None = None) -> int:
        rows = [(record.key, record.value, ()) for record in records]
        producer_id, epoch = (-1, -1) if producer is None else producer
        batch = seal(
            encode_rows(rows, 1),
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=0,
            transactional=producer is not None,
        )
        return self.append(b"".join(batch), len(rows))

    def end_transaction(self, producer_id: int, epoch: int, commit: bool = True) -> None:
        key, value = struct.pack(">hh", 0, int(commit)), struct.pack(">hi", 0, 0)
        batch = bytearray(
            b"".join(
                seal(
                    encode_rows([(key, value, ())], 1),
                    producer_id=producer_id,
                    producer_epoch=epoch,
                    base_sequence=-1,
                    transactional=True,
                )
            )
        )
        batch[22] |= 0x20
        self.append(signed(batch))

    def fetch_each(self, offsets: dict[Any, int], _deadline_ms: int, *, max_bytes: int, **_: Any) -> dict[Any, Any]:
        ((where, offset),) = offsets.items()
        found, size = [], 0
        for last, batch in self.batches:
            if last >= offset:
                found.append(batch)
                size += len(batch)
                if size > max_bytes:
                    break
        fetched = FetchedPartition(
            partition_index=0,
            error_code=0,
            high_watermark=self.end,
            log_start_offset=0,
            aborted_transactions=None,
            records=b"".join(found)[: max(max_bytes, len(found[0]))] if found else b"",
        )
        return {where: (ZERO_UUID, fetched)}

    def executor(self) -> Executor:
        client = SimpleNamespace(clock=lambda: 0, config=SimpleNamespace(client_id="fuzz"))
        admin: Any = SimpleNamespace(client=client, fetch_each=self.fetch_each)
        return Executor(admin, ("log", 0), ProducerConfig())

    def read(self, write_id: str | None) -> LogView:
        view = LogView(write_id)
        self.executor().run(read_to_end(view))
        return view


def signed(batch: bytearray) -> bytes:
    """The batch with its length and CRC made to fit."""
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return bytes(batch)


@cache
def history(write_id: str, producer_id: int, version: int = 1) -> tuple[Decision, tuple[tuple[bytes, int], ...]]:
    """What a batch of two tasks leaves: barrier, parts, decision, markers, done, as batches with their numbers of records."""
    log = HostileLog()
    log.write(log_records.barrier_record(write_id, f"n{version}"))
    driver = identity(f"{write_id}.driver", producer_id, version)
    prepared = []
    for partition in range(2):
        own = identity(f"{write_id}.{partition}.3", producer_id + 1 + partition, version)
        record = log_records.part_record(write_id, "batch", partition, version, 7)
        offset = log.write(record, producer=(own.producer_id, own.producer_epoch))
        offsets = (OffsetRange(topic="orders", partition=partition, first_offset=10, last_offset=19),)
        prepared.append(
            PreparedTransaction(partition=partition, identity=own, part_offset=offset, rows=10, offsets=offsets)
        )
    decision = Decision(
        write_id=write_id,
        query_id="batch",
        version=version,
        nonce=f"n{version}",
        driver=driver,
        topic="orders",
        schema="value binary",
        offsets_hash=None,
        transactions=tuple(prepared),
    )
    log.write(*log_records.decision_records(decision), producer=(driver.producer_id, driver.producer_epoch))
    log.end_transaction(driver.producer_id, driver.producer_epoch + 1)
    for each in prepared:
        log.end_transaction(each.identity.producer_id, each.identity.producer_epoch + 1)
    log.write(log_records.done_record(decision, 1_700_000_000_000))
    ends = [-1, *(last for last, _ in log.batches)]
    return decision, tuple((batch, last - before) for before, (last, batch) in zip(ends, log.batches, strict=False))


@cache
def template(kind: str, decision: Decision) -> steps.LogRecord:
    match kind:
        case "barrier":
            return log_records.barrier_record(decision.write_id, "n")
        case "part":
            return log_records.part_record(decision.write_id, decision.query_id, 0, decision.version, 7)
        case "decision":
            forged = replace(decision, nonce="f", version=decision.version + 1)
            return log_records.decision_records(forged)[0]
        case "done":
            return log_records.done_record(decision, 1_700_000_000_000)
    return steps.LogRecord(log_records.log_key("decision", decision.write_id, decision.query_id, 0), None)


# what a hostile producer does to a record


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


WEIRD: tuple[Callable[[], Any], ...] = (
    lambda: None,
    lambda: True,
    lambda: -1,
    lambda: -(2**70),
    lambda: 2**31,
    lambda: 2**63,
    lambda: 10**4000,
    lambda: 1.5,
    lambda: float("inf"),
    lambda: float("nan"),
    lambda: "",
    lambda: "n1~1",
    lambda: "n1~x",
    lambda: "~9",
    lambda: "\ud800",
    lambda: "\x1b[2J\n\x07",
    lambda: "a" * 70_000,
    lambda: "payments-service-tx-1",
    lambda: VICTIM,
    lambda: BYSTANDER,
    lambda: 666,
    list,
    dict,
    lambda: nested(30),
    lambda: [1, 2, 3, 4],
    lambda: {"format": 1},
)


def changed_value(value: Any, chance: random.Random) -> Any:
    """Replace, remove, repeat or add something, at any depth."""
    if isinstance(value, (dict, list)) and value and chance.random() < 0.85:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        at = chance.choice(keys)
        what = chance.random()
        if what < 0.1:
            del value[at]
        elif what < 0.2:
            value[chance.choice(keys)] = value[at]
        elif what < 0.3 and isinstance(value, list):
            value.insert(at, value[at])
        else:
            value[at] = changed_value(value[at], chance)
        return value
    return chance.choice(WEIRD)()


def changed_text(text: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(text) + 1)
    match chance.randrange(7):
        case 0:
            return text[:at]
        case 1:
            return text[:at] + bytes([chance.randrange(256)]) + text[at + 1 :]
        case 2:
            return text[:at] + b" " + text[at:]
        case 3:
            return b"[" * chance.choice((1, 1, 1, 2_000, 2_000, 100_000)) + text
        case 4:
            return text[:at] + b"9" * 5_000 + text[at:]
        case 5:
            return text[:at] + chance.randbytes(8) + text[at:]
    return text * 2


def dumped(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def changed_json(text: bytes, chance: random.Random) -> bytes:
    """Change a value of a record; in that of a decision, often its body."""
    value = json.loads(text)
    if isinstance(value, dict) and "body" in value and chance.random() < 0.7:
        body = json.loads(value["body"])
        for _ in range(chance.randint(1, 3)):
            body = changed_value(body, chance)
        value["body"] = json.dumps(body, ensure_ascii=chance.random() < 0.5, separators=(",", ":"))
    else:
        value = changed_value(value, chance)
    return dumped(value)


def forged(record: steps.LogRecord, chance: random.Random) -> steps.LogRecord:
    """A decision of the victim that names the hostile producer as its driver, or somebody's transaction as its part."""
    value = json.loads(record.value or b"")
    body = json.loads(value["body"])
    if chance.random() < 0.8:
        body["driver"] |= {"producer_id": HOSTILE[0], "producer_epoch": HOSTILE[1]}
    names = ("payments-service-tx-1", f"{BYSTANDER}.0.3", f"{VICTIM}.0.8", f"{VICTIM}.driver", f"{VICTIM}.00.1")
    if chance.random() < 0.5:
        body["transactions"][0]["identity"]["transactional_id"] = chance.choice(names)
    elif chance.random() < 0.5:
        body[chance.choice(("write_id", "query_id"))] = chance.choice(("batch", BYSTANDER, "x"))
    return steps.LogRecord(record.key, dumped(value | {"body": json.dumps(body)}))


def hostile_record(kind: str, decision: Decision, chance: random.Random) -> steps.LogRecord:
    record = template(kind, decision)
    key, value = record.key, record.value
    if kind == "decision" and chance.random() < 0.3:
        return forged(record, chance)
    if value is not None and chance.random() < 0.75:
        value = changed_json(value, chance)
    if value is not None and chance.random() < 0.2:
        value = changed_text(value, chance)
    if value is None or chance.random() < 0.15:
        key = dumped(changed_value(json.loads(key), chance)) if chance.random() < 0.5 else changed_text(key, chance)
    # Who may Write decides for every write. Nothing of the bystander is changed, so that it has to read as before.
    found = log_records.parse_key(key)
    return steps.LogRecord(record.key if found is not None and found.write_id == BYSTANDER else key, value)


# and to a batch


def bombs() -> list[tuple[str, Compression, int, bytes]]:
    """Batches that are small in the log and large in memory: name, codec, number of records, records section."""
    zeros = encode_rows([(b"k", bytes(65 << 20), ())], 1).records
    found = [
        (f"{codec.name.lower()} of 65 MiB", codec, 1, bytes(compress(codec, None, zeros)))
        for codec in Compression
        if codec
    ]
    headers = b"\0\0\0\x02k\x01" + encode_varint(500_000) + bytes(1_000_000)
    headers = encode_varint(len(headers)) + headers
    found.append(("headers", Compression.ZSTD, 1, bytes(compress(Compression.ZSTD, None, headers))))
    records = b"".join(
        encode_varint(len(body)) + body
        for body in (b"\0\0" + encode_varint(at) + b"\x02k\x01\0" for at in range(110_000))
    )
    found.append(("records", Compression.ZSTD, 110_000, bytes(compress(Compression.ZSTD, None, records))))
    key = log_records.log_key("decision", VICTIM, "batch", 0)
    for name, value in {
        "deep": b"[" * 900_000,
        "wide": b"[" + b"[]," * 300_000 + b"[]]",
        "wide objects": b'{"format":2,"body":[' + b"{}," * 300_000 + b"{}]}",
    }.items():
        block = encode_rows([(key, value, ())], 1, codec=Compression.GZIP)
        found.append((name, Compression.GZIP, 1, bytes(block.records)))
    for codec in (Compression.GZIP, Compression.LZ4):
        empty = bytes(compress(codec, None, b""))
        found.append((f"empty {codec.name.lower()} frames", codec, 1, empty * (600_000 // len(empty))))
    return found


class Fuzz:
    """Cases from a seed, and what became of them."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.bombs = bombs()
        self.counts: Counter[str] = Counter()
        self.memory = 0
        self.console = Console(width=160, color_system=None, quiet=True)

    def run(self, cases: int) -> None:
        logger = logging.getLogger("kafka_eos_sink")
        level = logger.level
        # The warnings of hostile records are the subject of other tests.
        logger.setLevel(logging.CRITICAL)
        start = resident("VmRSS")
        reset_peak()
        try:
            until = self.counts["cases"] + cases
            while self.counts["cases"] < until:
                self._read_a_log()
        finally:
            logger.setLevel(level)
        self.memory = max(self.memory, resident("VmHWM") - start)

    def _read_a_log(self) -> None:
        self.counts["logs"] += 1
        chance, log = self.chance, HostileLog()
        genuine: dict[str, Decision] = {}
        writers = [(BYSTANDER, 10, 1), (VICTIM, 30, 1), (BYSTANDER, 10, 3), (VICTIM, 30, 3)]
        for write_id, producer_id, version in chance.choice((writers[:2], writers[:2], writers[:3], writers)):
            if genuine and chance.random() < 0.5:
                self._append_hostile(log, genuine.get(VICTIM) or replace(genuine[BYSTANDER], write_id=VICTIM))
            genuine[write_id], batches = history(write_id, producer_id, version)
            for batch, records in batches:
                log.append(batch, records)
        for _ in range(chance.randint(2, 6)):
            self._append_hostile(log, genuine[VICTIM])
        self._check(log, genuine)

    def _append_hostile(self, log: HostileLog, decision: Decision) -> None:
        chance = self.chance
        self.counts["cases"] += 1
        if chance.random() < 0.001:
            name, codec, count, section = chance.choice(self.bombs)
            self.counts[name] += 1
            self._append_section(log, codec, count, section)
            return
        kinds = [chance.choice(RECORD_TYPES) for _ in range(chance.randint(1, 3))]
        self.counts.update(kinds)
        records = [hostile_record(kind, decision, chance) for kind in kinds]
        codec = chance.choice((Compression.NONE, Compression.NONE, *Compression))
        headers = [("h", b"x")] * chance.randrange(3)
        rows = [(record.key, record.value, headers) for record in records]
        section = bytearray(encode_rows(rows, 1).records)
        count = len(rows)
        if chance.random() < 0.25:
            self.counts["changed records sections"] += 1
            for _ in range(chance.randint(1, 4)):
                section[chance.randrange(len(section))] = chance.randrange(256)
            count += chance.choice((0, 0, 0, -1, 1, 100_000))
        packed = bytearray(compress(codec, None, bytes(section)))
        if codec and chance.random() < 0.1:
            self.counts["damaged compression"] += 1
            packed[chance.randrange(len(packed))] = chance.randrange(256)
        self._append_section(log, codec, count, bytes(packed[: len(packed) - chance.choice((0,) * 9 + (1,))]))

    def _append_section(self, log: HostileLog, codec: Compression, count: int, section: bytes) -> None:
        chance = self.chance
        producer_id, epoch = HOSTILE if chance.random() < 0.8 else (-1, -1)
        attributes = (
            codec
            | (0x10 if producer_id >= 0 else 0)
            | (chance.choice((0x08, 0x40, 5)) if chance.random() < 0.02 else 0)
        )
        header = bytearray(61)
        header[16] = 2
        struct.pack_into(
            ">hiqqqhii", header, 21, attributes, max(count, 1) - 1, 1, 1, producer_id, epoch, 0, max(count, 0)
        )
        log.append(signed(header + section), count)
        if producer_id >= 0 and chance.random() < 0.8:
            log.end_transaction(producer_id, epoch + chance.choice((1, 1, 1, 0)), chance.random() < 0.9)

    # what must hold

    def _check(self, log: HostileLog, genuine: dict[str, Decision]) -> None:
        bystander = log.read(BYSTANDER).query("batch")
        assert bystander.newest is not None
        assert bystander.newest.decision == genuine[BYSTANDER]
        assert bystander.state_of(bystander.newest.decision).is_settled
        assert (bystander.foreign, bystander.undecided) == ([], [])
        self._read_victim(log)
        view = log.read(None)
        writes = writes_in(view)
        if self.chance.random() < 0.02:
            self.console.print(Group(*tables(ClusterView(now_ms=0, writes=write_lines(writes)), with_offsets=True)))
        for write in writes:
            self.counts[write.state] += 1
            json.dumps(write.as_json()).encode()
            encoded(write.write_id)
        assert any(write.write_id == BYSTANDER and write.version is not None for write in writes)

    def _read_victim(self, log: HostileLog) -> None:
        view = log.read(VICTIM)
        assert not view.lacks_write
        for query in view.queries("decision", "part", "done", "foreign"):
            try:
                found = query.newest
            except WriteRefusedError as refused:
                self.counts[refused.code] += 1
                continue
            self.counts["foreign records"] += len(query.foreign)
            self.counts["undecided records"] += len(query.undecided)
            assert query.of_plan("n") is not None
            for part in query.newest_parts.values():
                assert part.outcome
            if found is not None:
                query.state_of(found.decision)
                self._require_sound(found, log)

    def _require_sound(self, logged: LoggedDecision, log: HostileLog) -> None:
        """A decision that counts is the victim's own, and the requests that its driver would send can be sent."""
        self.counts["decisions that count"] += 1
        decision = logged.decision
        assert decision.write_id == VICTIM
        carrier = next(batch for last, batch in log.batches if last >= logged.offset)
        assert struct.unpack_from(">qh", carrier, 43) == (decision.driver.producer_id, decision.driver.producer_epoch)
        for prepared in decision.transactions:
            own = prepared.identity
            found = parse(own.transactional_id, VICTIM)
            assert found is not None
            assert found.partition == prepared.partition
            request = m.EndTxnRequest(
                transactional_id=own.transactional_id,
                producer_id=own.producer_id,
                producer_epoch=own.producer_epoch,
                committed=True,
            )
            encode_request(request, 5, 0, "fuzz")
            for part in prepared.offsets:
                where = m.FetchRequest.Topic.Partition(
                    partition=part.partition,
                    current_leader_epoch=-1,
                    fetch_offset=part.first_offset,
                    partition_max_bytes=1,
                )
                topic = m.FetchRequest.Topic(topic=part.topic, partitions=(where,))
                encode_request(
                    m.FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1, isolation_level=0, topics=(topic,)),
                    12,
                    0,
                    "fuzz",
                )

    def report(self) -> str:
        rows = [f"{name}: {count:,}" for name, count in sorted(self.counts.items())]
        return "\n".join([*rows, f"memory of the reader: {self.memory / (1 << 20):.1f} MiB at most"])


def encoded(text: str) -> bytes:
    """A text from the log can be printed."""
    return text.encode()


def resident(name: str) -> int:
    """Resident bytes of this process, now (VmRSS) or at most (VmHWM)."""
    (kilobytes,) = re.findall(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(kilobytes) << 10


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    given = parser.parse_args()
    print(f"{given.cases:,} cases, seed {given.seed}", flush=True)
    fuzz, began = Fuzz(given.seed), time.monotonic()
    while fuzz.counts["cases"] < given.cases:
        fuzz.run(min(10_000, given.cases - fuzz.counts["cases"]))
        print(f"{fuzz.counts['cases']:,} cases after {time.monotonic() - began:,.0f} s", flush=True)
    print(fuzz.report())
    return 0 if fuzz.memory < MOST_MEMORY else 1


if __name__ == "__main__":
    sys.exit(main())
