"""A local Spark that logs to a file, for the demo and the benchmarks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kafka_eos_sink
from kafka_eos_sink.errors import KafkaEosError, code_and_sentence
from kafka_eos_sink.jobs.submit_job import register_sink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {log}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
"""
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # Its ports are open to all users of this machine. A local Spark makes the secret itself.
    "spark.authenticate": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.memory": "1g",
    "spark.python.unix.domain.socket.enabled": "true",
}
_LOG_NAME = "spark.log"
_LOOK_INTERVAL_S = 0.2
_END_PATIENCE_S = 15.0


@contextmanager
def spark_folder(prefix: str, show: Callable[[str], object]) -> Iterator[Path]:
    """Make a temporary folder; after an error keep Spark's log and show its path."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    keep = False
    try:
        yield folder
    except Exception:
        keep = (folder / _LOG_NAME).exists()
        if keep:
            show(f"Spark's log: {folder / _LOG_NAME}")
        raise
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def quiet_spark(
    master: str,
    folder: Path,
    jars: Sequence[Path],
    settings: Mapping[str, str],
    environment: Mapping[str, str],
    secret: str | None = None,
) -> Iterator[SparkSession]:
    """Run a Spark session in its own JVM, with ``kafka-eos`` registered.

    This process must have no other Spark, before or after.

    Args:
        folder: Holds Spark's files; ``spark.log`` has all output of the JVM.
        environment: Variables of all Python workers, but not of this process.
        secret: The secret of the cluster at ``master``; a local Spark makes its own.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    log, log4j = folder / _LOG_NAME, folder / "log4j2.properties"
    log4j.write_text(_LOG4J.format(log=log), encoding="utf-8")
    # The workers must find this package even if it is not installed but runs from its source tree.
    workers = {"PYTHONPATH": str(Path(kafka_eos_sink.__file__).parent.parent), **environment}
    own = {
        "spark.master": master,
        "spark.app.name": "kafka-eos",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "spark"),
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log4j.as_uri()}",
        **({"spark.jars": ",".join(map(str, jars))} if jars else {}),
        **{f"spark.executorEnv.{name}": value for name, value in workers.items()},
    }
    configuration = SparkConf(loadDefaults=False).setAll(list({**_SETTINGS, **own, **settings}.items()))
    # Spark reads the workers' interpreter from these alone; workers of another Python would fail.
    os.environ.update(PYSPARK_PYTHON=sys.executable, PYSPARK_DRIVER_PYTHON=sys.executable)
    # Launched here and not by SparkContext, because the JVM prints before it has read log4j's settings.
    with log.open("ab") as output:
        popen = {"stdout": output, "stderr": subprocess.STDOUT}
        gateway: Any = launch_gateway(configuration, popen_kwargs=popen)  # type: ignore[no-untyped-call]
    if secret is not None:
        # After the launch, which makes every setting an argument that `ps` shows.
        configuration.set("spark.authenticate.secret", secret)
    try:
        with warnings.catch_warnings():
            # PySpark imports its own test helpers here, which warn about pandas.
            warnings.simplefilter("ignore", FutureWarning)
            spark = SparkSession(SparkContext(conf=configuration, gateway=gateway))
            register_sink(spark)
        try:
            yield spark
        finally:
            with suppress(Exception):  # a JVM that has died cannot stop in order
                spark.stop()
    finally:
        end_jvm(gateway)


def end_jvm(gateway: Any) -> None:
    """End the JVM of a gateway in order, or kill it after 15 s."""
    # The JVM ends when its standard input closes, and its shutdown hooks remove Spark's folders.
    with suppress(OSError):
        gateway.proc.stdin.close()
    try:
        gateway.proc.wait(_END_PATIENCE_S)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()


def run_watched(spark: SparkSession, action: Callable[[], object], update: Callable[[int, int, str], None]) -> None:
    """Run a Spark action; raises what ``in_one_sentence`` returns.

    Args:
        update: Called with the numbers of ended tasks and of all tasks, and a text about failed ones.
    """
    ended = threading.Event()
    # The action stays in this thread: Spark finds Python data sources only in a thread with an active session.
    watcher = threading.Thread(target=_watch, args=(spark, ended, update), name="spark-progress", daemon=True)
    watcher.start()
    try:
        action()
    except Exception as error:
        raise in_one_sentence(error) from None
    finally:
        ended.set()
        watcher.join()


def _watch(spark: SparkSession, ended: threading.Event, update: Callable[[int, int, str], None]) -> None:
    tracker = spark.sparkContext.statusTracker()
    stages: dict[int, tuple[int, int, int]] = {}
    with suppress(Exception):  # a JVM that has died has no progress, and its action raises the reason
        while not ended.wait(_LOOK_INTERVAL_S):
            for stage_id in tracker.getActiveStageIds():
                stage = tracker.getStageInfo(stage_id)
                if stage is not None:
                    stages[stage_id] = (stage.numCompletedTasks, stage.numTasks, stage.numFailedTasks)
            if stages:
                done, total, _ = stages[max(stages)]
                failed = sum(each for _, _, each in stages.values())
                update(done, total, f"{failed} failed" if failed else "")


def in_one_sentence(error: Exception) -> KafkaEosError:
    """Return our error inside Spark's error, else a ``SPARK_FAILED`` with its text."""
    # The text of Spark's errors comes from the JVM, so this works only while the JVM lives.
    code, sentence = code_and_sentence(error)
    return KafkaEosError(code or "SPARK_FAILED", sentence or "Spark raised an error without a text.")
