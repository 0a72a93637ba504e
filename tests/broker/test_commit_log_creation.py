"""How the commit log is created on a cluster of three nodes: as safe as it allows, and also where a policy rejects settings."""

from __future__ import annotations

import logging
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dead_writes import varied, write_all, write_settings
from kafka_eos_sink.client.admin import connected
from kafka_eos_sink.embedded import distribution
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.embedded.java import find_java
from kafka_eos_sink.errors import ConfigurationError
from kafka_eos_sink.operations.cluster_check import CheckLine, CheckResult, check_cluster
from kafka_eos_sink.runtime import session
from kafka_testing import create_topic, unique_topic

TIMEOUT_MS = 30_000
SHOWN = ("cleanup.policy", "min.insync.replicas", "segment.bytes")
COMMAND = "kafka-topics.sh --bootstrap-server {} --create --topic {} --partitions 16 "


def with_policy(jars: Path, cache: Path) -> None:
    """Make a cache whose Kafka has `TopicPolicy` on its class path."""
    folder, classes = cache / jars.name, cache / "classes"
    folder.mkdir()
    for file in [*jars.glob("*.jar"), jars / "manifest.json"]:
        (folder / file.name).symlink_to(file)
    source = Path(__file__).with_name("TopicPolicy.java")
    (clients,) = jars.glob("kafka-clients-*.jar")
    compiler = ["-m", "jdk.compiler/com.sun.tools.javac.Main", "-cp", clients, "-d", classes, source]
    subprocess.run([find_java().executable, *compiler], check=True, timeout=120)
    with zipfile.ZipFile(folder / "topic-policy.jar", "w") as jar:
        jar.write(classes / "TopicPolicy.class", "TopicPolicy.class")


@pytest.fixture(scope="module")
def three_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """Its own defaults are Kafka's: one replica, min.insync.replicas 1."""
    cache = tmp_path_factory.mktemp("cache")
    with_policy(distribution.resolve(), cache)
    properties = {
        "default.replication.factor": "1",
        "min.insync.replicas": "1",
        "create.topic.policy.class.name": "TopicPolicy",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KAFKA_EOS_CACHE", str(cache))
        cluster = EmbeddedKafka(brokers=3, properties=properties).start()
    yield cluster
    cluster.stop()


def settings_of(kafka: EmbeddedKafka, log: str) -> session.WriteSettings:
    return varied(write_settings(kafka, create_topic(kafka.bootstrap_servers)), commit_log_topic=log)


def log_as_created(kafka: EmbeddedKafka, log: str) -> tuple[int, tuple[str, ...]]:
    """Replicas, and the values of SHOWN."""
    with connected(kafka.bootstrap_servers) as admin:
        deadline = admin.client.clock() + TIMEOUT_MS
        found = admin.topic(log, deadline)
        assert found is not None
        assert len(found.partitions) == 16
        (replicas,) = {len(each.replica_nodes) for each in found.partitions}
        configs = admin.describe_configs("topic", log, SHOWN, deadline)
    return replicas, tuple(configs[name] for name in SHOWN)


def checked(kafka: EmbeddedKafka, log: str) -> CheckLine:
    """What `kafka-eos check` finds about a log that does not exist, and it still does not."""
    with connected(kafka.bootstrap_servers) as admin:
        found = check_cluster(admin, topic=None, commit_log_topic=log, timeout_ms=TIMEOUT_MS)
        assert admin.topic(log, admin.client.clock() + TIMEOUT_MS) is None
    (finding,) = (each for each in found if each.about == f"commit log {log}")
    return finding


@pytest.mark.parametrize(
    ("like", "replicas", "configs", "result"),
    [
        ("apache", 3, ("compact", "2", "16777216"), CheckResult.WORKS),
        ("confluent", 3, ("compact", "2", "1073741824"), CheckResult.WORKS),
        ("serverless", 1, ("compact", "1", "1073741824"), CheckResult.WARNING),
    ],
)
def test_commit_log_is_as_safe_as_the_cluster_allows(
    three_nodes: EmbeddedKafka,
    like: str,
    replicas: int,
    configs: tuple[str, ...],
    result: CheckResult,
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = unique_topic(f"{like}-log")
    finding = checked(three_nodes, log)
    assert finding.result is result
    assert finding.found.endswith(f"16 partitions, replication factor {replicas}")
    with caplog.at_level(logging.WARNING):
        write_all(settings_of(three_nodes, log))
    assert log_as_created(three_nodes, log) == (replicas, configs)
    assert ("has only 1 of 3 brokers as replicas" in caplog.text) == (result is CheckResult.WARNING)


def test_rejected_creation_names_the_smallest_command(three_nodes: EmbeddedKafka) -> None:
    log = unique_topic("closed-log")
    command = COMMAND.format(three_nodes.bootstrap_servers, log) + "--config cleanup.policy=compact"
    with pytest.raises(
        ConfigurationError, match=r"COMMIT_LOG_TOPIC\].*POLICY_VIOLATION: ask the platform team"
    ) as refused:
        session.plan(settings_of(three_nodes, log))
    assert refused.value.message.endswith(f"create it: {command}")
    finding = checked(three_nodes, log)
    assert finding.result is CheckResult.FAILS
    assert command in finding.meaning
