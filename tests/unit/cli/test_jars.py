from __future__ import annotations

import re
from pathlib import Path

import pytest

from kafka_eos_sink.cli.main import main
from kafka_eos_sink.embedded import distribution
from kafka_eos_sink.jobs.spark_kafka_source import KAFKA_SOURCE_JARS
from snippets import OUTPUTS


def test_the_jars_are_printed_as_spark_submit_takes_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jars"]) == 0
    printed = capsys.readouterr().out.strip()
    paths = printed.split(",")
    assert paths == [str(path) for path in distribution.resolve_coordinates(KAFKA_SOURCE_JARS)]
    assert [Path(path).stem for path in paths] == ["-".join(jar.split(":")[1:]) for jar in KAFKA_SOURCE_JARS]
    assert all(Path(path).is_file() for path in paths)
    shown = OUTPUTS["docs/cli.md#kafka-eos-jars"].text.replace("\n", "")
    folder = str(Path(paths[0]).parent)
    assert re.sub(r"~/\.cache/kafka-eos/jars-\w+", "FOLDER", shown) == printed.replace(folder, "FOLDER")
