"""Whatever happened, `kafka-eos repair` writes no marker but the one that the coordinator meant for that partition.

Random walks through what drivers, tasks, time, strangers and the cleaner can do, with markers passed over (KAFKA-20734) on the way. After
each step that leaves a transaction open, what repair would write is held against what the coordinators really decided.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from kafka_eos_sink.commit.operator import missing_markers
from kafka_eos_sink.commit.operator.missing_markers import Finding
from kafka_eos_sink.errors import KafkaEosError

from . import simulated_cluster as kafka
from .exhausted import UNRESOLVABLE, one_row
from .mutations import Edit, planted
from .repairing import WHERE, findings
from .settings import Setting, faults
from .simulated_cluster import Cluster, Data
from .simulated_spark import Label, Violation, World

WALKS = 120
PARTITION_OF = {where: partition for partition, where in WHERE.items()}
Truth = dict[tuple[int, int], bool]
"""Producer id and epoch of ended transactions: whether their coordinator committed them."""


def setting(chance: random.Random, version: int) -> Setting:
    return Setting(
        name="repair",
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


def wrong(cluster: Cluster, version: int, truth: Truth, finding: Finding) -> bool | None:
    """Whether the marker would end what was to end otherwise; None for what the command looks at once more."""
    assert finding.marker is not None
    if not finding.marker.committed and finding.part.version is not None and version < 2:
        return (
            None  # the command looks whether its rows are visible elsewhere; here they would be in this partition only
        )
    partition, producer_id = PARTITION_OF[finding.part.where], finding.marker.producer_id
    first, _ = kafka.open_transactions(cluster, partition)[producer_id]
    there = [
        entry
        for entry in cluster.logs[partition][first:]
        if isinstance(entry, Data) and entry.transactional and entry.producer_id == producer_id
    ]
    if finding.part.query_id is None and there[0].producer_epoch != finding.part.identity.producer_epoch:
        return None  # it has joined an older one, which the command sees by fetching
    return {truth.get((entry.producer_id, entry.producer_epoch)) for entry in there} != {finding.marker.committed}


def walk(version: int, walks: int, seed: int) -> Counter[str]:
    """How often what was found: markers by kind, verdicts, and wrong markers."""
    chance, found = random.Random(seed), Counter[str]()
    for _ in range(walks):
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
            found["commit" if finding.marker.committed else "abort"] += 1
            found["wrong"] += bool(wrong(cluster, version, truth, finding))


@pytest.mark.parametrize("version", [2, 0])
def test_repair_writes_no_marker_but_the_one_that_was_meant(version: int) -> None:
    found = walk(version, WALKS, seed=version)
    print(dict(found))
    assert found["wrong"] == 0
    assert found["commit"], "walks that prove nothing"
    assert found["running"], "walks that prove nothing"
    assert found["abort"] or version < 2, "walks that prove nothing"


CARELESS = {
    "taken for committed": Edit(
        missing_markers._judge,
        "case CoordinatorVerdict.GONE_ON, Outcome.COMMITTED:",
        "case CoordinatorVerdict.GONE_ON, _:",
    ),
    "taken for aborted": Edit(
        missing_markers._judge,
        "case CoordinatorVerdict.GONE_ON, Outcome.ABORTED if identity not in evidence.inferred:",
        "case CoordinatorVerdict.GONE_ON, _:",
    ),
}
"""What a coordinator has forgotten, or has gone on from."""


@pytest.mark.parametrize(
    ("name", "version"), [("taken for committed", 2), ("taken for committed", 0), ("taken for aborted", 2)]
)
def test_the_walks_catch_a_careless_repair(name: str, version: int) -> None:
    with planted((CARELESS[name],)):
        assert walk(version, WALKS, seed=version)["wrong"] > 0
