"""The jobs in spark_jobs/ as a user runs them: by spark-submit, with nothing but a zip of the package."""

from __future__ import annotations

import os
import signal
import subprocess
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyspark

REPOSITORY = Path(__file__).parents[2]
PATIENCE_S = 280


def zip_package(path: Path) -> None:
    """The package as one would give it to --py-files."""
    with zipfile.ZipFile(path, "w") as archive:
        for source in sorted(
            each for kind in ("*.py", "*.toml") for each in (REPOSITORY / "kafka_eos_sink").rglob(kind)
        ):
            archive.write(source, source.relative_to(REPOSITORY))


class SparkSubmit:
    """Runs jobs away from the repository and without it on the Python path."""

    def __init__(self, environment: Mapping[str, str], folder: Path, *settings: str) -> None:
        """``settings`` are arguments of spark-submit itself, such as --py-files with the package."""
        self._settings, self._folder = settings, folder
        self._environment = {**os.environ, **environment}
        self._environment.pop("SPARK_HOME", None)

    def __call__(self, job: str, *arguments: str, jars: Sequence[Path] = ()) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self._command(job, arguments, jars),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            cwd=self._folder,
            env=self._environment,
        )

    @contextmanager
    def started(self, job: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """The job while the block runs, the first of a process group of its own as in a terminal."""
        process = subprocess.Popen(
            self._command(job, arguments, ()),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=self._folder,
            env=self._environment,
            start_new_session=True,
        )
        with process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)

    def _command(self, job: str, arguments: Sequence[str], jars: Sequence[Path]) -> list[str]:
        return [
            str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
            *("--properties-file", str(REPOSITORY / "conf" / "spark-defaults.conf")),
            *("--conf", "spark.driver.bindAddress=127.0.0.1"),
            *(("--jars", ",".join(map(str, jars))) if jars else ()),
            *self._settings,
            str(REPOSITORY / "spark_jobs" / f"{job}.py"),
            *arguments,
        ]


def own_lines(output: str, job: str) -> list[str]:
    """What the job has to say, between Spark's log lines; spark-submit shows both its streams on standard output."""
    return [line for line in output.splitlines() if line.startswith(job)]
