from __future__ import annotations

from pathlib import Path

import pytest

from kafka_eos_sink.cli.main import main
from kafka_eos_sink.embedded import distribution
from kafka_eos_sink.jobs.spark_kafka_source import KAFKA_SOURCE_JARS


def test_the_jars_are_printed_as_spark_submit_takes_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jars"]) == 0
    paths = capsys.readouterr().out.strip().split(",")
    assert paths == [str(path) for path in distribution.resolve_coordinates(KAFKA_SOURCE_JARS)]
    assert [Path(path).stem for path in paths] == ["-".join(jar.split(":")[1:]) for jar in KAFKA_SOURCE_JARS]
    assert all(Path(path).is_file() for path in paths)
