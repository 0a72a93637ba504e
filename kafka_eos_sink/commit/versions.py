"""The versions that count as written under one write id, decided in any order.

A batch write's decision carries them, so that compaction, which keeps only the newest decision, forgets none. A stream needs no set: its
versions follow each other without a gap.
"""

from __future__ import annotations

from dataclasses import dataclass

from kafka_eos_sink.pickling import PickledByName

MOST_RANGES = 1_000
"""Consecutive versions share a range. Of more ranges, the lowest leave the set and raise the floor."""


@dataclass(frozen=True, slots=True)
class VersionRange(PickledByName):
    """Consecutive versions, both ends inclusive."""

    first: int
    last: int

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first} to {self.last}"


@dataclass(frozen=True, slots=True)
class Versions(PickledByName):
    """A set of versions; of those below ``floor`` it is not known which were written."""

    ranges: tuple[VersionRange, ...] = ()
    floor: int = 0

    @classmethod
    def up_to(cls, version: int) -> Versions:
        """All versions up to one, which is what a decision without a set says."""
        return cls((VersionRange(0, version),) if version >= 0 else ())

    def __contains__(self, version: int) -> bool:
        return any(each.first <= version <= each.last for each in self.ranges)

    @property
    def last(self) -> int:
        """The highest version, -1 if the set is empty."""
        return self.ranges[-1].last if self.ranges else -1

    def as_json(self) -> list[dict[str, int]]:
        return [{"first": each.first, "last": each.last} for each in self.ranges]

    def adding(self, version: int) -> Versions:
        first = last = version
        others = []
        for each in self.ranges:
            if each.last < first - 1 or each.first > last + 1:
                others.append(each)
            else:
                first, last = min(first, each.first), max(last, each.last)
        ranges = sorted((*others, VersionRange(first, last)), key=lambda each: each.first)
        dropped, kept = ranges[:-MOST_RANGES], ranges[-MOST_RANGES:]
        return Versions(tuple(kept), max([self.floor, *(each.last + 1 for each in dropped)]))

    def without(self, version: int) -> Versions:
        """The set without a version that is void."""
        return Versions(
            tuple(
                part
                for each in self.ranges
                for part in (
                    VersionRange(each.first, min(each.last, version - 1)),
                    VersionRange(max(each.first, version + 1), each.last),
                )
                if part.first <= part.last
            ),
            self.floor,
        )
