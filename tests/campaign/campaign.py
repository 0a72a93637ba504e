"""Lets many faults happen at once to everything that writes, for minutes or hours, and judges what readers see.

    make campaign [CAMPAIGN="--minutes 60 --seed 1 --journal campaign.jsonl"]

A campaign is a row of episodes. Each starts a Kafka of one or three nodes (3.9, 4.2 or 4.4, with a transaction version), writers of
several kinds that are started again whenever they die, and readers; then faults happen, up to four at a time. In the end everything heals,
the writers write the rest, and the checker judges: every accepted unit once and whole, others whole or absent, the rows of a task in order,
group offsets equal to what is visible, nothing open, each error code documented and true about visibility.

The seed and the number of an episode determine what it draws. The journal has a line for each episode, and the next campaign with it
continues behind the last one. Exit status 1 if anything is wrong; then the folder of the episode stays.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyspark

from dead_writes import POINTS, RESTORE_POINTS
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.embedded.distribution import resolve_coordinates
from kafka_eos_sink.error_table import table
from kafka_eos_sink.errors import RunAgain, safety_of
from kafka_eos_sink.jobs.spark_kafka_source import KAFKA_SOURCE_JARS
from kafka_testing import create_topic
from tests.faults.fault_proxy import FaultProxy
from tests.faults.three_nodes import QUICK_ELECTIONS
from tests.spark.quick_start import PYTHON_STARTUP, SHORT_LIVED_JVM, short_lived_jvm
from tests.spark.standalone_cluster import StandaloneCluster

from . import checker
from .mutants import MUTANTS, planted_package
from .nemesis import Nemesis, end_hanging_of_others, omits_markers, recover_write, run_command
from .spark_writer import Assignment, Kind
from .writers import Writer

REPOSITORY = Path(__file__).parents[2]
HEALED_WITHIN_S = 60.0
RECOVERED_WITHIN_S = 180.0
"""From the last fault until every writer has written something new; 60 on a quiet machine."""
TRANSACTION_TIMEOUT_MS = 30_000
OPTIONS = {"kafka.transaction.timeout.ms": str(TRANSACTION_TIMEOUT_MS)}
IMPATIENT = {"kafka.delivery.timeout.ms": "15000", "kafka.max.block.ms": "15000", "kafka.request.timeout.ms": "5000"}
KINDS: tuple[Kind, ...] = ("stream", "shuffled stream", "batch", "batch", "copy", "foreachBatch")
POINTS_OF_ALL = (*POINTS, *RESTORE_POINTS, "abort.between_ends")
PROPERTIES = {
    **QUICK_ELECTIONS,
    "log.cleaner.backoff.ms": "1000",
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.num.partitions": "5",
}
WORLDS: tuple[dict[str, Any], ...] = (
    {"brokers": 1, "transaction_version": 2},
    {"brokers": 1, "transaction_version": 0},
    {"brokers": 3, "transaction_version": 2},
    {"brokers": 3, "transaction_version": 0},
    {"brokers": 1, "transaction_version": 1},
    {"brokers": 1, "version": "3.9.2"},
    {"brokers": 1, "version": "4.4.0"},
)
"""The first episodes take them in this order, later ones draw by these weights."""
WEIGHTS = (3, 1, 5, 1, 1, 1, 1)


@dataclass(slots=True, kw_only=True)
class Report:
    """What became of one episode; a line of the journal."""

    episode: int
    world: dict[str, Any]
    writers: list[str]
    faults: dict[str, int] = field(default_factory=dict)
    frames: dict[str, int] = field(default_factory=dict)
    codes: dict[str, int] = field(default_factory=dict)
    rows: int = 0
    units: int = 0
    starts: int = 0
    recovered_s: float = 0.0
    """From the last fault until every writer has written something new."""
    minutes: float = 0.0
    wrong: list[str] = field(default_factory=list)

    @property
    def fault_count(self) -> int:
        return sum(self.faults.values()) + sum(self.frames.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What all episodes of a campaign share."""

    seed: int
    episode_s: float
    longest_pause_s: float
    largest_unit: int
    kinds: tuple[Kind, ...] = KINDS
    worlds: tuple[dict[str, Any], ...] = WORLDS
    points: tuple[str, ...] = POINTS_OF_ALL
    """Failpoints that a start of a writer may draw."""
    faults: tuple[str, ...] = ()
    """The names of the faults that may happen, empty for all."""
    package: Path | None = None
    """Where another kafka_eos_sink lies: a mutant."""


def environment(package: Path | None) -> dict[str, str]:
    first = [] if package is None else [str(package)]
    return {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": short_lived_jvm(),
        "PYTHONPATH": os.pathsep.join([*first, str(PYTHON_STARTUP), str(REPOSITORY)]),
    }


class Episode:
    """One cluster, its writers, and what is done to them."""

    def __init__(self, settings: Settings, number: int, folder: Path) -> None:
        self.settings, self.folder = settings, folder
        self.chance = random.Random(f"{settings.seed}/{number}")
        world = settings.worlds[number % len(settings.worlds)] if number < len(settings.worlds) else self._any_world()
        self.report = Report(episode=number, world=world, writers=[])
        self._release = ExitStack()
        self.writers: list[Writer] = []
        self.topics: list[str] = []
        self.on_cluster = "version" not in world and number % 5 == 4 and "batch" in settings.kinds

    def _any_world(self) -> dict[str, Any]:
        worlds = self.settings.worlds
        # The worlds of given versions are equally likely.
        return self.chance.choices(worlds, WEIGHTS[: len(worlds)] if len(worlds) <= len(WEIGHTS) else None)[0]

    def run(self) -> Report:
        began = time.monotonic()
        with self._release:
            try:
                self._run()
            except AssertionError as failure:
                # What a person would look at, before the cluster is gone.
                status = run_command("status", "--bootstrap-servers", self.kafka.bootstrap_servers)
                self.report.wrong += [str(failure), status.stdout + status.stderr]
        self.report.minutes = round((time.monotonic() - began) / 60, 2)
        return self.report

    def _run(self) -> None:
        self.kafka = self._release.enter_context(EmbeddedKafka(properties=PROPERTIES, heap="512m", **self.report.world))
        proxy = self._release.enter_context(FaultProxy(self.kafka.bootstrap_servers, remember=False))
        self._release.callback(lambda: [writer.kill() for writer in self.writers])
        self._make_writers(proxy.bootstrap_servers)
        self.reader = checker.LiveReader(self.kafka.bootstrap_servers, self.topics)
        self._release.callback(self.reader.close)
        longest, names = self.settings.longest_pause_s, self.settings.faults
        nemesis = Nemesis(self.kafka, self.writers, self.topics, proxy, self.chance, longest, names)
        supervisor = Supervisor(self.writers, self.settings.largest_unit, self.reader)
        with supervisor:
            self._await_first_rows()
            nemesis.work(time.monotonic() + self.settings.episode_s)
            for writer in self.writers:
                writer.points = ()
            nemesis.heal()
            healed_at = time.monotonic()
            self.report.faults, self.report.frames = dict(nemesis.done), dict(nemesis.frames.done)
            if omits_markers(self.kafka):
                # Nothing but a person ends what a missing marker leaves open.
                end_hanging_of_others(self.kafka, self.topics, self._prefixes())
            self._await_recovery(supervisor, healed_at)
        for writer in self.writers:
            writer.kill()
        self.report.wrong += supervisor.wrong
        if self.chance.random() < 0.5 or omits_markers(self.kafka):
            self._recover_all()
            self._judge(nemesis, all_written=False)
        for writer in self.writers:
            writer.finish()
        self._judge(nemesis, all_written=True)
        for writer in self.writers:
            self.report.codes = dict(Counter(self.report.codes) + writer.codes)
        self._judge_codes()
        self.report.starts = sum(writer.starts for writer in self.writers)
        self.report.units = sum(len(writer.units) for writer in self.writers)
        self.report.rows = self.reader.sightings.rows

    def _make_writers(self, proxied: str) -> None:
        kinds = list(self.settings.kinds)
        count = min(len(kinds), 2 if self.on_cluster else 3)
        chosen = self.chance.sample(kinds, count)
        past_proxy = self.chance.randrange(6)  # in half of the episodes one writer, whose frames nobody harms
        jars = [str(path) for path in resolve_coordinates(KAFKA_SOURCE_JARS)]
        servers = self.kafka.bootstrap_servers
        cluster: StandaloneCluster | None = None
        if self.on_cluster:
            folder = self.folder / "cluster"
            folder.mkdir()
            cluster = self._release.enter_context(StandaloneCluster.started(folder, environment(self.settings.package)))
        for at, kind in enumerate(chosen):
            name = f"{kind.replace(' ', '-')}-{at}".lower()
            names = [f"{name}-{each}" for each in ("a", "b")[: 2 if kind == "foreachBatch" else 1]]
            for topic in names:
                create_topic(servers, topic, partitions=3)
            self.topics += names
            given = Assignment(
                name=name,
                kind=kind,
                servers=servers if at == past_proxy else proxied,
                source_servers=servers,
                topics=names,
                keyed=self.chance.random() < 0.5,
                options=self.chance.choice((OPTIONS, {**OPTIONS, **IMPATIENT})),
                input_topic=create_topic(servers, f"{name}-input", partitions=2) if kind == "copy" else "",
                group=f"{name}-group" if kind == "copy" else "",
                jars=jars if kind == "copy" else [],
            )
            writer = Writer(self.folder / name, given, environment(self.settings.package), self.chance)
            writer.points = self.settings.points
            if cluster is not None and kind != "copy" and at == 0:
                writer.command = _submit(cluster.url)
            writer.more_units(6, self.settings.largest_unit)
            self.writers.append(writer)
        where = " on a cluster" if self.on_cluster else ""
        self.report.writers = [
            f"{writer.given.kind}{where if at == 0 else ''}{' through the proxy' if writer.given.servers == proxied else ''}"
            for at, writer in enumerate(self.writers)
        ]

    def _await_first_rows(self) -> None:
        """Faults before anything works would only test the start of Spark."""
        until = time.monotonic() + RECOVERED_WITHIN_S
        while time.monotonic() < until and self.reader.sightings.rows == 0:
            time.sleep(0.2)

    def _await_recovery(self, supervisor: Supervisor, healed_at: float) -> None:
        before = [supervisor.done(writer) for writer in self.writers]
        within_s = RECOVERED_WITHIN_S
        helped, deadline = not omits_markers(self.kafka), healed_at + within_s
        while any(supervisor.done(writer) <= done for writer, done in zip(self.writers, before, strict=True)):
            if time.monotonic() > deadline and not helped:
                # Not sooner: it fences a writer that works.
                self._recover_all()
                helped, deadline = True, time.monotonic() + within_s
            elif time.monotonic() > deadline:
                late = [
                    f"{writer.given.name} has written nothing new {within_s:g} s after the last fault; it said: {writer.said()[-1000:]}"
                    for writer, done in zip(self.writers, before, strict=True)
                    if supervisor.done(writer) <= done
                ]
                raise AssertionError("; ".join(late))
            time.sleep(0.2)
        self.report.recovered_s = round(time.monotonic() - healed_at, 1)

    def _prefixes(self) -> list[str]:
        return [prefix for writer in self.writers for prefix in writer.write_ids]

    def _recover_all(self) -> None:
        """What an operator does who does not want to wait for the next runs."""
        for prefix in self._prefixes():
            done = recover_write(self.kafka, prefix)
            if done.returncode and "NO_COMMIT_LOG" not in done.stderr:
                self.report.wrong.append(f"recover of {prefix} failed: {done.stderr[-500:]}")

    def _judge(self, nemesis: Nemesis, *, all_written: bool) -> None:
        # Foreign transactions may be open for their timeout; those of writers that died, too.
        within_s = HEALED_WITHIN_S + TRANSACTION_TIMEOUT_MS / 1000
        servers = self.kafka.bootstrap_servers
        checker.await_nothing_open(servers, self._prefixes(), self.topics, within_s)
        self.reader.catch_up()
        wanted = []
        again = checker.read_again(servers, self.topics, checker.Sightings())
        for expected in (writer.expected() for writer in self.writers):
            if expected.input_topic:
                committed = checker.read_again(servers, [expected.input_topic], checker.Input())
                self.report.wrong += checker.judge_group(servers, again, expected, committed)
                expected = replace(expected, units=committed.units)
            wanted.append(expected)
        for writer in self.writers:
            notes = writer.visible_on_return()
            self.report.wrong += checker.judge_returned(servers, again, writer.given.name, notes)[:10]
        for name, seen in (("librdkafka", self.reader.sightings), ("kafka-python", again)):
            found = checker.judge(seen, wanted, nemesis.foreign, nemesis.foreign_unknown, all_written=all_written)
            self.report.wrong += [f"{name}: {each}" for each in found[:10]]

    def _judge_codes(self) -> None:
        for code in self.report.codes:
            if code == "no code":
                continue
            if code not in table().rows:
                self.report.wrong.append(f"{code} is not documented")
            elif (safety := safety_of(code)) is not None and safety.run_again is RunAgain.REFUSED:
                self.report.wrong.append(f"{code} asks for a person, and nobody deletes anything")


def _submit(url: str) -> list[str]:
    conf = {
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": SHORT_LIVED_JVM,
        "spark.speculation": "true",
        "spark.speculation.quantile": "0.3",
        "spark.speculation.multiplier": "1.1",
        "spark.deploy.maxExecutorRetries": "-1",
    }
    settings = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    return [
        str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
        "--master",
        url,
        *settings,
        str(Path(__file__).parent / "spark_writer.py"),
    ]


class Supervisor:
    """Starts writers again, gives them more to write, and compares what errors say with what is visible."""

    def __init__(self, writers: Sequence[Writer], largest: int, reader: checker.LiveReader) -> None:
        self._writers, self._largest, self._reader = writers, largest, reader
        self.wrong: list[str] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="supervisor", daemon=True)

    def __enter__(self) -> Supervisor:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._stopped.wait(0.1):
            for writer in self._writers:
                before = writer.deaths
                writer.tick()
                if writer.deaths > before:
                    self._compare_with_visible(writer)
                if len(writer.units) - self.done(writer) < 6:
                    writer.more_units(6, self._largest)

    def done(self, writer: Writer) -> int:
        if writer.given.kind == "copy":
            seen = self._reader.sightings.lines
            return sum(1 for _, name, _ in list(seen) if name == writer.given.name)
        return len(writer.expected().accepted)

    def _compare_with_visible(self, writer: Writer) -> None:
        """A batch job's error that says that nothing is visible: then nothing of the unit may be."""
        text = writer.said()
        begun = re.findall(r"unit (\d+) begins", text)
        if writer.given.kind != "batch" or not begun or "Rows visible: no." not in text[text.rfind("[KAFKA_EOS.") :]:
            return
        number = int(begun[-1])
        if number in writer.expected().accepted or writer.has_second:
            return
        if not self._reader.is_absent((topic, writer.given.name, number) for topic in writer.given.topics):
            self.wrong.append(
                f"rows of unit {number} of {writer.given.name} are visible beside: {text[text.rfind('[KAFKA_EOS.') :][:300]}"
            )


def told(report: Report) -> str:
    world = ", ".join(f"{name} {value}" for name, value in report.world.items())
    return (
        f"episode {report.episode}: {world}; {', '.join(report.writers)}; {report.fault_count} faults "
        f"({sum(report.frames.values())} frames), {report.rows:,} rows in {report.units} units, {report.starts} starts, all writing again "
        f"{report.recovered_s:g} s after the last fault; "
        + ("; ".join(["WRONG", *report.wrong]) if report.wrong else "all right")
    )


def run(settings: Settings, minutes: float, journal: Path | None) -> list[Report]:
    """Run episodes until the time is over or something is wrong; return their reports.

    No episode begins if less time is left than the one before it took.
    """
    done = len(journal.read_text().splitlines()) if journal is not None and journal.exists() else 0
    until, reports = time.monotonic() + minutes * 60, list[Report]()
    while not reports or time.monotonic() + reports[-1].minutes * 60 < until:
        folder = Path(tempfile.mkdtemp(prefix="kafka-eos-campaign-"))
        report = Episode(settings, done, folder).run()
        reports.append(report)
        print(told(report), flush=True)
        if journal is not None:
            with journal.open("a") as lines:
                lines.write(json.dumps({field: getattr(report, field) for field in Report.__dataclass_fields__}) + "\n")
        if report.wrong:
            print(f"its folder: {folder}", flush=True)
            break
        shutil.rmtree(folder, ignore_errors=True)
        done += 1
    return reports


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=15.0, help="of the whole campaign; one episode at least")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--journal", type=Path, help="a line for each episode; a campaign goes on behind the last one")
    parser.add_argument("--episode-minutes", type=float, default=2.0, help="of faults in each")
    parser.add_argument("--longest-pause", type=float, default=40.0, help="in seconds; transactions time out after 30")
    parser.add_argument("--largest-unit", type=int, default=20_000, help="rows")
    parser.add_argument("--kinds", default=",".join(dict.fromkeys(KINDS)))
    parser.add_argument("--kafka", help="Kafka versions, as 4.3.1,4.4.0, in place of those that a campaign draws")
    parser.add_argument("--mutant", choices=[each.name for each in MUTANTS], help="plant this fault in the product")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    with ExitStack() as release:
        package = None
        kinds, points, faults, worlds = tuple(given.kinds.split(",")), POINTS_OF_ALL, (), WORLDS
        if given.mutant:
            mutant = next(each for each in MUTANTS if each.name == given.mutant)
            package = release.enter_context(planted_package(mutant))
            kinds = mutant.kinds or kinds
            points, faults = mutant.points or points, mutant.faults
            worlds = tuple(each for each in WORLDS if mutant.brokers in (0, each["brokers"]))
        if given.kafka:
            versions = given.kafka.split(",")
            worlds = tuple({**each, "version": one} for each in worlds if "version" not in each for one in versions)
        settings = Settings(
            seed=given.seed,
            episode_s=given.episode_minutes * 60,
            longest_pause_s=given.longest_pause,
            largest_unit=given.largest_unit,
            kinds=kinds,
            points=points,
            faults=faults,
            worlds=worlds,
            package=package,
        )
        began = time.monotonic()
        reports = run(settings, given.minutes, given.journal)
    faults = sum(report.fault_count for report in reports)
    rows = sum(report.rows for report in reports)
    wrong = [each for report in reports for each in report.wrong]
    print(
        f"{len(reports)} episodes in {(time.monotonic() - began) / 60:.0f} minutes: {faults:,} faults, {rows:,} rows, "
        + (f"{len(wrong)} things wrong" if wrong else "nothing missing, nothing twice, nothing open")
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    os.environ.update(environment(None))
    sys.exit(main())
