"""The table in docs/internals/protocol.md of what the facts about a decided transaction prove, from the code that judges them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from pathlib import Path

from kafka_eos_sink.commit.outcome import Coordinator, Facts, Outcome, Part, Shown, outcome_of
from kafka_eos_sink.commit.steps import Marker, MarkerType
from kafka_eos_sink.protocol.identity import ProducerIdentity

PAGE = Path(__file__).parents[1] / "docs" / "internals" / "protocol.md"
COMMAND = "python -m tools.outcome_table"
BEGIN, END = f"<!-- written by {COMMAND} -->", "<!-- end of the table -->"


def _marker(kind: MarkerType, later: int) -> Marker:
    return Marker(offset=5, producer_id=2, producer_epoch=4 + later, type=kind)


def _facts(version: int = 2, **known: object) -> Facts:
    identity = ProducerIdentity(transactional_id="", producer_id=2, producer_epoch=4, transaction_version=version)
    return Facts(identity=identity, **known)  # type: ignore[arg-type]


OWN_COMMIT, OWN_ABORT, LATER_ABORT = (
    _marker(MarkerType.COMMIT, 1),
    _marker(MarkerType.ABORT, 1),
    _marker(MarkerType.ABORT, 2),
)
ROWS: dict[str, tuple[Facts, ...]] = {
    "COMMIT of exactly this end": (_facts(marker=OWN_COMMIT), _facts(0, marker=_marker(MarkerType.COMMIT, 0))),
    "ABORT of exactly this end": (
        _facts(marker=OWN_ABORT),
        _facts(0, marker=OWN_ABORT),
        _facts(0, marker=_marker(MarkerType.ABORT, 0)),
    ),
    "part cleaned, no marker of its own, or its ABORT": tuple(
        _facts(part=Part.CLEANED, marker=each) for each in (None, OWN_ABORT, LATER_ABORT)
    ),
    "no marker; the coordinator reports exactly this one as CompleteCommit": tuple(
        _facts(version, coordinator=Coordinator.COMMITTED) for version in (2, 0)
    ),
    "no marker; CompleteAbort, from version 2 on": (_facts(coordinator=Coordinator.ABORTED),),
    "no marker; CompleteAbort below version 2, or no such report": (
        _facts(0, coordinator=Coordinator.ABORTED),
        *(_facts(version, coordinator=Coordinator.UNKNOWN) for version in (2, 0)),
        _facts(coordinator=Coordinator.UNCLEAR),
    ),
    "a marker of another end; part gone otherwise, or another record": (
        _facts(marker=LATER_ABORT),
        _facts(part=Part.MISSING),
        _facts(part=Part.MISSING, marker=OWN_COMMIT),
        _facts(part=Part.OTHERS, marker=OWN_COMMIT),
        _facts(part=Part.CLEANED, marker=OWN_COMMIT),
    ),
}
"""What commit log and coordinator show, with facts that stand for all of their kind."""
ENDS = {Shown.COMMITTED, Shown.ABORTED}
COLUMNS: dict[str, Callable[[Collection[Shown]], bool]] = {
    "no end": lambda shown: not ENDS & set(shown) and Shown.UNSHOWN not in shown,
    "not shown yet": lambda shown: not ENDS & set(shown) and Shown.UNSHOWN in shown,
    "COMMIT": lambda shown: ENDS & set(shown) == {Shown.COMMITTED},
    "ABORT": lambda shown: ENDS & set(shown) == {Shown.ABORTED} and not {Shown.GONE, Shown.UNSHOWN} & set(shown),
    "ABORT, another gone": lambda shown: (
        ENDS & set(shown) == {Shown.ABORTED} and Shown.GONE in shown and Shown.UNSHOWN not in shown
    ),
    "ABORT, another not shown yet": lambda shown: ENDS & set(shown) == {Shown.ABORTED} and Shown.UNSHOWN in shown,
    "both": lambda shown: set(shown) >= ENDS,
}
"""What readers see of the ranges in the data topics; each combination is in one column."""
RANGES = [each for length in range(4) for each in itertools.product(Shown, repeat=length)]


def table() -> str:
    """Return the table as markdown.

    Raises:
        ValueError: The facts of one cell do not prove the same, so that the table would hide a difference.
    """
    lines = [f"| commit log, coordinator | {' | '.join(COLUMNS)} |", f"|---{'|---' * len(COLUMNS)}|"]
    for row, facts in ROWS.items():
        cells = []
        for column, holds in COLUMNS.items():
            proofs = {
                outcome_of(
                    Facts(
                        identity=each.identity,
                        coordinator=each.coordinator,
                        part=each.part,
                        marker=each.marker,
                        ranges=ranges,
                    )
                )
                for each in facts
                for ranges in RANGES
                if holds(ranges)
            }
            if len(proofs) != 1:
                raise ValueError(f"{row}, {column}: {proofs}")
            (proof,) = proofs
            cells.append(f"**{proof.value}**" if proof in (Outcome.COMMITTED, Outcome.ABORTED) else proof.value)
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return "\n".join(lines)


def page(text: str) -> str:
    """Return the page with the table as it is now."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
