"""Downloads without a network: a script in Java's place writes the jars and prints what Ivy would print."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
from pathlib import Path

import pytest

from kafka_eos_sink.embedded import distribution
from kafka_eos_sink.embedded.distribution import (
    DEFAULT_KAFKA_VERSION,
    Progress,
    cache_directory,
    resolve,
    resolve_coordinates,
)
from kafka_eos_sink.errors import KafkaEosError
from kafka_eos_sink.jobs.spark_kafka_source import KAFKA_SOURCE_JARS

# Writes the jars of JARS to the folder after -retrieve, prints IVY_PRINTS and counts its runs.
SCRIPT = """#!/bin/sh
echo run >> "$RUNS"
while [ "$1" != -retrieve ]; do [ "$1" = -ivy ] && cp "$2" "$RUNS.module"; shift; done
folder=$(dirname "$2")
if grep -q slf4j-simple "$RUNS.module"; then JARS=slf4j-simple-9.0.36.jar; fi
for jar in $JARS; do echo content > "$folder/$jar"; done
printf '%b' "$IVY_PRINTS"
exit $IVY_STATUS
"""


@pytest.fixture
def ivy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the script in Java's place; return the file that counts its runs."""
    (tmp_path / "jdk" / "bin").mkdir(parents=True)
    java = tmp_path / "jdk" / "bin" / "java"
    java.write_text(SCRIPT)
    java.chmod(0o755)
    (tmp_path / "jdk" / "release").write_text('JAVA_VERSION="17"\n')
    runs = tmp_path / "runs"
    for name, value in {
        "JAVA_HOME": str(tmp_path / "jdk"),
        "KAFKA_EOS_CACHE": str(tmp_path / "cache"),
        "RUNS": str(runs),
        "JARS": "kafka_2.13-9.0.0.jar slf4j-api-9.0.36.jar",
        "IVY_PRINTS": "\\tfound a#kafka_2.13;9.0.0 in public\\n\\t[SUCCESSFUL ] a#b;1!kafka_2.13.jar (5ms)\\n",
        "IVY_STATUS": "0",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("KAFKA_EOS_IVY_SETTINGS", raising=False)
    return runs


def runs_of(ivy: Path) -> int:
    return len(ivy.read_text().splitlines()) if ivy.exists() else 0


def test_jars_are_downloaded_once_with_a_logger(ivy: Path) -> None:
    seen: list[Progress] = []
    folder = resolve("9.0.0", progress=seen.append)
    assert sorted(jar.name for jar in folder.glob("*.jar")) == [
        "kafka_2.13-9.0.0.jar",
        "slf4j-api-9.0.36.jar",
        "slf4j-simple-9.0.36.jar",
    ]
    assert [(each.stage, each.done) for each in seen[:2]] == [("resolving", 1), ("downloading", 1)]
    assert resolve("9.0.0") == folder
    assert runs_of(ivy) == 2
    assert [entry.name for entry in folder.parent.iterdir() if entry.name.startswith(".")] == []


@pytest.mark.parametrize("damage", ["remove", "cut", "manifest"])
def test_incomplete_folder_is_downloaded_again(ivy: Path, damage: str) -> None:
    folder = resolve("9.0.0")
    if damage == "remove":
        (folder / "kafka_2.13-9.0.0.jar").unlink()
    elif damage == "cut":
        (folder / "kafka_2.13-9.0.0.jar").write_bytes(b"")
    else:
        (folder / "manifest.json").write_text('{"kafka')
    assert resolve("9.0.0") == folder
    assert runs_of(ivy) == 4
    assert len(json.loads((folder / "manifest.json").read_text())) == 3


def test_two_processes_at_once_download_once(ivy: Path) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Pool(2) as pool:
        folders = pool.map(resolve, ["9.0.0", "9.0.0"], chunksize=1)
    assert folders[0] == folders[1]
    assert runs_of(ivy) == 2


def test_unreleased_version_fails_without_a_retry(ivy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IVY_STATUS", "1")
    monkeypatch.setenv("IVY_PRINTS", "\\t\\t:: org.apache.kafka#kafka_2.13;9.0.0: not found\\n")
    with pytest.raises(KafkaEosError, match=r"DISTRIBUTION_UNAVAILABLE.*has no Kafka 9.0.0 .*kafka_2.13;9.0.0\)"):
        resolve("9.0.0")
    assert runs_of(ivy) == 1


@pytest.mark.parametrize(
    "jars", ["kafka_2.13-9.0.0.jar kafka-clients-4.2.2.jar", "kafka_2.13-9.0.0.jar jose4j-0.9.6.jar"]
)
def test_jar_with_another_hash_is_rejected(ivy: Path, jars: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JARS", jars)
    with pytest.raises(
        KafkaEosError, match=rf"DISTRIBUTION_UNAVAILABLE.*{jars.split()[1]} of Kafka 9.0.0 does not have the SHA-256"
    ):
        resolve("9.0.0")
    assert not (cache_directory() / "kafka_2.13-9.0.0").exists()


def test_jar_of_the_kafka_source_with_another_hash_is_rejected(ivy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for coordinate in KAFKA_SOURCE_JARS:
        monkeypatch.setenv("JARS", "{1}-{2}.jar".format(*coordinate.split(":")))
        with pytest.raises(KafkaEosError, match="does not have the SHA-256"):
            resolve_coordinates([coordinate])


def test_default_kafka_has_exactly_the_known_jars(ivy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert f"kafka_2.13-{DEFAULT_KAFKA_VERSION}.jar" in distribution.KAFKA
    content = hashlib.sha256(b"content\n").hexdigest()
    main = f"kafka_2.13-{DEFAULT_KAFKA_VERSION}.jar"
    monkeypatch.setattr(distribution, "KAFKA", {main: content, "known-1.jar": content})
    monkeypatch.setenv("JARS", f"{main} known-1.jar added-1.jar")
    with pytest.raises(KafkaEosError, match=r"\] added-1\.jar of Kafka"):
        resolve()
    monkeypatch.setenv("JARS", main)
    with pytest.raises(KafkaEosError, match=r"\] known-1\.jar of Kafka"):
        resolve()
    monkeypatch.setenv("JARS", f"{main} known-1.jar")
    folder = resolve()
    # A jar that is changed later is downloaded again.
    (folder / "known-1.jar").write_text("CONTENT\n")
    assert resolve() == folder
    assert (folder / "known-1.jar").read_text() == "content\n"


def test_cache_that_others_can_write_is_refused(ivy: Path) -> None:
    """Jars there would run as this user."""
    cache_directory().mkdir()
    cache_directory().chmod(0o1777)
    with pytest.raises(KafkaEosError, match=r"DISTRIBUTION_UNAVAILABLE.*Other users can write to the cache"):
        resolve("9.0.0")


def test_folders_in_an_open_cache_are_for_their_owner_alone(ivy: Path) -> None:
    before = os.umask(0)
    try:
        cache_directory().mkdir(mode=0o755)
        folder = resolve("9.0.0")
    finally:
        os.umask(before)
    assert [each.stat().st_mode & 0o777 for each in (folder, cache_directory() / "ivy")] == [0o700, 0o700]


@pytest.mark.parametrize("version", ["../evil", "", "4.2.1 ", 'x"y', "4..1"])
def test_invalid_version_never_becomes_a_path(ivy: Path, version: str) -> None:
    with pytest.raises(KafkaEosError, match="is not a package coordinate"):
        resolve(version)
    assert runs_of(ivy) == 0
