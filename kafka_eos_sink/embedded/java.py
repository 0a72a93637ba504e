"""Finds Java 17 or newer, first in ``JAVA_HOME``, then on ``PATH``, as Spark does."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
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
# The feature version: 17 of 17.0.15, 8 of 1.8.0_402, 25 of 25-ea.
_VERSION = re.compile(r'(?:^JAVA_VERSION=|version )"(?:1\.)?(\d+)', re.MULTILINE)


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
    """Run a tool without input; return its exit status, and its output with stderr."""
    env = {**os.environ, **(environment or {})}
    done = run(
        command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, env=env, timeout=timeout_s, text=True, errors="replace"
    )
    return done.returncode, done.stdout


def find_java() -> JavaRuntime:
    """Find the Java of ``JAVA_HOME`` if that is set, else the first one on ``PATH``.

    Raises:
        KafkaEosError: ``JAVA_NOT_FOUND`` or ``JAVA_TOO_OLD``; the message explains how to install Java.
    """
    if java_home := os.environ.get("JAVA_HOME"):
        executable = Path(java_home) / "bin" / "java"
        # A wrong JAVA_HOME is an error even with a Java on PATH, because Spark would use JAVA_HOME too.
        if not os.access(executable, os.X_OK):
            raise _not_found(f"JAVA_HOME is {java_home}, which has no bin/java; correct it, or")
    elif found := shutil.which("java"):
        executable = Path(found)
    else:
        raise _not_found("No Java was found on PATH;")
    version = _version(executable)
    if version < OLDEST_JAVA:
        raise KafkaEosError("JAVA_TOO_OLD", f"{executable} is Java {version}, which is too old; {_INSTALL}.")
    return JavaRuntime(executable=executable, version=version)


def _version(executable: Path) -> int:
    # Every JDK and JRE since 9 has a release file; reading it saves starting a JVM.
    with suppress(OSError):
        release = (executable.resolve().parent.parent / "release").read_text(encoding="utf-8", errors="replace")
        if match := _VERSION.search(release):
            return int(match[1])
    try:
        _, output = run_to_end([str(executable), "-version"], timeout_s=60)
    except (OSError, TimeoutExpired) as failure:
        raise _not_found(f"{executable} does not run ({failure});") from failure
    if match := _VERSION.search(output):
        return int(match[1])
    # macOS ships a /usr/bin/java that only prints that no Java is installed.
    raise _not_found(f"{executable} -version prints no Java version;")


def _not_found(reason: str) -> KafkaEosError:
    return KafkaEosError("JAVA_NOT_FOUND", f"{reason} {_INSTALL}.")
