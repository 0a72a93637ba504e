from __future__ import annotations

import subprocess
import sys

import pytest
from pyspark.sql.types import StructType

from kafka_eos_sink.errors import KafkaEosError
from kafka_eos_sink.spark.data_source import KafkaEosDataSource

OPTIONS = {"kafka.bootstrap.servers": "localhost:1", "topic": "t"}
SCHEMA = StructType().add("value", "string")


def test_writer_resolves_a_reference_of_the_sink_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTER", "${env:INNER}")
    monkeypatch.setenv("INNER", "wrong")
    named = OPTIONS | {"txnAppId": "${env:OUTER}", "txnVersion": "1"}
    writer = KafkaEosDataSource(named).writer(SCHEMA, overwrite=False)
    assert writer._checked_options().txn_app_id == "${env:INNER}"


def test_first_use_of_writer_spares_modules_from_collections() -> None:
    """In a process of its own, because the garbage collector is that of the whole process."""
    lines = [
        "import gc",
        "from pyspark.sql.types import StructType",
        "from kafka_eos_sink.spark.data_source import KafkaEosDataSource",
        f"writer = KafkaEosDataSource({OPTIONS!r}).writer(StructType().add('value', 'string'), overwrite=False)",
        "assert gc.get_freeze_count() == 0",
        "writer._checked_options()",
        "spared = gc.get_freeze_count()",
        "assert spared > 10_000, spared",
        "later = [[number] for number in range(1_000)]",
        "writer._checked_options()",
        "assert gc.get_freeze_count() <= spared",
    ]
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True, timeout=60)


def test_write_without_a_writer_is_rejected_with_both_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """tools/run-matrix runs a query on the real one."""
    monkeypatch.delattr("pyspark.sql.datasource.DataSourceStreamArrowWriter")
    with pytest.raises(KafkaEosError, match=r"STREAMING_NOT_SUPPORTED\] .* This run wrote nothing of the batch"):
        KafkaEosDataSource(OPTIONS).streamWriter(SCHEMA, overwrite=False)
    with pytest.raises(KafkaEosError, match=r"OVERWRITE_NOT_SUPPORTED\] .* This run wrote nothing of the batch"):
        KafkaEosDataSource(OPTIONS).writer(SCHEMA, overwrite=True)
