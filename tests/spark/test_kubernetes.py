"""conf/kubernetes/batch-job.yaml: its own command against a stand-in for Kubernetes, which holds Spark's driver to the Role."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pyspark

from documents import ROOT
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_testing import assert_nothing_open, create_topic, read_committed
from kubernetes_manifest import allowed, driver
from tests.spark.kubernetes_stand_in import DRIVER_POD, HOST, NAMESPACE, Kubernetes
from tests.spark.quick_start import SHORT_LIVED_JVM

SPARK = Path(pyspark.__file__).parent
ROWS = 20
PATIENCE_S = 500
SETTINGS = (
    "spark.driver.bindAddress=127.0.0.1",
    "spark.ui.enabled=false",
    "spark.kubernetes.executor.apiPollingInterval=1s",
    f"spark.executor.extraJavaOptions={SHORT_LIVED_JVM}",
)
"""Of the test alone."""


def command(kubernetes: Kubernetes, topic: str, python: str, folder: Path) -> list[str]:
    """The arguments of the Job's container, with the paths, names and addresses of this machine."""
    here = {
        "$(POD_IP)": HOST,
        "$(POD_NAME)": DRIVER_POD,
        "$(POD_NAMESPACE)": NAMESPACE,
        "https://kubernetes.default.svc": kubernetes.url,
        "/opt/spark/": f"{SPARK}/",
        "/opt/kafka-eos/bin/python": python,
        "/opt/kafka-eos/spark_jobs": f"{ROOT}/spark_jobs",
        "s3a://bucket/orders/2026-11-21": str(folder / "rows"),
        "--option=kafka.properties.file=/etc/kafka/": f"--option=kafka.properties.file={folder}/",
        "--topic=orders": f"--topic={topic}",
        "spark.executor.memory=2g": "spark.executor.memory=512m",
        "spark.executor.instances=2": "spark.executor.instances=1",
    }
    words = list(driver()["args"])
    for there, value in here.items():
        assert any(there in word for word in words), there
        words = [word.replace(there, value) for word in words]
    return [words[0], *(f"--conf={setting}" for setting in SETTINGS), *words[1:]]


def test_job_writes_once_with_the_rights_of_its_role(
    kafka: EmbeddedKafka, spark_environment: dict[str, str], tmp_path: Path
) -> None:
    topic = create_topic(kafka.bootstrap_servers)
    (tmp_path / "client.properties").write_text(f"bootstrap.servers={kafka.bootstrap_servers}\n", "utf-8")
    (tmp_path / "rows").mkdir()
    for number in range(4):
        rows = (json.dumps({"order_id": row}) for row in range(number, ROWS, 4))
        (tmp_path / "rows" / f"{number}.json").write_text("\n".join(rows))
    rights = allowed()
    processes = {**os.environ, **spark_environment, "SPARK_HOME": str(SPARK)}
    with Kubernetes.started(rights, processes, tmp_path, lost=1) as kubernetes:
        done = subprocess.run(
            command(kubernetes, topic, spark_environment["PYSPARK_PYTHON"], tmp_path),
            env=processes,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        pods = list(kubernetes.executors.values())
    values = [json.loads(record.value or b"")["order_id"] for record in read_committed(kafka.bootstrap_servers, topic)]
    assert sorted(values) == list(range(ROWS))
    assert_nothing_open(kafka.bootstrap_servers)
    assert kubernetes.forbidden == set()
    assert kubernetes.used == rights

    # Kubernetes removes the executors with the driver's pod, and they find the properties at the driver's path.
    mounts = driver()["volumeMounts"]
    for pod in pods:
        (container,) = pod["spec"]["containers"]
        assert [owner["name"] for owner in pod["metadata"]["ownerReferences"]] == [DRIVER_POD]
        assert container["image"] == driver()["image"]
        assert mounts[0]["mountPath"] in [each["mountPath"] for each in container["volumeMounts"]]
        secrets = [each["secret"]["secretName"] for each in pod["spec"]["volumes"] if "secret" in each]
        assert secrets == [mounts[0]["name"]]
