"""The DAG of docs/batch.md as it stands there, run by Airflow itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from documents import ROOT, all_blocks
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_testing import assert_nothing_open, create_topic, read_committed
from tests.downloads import python_with
from tests.spark.quick_start import PYTHON_STARTUP

DAY, ROWS, PATIENCE_S = "2026-11-21", 50, 280

pytestmark = pytest.mark.timeout(1_800)  # the first run installs Airflow


def test_cleared_task_writes_nothing_twice(
    kafka: EmbeddedKafka, package: Path, spark_environment: dict[str, str], tmp_path: Path
) -> None:
    """Airflow makes the version: its template of the day, and the parameter of a correction."""
    airflow = python_with("apache-airflow==3.3.2") / "airflow"
    topic = create_topic(kafka.bootstrap_servers, partitions=3)
    for folder in ("dags", "dist", f"orders/{DAY}"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("conf", "spark_jobs"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "dist" / "kafka_eos_sink-0.whl").symlink_to(package)
    lines = (json.dumps({"order_id": number}) for number in range(ROWS))
    (tmp_path / "orders" / DAY / "rows.json").write_text("\n".join(lines), "utf-8")
    (block,) = (block for block in all_blocks() if block.name == "docs/batch.md#from-airflow")
    text = block.text.replace("broker1:9092", kafka.bootstrap_servers).replace("--topic orders", f"--topic {topic}")
    text = text.replace("/opt/kafka-eos", str(tmp_path)).replace("/data/", f"{tmp_path}/")
    (tmp_path / "dags" / "orders.py").write_text(text, "utf-8")
    environment = {
        **os.environ,
        **spark_environment,
        "PYTHONPATH": str(PYTHON_STARTUP),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }
    environment.pop("SPARK_HOME", None)

    def run(*words: str) -> str:
        command = [airflow, *words]
        ended = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout + ended.stderr

    def times() -> set[int]:
        """How often the topic has each row."""
        counted = Counter(
            json.loads(record.value or b"")["order_id"] for record in read_committed(kafka.bootstrap_servers, topic)
        )
        assert len(counted) == ROWS
        return set(counted.values())

    run("db", "migrate")
    run("dags", "reserialize")
    run("dags", "test", "orders", DAY)
    assert times() == {1}
    run("tasks", "clear", "orders", "--yes")
    run("tasks", "test", "orders", "orders_to_kafka", DAY)
    assert times() == {1}
    run("dags", "test", "orders", DAY, "--conf", '{"correction": "02"}')
    assert times() == {2}
    assert_nothing_open(kafka.bootstrap_servers, [topic])
