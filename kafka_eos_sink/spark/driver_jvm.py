"""Hadoop's file systems, read by a second JVM like the driver's.

The driver's JVM starts the Python processes that plan and commit, but runs nothing for them. So the sink starts a JVM of its own, which
PySpark's library Py4J drives. It stays until this Python process ends, because its start takes a second and a read some milliseconds.
"""

from __future__ import annotations

import functools
import os
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from py4j.java_gateway import GatewayParameters, JavaGateway
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError

_Result = TypeVar("_Result")

PROC = Path("/proc")
CLASS_PATH_OPTIONS = ("-cp", "-classpath", "--class-path")
OPTIONS_WITH_VALUE = (
    "-p",
    "--module-path",
    "--upgrade-module-path",
    "--add-modules",
    "--add-opens",
    "--add-exports",
    "--add-reads",
)
SPARK_SWITCHES = ("--verbose", "-v", "--supervise", "--load-spark-defaults")
"""Options of spark-submit without a value."""
APPLICATION_MASTER = "org.apache.spark.deploy.yarn.ApplicationMaster"
SMALL_JVM = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    "-Xmx128m",
    "-Xss512k",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-XX:CompressedClassSpaceSize=64m",
    "-XX:ReservedCodeCacheSize=32m",
)
"""The driver's container may be small, and YARN can also limit its address space."""
READ_TIMEOUT_S = 300.0
LINES_OF_AN_ERROR = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverJvm:
    """What another JVM needs to open the driver's file systems.

    ``settings`` are the ``--conf`` of the driver's command line, ``properties_files`` the files below them; None is Spark's default.
    """

    pid: int
    java: str
    directory: str
    class_path: tuple[str, ...]
    options: tuple[str, ...]
    settings: Mapping[str, str]
    properties_files: tuple[str | None, ...]
    user: str | None = None

    def mentions_default_fs(self) -> bool:
        """Return whether ``fs.defaultFS`` may be set; only Hadoop knows its value."""
        names = ("core-site.xml", "__spark_hadoop_conf__.xml")
        if any(Path(self.directory, entry, name).is_file() for entry in self.class_path for name in names):
            return True
        given = [*self.settings, *self.options, *map(self._text, self.properties_files)]
        return any("spark.hadoop.fs.default" in each for each in given)

    def _text(self, properties_file: str | None) -> str:
        home = os.environ.get("SPARK_HOME", "")
        default = Path(os.environ.get("SPARK_CONF_DIR") or f"{home}/conf", "spark-defaults.conf")
        try:
            return Path(self.directory, properties_file or default).read_text(errors="replace")
        except OSError:
            return ""


def find_driver_jvm(pid: int | None = None) -> DriverJvm:
    """Return the nearest JVM above a process, by default above this one.

    Raises:
        OSError: There is none, or this system has no /proc.
    """
    above = os.getppid() if pid is None else pid
    while above > 0:  # the JVM is process 1 of some containers
        process = PROC / str(above)
        try:
            java = os.readlink(process / "exe").removesuffix(" (deleted)")
        except PermissionError:
            java = ""  # a process of another user
        if Path(java).name == "java":
            arguments = (process / "cmdline").read_bytes().decode(errors="surrogateescape").split("\0")[1:-1]
            return describe_jvm(
                arguments, pid=above, java=java, directory=os.readlink(process / "cwd"), open_files=_open_files(process)
            )
        # "PID (NAME) STATE PARENT ...", and the name may contain blanks and brackets.
        above = int((process / "stat").read_text().rpartition(")")[2].split()[1])
    raise OSError(
        "no Java process started this Python process, so Hadoop's file systems cannot be read as Spark's driver reads them"
    )


def describe_jvm(
    arguments: Sequence[str], *, pid: int, java: str, directory: str, open_files: Iterable[str] = ()
) -> DriverJvm:
    """Parse the command line of a driver's JVM, without its first word.

    Args:
        open_files: What the JVM has open: the jars of --jars and --packages are on no command line.
    """
    class_path, options, rest = os.environ.get("CLASSPATH", ""), [], iter(arguments)
    main = ""
    for argument in rest:
        name, equals, value = argument.partition("=")
        if name in CLASS_PATH_OPTIONS or name == "-jar":
            class_path = value if equals else next(rest, "")
            if name == "-jar":
                break
        elif name in OPTIONS_WITH_VALUE:
            options.append(argument if equals else f"{argument}={next(rest, '')}")
        elif not argument.startswith("-"):
            main = argument
            break
        # A second JVM cannot listen on the port of the first one's remote management.
        elif name.startswith("-D") and not name.startswith("-Dcom.sun.management."):
            options.append(argument)
    settings: dict[str, str] = {}
    files: list[str | None] = []
    load_defaults = False
    for name, value in _spark_options(rest):
        if name == "--conf":
            key, _, settings[key] = value.partition("=")
        elif name == "--properties-file":
            files.append(value)
        load_defaults |= name == "--load-spark-defaults"
    if load_defaults or not files:
        files.append(None)
    entries = tuple(filter(None, class_path.split(os.pathsep)))
    jars = (file for file in open_files if file.endswith(".jar") and file not in entries)
    return DriverJvm(
        pid=pid,
        java=java,
        directory=directory,
        class_path=(*entries, *jars),
        options=tuple(options),
        settings=settings,
        properties_files=tuple(files),
        # YARN starts the application master as the node manager's user, and Spark acts in it for the user who submitted.
        user=os.environ.get("SPARK_USER") if main == APPLICATION_MASTER else None,
    )


def _spark_options(arguments: Iterator[str]) -> Iterator[tuple[str, str]]:
    """Yield Spark's own options: those of the program come behind its name."""
    for argument in arguments:
        if not argument.startswith("-"):
            return
        name, equals, value = argument.partition("=")
        if name in SPARK_SWITCHES:
            yield name, ""
        else:
            yield {"-c": "--conf"}.get(name, name), value if equals else next(arguments, "")


def _open_files(process: Path) -> list[str]:
    found = []
    for descriptor in (process / "fd").iterdir():
        try:
            found.append(os.readlink(descriptor))
        except OSError:
            continue  # closed since
    return sorted(set(found))


class HadoopFiles:
    """The files below a location, which Hadoop resolves as in the driver."""

    def __init__(self, location: str) -> None:
        self._location = location

    def read(self, name: str) -> bytes:
        def look(gateway: _Gateway) -> bytes:
            stream = gateway.file_system(self._location).open(gateway.path(f"{self._location}/{name}"))
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()

        return _in_second_jvm(look)

    def exists(self, name: str) -> bool:
        return _in_second_jvm(
            lambda gateway: bool(gateway.file_system(self._location).exists(gateway.path(f"{self._location}/{name}")))
        )

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, of which there are none if it does not exist."""

        def look(gateway: _Gateway) -> list[str]:
            file_system, path = gateway.file_system(self._location), gateway.path(f"{self._location}/{folder}")
            if not file_system.exists(path):
                return []
            return [status.getPath().getName() for status in file_system.listStatus(path)]

        return _in_second_jvm(look)


def _in_second_jvm(look: Callable[[_Gateway], _Result]) -> _Result:
    """Return what ``look`` finds; start a JVM that has ended again, once.

    Raises OSError.
    """
    ended: Py4JError | None = None
    for _ in range(2):
        gateway = _gateway()
        try:
            return look(gateway)
        except Py4JNetworkError as error:
            ended = error
            _gateway.cache_clear()
            gateway.stop()
        except Py4JError as error:
            raise OSError(_reason(error)) from None
    raise OSError(f"the Java process that reads it does not respond: {ended}")


def _reason(error: Exception) -> str:
    # A remote exception has the server's stack trace in its text.
    text = str(error.java_exception.toString() if isinstance(error, Py4JJavaError) else error)
    return text.partition("\n")[0]


@functools.cache
def _gateway() -> _Gateway:
    return _Gateway(find_driver_jvm())


class _Gateway:
    """A JVM with the driver's class path and Hadoop configuration.

    Raises OSError on construction.
    """

    def __init__(self, driver: DriverJvm) -> None:
        self._process = subprocess.Popen(
            [
                *(driver.java, *driver.options, *SMALL_JVM, "-cp", os.pathsep.join(driver.class_path)),
                # It ends with its standard input, which the kernel closes when this process dies.
                *("py4j.GatewayServer", "--die-on-broken-pipe", "--enable-auth", "0"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=driver.directory,
            env=os.environ if driver.user is None else {"HADOOP_USER_NAME": driver.user, **os.environ},
        )
        output = self._process.stdout
        assert output is not None
        before = deque[str](maxlen=LINES_OF_AN_ERROR)
        port = None
        for line in output:
            if line.strip().isdecimal():
                port = int(line)
                break
            before.append(line.strip())
        if port is None:
            raise OSError(
                f"a Java process with the class path of Spark's driver (process {driver.pid}) ended with status "
                f"{self._process.wait()}: {' '.join(before)}"
            )
        token = output.readline().strip()
        # Nobody reads what Hadoop logs there, and a full pipe would block it.
        threading.Thread(target=deque, args=(output, 0), daemon=True).start()
        self._client = JavaGateway(
            gateway_parameters=GatewayParameters(port=port, auth_token=token, read_timeout=READ_TIMEOUT_S)
        )
        try:
            self._prepare(driver)
        except (Py4JError, TypeError) as error:
            reason = _reason(error)
            self.stop()
            raise OSError(
                f"the class path of Spark's driver (process {driver.pid}) does not give Hadoop's configuration: {reason}"
            ) from None

    def _prepare(self, driver: DriverJvm) -> None:
        java: Any = self._client.jvm
        settings = java.org.apache.spark.SparkConf(True)
        for name, value in driver.settings.items():
            settings.set(name, value)
        for file in driver.properties_files:  # adds only what is not set yet
            java.org.apache.spark.util.Utils.loadDefaultSparkProperties(settings, file)
        self._configuration = java.org.apache.spark.deploy.SparkHadoopUtil.get().newConfiguration(settings)
        self.path = java.org.apache.hadoop.fs.Path

    def file_system(self, location: str) -> Any:
        """Return Hadoop's file system of a location, which Hadoop itself caches."""
        return self.path(location).getFileSystem(self._configuration)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        # Otherwise, Py4J logs an error for each object that it cannot release there.
        self._client._gateway_client.is_connected = False
