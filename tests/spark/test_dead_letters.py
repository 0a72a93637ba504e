"""Dead letters of a real write in Spark: the warning of its driver, and what the operator's commands show."""

from __future__ import annotations

import json

import pytest
from pyspark.sql import SparkSession

from kafka_eos_sink.cli.main import main
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_testing import create_topic, read_committed, unique_topic

LOGS = "spark.sql.pyspark.worker.logging.enabled"


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_dead_letters_of_all_tasks_are_counted_once(
    spark: SparkSession, kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str], guarantee: str
) -> None:
    topic, dead = (create_topic(kafka.bootstrap_servers, partitions=2) for _ in range(2))
    app, history = unique_topic("app"), unique_topic("history")
    exactly_once = {"txnAppId": app, "txnVersion": "7", "history.topic": history}
    options = {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "topic": topic,
        "dead.letter.topic": dead,
        "delivery.guarantee": guarantee,
        "kafka.max.request.size": "20000",
        **(exactly_once if guarantee == "exactly-once" else {}),
    }
    # In each of four Spark partitions, three rows for no partition of the topic, and one too large.
    frame = spark.range(0, 400, 1, 4).selectExpr(
        "CASE WHEN id % 100 = 99 THEN repeat('x', 30000) ELSE CAST(id AS STRING) END AS value",
        "CASE WHEN id % 100 < 3 THEN 5 END AS partition",
    )
    spark.conf.set(LOGS, "true")
    try:
        frame.write.format("kafka-eos").options(**options).mode("append").save()
        logged = [row.msg for row in spark.tvf.python_worker_logs().collect() if dead in row.msg]
    finally:
        spark.conf.unset(LOGS)
    (warning,) = [each for each in logged if "went to the dead letter topic" in each]
    assert f"16 of 400 rows of version {7 if guarantee == 'exactly-once' else 0} of " in warning
    assert f"the dead letter topic {dead}: NO_SUCH_PARTITION 12, RECORD_TOO_LARGE 4. " in warning
    assert len(read_committed(kafka.bootstrap_servers, dead)) == 16
    assert len(read_committed(kafka.bootstrap_servers, topic)) == 384
    if guarantee == "at-least-once":
        return

    def shown(command: str) -> str:
        where = ["--bootstrap-servers", kafka.bootstrap_servers, "--history-topic", history]
        assert main([command, *where, "--write-id", f"kafka-eos/{app}/{topic}", "--json"]) == 0
        return capsys.readouterr().out

    counts = [
        {"topic": dead, "code": code, "rows": rows}
        for code, rows in (("NO_SUCH_PARTITION", 12), ("RECORD_TOO_LARGE", 4))
    ]
    for found in (*json.loads(shown("history")), *json.loads(shown("audit")), *json.loads(shown("status"))["writes"]):
        assert found["dead_letters"] == counts
        assert found.get("rows", found.get("expected")) == 400
