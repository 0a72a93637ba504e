"""Finds the Java that runs Kafka: ``JAVA_HOME`` first, then ``PATH``, as Spark does, and 17 or newer."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kafka_eos_sink.errors import KafkaEosError

__all__ = ["OLDEST_JAVA", "JavaRuntime", "find_java"]

OLDEST_JAVA = 17
"""Kafka 4 brokers and Spark 4 both refuse anything older."""

_WAY_OUT = (
    f"install Java {OLDEST_JAVA} or newer (for example `apt-get install openjdk-17-jre-headless` or "
    "`brew install openjdk@17`) and put it on PATH or set JAVA_HOME"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaRuntime:
    """A Java executable and its feature version, for example 17."""

    executable: Path
    version: int


def find_java(environment: Mapping[str, str] | None = None) -> JavaRuntime:
    """The Java of ``JAVA_HOME`` where that is set, else the first one on ``PATH``.

    Raises ``KafkaEosError`` with code ``JAVA_NOT_FOUND`` or ``JAVA_TOO_OLD``; each says how to get one. A ``JAVA_HOME``
    that is set and wrong is an error, not a reason to look further: Spark would go by it too.
    """
    environment = os.environ if environment is None else environment
    java_home = environment.get("JAVA_HOME")
    if java_home:
        executable = Path(java_home) / "bin" / "java"
        if not os.access(executable, os.X_OK):
            raise KafkaEosError(
                "JAVA_NOT_FOUND",
                f"JAVA_HOME is {java_home}, which holds no Java (bin/java); correct it, or {_WAY_OUT}.",
            )
    else:
        found = shutil.which("java", path=environment.get("PATH"))
        if found is None:
            raise KafkaEosError("JAVA_NOT_FOUND", f"No Java was found on PATH; {_WAY_OUT}.")
        executable = Path(found)
    version = _version_from_release_file(executable) or _version_from_running(executable)
    if version < OLDEST_JAVA:
        raise KafkaEosError("JAVA_TOO_OLD", f"{executable} is Java {version}, which is too old; {_WAY_OUT}.")
    return JavaRuntime(executable=executable, version=version)


def _version_from_release_file(executable: Path) -> int | None:
    """Every JDK and JRE since 9 says its version in a file; reading it saves starting a JVM."""
    try:
        text = (executable.resolve().parent.parent / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    match = re.search(r'^JAVA_VERSION="([^"]+)"', text, re.MULTILINE)
    return _feature_version(match.group(1)) if match else None


def _version_from_running(executable: Path) -> int:
    try:
        answer = subprocess.run(
            [str(executable), "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as failure:
        raise KafkaEosError("JAVA_NOT_FOUND", f"{executable} does not run ({failure}); {_WAY_OUT}.") from failure
    match = re.search(r'version "([^"]+)"', answer.stderr + answer.stdout)
    version = _feature_version(match.group(1)) if match else None
    if version is None:
        # macOS ships a /usr/bin/java that only says that there is no Java.
        raise KafkaEosError("JAVA_NOT_FOUND", f"{executable} does not say that it is a Java; {_WAY_OUT}.")
    return version


def _feature_version(text: str) -> int | None:
    """17 of ``17.0.15``, 8 of ``1.8.0_402``, 25 of ``25-ea``."""
    match = re.match(r"(?:1\.)?(\d+)", text)
    return int(match.group(1)) if match else None
