"""Decoders that run out of memory raise ProtocolError, as for all other bytes that they cannot read."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import pyarrow, numpy, lz4.frame
from kafka_eos_sink.errors import ProtocolError
from kafka_eos_sink.protocol.compression import Compression, compress
from kafka_eos_sink.protocol.messages import DescribeTransactionsRequest
from kafka_eos_sink.protocol.record_batch import encode_rows, read_record_batches, seal
from kafka_eos_sink.protocol.schema import decode, encode

SEAL = dict(producer_id=-1, producer_epoch=-1, base_sequence=-1, transactional=False)
what = sys.argv[1]
if what == "message":
    data = encode(DescribeTransactionsRequest(transactional_ids=("",) * 1_000_000), 0)
    read = lambda: decode(DescribeTransactionsRequest, 0, data)
elif what == "records":
    data = b"".join(seal(encode_rows([(None, None, ())] * 500_000, 0), **SEAL))
    read = lambda: list(read_record_batches(data))
else:
    data = b"".join(seal(encode_rows([(None, bytes(60_000_000), ())], 0, codec=Compression.of(what)), **SEAL))
    read = lambda: list(read_record_batches(data))
decode(DescribeTransactionsRequest, 0, encode(DescribeTransactionsRequest(transactional_ids=("",)), 0))
small = b"".join(seal(encode_rows([(None, bytes(100_000), ())], 0, codec=Compression.ZSTD), **SEAL))
list(read_record_batches(small))
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
resource.setrlimit(resource.RLIMIT_AS, (used + 4_000_000, resource.RLIM_INFINITY))
try:
    read()
except ProtocolError as error:
    resource.setrlimit(resource.RLIMIT_AS, unlimited)
    print(error)
"""


@pytest.mark.parametrize("what", ["message", "records", "gzip", "snappy", "lz4", "zstd"])
def test_decoder_without_memory_raises_protocol_error(what: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, what], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "needs more memory than is free" in done.stdout, done.stdout
