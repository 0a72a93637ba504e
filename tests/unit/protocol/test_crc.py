"""CRC-32C by either library: the same values, and a sentence if there is none."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kafka_eos_sink.protocol import crc

PROGRAM = """
import sys
for hidden in sys.argv[1].split():
    sys.modules[hidden] = None  # as if it were not installed
from kafka_eos_sink.protocol.crc import crc32c
from kafka_eos_sink.protocol.record_batch import encode_rows, read_record_batches, seal
print(crc32c.__module__, crc32c(b"123456789"), crc32c(memoryview(bytearray(b"6789")), crc32c(bytearray(b"12345"))))
block = encode_rows([(b"key", b"value", ())], 0)
sealed = b"".join(seal(block, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True))
print([record.value for batch in read_record_batches(sealed) for record in batch.records])
"""
CHECK_VALUE = 0xE3069283  # of "123456789" (RFC 3720, appendix B.4)


def run(hidden: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", PROGRAM, hidden], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("hidden", "used"), [("", "crc32c"), ("google_crc32c", "crc32c"), ("crc32c", "kafka_eos_sink.protocol.crc")]
)
def test_either_library_gives_the_same_checksums(hidden: str, used: str) -> None:
    done = run(hidden)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    module, *values = first.split()
    assert module.startswith(used)
    assert list(map(int, values)) == [CHECK_VALUE, CHECK_VALUE]
    assert second == "[b'value']"


def test_missing_libraries_are_named() -> None:
    done = run("crc32c google_crc32c")
    assert done.returncode == 1
    assert "ImportError: no library for CRC-32C is installed; run: pip install crc32c (or google-crc32c)" in done.stderr
    assert crc.crc32c(b"123456789") == CHECK_VALUE
