"""Kafka's jars, resolved once by their package coordinates into a cache folder.

The resolver is the Ivy that PySpark ships, so nothing has to be installed for it. The cache is
``KAFKA_EOS_CACHE``, else ``kafka-eos`` under ``XDG_CACHE_HOME``, else ``~/.cache/kafka-eos``. A folder of jars appears
in it by one rename, when it is complete; two processes that start at once wait for each other at a file lock.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from xml.sax.saxutils import quoteattr

from kafka_eos_sink.embedded.java import find_java
from kafka_eos_sink.errors import KafkaEosError

__all__ = ["DEFAULT_KAFKA_VERSION", "Progress", "cache_directory", "resolve", "resolve_coordinates"]

DEFAULT_KAFKA_VERSION = "4.2.1"
"""Not 4.3.0 or 4.3.1: those can leave the marker of a committed transaction out of a partition (KAFKA-20734)."""

_IVY_SETTINGS_VARIABLE = "KAFKA_EOS_IVY_SETTINGS"
_MANIFEST = "manifest.json"
_ATTEMPTS = 3
_COORDINATE = re.compile(r"[\w.-]+:[\w.-]+:[\w.+-]+")

# Ivy's own default settings know no time-outs, so that an index that swallows packets would hang the caller for ever.
_IVY_SETTINGS = """<ivysettings>
  <settings defaultResolver="public"/>
  <timeout-constraints>
    <timeout-constraint name="patient" connectionTimeout="20000" readTimeout="60000"/>
  </timeout-constraints>
  <resolvers><ibiblio name="public" m2compatible="true" timeoutConstraint="patient"/></resolvers>
</ivysettings>
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a resolution is: ``done`` of ``total`` jars (0 while unknown), and the name of the last one."""

    stage: Literal["waiting", "resolving", "downloading"]
    done: int
    total: int
    name: str


def cache_directory(environment: Mapping[str, str] | None = None) -> Path:
    """The folder that keeps what was downloaded, between runs and for all projects of this user."""
    environment = os.environ if environment is None else environment
    if chosen := environment.get("KAFKA_EOS_CACHE"):
        return Path(chosen).expanduser().absolute()
    if shared := environment.get("XDG_CACHE_HOME"):
        return Path(shared).expanduser().absolute() / "kafka-eos"
    return Path("~/.cache/kafka-eos").expanduser()


def resolve(
    version: str = DEFAULT_KAFKA_VERSION,
    *,
    artifact: str = "kafka_2.13",
    progress: Callable[[Progress], None] | None = None,
) -> Path:
    """The folder with the jars of ``org.apache.kafka:<artifact>:<version>`` and of all that they need.

    ``kafka_2.13`` is the broker, to which a small logger is added, as Kafka's own dependencies bring none and a broker
    without one dies in silence; ``kafka-tools`` are the console tools. The first call downloads about 44 MB, later ones
    only look whether all is there.

    Raises ``KafkaEosError`` with code ``DISTRIBUTION_UNAVAILABLE`` where the package index cannot be reached or has no
    such version, ``JAVA_NOT_FOUND`` or ``JAVA_TOO_OLD``.
    """
    coordinate = _checked(f"org.apache.kafka:{artifact}:{version}")

    def fetch(folder: Path, ivy: _Ivy) -> None:
        ivy.retrieve([coordinate], folder, transitive=True)
        logging_api = next(iter(folder.glob("slf4j-api-*.jar")), None)
        if logging_api is not None and artifact.startswith("kafka_"):
            logging_version = logging_api.stem.removeprefix("slf4j-api-")
            ivy.retrieve([f"org.slf4j:slf4j-simple:{logging_version}"], folder, transitive=False)

    return _cached(f"{artifact}-{version}", f"{artifact}-{version}.jar", f"Kafka {version}", fetch, progress)


def resolve_coordinates(
    coordinates: Sequence[str],
    *,
    transitive: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> list[Path]:
    """The jars of exact ``group:artifact:version`` coordinates, in their order.

    With ``transitive`` everything that they need follows them, sorted by name. Raises as ``resolve`` does.
    """
    exact = [_checked(coordinate) for coordinate in coordinates]
    if not exact:
        return []
    key = hashlib.sha256("\n".join([*exact, f"transitive={transitive}"]).encode()).hexdigest()[:16]

    def fetch(folder: Path, ivy: _Ivy) -> None:
        ivy.retrieve(exact, folder, transitive=transitive)

    named = [_jar_name(coordinate) for coordinate in exact]
    folder = _cached(f"jars-{key}", named[0], ", ".join(exact), fetch, progress)
    others = sorted(jar.name for jar in folder.glob("*.jar") if jar.name not in named)
    return [folder / name for name in (*named, *others)]


def _checked(coordinate: str) -> str:
    # A coordinate becomes a folder name and XML: what is not one must not get that far.
    if not _COORDINATE.fullmatch(coordinate) or ".." in coordinate:
        raise KafkaEosError(
            "DISTRIBUTION_UNAVAILABLE",
            f"{coordinate!r} is no package coordinate; write group:artifact:version, "
            "for example org.apache.kafka:kafka_2.13:4.2.1.",
        )
    return coordinate


def _jar_name(coordinate: str) -> str:
    _, artifact, version = coordinate.split(":")
    return f"{artifact}-{version}.jar"


def _cached(
    name: str,
    main_jar: str,
    what: str,
    fetch: Callable[[Path, _Ivy], None],
    progress: Callable[[Progress], None] | None,
) -> Path:
    cache = cache_directory()
    folder = cache / name
    if _is_complete(folder):
        return folder
    report = progress or (lambda _: None)
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as failure:
        raise KafkaEosError(
            "DISTRIBUTION_UNAVAILABLE",
            f"The cache folder {cache} cannot be made ({failure.strerror}); name another one in KAFKA_EOS_CACHE.",
        ) from failure
    # One lock for the whole cache, as Ivy's own cache below it is not safe for two writers.
    with _locked(cache / "lock", lambda: report(Progress(stage="waiting", done=0, total=0, name=what))):
        if _is_complete(folder):
            return folder
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=cache) as scratch:
            fresh = Path(scratch, "jars")
            fresh.mkdir()
            fetch(fresh, _Ivy(cache=cache / "ivy", scratch=Path(scratch), what=what, report=report))
            if not (fresh / main_jar).is_file():
                raise KafkaEosError(
                    "DISTRIBUTION_UNAVAILABLE", f"The package index answered for {what}, but without {main_jar}."
                )
            sizes = {jar.name: jar.stat().st_size for jar in sorted(fresh.glob("*.jar"))}
            (fresh / _MANIFEST).write_text(json.dumps(sizes, indent=1), encoding="utf-8")
            if folder.exists():  # an incomplete one, of which somebody removed or cut files
                folder.rename(Path(scratch, "incomplete"))
            fresh.rename(folder)
    return folder


def _is_complete(folder: Path) -> bool:
    try:
        sizes: dict[str, int] = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        return bool(sizes) and all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return False


@contextmanager
def _locked(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield  # closing the file releases the lock, and so does the death of the process


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ivy:
    """Runs of PySpark's Ivy; ``cache`` keeps its downloads, ``scratch`` the files that steer it."""

    cache: Path
    scratch: Path
    what: str
    report: Callable[[Progress], None]

    def retrieve(self, coordinates: Sequence[str], folder: Path, *, transitive: bool) -> None:
        settings = os.environ.get(_IVY_SETTINGS_VARIABLE)
        if settings and not Path(settings).is_file():
            raise KafkaEosError(
                "DISTRIBUTION_UNAVAILABLE", f"{_IVY_SETTINGS_VARIABLE} names {settings}, which is no file."
            )
        if not settings:
            settings = str(self.scratch / "settings.xml")
            Path(settings).write_text(_IVY_SETTINGS, encoding="utf-8")
        module = self.scratch / "module.xml"
        module.write_text(_module(coordinates, transitive=transitive), encoding="utf-8")
        command = [
            str(find_java().executable), f"-Divy.default.ivy.user.dir={self.cache}", "-jar", str(_ivy_jar()),
            "-settings", settings, "-ivy", str(module), "-cache", str(self.cache),
            # Without `bundle` scala-logging and snappy, which are OSGi bundles, are left out.
            "-types", "jar", "bundle",
            "-retrieve", str(folder / "[artifact]-[revision](-[classifier]).[ext]"),
        ]  # fmt: skip
        for attempt in range(1, _ATTEMPTS + 1):
            status, output = self._run(command)
            if status == 0:
                return
            if _not_found(output) or attempt == _ATTEMPTS:
                raise KafkaEosError("DISTRIBUTION_UNAVAILABLE", _explain(self.what, output))
            time.sleep(attempt)  # an index or a proxy that stumbled: what was downloaded is kept

    def _run(self, command: list[str]) -> tuple[int, list[str]]:
        output: list[str] = []
        modules = downloaded = 0
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        try:
            assert process.stdout is not None
            for line in process.stdout:
                line = line.strip()
                if not line.strip("."):
                    continue
                output.append(line)
                if match := re.match(r"found (\S+) in ", line):
                    modules += 1
                    self.report(Progress(stage="resolving", done=modules, total=0, name=match.group(1)))
                elif match := re.match(r"\[SUCCESSFUL \] \S*!([^\s(]+)", line):
                    downloaded += 1
                    self.report(
                        Progress(
                            stage="downloading", done=downloaded, total=max(modules, downloaded), name=match.group(1)
                        )
                    )
            return process.wait(), output
        finally:
            if process.poll() is None:  # Ctrl-C
                process.kill()
                process.wait()


def _module(coordinates: Sequence[str], *, transitive: bool) -> str:
    dependencies = "".join(
        f"<dependency org={quoteattr(group)} name={quoteattr(name)} rev={quoteattr(version)} "
        f'conf="default->default,runtime" transitive="{str(transitive).lower()}"/>'
        for group, name, version in (coordinate.split(":") for coordinate in coordinates)
    )
    return (
        '<ivy-module version="2.0"><info organisation="kafka-eos" module="distribution"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>"
    )


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        if jars := sorted(Path(location, "jars").glob("ivy-*.jar")):
            return jars[-1]
    raise KafkaEosError(
        "DISTRIBUTION_UNAVAILABLE",
        "Kafka's jars are resolved with the Ivy inside PySpark, and no pyspark with a jars folder is installed here; "
        "`pip install pyspark`.",
    )


# What Ivy says for an index that did not answer, as opposed to one that answered "no such file".
_UNREACHABLE = re.compile(
    r"Host .* not found|Server access [Ee]rror|SERVER ERROR|timed out|refused|unreachable|SSL|PKIX"
)


def _not_found(output: Sequence[str]) -> bool:
    return any(": not found" in line for line in output) and not any(_UNREACHABLE.search(line) for line in output)


def _explain(what: str, output: Sequence[str]) -> str:
    if _not_found(output):
        missing = sorted(
            {line.strip(": ").removesuffix(": not found") for line in output if line.endswith(": not found")}
        )
        return f"The package index has no {what} (not found: {', '.join(missing)}); name a version that was released."
    reasons = [line for line in output if _UNREACHABLE.search(line)] or list(output[-3:])
    reason = re.sub(r"\s*url=\S+", "", reasons[0]).rstrip(".") if reasons else "no output"
    return (
        f"{what} could not be downloaded: the package index cannot be reached ({reason}); check the network, give "
        'Java its proxy (JAVA_TOOL_OPTIONS="-Dhttps.proxyHost=... -Dhttps.proxyPort=..."), or name an Ivy settings '
        f"file with your mirror in {_IVY_SETTINGS_VARIABLE}."
    )
