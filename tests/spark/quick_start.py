"""What makes a Spark that lives for seconds start in half of the time: compiled Python, and classes as a JVM takes them over.

Most of what a driver does in its first seconds is to load, check and link the same classes again. They are archived once (class data
sharing, JEP 350), with the Python environment whose Spark they are of. A JVM that cannot use the archive starts without it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark

from kafka_eos_sink.embedded.java import find_java

SHORT_LIVED_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""A JVM that lives for seconds spends most of them compiling itself: a third less time for a small job on two cores."""
PYTHON_STARTUP = Path(__file__).parent / "python_startup"
"""To be on the PYTHONPATH of Spark's Python processes."""
JOB = Path(__file__).parent / "jobs" / "load_classes.py"
PATIENCE_S = 300


def short_lived_jvm() -> str:
    """The options of JVMs that start Spark for a short while; the first call takes some seconds."""
    archive = Path(sys.prefix) / f"spark-{pyspark.__version__}-java-{find_java().version}.jsa"
    if " " in str(archive):
        return SHORT_LIVED_JVM  # spark-submit takes its options apart at each blank
    if not archive.exists():
        made = archive.with_suffix(f".{os.getpid()}")
        _archive_classes(made)
        made.replace(archive)
    return f"{SHORT_LIVED_JVM} -XX:SharedArchiveFile={archive} -Xlog:cds=off -Xlog:cds+dynamic=off"


def _archive_classes(archive: Path) -> None:
    ended = subprocess.run(
        [sys.executable, str(JOB)],
        env={
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_SUBMIT_OPTS": f"{SHORT_LIVED_JVM} -XX:ArchiveClassesAtExit={archive} -Xlog:cds=off -Xlog:cds+dynamic=off",
        },
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert archive.exists()
