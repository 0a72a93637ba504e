"""Kerberos in Spark: executors log in with a keytab that came by --files, or with a delegation token."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafka_testing import assert_nothing_open, create_topic, read_committed
from kerberos_realm import Kerberized, Realm, started_broker, started_realm, with_keytab
from tests.spark.spark_submit import SparkSubmit, own_lines, zip_package
from tests.spark.standalone_cluster import HOSTS, StandaloneCluster

ROWS = 100


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    with started_realm(tmp_path_factory.mktemp("realm")) as started:
        yield started


@pytest.fixture(scope="module")
def broker(realm: Realm) -> Iterator[Kerberized]:
    with started_broker(realm) as started:
        yield started


@pytest.fixture
def submit(spark_environment: dict[str, str], realm: Realm, tmp_path: Path) -> Iterator[SparkSubmit]:
    """Jobs with two executors, which run in folders of their own; the keytab has a relative path on all of them."""
    zip_package(tmp_path / "package.zip")
    (tmp_path / "alice.keytab").write_bytes(realm.keytab("alice").read_bytes())
    environment = {**spark_environment, "PYTHONPATH": ""}
    settings = {
        "spark.driver.host": HOSTS[0],
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.executorEnv.KRB5_CONFIG": str(realm.config()),
    }
    with StandaloneCluster.started(tmp_path, environment) as cluster:
        yield SparkSubmit(
            environment | {"KRB5_CONFIG": str(realm.config())},
            tmp_path,
            *("--master", cluster.url, "--py-files", "package.zip", "--files", "alice.keytab,client.properties"),
            *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}")),
        )


def test_executors_log_in_with_a_keytab_from_files(submit: SparkSubmit, broker: Kerberized, tmp_path: Path) -> None:
    topic = create_topic(broker.kafka.plaintext_servers)
    given = broker.properties(with_keytab("alice.keytab"))
    (tmp_path / "client.properties").write_text("".join(f"{name}={value}\n" for name, value in given.items()))
    (tmp_path / "rows").mkdir()
    for number in range(4):
        rows = (json.dumps({"id": row}) for row in range(number, ROWS, 4))
        (tmp_path / "rows" / f"{number}.json").write_text("\n".join(rows))
    option = ("--option", "kafka.properties.file=client.properties", "--topic", topic)
    done = submit("check_connection", "--executors", "2", *option)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert own_lines(done.stdout, "check_connection") == ["check_connection: 2 of 2 executors can write to Kafka"]
    arguments = ("--format", "json", "--txn-app-id", "kerberos", "--txn-version", "1", str(tmp_path / "rows"))
    for _ in range(2):
        done = submit("batch_to_kafka", *option, *arguments)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = read_committed(broker.kafka.plaintext_servers, topic)
    assert sorted(json.loads(record.value or b"")["id"] for record in found) == list(range(ROWS))
    assert_nothing_open(broker.kafka.plaintext_servers)


def test_executors_without_the_keytab_are_named(submit: SparkSubmit, broker: Kerberized, tmp_path: Path) -> None:
    """The driver's folder has a keytab that --files did not send."""
    topic = create_topic(broker.kafka.plaintext_servers)
    given = broker.properties(with_keytab("local.keytab"))
    (tmp_path / "client.properties").write_text("".join(f"{name}={value}\n" for name, value in given.items()))
    (tmp_path / "local.keytab").write_bytes((tmp_path / "alice.keytab").read_bytes())
    done = submit(
        *("check_connection", "--executors", "2", "--topic", topic),
        *("--option", "kafka.properties.file=client.properties"),
    )
    assert done.returncode == 1, done.stdout[-3000:] + done.stderr[-3000:]
    assert " ok: " in own_lines(done.stdout, "driver ")[0]
    executors = own_lines(done.stdout, "executor ")
    assert len(executors) == 2
    for line in executors:
        assert "[KAFKA_EOS.INVALID_OPTIONS]" in line
        assert f"local.keytab (in {tmp_path}/127.0.0." in line
