"""`recover --write-markers` writes a COMMIT marker only where the coordinator committed; it reports only attempts that it aborted.

Random walks through what drivers, tasks, time, strangers and the cleaner can do, with omitted markers (KAFKA-20734) on the way. After
each step that leaves a transaction open, its findings are compared with what the coordinators really decided.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from kafka_eos_sink.commit import missing_markers
from kafka_eos_sink.commit.missing_markers import Finding, Verdict
from kafka_eos_sink.errors import KafkaEosError

from . import simulated_cluster as kafka
from .exhausted import UNRESOLVABLE, one_row
from .marker_findings import WHERE, findings
from .mutations import Edit, planted
from .settings import Setting, faults
from .simulated_cluster import Cluster, Data
from .simulated_spark import Label, Violation, World

WALKS = 120
SEED = 4
PARTITION_OF = {where: partition for partition, where in WHERE.items()}
Truth = dict[tuple[int, int], bool]
"""Producer id and epoch of ended transactions: whether their coordinator committed them."""


def setting(chance: random.Random, version: int) -> Setting:
    return Setting(
        name="missing markers",
        version=version,
        drivers=4,
        batches=chance.choice((1, 2, 3)),
        rows=chance.choice((one_row, lambda driver, batch: ((0,), (1,)))),
        loud=UNRESOLVABLE,
        restart=chance.choice(("beside", "failed")),
        foreign=chance.random() < 0.3,
        same_slot=chance.random() < 0.8,
        sweeps=chance.random() < 0.3,
        faults=faults(
            skip_marker=chance.choice((2, 3, 4)),
            speculate=2,
            timeout=chance.choice((0, 1, 2)),
            foreign_init=chance.choice((0, 1)),
            pause=12,
            kill_task=1,
            compact=chance.choice((0, 1, 2)),
            expire=chance.choice((0, 1)),
            float=chance.choice((0, 1)),
            foreign_abort=chance.choice((0, 0, 1)),
        ),
    )


def weight(label: Label) -> float:
    if label[:2] == ("cluster", "skip marker"):
        return 12
    if label[0] in ("cluster", "network", "spark"):
        return 1
    return 8 if label[1] == "do" else 0.5


def note_ends(truth: Truth, before: Cluster, after: Cluster) -> None:
    was = dict(before.transactions)
    for name, now in after.transactions:
        old = was.get(name)
        if old is None or old.state != kafka.ONGOING:
            continue
        key = old.producer_id, old.producer_epoch
        if now.state in (kafka.PREPARE_COMMIT, kafka.COMPLETE_COMMIT):
            truth[key] = True
        elif now.state != kafka.ONGOING or now.producer_epoch != old.producer_epoch:
            truth.setdefault(key, False)  # below version 2 a late request may have begun a committed one anew


def ends(cluster: Cluster, truth: Truth, finding: Finding) -> set[bool | None]:
    """How the coordinators ended the transactions whose records the finding's open transaction holds; None for not yet."""
    partition = PARTITION_OF[finding.where]
    open_now = kafka.open_transactions(cluster, partition)
    (producer_id,) = (each for each, (first, _) in open_now.items() if first == finding.start_offset)
    return {
        truth.get((entry.producer_id, entry.producer_epoch))
        for entry in cluster.logs[partition][finding.start_offset :]
        if isinstance(entry, Data) and entry.transactional and entry.producer_id == producer_id
    }


def walk(version: int, walks: int, seed: int, *, until_wrong: bool = False) -> Counter[str]:
    """Count verdicts, reported attempts, and what is wrong: a marker of no commit, a reported attempt that is not aborted."""
    chance, found = random.Random(seed), Counter[str]()
    for _ in range(walks):
        if until_wrong and found["wrong"]:
            break
        world = World(setting(chance, version))
        state, truth = world.initial(), Truth()
        try:
            for _ in range(chance.choice((60, 120, 200))):
                successors = list(world.successors(state))
                if not successors:
                    break
                before = world.clusters[state.cluster]
                _, state = chance.choices(successors, [weight(label) for label, _ in successors])[0]
                cluster = world.clusters[state.cluster]
                if cluster is before:
                    continue
                note_ends(truth, before, cluster)
                if any(kafka.open_transactions(cluster, partition) for partition in WHERE):
                    look(cluster, version, truth, found)
        except Violation as violation:
            raise AssertionError(f"the protocol itself went wrong: {violation}") from None
    return found


def look(cluster: Cluster, version: int, truth: Truth, found: Counter[str]) -> None:
    try:
        there = findings(cluster, version)
    except KafkaEosError as error:
        found[error.code] += 1  # the beginning of the log is gone
        return
    for finding in there:
        found[finding.verdict.value] += 1
        if finding.marker is not None:
            assert finding.marker.committed
            found["wrong"] += ends(cluster, truth, finding) != {True}
        elif finding.verdict is Verdict.UNPROVEN and finding.version is None:
            found["attempt"] += 1
            found["wrong"] += ends(cluster, truth, finding) != {False}


@pytest.mark.parametrize("version", [2, 0])
def test_only_the_marker_that_was_omitted_is_written(version: int) -> None:
    found = walk(version, 2 * WALKS, seed=SEED)
    print(dict(found))
    assert found["wrong"] == 0
    assert all(found[each] for each in ("missing", "running", "unproven", "attempt")), "walks that prove nothing"


MISSING = "if lacks_commit_marker(facts):"
CARELESS = {
    "the commit log is not read for an id that the coordinator has reused": (
        (MISSING, "if lacks_commit_marker(facts) or facts.coordinator is Coordinator.UNKNOWN:"),
    ),
    "an aborted transaction is taken for a committed one": (
        (MISSING, "if lacks_commit_marker(facts) or facts.coordinator is Coordinator.ABORTED:"),
    ),
    "a transaction that its coordinator has not ended is taken for a committed one": (
        ("if facts.coordinator is Coordinator.NOT_ENDED:", "if False:"),
        (MISSING, "if lacks_commit_marker(facts) or facts.coordinator is Coordinator.NOT_ENDED:"),
    ),
}


@pytest.mark.parametrize("version", [2, 0])
@pytest.mark.parametrize("name", CARELESS)
def test_walks_catch_a_careless_judge(name: str, version: int) -> None:
    edits = tuple(Edit(missing_markers._judge_decided, old, new) for old, new in CARELESS[name])
    with planted(edits):
        assert walk(version, 5 * WALKS, seed=SEED, until_wrong=True)["wrong"] > 0
