"""The judge, over all combinations of facts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest

from kafka_eos_sink.commit.outcome import (
    Coordinator,
    Facts,
    Outcome,
    Part,
    Shown,
    by_marker,
    in_log,
    lacks_commit_marker,
    of_coordinator,
    outcome_of,
)
from kafka_eos_sink.commit.steps import Marker, MarkerType, TransactionDescription
from kafka_eos_sink.protocol.identity import ProducerIdentity
from tools import outcome_table

EPOCH = 4
VERSIONS = (2, 1, 0)
RANGES = [(), *((each,) for each in Shown), *itertools.product(Shown, repeat=2)]
ENDS = {"CompleteCommit", "CompleteAbort"}


def identity(version: int) -> ProducerIdentity:
    return ProducerIdentity(transactional_id="w.0.0", producer_id=2, producer_epoch=EPOCH, transaction_version=version)


def marker(kind: MarkerType, later: int) -> Marker:
    return Marker(offset=5, producer_id=2, producer_epoch=EPOCH + later, type=kind)


MARKERS = [None, *(marker(kind, later) for kind in MarkerType for later in range(-1, 4))]


def all_facts() -> Iterator[Facts]:
    for version, coordinator, part, mark, ranges in itertools.product(VERSIONS, Coordinator, Part, MARKERS, RANGES):
        yield Facts(identity=identity(version), coordinator=coordinator, part=part, marker=mark, ranges=ranges)


FACTS = tuple(all_facts())


def test_committed_stands_never_beside_an_aborted_range() -> None:
    for facts in FACTS:
        if Shown.ABORTED in facts.ranges:
            assert outcome_of(facts) is not Outcome.COMMITTED, facts


def test_coordinator_of_exactly_this_end_is_not_contradicted() -> None:
    """Then a marker was written by hand. Only readers who see an abort in every range outweigh its commit (LATE ADD)."""
    for facts in FACTS:
        if facts.coordinator is Coordinator.ABORTED and facts.identity.bumps_epoch:
            assert outcome_of(facts) is not Outcome.COMMITTED, facts
        if facts.coordinator is Coordinator.COMMITTED and outcome_of(facts) is Outcome.ABORTED:
            assert Shown.ABORTED in facts.ranges, facts
            assert Shown.GONE not in facts.ranges, facts


def test_committed_has_a_proof() -> None:
    """Readers see a range, the log holds the marker of this end, or without a marker the coordinator reports exactly this end."""
    for facts in FACTS:
        if outcome_of(facts) is not Outcome.COMMITTED:
            continue
        own = by_marker(EPOCH, facts.identity.transaction_version, facts.marker)
        by_log = facts.part is Part.OWN and own is Outcome.COMMITTED
        by_coordinator = facts.part is Part.OWN and facts.marker is None and facts.coordinator is Coordinator.COMMITTED
        assert Shown.COMMITTED in facts.ranges or by_log or by_coordinator, facts


def test_aborted_has_a_proof() -> None:
    """All ranges show an abort or none shows an end, and then log or coordinator prove it."""
    for facts in FACTS:
        if outcome_of(facts) is not Outcome.ABORTED:
            continue
        assert Shown.COMMITTED not in facts.ranges, facts
        assert Shown.UNSHOWN not in facts.ranges, facts
        if Shown.ABORTED not in facts.ranges or Shown.GONE in facts.ranges:
            assert in_log(facts) is Outcome.ABORTED, facts


def test_below_version_2_a_coordinators_abort_proves_nothing() -> None:
    for facts in FACTS:
        if facts.coordinator is Coordinator.ABORTED and not facts.identity.bumps_epoch:
            assert outcome_of(facts) is outcome_of(replace(facts, coordinator=Coordinator.UNKNOWN)), facts


def test_coordinator_proves_only_what_has_no_marker() -> None:
    """Otherwise it only makes a contradiction visible."""
    for facts in FACTS:
        if facts.part is not Part.OWN or facts.marker is not None:
            without = outcome_of(replace(facts, coordinator=Coordinator.UNKNOWN))
            assert outcome_of(facts) in (without, Outcome.UNRESOLVED), facts


def test_a_part_that_is_gone_never_proves_a_commit() -> None:
    for facts in FACTS:
        if facts.part is not Part.OWN:
            assert in_log(facts) is not Outcome.COMMITTED, facts
        if facts.part in (Part.OTHERS, Part.MISSING):
            assert in_log(facts) is Outcome.UNRESOLVED, facts


def test_unshown_range_is_late_unless_the_commit_is_proven() -> None:
    for facts in FACTS:
        committed = Shown.COMMITTED in facts.ranges or in_log(facts) is Outcome.COMMITTED
        is_late = outcome_of(facts) is Outcome.NOT_SHOWN
        assert is_late == (Shown.UNSHOWN in facts.ranges and not committed), facts


def test_more_ranges_never_turn_a_commit_into_an_abort_or_back() -> None:
    opposite = {Outcome.COMMITTED: Outcome.ABORTED, Outcome.ABORTED: Outcome.COMMITTED}
    for facts in FACTS:
        if len(facts.ranges) != 1 or (before := outcome_of(facts)) not in opposite:
            continue
        for each in Shown:
            after = outcome_of(replace(facts, ranges=(*facts.ranges, each)))
            by_first_range = facts.ranges[0] in (Shown.COMMITTED, Shown.ABORTED)
            if by_first_range:
                assert after is not opposite[before], facts


def test_a_marker_is_called_missing_only_of_a_proven_commit() -> None:
    for facts in FACTS:
        if not lacks_commit_marker(facts):
            continue
        assert outcome_of(facts) is Outcome.COMMITTED, facts
        assert Shown.ABORTED not in facts.ranges, facts
        assert facts.coordinator in (Coordinator.COMMITTED, Coordinator.UNKNOWN), facts
        if not facts.identity.bumps_epoch:
            assert Shown.UNSHOWN not in facts.ranges, facts


@pytest.mark.feature("markers")
@pytest.mark.parametrize(
    ("version", "kind", "later", "outcome"),
    [
        (2, MarkerType.COMMIT, 1, Outcome.COMMITTED),
        (2, MarkerType.COMMIT, 0, Outcome.UNRESOLVED),
        (2, MarkerType.ABORT, 1, Outcome.ABORTED),
        (2, MarkerType.ABORT, 0, Outcome.UNRESOLVED),  # kafka-transactions.sh abort
        (2, MarkerType.ABORT, 2, Outcome.UNRESOLVED),  # a later transaction, which has joined (JOIN)
        (2, MarkerType.EMPTY, 1, Outcome.UNRESOLVED),
        (0, MarkerType.COMMIT, 0, Outcome.COMMITTED),
        (0, MarkerType.COMMIT, 1, Outcome.UNRESOLVED),
        (0, MarkerType.ABORT, 0, Outcome.ABORTED),  # the driver's
        (0, MarkerType.ABORT, 1, Outcome.ABORTED),  # a fence's or a timeout's
        (0, MarkerType.ABORT, 2, Outcome.UNRESOLVED),
        (1, MarkerType.COMMIT, 0, Outcome.COMMITTED),
        (1, MarkerType.COMMIT, 1, Outcome.UNRESOLVED),
    ],
)
def test_marker_counts_only_with_an_epoch_that_this_end_can_have(
    version: int, kind: MarkerType, later: int, outcome: Outcome
) -> None:
    assert in_log(Facts(identity=identity(version), marker=marker(kind, later))) is outcome


@pytest.mark.parametrize(
    ("version", "kind", "later", "outcome"),
    [
        (2, None, 0, Outcome.ABORTED),
        (2, MarkerType.EMPTY, 1, Outcome.ABORTED),
        (2, MarkerType.COMMIT, 2, Outcome.ABORTED),  # a later transaction's: of ours nothing is left, so it was aborted
        (2, MarkerType.COMMIT, 1, Outcome.UNRESOLVED),  # ours, but the cleaner keeps committed records
        (2, MarkerType.ABORT, 1, Outcome.ABORTED),
        (2, MarkerType.ABORT, 0, Outcome.UNRESOLVED),
        # Below version 2 a commit keeps its epoch, so this is a later one's.
        (0, MarkerType.COMMIT, 1, Outcome.ABORTED),
        (0, MarkerType.COMMIT, 0, Outcome.UNRESOLVED),
        (0, MarkerType.ABORT, 1, Outcome.ABORTED),
        (0, MarkerType.ABORT, 2, Outcome.ABORTED),
    ],
)
def test_cleaned_part_is_aborted_without_its_own_commit_marker(
    version: int, kind: MarkerType | None, later: int, outcome: Outcome
) -> None:
    facts = Facts(identity=identity(version), part=Part.CLEANED, marker=None if kind is None else marker(kind, later))
    assert in_log(facts) is outcome


STATES = (
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "PrepareEpochFence",
    *sorted(ENDS),
    "Empty",
    "Dead",
    "SomethingNew",
)


@pytest.mark.feature("coordinator states")
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("later", [-1, 0, 1, 2])
def test_coordinator_speaks_for_exactly_this_transaction(version: int, state: str, later: int) -> None:
    described = TransactionDescription(
        state=state,
        producer_id=2,
        producer_epoch=EPOCH + later,
        timeout_ms=9,
        start_time_ms=0,
        partitions=frozenset(),
    )
    verdict = of_coordinator(described, identity(version))
    assert of_coordinator(replace(described, producer_id=3), identity(version)) is Coordinator.UNKNOWN
    end = {"CompleteCommit": Coordinator.COMMITTED, "CompleteAbort": Coordinator.ABORTED}
    if later not in (0, 1):
        expected = Coordinator.UNKNOWN
    elif state.startswith("Prepare") or (state == "Ongoing" and later == 0):
        # From version 2 on, the coordinator bumps the epoch before it writes the markers; below, a timeout does.
        expected = Coordinator.NOT_ENDED
    elif later == (1 if version == 2 else 0):
        expected = end.get(state, Coordinator.UNCLEAR)
    else:
        expected = Coordinator.UNCLEAR if later == 0 else Coordinator.UNKNOWN
    assert verdict is expected


def test_unknown_id_proves_nothing() -> None:
    assert of_coordinator(None, identity(2)) is Coordinator.UNKNOWN


def test_table_of_the_protocol_page_is_that_of_the_judge() -> None:
    text = outcome_table.PAGE.read_text("utf-8")
    assert text == outcome_table.page(text), f"run {outcome_table.COMMAND}"
    for ranges in outcome_table.RANGES:
        assert sum(holds(ranges) for holds in outcome_table.COLUMNS.values()) == 1, ranges
