"""A local Spark whose logs go to a file, for the commands that bring a Spark application of their own."""

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

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["in_one_sentence", "quiet_spark", "run_watched", "spark_folder"]

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
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.memory": "1g",
}
_LOG_NAME = "spark.log"
_LOOK_INTERVAL_S = 0.2
_END_PATIENCE_S = 15.0


@contextmanager
def spark_folder(prefix: str, say: Callable[[str], object]) -> Iterator[Path]:
    """A new temporary folder, removed after; where the body fails, it stays if Spark logged into it, and is named."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield folder
    except Exception:
        if (folder / _LOG_NAME).exists():
            say(f"Spark's log: {folder / _LOG_NAME}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def quiet_spark(
    name: str,
    *,
    folder: Path,
    master: str,
    jars: Sequence[Path] = (),
    settings: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """A Spark session in a JVM of its own, with ``kafka-eos`` registered; ``folder/spark.log`` takes all that it says.

    `environment` is set for the JVM and so for all Python workers, not for this process. There must be no other Spark
    in this process. The JVM is gone when the context ends.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    from kafka_eos_sink import KafkaEosDataSource

    log = folder / _LOG_NAME
    log4j = folder / "log4j2.properties"
    log4j.write_text(_LOG4J.format(log=log), encoding="utf-8")
    configuration = SparkConf(loadDefaults=False).setAll(list(_SETTINGS.items()))
    configuration.setMaster(master).setAppName(name)
    configuration.set("spark.sql.warehouse.dir", str(folder / "warehouse"))
    configuration.set("spark.local.dir", str(folder / "spark"))
    configuration.set("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={log4j.as_uri()}")
    if jars:
        configuration.set("spark.jars", ",".join(map(str, jars)))
    for key, value in (settings or {}).items():
        configuration.set(key, value)
    workers = {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        # Workers must find this package where it is not installed but run from its source tree.
        "PYTHONPATH": os.pathsep.join(
            filter(None, (str(Path(kafka_eos_sink.__file__).parent.parent), os.environ.get("PYTHONPATH")))
        ),
    }
    with log.open("ab") as output, _environment({**workers, **(environment or {})}):
        gateway: Any = launch_gateway(configuration, popen_kwargs={"stdout": output, "stderr": subprocess.STDOUT})  # type: ignore[no-untyped-call]
    process: subprocess.Popen[bytes] = gateway.proc
    try:
        with _environment(workers), warnings.catch_warnings():
            # PySpark imports its own test helpers on the way, which have an opinion about pandas.
            warnings.simplefilter("ignore", FutureWarning)
            context = SparkContext(conf=configuration, gateway=gateway)
            try:
                spark = SparkSession(context)
                spark.dataSource.register(KafkaEosDataSource)
                yield spark
            finally:
                with suppress(Exception):  # a JVM that died cannot be asked to stop
                    context.stop()
    finally:
        # The next Spark of this process needs a gateway of its own.
        SparkContext._gateway = None
        SparkContext._jvm = None
        with suppress(Exception):
            gateway.shutdown()
        _end(process)


def run_watched(spark: SparkSession, action: Callable[[], object], look: Callable[[int, int, int], None]) -> None:
    """Runs a Spark action and calls ``look(done, total, failed)`` with the numbers of its tasks while it runs.

    `look` is called in a thread of its own, the action in the caller's: in a thread without an active session Spark
    does not find Python data sources. Raises KafkaEosError with the code and the sentence of ours in what Spark raised,
    else SPARK_FAILED with its first line.
    """
    ended = threading.Event()
    watcher = threading.Thread(target=_watch, args=(spark, ended, look), name="spark-progress", daemon=True)
    watcher.start()
    try:
        action()
    except Exception as error:
        raise in_one_sentence(error) from None
    finally:
        ended.set()
        watcher.join()


def _watch(spark: SparkSession, ended: threading.Event, look: Callable[[int, int, int], None]) -> None:
    tracker = spark.sparkContext.statusTracker()
    stages: dict[int, tuple[int, int, int]] = {}
    with suppress(Exception):  # a JVM that died has no progress, and its action says why
        while not ended.wait(_LOOK_INTERVAL_S):
            for stage_id in tracker.getActiveStageIds():
                stage = tracker.getStageInfo(stage_id)
                if stage is not None:
                    stages[stage_id] = (stage.numCompletedTasks, stage.numTasks, stage.numFailedTasks)
            if stages:
                done, total, _ = stages[max(stages)]
                look(done, total, sum(failed for _, _, failed in stages.values()))


def in_one_sentence(error: Exception) -> KafkaEosError:
    """What Spark raised, as an error of ours: with our code and sentence if it holds one, else SPARK_FAILED.

    To be called while the JVM lives, out of which the text of Spark's errors comes.
    """
    code, sentence = code_and_sentence(error)
    return KafkaEosError(code or "SPARK_FAILED", sentence or "an error without a text")


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _end(process: subprocess.Popen[bytes]) -> None:
    """Closing its standard input asks the JVM to end; its shutdown hooks remove Spark's folders."""
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
    try:
        process.wait(_END_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
