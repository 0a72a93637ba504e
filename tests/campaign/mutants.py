"""Faults that are planted in a copy of the product, to see that a campaign finds them: edits of the model's mutations, by their names."""

from __future__ import annotations

import inspect
import shutil
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import kafka_eos_sink
from tests.model.mutations import MUTATIONS, Edit

from .spark_writer import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """``name`` is that of the model's mutation; ``kinds``, ``points`` and ``faults`` those in which it shows, empty for all."""

    name: str
    kinds: tuple[Kind, ...] = ()
    points: tuple[str, ...] = ()
    """Failpoints at which its writers die or wait."""
    faults: tuple[str, ...] = ()
    """Names of the nemesis' faults."""
    brokers: int = 0
    """Of the clusters in which it shows, 0 for all."""


MUTANTS = (
    Mutant(name="no fence"),
    Mutant(name="no barrier before the first fence", points=("plan.fenced",)),
    Mutant(
        name="verdict from the error code",
        kinds=("batch", "batch", "shuffled stream"),
        points=("commit.between_ends",),
        faults=("begin attempts late",),
    ),
    Mutant(name="witness skipped", points=("commit.decided",)),
    Mutant(name="decide after the first EndTxn", points=("commit.before_decision", "commit.decision_written")),
    Mutant(name="read before fence", kinds=("batch", "batch"), faults=("start a second driver", "harm frames")),
    Mutant(
        name="verify skipped",
        kinds=("batch", "batch", "foreachBatch"),
        faults=("move leaders and coordinators", "kill a broker"),
        brokers=3,
    ),
    Mutant(name="done record under the decision's key"),
    Mutant(name="the versions not carried forward", kinds=("batch",)),
    Mutant(name="a version added before it is decided", kinds=("batch",)),
)


@contextmanager
def planted_package(mutant: Mutant) -> Iterator[Path]:
    """Yield a folder whose kafka_eos_sink has the mutation's edits."""
    (mutation,) = (each for each in MUTATIONS if each.name == mutant.name)
    ours = Path(kafka_eos_sink.__file__).parent
    with tempfile.TemporaryDirectory(prefix="kafka-eos-mutant-") as name:
        folder = Path(name)
        for package in (ours, ours.parent / "pyspark_kafka_eos"):
            shutil.copytree(package, folder / package.name, ignore=shutil.ignore_patterns("__pycache__"))
        for edit in mutation.edits:
            _plant(edit, folder / Path(inspect.getsourcefile(edit.function) or "").relative_to(ours.parent))
        yield folder


def _plant(edit: Edit, file: Path) -> None:
    """Edit a function where it stands; the mutation's texts are without its indentation."""
    text = file.read_text()
    old = inspect.getsource(edit.function)
    if old not in text:
        # An edit before this one has changed the function: find it by its first line.
        first = old.splitlines()[0]
        start = text.index(first)
        following = [at for at in (text.find("\n\n\n", start), text.find("\n\n    def ", start), len(text)) if at > 0]
        old = text[start : min(following)] + "\n"
    plain = textwrap.dedent(old)
    margin = old[: len(old) - len(old.lstrip())].rpartition("\n")[2]
    if plain.count(edit.old) != 1:
        raise AssertionError(f"{edit.function.__qualname__} holds {plain.count(edit.old)} times: {edit.old}")
    file.write_text(text.replace(old, textwrap.indent(plain.replace(edit.old, edit.new), margin)))
