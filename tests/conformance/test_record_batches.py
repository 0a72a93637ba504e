"""Our batches read by Kafka's Java client and by kafka-python, theirs by us, with all five codecs."""

from __future__ import annotations

import re
import subprocess
import zipfile
from pathlib import Path

import pyarrow as pa

from kafka_eos_sink.protocol.compression import LEVELS, Compression
from kafka_eos_sink.protocol.record_batch import ControlRecord, RecordBatch, encode_rows, read_record_batches, seal
from kafka_eos_sink.protocol.record_columns import HEADERS_TYPE, RecordColumns, encode_block

NOW = 1_700_000_000_000
TIMES = [NOW + 5, None, NOW - 9999, NOW + 2**33]
KEYS = [b"key", None, b"", b"k" * 300]
VALUES = [b"value", b"", None, b"0123456789" * 20_000]
HEADERS = [[("h", b"\x01\x02"), ("n", None), ("e", b"")], [], [], [("ä", "ö".encode())]]
MORE = 500


def columns() -> RecordColumns:
    return RecordColumns(
        key=pa.array(KEYS + [b"k%d" % number for number in range(MORE)]),
        value=pa.array(VALUES + [b"flight %d" % number for number in range(MORE)]),
        headers=pa.array(
            [[{"key": key, "value": value} for key, value in row] for row in HEADERS] + [None] * MORE, HEADERS_TYPE
        ),
        timestamp=pa.array(TIMES + [None] * MORE, pa.int64()),
    )


def batch_of_columns(codec: Compression, level: int | None = None) -> bytes:
    block = encode_block(columns(), NOW, codec, level)
    return b"".join(seal(block, producer_id=4711, producer_epoch=3, base_sequence=17, transactional=True))


def batch_of_rows(codec: Compression) -> bytes:
    rows = list(zip(KEYS, VALUES, HEADERS, strict=True))
    block = encode_rows(rows, NOW, codec=codec)
    return b"".join(seal(block, producer_id=-1, producer_epoch=-1, base_sequence=-1, transactional=False))


EXPECTED = [
    (time or NOW, key, value, headers)
    for time, key, value, headers in zip(
        TIMES + [None] * MORE,
        KEYS + [b"k%d" % number for number in range(MORE)],
        VALUES + [b"flight %d" % number for number in range(MORE)],
        HEADERS + [[]] * MORE,
        strict=True,
    )
]


def java_source(kafka_jars: Path, folder: Path) -> Path:
    """RecordBatches.java, as this Kafka's classes need it: 4.4 has moved all but TimestampType into another package."""
    text = Path(__file__).with_name("RecordBatches.java").read_text()
    (clients,) = kafka_jars.glob("kafka-clients-*.jar")
    with zipfile.ZipFile(clients) as jar:
        if "org/apache/kafka/common/record/internal/RecordBatch.class" in jar.namelist():
            text = re.sub(r"common\.record\.(?!TimestampType)", "common.record.internal.", text)
    source = folder / "RecordBatches.java"
    source.write_text(text)
    return source


def run_java(kafka_jars: Path, source: Path, *arguments: str) -> list[str]:
    run = subprocess.run(
        ["java", "-cp", f"{kafka_jars}/*", str(source), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


def shown(content: bytes | None) -> str:
    return "null" if content is None else "x" + content.hex()


def lines_of_java(name: str, batch: RecordBatch) -> list[str]:
    """What RecordBatches.java prints for a batch."""
    head = f"batch {name} {batch.compression.name.lower()} {batch.base_offset} {batch.last_offset}"
    head += f" {batch.producer_id} {batch.producer_epoch} {batch.base_sequence} {batch.max_timestamp}"
    lines = [f"{head} {batch.transactional} {batch.control}".replace("True", "true").replace("False", "false")]
    for number, record in enumerate(batch.records):
        sequence = batch.base_sequence + number if batch.base_sequence >= 0 else -1
        line = f"record {record.offset} {record.timestamp} {sequence} {shown(record.key)} {shown(record.value)}"
        for key, value in record.headers:
            line += f" {key.encode().hex()}={'null' if value is None else value.hex()}"
        lines.append(line)
    return lines


def test_java_reads_our_batches(kafka_jars: Path, tmp_path: Path) -> None:
    files: dict[str, bytes] = {}
    for codec in Compression:
        for level in {None, *((LEVELS[codec].maximum, LEVELS[codec].minimum) if codec in LEVELS else ())}:
            files[f"{codec.name.lower()}.{level}"] = batch_of_columns(codec, level) + batch_of_rows(codec)
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    source = java_source(kafka_jars, tmp_path)
    printed = run_java(kafka_jars, source, "read", *(str(tmp_path / name) for name in files))
    expected = [
        line
        for name, data in files.items()
        for batch in read_record_batches(data)
        for line in lines_of_java(name, batch)
    ]
    assert printed == expected
    assert len(printed) == len(files) * (len(EXPECTED) + len(KEYS) + 2)
    first = next(read_record_batches(files["none.None"]))
    assert [(one.timestamp, one.key, one.value, list(one.headers)) for one in first.records] == EXPECTED


def test_we_read_batches_of_java(kafka_jars: Path, tmp_path: Path) -> None:
    run_java(kafka_jars, java_source(kafka_jars, tmp_path), "write", str(tmp_path))
    for codec in Compression:
        name = codec.name.lower()
        data = (tmp_path / name).read_bytes()
        batch, commit, abort, emptied = read_record_batches(data)
        assert batch.compression is codec
        assert [(one.offset, one.timestamp, one.key, one.value, one.headers) for one in batch.records[:3]] == [
            (1000, NOW, b"key", b"value", (("h", b"\x01\x02"), ("n", None))),
            (1001, NOW + 500, None, b"", ()),
            (1002, NOW - 1000, b"", None, ()),
        ]
        assert [one.value for one in batch.records[3:]] == [b"flight " * 100 + b"%d" % n for n in range(200)]
        assert commit.control_records == (ControlRecord(offset=1203, type=1),)
        assert abort.control_records == (ControlRecord(offset=1204, type=0),)
        assert (commit.producer_id, commit.producer_epoch, commit.transactional) == (4711, 4, True)
        assert (emptied.base_offset, emptied.last_offset, emptied.producer_id) == (1205, 1207, 4713)
        assert (emptied.control, emptied.control_records, emptied.records) == (True, (), ())
