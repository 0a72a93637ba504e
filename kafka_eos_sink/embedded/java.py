"""Finds Java 17 or newer, first in ``JAVA_HOME``, then on ``PATH``, as Spark does."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, TimeoutExpired, run

from kafka_eos_sink.errors import KafkaEosError

OLDEST_JAVA = 17
"""Kafka 4 brokers and Spark 4 both need it."""

_INSTALL = (
    f"install Java {OLDEST_JAVA} or newer (for example `apt-get install openjdk-17-jre-headless` or "
    "`brew install openjdk@17`) and put it on PATH or set JAVA_HOME"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaRuntime:
    """A Java executable and its feature version, for example 17."""

    executable: Path
    version: int

    def command(self, class_path: Path, main_class: str, *arguments: str, options: Sequence[str] = ()) -> list[str]:
        """Build the command that runs ``main_class`` with JVM options and arguments."""
        return [str(self.executable), *options, "-cp", str(class_path), main_class, *arguments]


def run_to_end(
    command: Sequence[str], *, environment: Mapping[str, str] | None = None, timeout_s: float | None = None
) -> tuple[int, str]:
    """Run a command-line tool without input.

    Returns:
        The exit status, and the output with standard error in it.

    Raises:
        OSError: The command cannot be started.
        TimeoutExpired: The command did not end within ``timeout_s`` seconds.
    """
    env = {**os.environ, **(environment or {})}
    done = run(
        command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, env=env, timeout=timeout_s, text=True, errors="replace"
    )
    return done.returncode, done.stdout


def find_java(environment: Mapping[str, str] | None = None) -> JavaRuntime:
    """Find the Java of ``JAVA_HOME`` if that is set, else the first one on ``PATH``.

    Raises:
        KafkaEosError: ``JAVA_NOT_FOUND`` or ``JAVA_TOO_OLD``; the message explains how to install Java.
    """
    environment = os.environ if environment is None else environment
    if java_home := environment.get("JAVA_HOME"):
        executable = Path(java_home) / "bin" / "java"
        # A wrong JAVA_HOME is an error even with a Java on PATH, because Spark would use JAVA_HOME too.
        if not os.access(executable, os.X_OK):
            raise KafkaEosError(
                "JAVA_NOT_FOUND", f"JAVA_HOME is {java_home}, which has no bin/java; correct it, or {_INSTALL}."
            )
    elif found := shutil.which("java", path=environment.get("PATH")):
        executable = Path(found)
    else:
        raise KafkaEosError("JAVA_NOT_FOUND", f"No Java was found on PATH; {_INSTALL}.")
    version = _version_from_release_file(executable) or _version_from_running(executable)
    if version < OLDEST_JAVA:
        raise KafkaEosError("JAVA_TOO_OLD", f"{executable} is Java {version}, which is too old; {_INSTALL}.")
    return JavaRuntime(executable=executable, version=version)


def _version_from_release_file(executable: Path) -> int | None:
    # Every JDK and JRE since 9 has this file; reading it saves starting a JVM.
    try:
        text = (executable.resolve().parent.parent / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    match = re.search(r'^JAVA_VERSION="([^"]+)"', text, re.MULTILINE)
    return _feature_version(match.group(1)) if match else None


def _version_from_running(executable: Path) -> int:
    try:
        _, output = run_to_end([str(executable), "-version"], timeout_s=60)
    except (OSError, TimeoutExpired) as failure:
        raise KafkaEosError("JAVA_NOT_FOUND", f"{executable} does not run ({failure}); {_INSTALL}.") from failure
    match = re.search(r'version "([^"]+)"', output)
    version = _feature_version(match.group(1)) if match else None
    if version is None:
        # macOS ships a /usr/bin/java that only prints that no Java is installed.
        raise KafkaEosError("JAVA_NOT_FOUND", f"{executable} -version prints no Java version; {_INSTALL}.")
    return version


def _feature_version(text: str) -> int | None:
    """Return 17 for ``17.0.15``, 8 for ``1.8.0_402``, 25 for ``25-ea``."""
    match = re.match(r"(?:1\.)?(\d+)", text)
    return int(match.group(1)) if match else None
