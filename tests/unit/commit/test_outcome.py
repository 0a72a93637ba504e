"""The judge, over all combinations of facts."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from kafka_eos_sink.commit.outcome import TABLE, Do, End, Outcome, Shown, end_of, is_held_by, judge, outcome_of
from kafka_eos_sink.commit.steps import Marker, MarkerType, TransactionDescription
from kafka_eos_sink.protocol.identity import ProducerIdentity
from tools import outcome_table

EPOCH = 4
VERSIONS = (2, 1, 0)
FACTS = [(ranges, end) for length in (1, 2, 3) for ranges in itertools.product(Shown, repeat=length) for end in End]


def identity(version: int) -> ProducerIdentity:
    return ProducerIdentity(transactional_id="w.0.0", producer_id=2, producer_epoch=EPOCH, transaction_version=version)


def marker(kind: MarkerType, later: int) -> Marker:
    return Marker(offset=5, producer_id=2, producer_epoch=EPOCH + later, type=kind)


def test_table_has_every_cell() -> None:
    assert list(TABLE) == list(Shown)
    assert {len(row) for row in TABLE.values()} == {len(End)}


def test_rows_are_never_doubled_or_left_out() -> None:
    """Copied is exactly what no reader will ever see; what needs no copy is visible, or gone after a proven commit."""
    for ranges, end in FACTS:
        for shown, do in zip(ranges, judge(ranges, end), strict=True):
            assert (do is Do.COPY) == (shown is Shown.DISCARDED)
            if shown is Shown.VISIBLE:
                assert do is Do.NOTHING
            assert (do is Do.NOTHING) == (shown is Shown.VISIBLE)
            if do is Do.SEEN:
                assert shown is Shown.GONE


def test_only_what_hangs_is_discarded() -> None:
    for ranges, end in FACTS:
        for shown, do in zip(ranges, judge(ranges, end), strict=True):
            assert (do is Do.DISCARD) == (shown is Shown.HELD and end is not End.UNFINISHED)
            assert (do is Do.WAIT) == (
                shown is Shown.LATE or (end is End.UNFINISHED and shown in (Shown.HELD, Shown.GONE))
            )


def test_gone_range_counts_as_seen_only_with_a_proof() -> None:
    """The coordinator reports exactly this commit; or it is silent, and readers see another range, and no range shows another end."""
    for ranges, end in FACTS:
        is_visible, differ = Shown.VISIBLE in ranges, bool({Shown.DISCARDED, Shown.HELD} & set(ranges))
        seen = end is End.SILENT and is_visible and not differ
        contrary = (end is End.ABORTED and is_visible) or (end is End.COMMITTED and Shown.DISCARDED in ranges)
        unknown = contrary or (end is End.SILENT and not seen)
        for shown, do in zip(ranges, judge(ranges, end), strict=True):
            if shown is Shown.GONE and end is not End.UNFINISHED:
                assert (do is Do.SEEN) == (seen or (end is End.COMMITTED and not contrary))
                assert (do is Do.MISS) == (end is End.ABORTED and not is_visible)
            assert (do is Do.ASK) == (shown is Shown.GONE and unknown)


@pytest.mark.parametrize(
    ("version", "kind", "later", "outcome"),
    [
        (2, MarkerType.COMMIT, 1, Outcome.COMMITTED),
        (2, MarkerType.COMMIT, 0, Outcome.UNRESOLVED),
        (2, MarkerType.ABORT, 1, Outcome.ABORTED),
        (2, MarkerType.ABORT, 0, Outcome.ABORTED),  # kafka-transactions.sh abort
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
    assert outcome_of(EPOCH, version, marker(kind, later)) is outcome


STATES = (
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "PrepareEpochFence",
    "CompleteAbort",
    "CompleteCommit",
    "Empty",
    "Dead",
    "SomethingNew",
)


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
    assert end_of(replace(described, producer_id=3), identity(version)) is End.SILENT
    expected = End.SILENT
    if (state.startswith("Prepare") and later in (0, 1)) or (state == "Ongoing" and later == 0):
        # From version 2 on, the coordinator bumps the epoch before it writes the markers; below, a timeout does.
        expected = End.UNFINISHED
    elif later == (version == 2) and state == "CompleteCommit":
        expected = End.COMMITTED
    elif later == 1 and version == 2 and state == "CompleteAbort":
        expected = End.ABORTED  # below, it may be of a transaction that was opened again (LATE ADD)
    assert end_of(described, identity(version)) is expected


def test_unknown_id_proves_nothing() -> None:
    assert end_of(None, identity(2)) is End.SILENT


def test_table_of_the_protocol_page_is_that_of_the_judge() -> None:
    text = outcome_table.PAGE.read_text("utf-8")
    assert text == outcome_table.page(text), f"run {outcome_table.COMMAND}"


@pytest.mark.parametrize(
    ("version", "state", "held"), [(2, "CompleteAbort", True), (2, "Empty", False), (0, "CompleteAbort", False)]
)
def test_next_epoch_of_the_driver_is_its_own_end_or_a_fence(version: int, state: str, held: bool) -> None:
    """Only from version 2 on an EndTxn bumps the epoch. Below, the next epoch is a newer driver's."""
    described = TransactionDescription(
        state=state, producer_id=2, producer_epoch=EPOCH + 1, timeout_ms=9, start_time_ms=-1, partitions=frozenset()
    )
    assert is_held_by(identity(version), described) is held
