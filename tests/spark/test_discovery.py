"""Spark finds the source without registration, and a broken installation of it harms no other source."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

REPOSITORY = Path(__file__).parents[2]


def run_python(program: str, *paths: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {[str(path) for path in paths]!r}\n{program}"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=REPOSITORY,
    )


def test_the_source_is_found_without_registration(spark: SparkSession) -> None:
    with pytest.raises(Exception, match=r"\[KAFKA_EOS\.INVALID_OPTIONS\] 1\. kafka\.bootstrap\.servers is required"):
        spark.range(1).selectExpr("'a' AS value").write.format("kafka-eos").mode("append").save()


def test_importing_the_package_imports_neither_spark_nor_arrow() -> None:
    done = run_python(
        "import kafka_eos_sink, pyspark_kafka_eos\n"
        "heavy = {'pyspark', 'pyarrow', 'numpy', 'kafka_eos_sink.spark'} & set(sys.modules)\n"
        "print(sorted(heavy))"
    )
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_the_public_list_is_complete() -> None:
    done = run_python(
        "import kafka_eos_sink\n"
        "for name in kafka_eos_sink.__all__: getattr(kafka_eos_sink, name)\n"
        "import pyspark_kafka_eos\n"
        "assert pyspark_kafka_eos.DefaultSource is kafka_eos_sink.KafkaEosDataSource\n"
        "assert not hasattr(kafka_eos_sink, 'nothing') and not hasattr(pyspark_kafka_eos, 'nothing')"
    )
    assert done.returncode == 0, done.stderr


def test_the_look_up_imports_nothing_that_only_a_write_needs() -> None:
    done = run_python(
        "import pyspark.sql.datasource\n"
        "before = set(sys.modules)\n"
        "import pyspark_kafka_eos; pyspark_kafka_eos.DefaultSource.name()\n"
        "print(sorted(name for name in set(sys.modules) - before if 'kafka_eos' not in name))\n"
        "print('kafka_eos_sink.spark.writer' in sys.modules)"
    )
    assert (done.returncode, done.stdout) == (0, "[]\nFalse\n"), done.stderr


def test_broken_installation_has_no_source_and_raises_nothing(tmp_path: Path) -> None:
    broken = tmp_path / "kafka_eos_sink"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise OSError('half an installation')\n", "utf-8")
    done = run_python("import pyspark_kafka_eos; print(hasattr(pyspark_kafka_eos, 'DefaultSource'))", tmp_path)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr
    assert done.stderr.splitlines() == ["kafka-eos is not available in this Spark: OSError: half an installation"]
