"""Kafka's jars, downloaded once by their package coordinates into a cache folder.

The resolver is the Ivy that PySpark ships, so nothing else must be installed. The cache is ``KAFKA_EOS_CACHE``, else
``kafka-eos`` under ``XDG_CACHE_HOME``, else ``~/.cache/kafka-eos``. A complete folder of jars appears in it by one
rename. A file lock makes two processes that start at once download only once.

Jars of the default version and of ``kafka-eos jars`` must have the SHA-256 that they have on Maven Central: ``kafka.sha256`` lists all jars
of ``DEFAULT_KAFKA_VERSION``, ``kafka-source.sha256`` those of ``kafka-eos jars``. To write the lists again, empty the first, and run
``sha256sum *.jar`` in the folders of the cache.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, Popen
from typing import Literal
from xml.sax.saxutils import quoteattr

from kafka_eos_sink.embedded.java import find_java
from kafka_eos_sink.errors import KafkaEosError
from kafka_eos_sink.extras import install_command

DEFAULT_KAFKA_VERSION = "4.2.2"
"""Not 4.3 or newer: these can omit a transaction marker in a partition (KAFKA-20734)."""

_IVY_SETTINGS_VARIABLE = "KAFKA_EOS_IVY_SETTINGS"
_MANIFEST = "manifest.json"
_ATTEMPTS = 3
_COORDINATE = re.compile(r"[\w.-]+:[\w.-]+:[\w.+-]+")
# Ivy's text if an index could not be reached, in contrast to an index that has no such file.
_UNREACHABLE = re.compile(
    r"Host .* not found|Server access [Ee]rror|SERVER ERROR|timed out|refused|unreachable|SSL|PKIX"
)
# Ivy's own default settings have no timeouts: an index that drops packets would hang the caller for ever.
_IVY_SETTINGS = """<ivysettings><settings defaultResolver="public"/>
<timeout-constraints><timeout-constraint name="patient" connectionTimeout="20000" readTimeout="60000"/></timeout-constraints>
<resolvers><ibiblio name="public" m2compatible="true" timeoutConstraint="patient"/></resolvers></ivysettings>"""


def _hashes(file: str) -> dict[str, str]:
    """Return the SHA-256 by jar, of a list as ``sha256sum`` writes it."""
    lines = resources.files(__package__).joinpath(file).read_text(encoding="ascii").splitlines()
    return {jar: digest for digest, jar in map(str.split, lines)}


KAFKA, SOURCE = _hashes("kafka.sha256"), _hashes("kafka-source.sha256")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """``done`` of ``total`` jars (0: unknown), and the name of the newest one."""

    stage: Literal["waiting", "resolving", "downloading"]
    done: int = 0
    total: int = 0
    name: str


Report = Callable[[Progress], None]


def cache_directory() -> Path:
    """Return the folder that keeps the downloads for all projects of this user."""
    if chosen := os.environ.get("KAFKA_EOS_CACHE"):
        return Path(chosen).expanduser().absolute()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared).expanduser().absolute() / "kafka-eos"
    return Path("~/.cache/kafka-eos").expanduser()


def resolve(version: str = DEFAULT_KAFKA_VERSION, *, progress: Report | None = None) -> Path:
    """Return the folder with the jars of a Kafka broker and of its dependencies.

    The first call downloads about 44 MB; later calls only check that all files exist.

    Raises:
        KafkaEosError: ``DISTRIBUTION_UNAVAILABLE`` if the package index cannot be reached or has no such version;
            ``JAVA_NOT_FOUND`` or ``JAVA_TOO_OLD``.
    """
    coordinate = _checked(f"org.apache.kafka:kafka_2.13:{version}")
    return _cached(f"kafka_2.13-{version}", [coordinate], f"Kafka {version}", transitive=True, progress=progress)


def resolve_coordinates(coordinates: Sequence[str], *, progress: Report | None = None) -> list[Path]:
    """Return the jars of exact ``group:artifact:version``, without dependencies.

    Raises as ``resolve`` does.
    """
    exact = [_checked(coordinate) for coordinate in coordinates]
    # The last line keeps the folder names of earlier versions, so that nothing is downloaded again.
    key = hashlib.sha256("\n".join([*exact, "transitive=False"]).encode()).hexdigest()[:16]
    folder = _cached(f"jars-{key}", exact, ", ".join(exact), transitive=False, progress=progress)
    return [folder / _jar_name(coordinate) for coordinate in exact]


def _unavailable(message: str) -> KafkaEosError:
    return KafkaEosError("DISTRIBUTION_UNAVAILABLE", message)


def _checked(coordinate: str) -> str:
    # The coordinate becomes a folder name and XML, so it must not hold a path or markup.
    if not _COORDINATE.fullmatch(coordinate) or ".." in coordinate:
        raise _unavailable(
            f"{coordinate!r} is not a package coordinate; write group:artifact:version, "
            "for example org.apache.kafka:kafka_2.13:4.2.2."
        )
    return coordinate


def _jar_name(coordinate: str) -> str:
    return "{1}-{2}.jar".format(*coordinate.split(":"))


def _cached(name: str, coordinates: Sequence[str], what: str, *, transitive: bool, progress: Report | None) -> Path:
    """Return the folder ``name`` of the cache, downloaded if it is not complete."""
    cache = cache_directory()
    if cache.exists() and cache.stat().st_mode & stat.S_IWOTH:
        # They could put jars into the class path of our brokers. Only jars of the default version have known hashes.
        raise _unavailable(
            f"Other users can write to the cache folder {cache}; run chmod o-w on your own, or set KAFKA_EOS_CACHE to another one."
        )
    folder = cache / name
    if _is_complete(folder):
        return folder
    report = progress or (lambda _: None)
    try:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as failure:
        reason = f"The cache folder {cache} cannot be created ({failure.strerror})"
        raise _unavailable(f"{reason}; set KAFKA_EOS_CACHE to another one.") from failure
    # One lock for the whole cache: Ivy's own cache inside it is not safe for two writers.
    with _locked(cache / "lock", lambda: report(Progress(stage="waiting", name=what))):
        # Another process can have downloaded the folder while this one waited for the lock.
        if _is_complete(folder):
            return folder
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=cache) as scratch:
            fresh = Path(scratch, "jars")
            # The cache may be older than this package, and readable by others. With a umask of 0 they could add jars.
            for made in (fresh, cache / "ivy"):
                made.mkdir(mode=0o700, exist_ok=True)
            ivy = _Ivy(cache=cache / "ivy", scratch=Path(scratch), what=what, report=report)
            ivy.retrieve(coordinates, fresh, transitive=transitive)
            # Kafka depends on the logging API alone. A broker without a logger would die without any message.
            if name.startswith("kafka_") and (api := next(fresh.glob("slf4j-api-*.jar"), None)):
                logger = f"org.slf4j:slf4j-simple:{api.stem.removeprefix('slf4j-api-')}"
                ivy.retrieve([logger], fresh, transitive=False)
            main_jar = _jar_name(coordinates[0])
            if not (fresh / main_jar).is_file():
                raise _unavailable(f"The package index returned {what} without {main_jar}; check the mirror.")
            _require_hashes(folder.name, fresh, what)
            sizes = {jar.name: jar.stat().st_size for jar in sorted(fresh.glob("*.jar"))}
            (fresh / _MANIFEST).write_text(json.dumps(sizes, indent=1), encoding="utf-8")
            if folder.exists():  # incomplete: a user removed or truncated files
                folder.rename(Path(scratch, "incomplete"))
            fresh.rename(folder)
    return folder


def _is_complete(folder: Path) -> bool:
    try:
        sizes: dict[str, int] = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        whole = bool(sizes) and all((folder / name).stat().st_size == size for name, size in sizes.items())
        return whole and not _wrong_jars(folder)
    except (OSError, ValueError):
        return False


def _require_hashes(name: str, folder: Path, what: str) -> None:
    wrong = _wrong_jars(folder)
    if name == f"kafka_2.13-{DEFAULT_KAFKA_VERSION}":
        # A mirror must not add jars either. Later, the owner of the cache may.
        wrong |= KAFKA.keys() ^ {jar.name for jar in folder.glob("*.jar")}
    if wrong:
        raise _unavailable(
            f"{', '.join(sorted(wrong))} of {what} does not have the SHA-256 that this version of kafka-eos expects: a mirror or the "
            f"network has changed it. Check the mirror, and remove {cache_directory() / 'ivy'}, which keeps the download."
        )


def _wrong_jars(folder: Path) -> set[str]:
    """Return the jars that differ from their known hashes."""
    # A name holds its version, so that the hashes also hold for the same jars of another Kafka.
    known = {**KAFKA, **SOURCE}
    return {jar.name for jar in folder.glob("*.jar") if jar.name in known and _sha256(jar) != known[jar.name]}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
    """Runs PySpark's Ivy; ``cache`` keeps its downloads, ``scratch`` its input."""

    cache: Path
    scratch: Path
    what: str
    report: Report

    def retrieve(self, coordinates: Sequence[str], folder: Path, *, transitive: bool) -> None:
        settings = os.environ.get(_IVY_SETTINGS_VARIABLE)
        if settings and not Path(settings).is_file():
            raise _unavailable(f"{_IVY_SETTINGS_VARIABLE} is {settings}, which is not a file; correct or unset it.")
        if not settings:
            settings = str(self.scratch / "settings.xml")
            Path(settings).write_text(_IVY_SETTINGS, encoding="utf-8")
        module = self.scratch / "module.xml"
        module.write_text(_module(coordinates, transitive=transitive), encoding="utf-8")
        command = find_java().command(
            _ivy_jar(), "org.apache.ivy.Main", "-settings", settings, "-ivy", str(module), "-cache", str(self.cache),
            # Without `bundle` Ivy skips scala-logging and snappy, which are OSGi bundles.
            "-types", "jar", "bundle", "-retrieve", str(folder / "[artifact]-[revision](-[classifier]).[ext]"),
            options=[f"-Divy.default.ivy.user.dir={self.cache}"],
        )  # fmt: skip
        for attempt in range(1, _ATTEMPTS + 1):
            status, output = self._run(command)
            if status == 0:
                return
            unreachable = [line for line in output if _UNREACHABLE.search(line)]
            missing = {line.strip(": ").removesuffix(": not found") for line in output if line.endswith(": not found")}
            # Ivy also prints "not found" for every package of an index that it cannot reach.
            if missing and not unreachable:
                names = ", ".join(sorted(missing))
                raise _unavailable(
                    f"The package index has no {self.what} (not found: {names}); choose a released version."
                )
            if attempt < _ATTEMPTS:
                time.sleep(attempt)  # the index or a proxy failed briefly; Ivy keeps what it has downloaded
        reason = re.sub(r"\s*url=\S+", "", (unreachable or output[-3:] or ["no output"])[0]).rstrip(".")
        raise _unavailable(
            f"{self.what} could not be downloaded: the package index cannot be reached ({reason}); check the network, give "
            'Java its proxy (JAVA_TOOL_OPTIONS="-Dhttps.proxyHost=... -Dhttps.proxyPort=..."), or set '
            f"{_IVY_SETTINGS_VARIABLE} to an Ivy settings file with your mirror."
        )

    def _run(self, command: list[str]) -> tuple[int, list[str]]:
        output: list[str] = []
        found = downloaded = 0
        process = Popen(command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, text=True, errors="replace")
        try:
            for line in map(str.strip, process.stdout or ()):
                if line.strip("."):  # Ivy draws its progress with lines of dots
                    output.append(line)
                if match := re.match(r"found (\S+) in ", line):
                    found += 1
                    self.report(Progress(stage="resolving", done=found, name=match[1]))
                elif match := re.match(r"\[SUCCESSFUL \] \S*!([^\s(]+)", line):
                    downloaded += 1
                    total = max(found, downloaded)
                    self.report(Progress(stage="downloading", done=downloaded, total=total, name=match[1]))
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
        f'<configurations><conf name="default"/></configurations><dependencies>{dependencies}</dependencies></ivy-module>'
    )


def _ivy_jar() -> Path:
    # Found, not imported: an import of pyspark takes a second.
    spec = importlib.util.find_spec("pyspark")
    locations = spec.submodule_search_locations if spec else None
    if jars := sorted(jar for location in locations or () for jar in Path(location, "jars").glob("ivy-*.jar")):
        return jars[-1]
    raise _unavailable(
        "Kafka's jars are downloaded with the Ivy inside PySpark, and no pyspark with a jars folder is installed. "
        f"Run `{install_command('spark')}` once; later, Kafka starts without PySpark."
    )
