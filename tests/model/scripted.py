"""One way through a setting, chosen by hand: for traces that are kept because something was wrong on them once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import invariants
from . import simulated_cluster as kafka
from .performer import Request
from .settings import Setting
from .simulated_cluster import Cluster
from .simulated_spark import Driver, Label, World
from .stories import sentence

MOST_STEPS = 200
DATA = 1
"""The first data partition."""
PATIENCE = 6
"""So many times a process may meet the same answer before the clock is moved for it."""

Where = tuple[str, int]
"""A transactional id and a partition: where a marker is missing."""


class Script:
    """The state that was reached, and steps from it. What is done is printed, so that a test that fails tells its story.

    Markers are written as soon as they are asked for while `run` runs, unless they are in `held`.
    """

    def __init__(self, setting: Setting) -> None:
        self.world = World(setting)
        self.state = self.world.initial()
        self.held: set[Where] = set()

    @property
    def cluster(self) -> Cluster:
        return self.world.clusters[self.state.cluster]

    @property
    def rows(self) -> dict[Any, int]:
        """How often a read_committed consumer meets each row."""
        return invariants.visible_rows(self.cluster)

    @property
    def committed_rows(self) -> set[Any]:
        return invariants.committed_rows(self.cluster)

    def driver(self, number: int) -> Driver:
        return self.state.drivers[number]

    def take(self, what: str, wanted: Callable[[Label], bool]) -> None:
        for label, after in self.world.successors(self.state):
            if wanted(label):
                print(sentence(self.world, label))
                self.state = after
                return
        possible = "\n".join(sentence(self.world, label) for label, _ in self.world.successors(self.state))
        raise AssertionError(f"{what} cannot happen here; what can:\n{possible}")

    def happens(self, *label: Any) -> None:
        """Something of Spark, of the cluster or of others: a label, or how it begins."""
        self.take(str(label), lambda found: found[: len(label)] == label)

    def step(self, driver: int, kind: str, attempt: int | None = None, verb: str = "do") -> None:
        """The next request of a process; with another `verb` what becomes of it instead."""
        name = self._alive(driver, kind, attempt)
        self.take(f"a step of {name}", lambda label: label[0] == name and label[1] == verb)

    def run(
        self,
        driver: int,
        kind: str,
        attempt: int | None = None,
        until: Callable[[Request], bool] = lambda request: False,
    ) -> None:
        """Step a process until it has ended, or its next request is one to stop at."""
        met: dict[Any, int] = {}
        for _ in range(MOST_STEPS):
            self.write_markers()
            if not self.is_alive(driver, kind, attempt) or until(self.next_request(driver, kind, attempt)):
                return
            self.step(driver, kind, attempt)
            met[self.state] = met.get(self.state, 0) + 1
            if met[self.state] > PATIENCE:
                self.happens("cluster", "pause")
        raise AssertionError(f"{kind} of driver {driver} does not end")

    def commit_without_marker(self, driver: int, transactional_id: str, partition: int) -> None:
        """The next request of a commit, which ends a transaction. The broker omits its marker in one partition (KAFKA-20734)."""
        self.held.add((transactional_id, partition))
        self.step(driver, "commit")
        self.happens("cluster", "skip marker", transactional_id, partition)
        self.held.clear()

    def write_markers(self) -> None:
        while missing := [
            (name, partition)
            for name, entry in self.cluster.transactions
            for partition in entry.missing
            if (name, partition) not in self.held
        ]:
            self.happens("cluster", "marker", *missing[0])

    def is_alive(self, driver: int, kind: str, attempt: int | None = None) -> bool:
        return self._process(driver, kind, attempt) is not None

    def next_request(self, driver: int, kind: str, attempt: int | None = None) -> Request:
        found = self._process(driver, kind, attempt)
        assert found is not None
        name, number, progress = found
        requests = self.world.requests_of(self.world.procedures.nodes[number], name)
        position = progress.index(-1) if len(progress) == len(requests) else len(progress)
        request: Request = self.world.values[requests[position]]
        return request

    def _alive(self, driver: int, kind: str, attempt: int | None) -> Any:
        found = self._process(driver, kind, attempt)
        assert found is not None, f"driver {driver} has no {kind} that runs"
        return found[0]

    def _process(self, driver: int, kind: str, attempt: int | None) -> Any:
        return next(
            (
                entry
                for entry in self.state.processes
                if entry[0][:2] == (driver, kind) and attempt in (None, entry[0][4])
            ),
            None,
        )


def ends(transactional_id: str) -> Callable[[Request], bool]:
    """The EndTxn of an id is next."""
    return lambda request: request[0] == "end" and request[1].transactional_id == transactional_id


def is_open(script: Script, transactional_id: str) -> bool:
    found = script.cluster.transaction(transactional_id)
    return found is not None and found.state == kafka.ONGOING
