from __future__ import annotations

from pathlib import Path

import pytest

from kafka_eos_sink.embedded.java import find_java
from kafka_eos_sink.errors import KafkaEosError


def java_home(folder: Path, *, release: str | None = None, output: str = "") -> Path:
    """Make a Java home whose ``java -version`` prints ``output``."""
    executable = folder / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\ncat >&2 <<'EOF'\n{output}\nEOF\n")
    executable.chmod(0o755)
    if release is not None:
        (folder / "release").write_text(f'IMPLEMENTOR="X"\nJAVA_VERSION="{release}"\n')
    return folder


@pytest.mark.parametrize(("release", "version"), [("17.0.15", 17), ("21", 21), ("25-ea", 25)])
def test_version_comes_from_the_release_file(
    tmp_path: Path, release: str, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = java_home(tmp_path, release=release)
    monkeypatch.setenv("JAVA_HOME", str(home))
    found = find_java()
    assert (found.executable, found.version) == (home / "bin" / "java", version)


@pytest.mark.parametrize("output", ['java version "1.8.0_402"', 'openjdk version "11.0.2" 2019-01-15'])
def test_old_java_fails_with_install_instructions(tmp_path: Path, output: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_home(tmp_path, output=output)))
    with pytest.raises(
        KafkaEosError, match=r"JAVA_TOO_OLD.*is Java (8|11), which is too old; install Java 17"
    ) as raised:
        find_java()
    assert "\n" not in str(raised.value)


def test_missing_java_fails_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(KafkaEosError, match=r"JAVA_NOT_FOUND.*No Java was found on PATH; install Java 17") as raised:
        find_java()
    assert "\n" not in str(raised.value)
