"""Spark's plans hide secrets that stand inline in options, with the settings of conf/spark-defaults.conf."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pyspark

from tests.spark.quick_start import PYTHON_STARTUP
from tests.spark.spark_submit import PATIENCE_S, REPOSITORY

SECRETS = {
    "kafka.ssl.keystore.key": "inline-private-key",
    "kafka.ssl.key.password": "inline-key-phrase",
    "kafka.sasl.password": "inline-login",
    "kafka.sasl.jaas.config": "inline-login-module",
    "kafka.sasl.oauthbearer.client.secret": "inline-client-words",
}

PROXY_LOGIN = "inline-proxy-words"


def test_plan_in_event_log_shows_no_inline_secret(spark_environment: dict[str, str], tmp_path: Path) -> None:
    rows, events = tmp_path / "rows.json", tmp_path / "events"
    rows.write_text('{"value": "a"}\n', "utf-8")
    events.mkdir()
    options = [word for name, value in SECRETS.items() for word in ("--option", f"{name}={value}")]
    conf = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.sql.ui.explainMode": "extended",  # with the logical plan, which holds the options
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executorEnv.HTTPS_PROXY": f"http://user:{PROXY_LOGIN}@proxy.example:3128",
    }
    subprocess.run(
        [
            str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
            *("--properties-file", str(REPOSITORY / "conf" / "spark-defaults.conf")),
            *(word for name, value in conf.items() for word in ("--conf", f"{name}={value}")),
            str(REPOSITORY / "spark_jobs" / "batch_to_kafka.py"),
            *("--bootstrap-servers", "localhost:1", "--topic", "orders", "--txn-app-id", "x", "--txn-version", "1"),
            *("--option", "kafka.max.block.ms=500", *options, "--format", "json", str(rows)),
        ],
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,  # there is no broker: the plan is made all the same
        cwd=tmp_path,
        env={**os.environ, **spark_environment, "PYTHONPATH": f"{PYTHON_STARTUP}:{REPOSITORY}"},
    )
    text = "".join(file.read_text("utf-8") for file in events.rglob("*") if file.is_file())
    assert "AppendData" in text
    for name, value in SECRETS.items():
        assert f"{name}=*********(redacted)" in text
        assert value not in text
    assert '"spark.executorEnv.HTTPS_PROXY":"*********(redacted)"' in text
    assert PROXY_LOGIN not in text
