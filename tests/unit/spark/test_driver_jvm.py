"""The driver's JVM: what its command line and its open files tell, and the second JVM that reads for this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError

from kafka_eos_sink.spark import driver_jvm
from kafka_eos_sink.spark.driver_jvm import DriverJvm, describe_jvm, find_driver_jvm

SUBMIT = "org.apache.spark.deploy.SparkSubmit"
MASTER = "org.apache.spark.deploy.yarn.ApplicationMaster"


@pytest.fixture(autouse=True)
def no_variables_of_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CLASSPATH", "SPARK_USER", "SPARK_HOME", "SPARK_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)


def described(*arguments: str, open_files: tuple[str, ...] = (), directory: str = "/nowhere") -> DriverJvm:
    return describe_jvm(arguments, pid=7, java="/jdk/bin/java", directory=directory, open_files=open_files)


@pytest.mark.parametrize(
    "words", [("-cp", "/conf/:/jars/*"), ("-classpath", "/conf/:/jars/*"), ("--class-path=/conf/:/jars/*",)]
)
def test_class_path_is_the_drivers_with_the_jars_that_it_opened_since(words: tuple[str, ...]) -> None:
    files = ("/ivy/hadoop-aws.jar", "/jars/*", "/tmp/log", "socket:[1]", "/gone.jar (deleted)")
    found = described(*words, SUBMIT, "pyspark-shell", open_files=files)
    assert found.class_path == ("/conf/", "/jars/*", "/ivy/hadoop-aws.jar")


def test_class_path_of_the_application_master_is_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLASSPATH", "/c:/c/__spark_conf__:/c/__spark_libs__/*")
    monkeypatch.setenv("SPARK_USER", "alice")
    found = described(
        "-server", "-Xmx1g", MASTER, "--class", "x", "--arg", "--conf", "--arg", "a=b", "--properties-file", "/c/p"
    )
    assert found.class_path == ("/c", "/c/__spark_conf__", "/c/__spark_libs__/*")
    assert found.properties_files == ("/c/p",)
    assert found.settings == {}
    assert found.user == "alice"


def test_second_jvm_gets_properties_and_opened_modules_but_no_port() -> None:
    found = described(
        *(
            "-Xmx4g",
            "-XX:+UseG1GC",
            "-javaagent:/a.jar",
            "-Djava.security.krb5.conf=/k",
            "-Dcom.sun.management.jmxremote.port=1",
        ),
        *("--add-opens=java.base/java.lang=ALL-UNNAMED", "--add-opens", "java.base/java.nio=ALL-UNNAMED", "-cp", "x"),
        *(SUBMIT, "-Dafter=the.class"),
    )
    assert found.options == (
        "-Djava.security.krb5.conf=/k",
        "--add-opens=java.base/java.lang=ALL-UNNAMED",
        "--add-opens=java.base/java.nio=ALL-UNNAMED",
    )


def test_settings_are_sparks_not_the_programs() -> None:
    found = described(
        *(
            "-cp",
            "x",
            SUBMIT,
            "--verbose",
            "--conf",
            "spark.hadoop.fs.foo.impl=Foo",
            "--conf=spark.hadoop.a=b=c",
            "-c",
            "spark.d=e",
        ),
        *(
            "--properties-file",
            "mine.conf",
            "job.py",
            "--conf",
            "spark.hadoop.a=other",
            "--properties-file",
            "the job's",
        ),
    )
    assert found.settings == {"spark.hadoop.fs.foo.impl": "Foo", "spark.hadoop.a": "b=c", "spark.d": "e"}
    assert found.properties_files == ("mine.conf",)


@pytest.mark.parametrize(
    ("words", "files"),
    [
        ((), (None,)),
        (("--load-spark-defaults", "--properties-file", "p"), ("p", None)),
        (("--properties-file", "p"), ("p",)),
    ],
)
def test_defaults_of_spark_come_last(words: tuple[str, ...], files: tuple[str | None, ...]) -> None:
    assert described("-cp", "x", SUBMIT, *words, "pyspark-shell").properties_files == files


@pytest.mark.parametrize(
    "where", ["core-site.xml", "__spark_hadoop_conf__.xml", "--conf", "-D", "--properties-file", "defaults"]
)
def test_default_fs_may_be_set(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conf").mkdir()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    before, after = ["-cp", "conf/:jars/*"], []
    if where.endswith(".xml"):
        (tmp_path / "conf" / where).write_text("<configuration/>")
    elif where == "--conf":
        after = ["--conf", "spark.hadoop.fs.defaultFS=hdfs://name"]
    elif where == "-D":
        before.append("-Dspark.hadoop.fs.default.name=hdfs://name")
    else:
        file = "own" if where == "--properties-file" else "conf/spark-defaults.conf"
        (tmp_path / file).write_text("spark.hadoop.fs.defaultFS   hdfs://name")
        after = ["--properties-file", "own"] if where == "--properties-file" else []
    assert described(*before, SUBMIT, *after, directory=str(tmp_path)).mentions_default_fs()


class Processes:
    """A folder like /proc."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, pid: int, parent: int, exe: str, *arguments: str) -> None:
        process = self.folder / str(pid)
        (process / "fd").mkdir(parents=True)
        (process / "exe").symlink_to(exe)
        (process / "cwd").symlink_to("/work")
        (process / "fd" / "0").symlink_to("/ivy/a.jar")
        (process / "cmdline").write_bytes("".join(f"{word}\0" for word in (exe, *arguments)).encode())
        (process / "stat").write_text(f"{pid} (a ) S 5 name) S {parent} 1 1 0")


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Processes:
    monkeypatch.setattr(driver_jvm, "PROC", tmp_path)
    return Processes(tmp_path)


def test_driver_is_the_nearest_java_above(processes: Processes) -> None:
    processes.add(9, 8, "/bin/bash")  # PYSPARK_PYTHON may be a script
    processes.add(8, 7, "/jdk/bin/java", "-cp", "near", SUBMIT)
    processes.add(7, 1, "/jdk/bin/java", "-cp", "far", SUBMIT)
    found = find_driver_jvm(9)
    assert (found.pid, found.java, found.directory, found.class_path) == (
        8,
        "/jdk/bin/java",
        "/work",
        ("near", "/ivy/a.jar"),
    )


def test_no_java_above_is_an_error_of_reading(processes: Processes) -> None:
    processes.add(9, 1, "/usr/bin/python3")
    processes.add(1, 0, "/sbin/init")
    with pytest.raises(OSError, match="no Java process"):
        find_driver_jvm(9)
    with pytest.raises(OSError):  # a system without /proc
        find_driver_jvm(5)


def test_second_jvm_that_died_is_started_again_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dead:
        def stop(self) -> None:
            events.append("stopped")

    def start() -> Any:
        events.append("started")
        return Dead()

    def look(gateway: Any) -> bytes:
        if events.count("started") <= deaths:
            raise Py4JNetworkError("the connection was closed")
        return b"found"

    start.cache_clear = lambda: None  # type: ignore[attr-defined]
    monkeypatch.setattr(driver_jvm, "_gateway", start)
    events: list[str] = []
    deaths = 1
    assert driver_jvm._in_second_jvm(look) == b"found"
    assert events == ["started", "stopped", "started"]
    events, deaths = [], 2
    with pytest.raises(OSError, match="the connection was closed"):
        driver_jvm._in_second_jvm(look)
    assert events == ["started", "stopped"] * 2
