"""The settings that are searched to the end, and those that are too large for it and are walked."""

from __future__ import annotations

from typing import Any

from kafka_eos_sink.commit.transactions import NEVER_TIMES_OUT_MS
from kafka_eos_sink.commit.values import Resolution

from .settings import Rows, Setting, faults, named


def one_row(driver: int, version: int) -> Rows:
    return ((0,),)


def swapped(driver: int, version: int) -> Rows:
    return ((0,), (1,)) if driver % 2 == 0 else ((1,), (0,))


def merged(driver: int, version: int) -> Rows:
    """The re-run has one partition instead of two."""
    return ((0,), (1,)) if driver % 2 == 0 else ((0, 1),)


UNRESOLVABLE = frozenset(
    {
        "UNRESOLVED",
        "DECIDED_NOT_FINISHED",
        "DECISION_UNKNOWN",
        "DIFFERENT_BATCH",
        "CHECKPOINT_ROLLED_BACK",
        "TRANSACTION_NOT_OPEN",
    }
)
"""What a run may end with where something was broken that only a person can mend; it is loud and nothing is written twice."""

HEALED = frozenset({"TRANSACTION_NOT_OPEN"})
"""After missing markers: recovery discards what hangs of a decision, and copies it. An attempt that joins what an undecided one left open
fails once, and its abort ends both."""
LATER = HEALED | {"DECIDED_NOT_FINISHED"}
"""Where a copy joins what an undecided attempt left open, which the abort of the copy ends, or where the coordinator forgets an id whose
transaction hangs: only a person can discard that."""

GONE = frozenset({"LOST_PARTS", "UNRESOLVED"})
"""Where the records of an aborted transaction are gone. Below version 2 no coordinator proves the abort."""

ONE: dict[str, Any] = {"rows": one_row}
SOME: dict[str, Any] = {"recover_from_every": 25}
"""From one in so many distinct clusters a further driver is started."""
EAGER: dict[str, Any] = {"eager_markers": True, **SOME}
SPREAD: dict[str, Any] = {
    "data_partitions": 2,
    "rows": lambda driver, version: ((0, 1),),
    "attempts": 1,
    "loud": HEALED,
}
"""One task writes to two partitions, and a marker may be missing on one of them."""

NO_RESPONSES: dict[str, Any] = {
    "drivers": 1,
    "batches": 2,
    "attempts": 1,
    # What is visible stays proven, whatever responses are missing.
    "loud": HEALED,
    "faults": faults(skip_marker=1, pause=2, unavailable=2),
    **ONE,
}

CALLS: dict[str, Any] = {
    "drivers": 4,
    "restart": "failed",
    "attempts": 1,
    "streaming": False,
    "start_version": lambda driver: 0,
    "offsets_hash": lambda driver, version: None,
    "foreach_call": lambda driver: "aabb"[driver],
    "loud": UNRESOLVABLE,
    "eager_markers": True,
    "recover_from_every": 0,
    **ONE,
}
"""A version is written in call a, whose second write follows; then both are run again in call b."""

ANY_ORDER: dict[str, Any] = {
    "restart": "failed",
    "attempts": 1,
    "batches": 2,
    "streaming": False,
    "start_version": lambda driver: 0 if driver else 1,
    "offsets_hash": lambda driver, version: None,
    **EAGER,
    **ONE,
}
"""A batch job writes version 1, and then version 0; each further run begins at 0."""

_RESOLVED_EITHER: dict[str, dict[str, Any]] = {
    "": {},
    ", a timeout": {"faults": faults(resolve=1, timeout=1)},
    ", a restart": {"drivers": 2, "restart": "crash", "zombie_tasks": False},
    # An eager marker is never omitted.
    ", a missing marker": {
        "faults": faults(resolve=1, skip_marker=1, pause=1),
        "loud": HEALED,
        "eager_markers": False,
    },
}
_RESOLVED: dict[Resolution, dict[str, dict[str, Any]]] = {
    # The second command records the version that the first one has finished.
    "committed": {", twice": {"faults": faults(resolve=2)}},
    "rewrite": {", late requests": {"faults": faults(resolve=1, float=1), "loud": UNRESOLVABLE}},
}

EXHAUSTED = named(
    (
        # Two tasks, one driver; markers written at any time.
        Setting(name="one driver", drivers=1),
        Setting(name="one driver, two batches", drivers=1, batches=2, **SOME),
        Setting(name="one driver, lost responses", drivers=1, faults=faults(lost=1), **SOME),
        Setting(name="one driver, timeouts", drivers=1, attempts=1, faults=faults(timeout=1), **SOME),
        Setting(name="one driver, a foreign abort", drivers=1, attempts=1, faults=faults(foreign_abort=1), **SOME),
        Setting(
            name="one driver, a missing marker",
            drivers=1,
            attempts=1,
            loud=HEALED,
            faults=faults(skip_marker=1, pause=1),
            **SOME,
        ),
        Setting(
            name="two batches, a missing marker",
            drivers=1,
            batches=2,
            attempts=1,
            loud=HEALED,
            faults=faults(skip_marker=1, pause=1),
            **SOME,
            **ONE,
        ),
        Setting(name="a missing marker, two batches, no responses", **NO_RESPONSES, **SOME),
        Setting(
            name="a missing marker, a restart, compaction",
            restart="failed",
            batches=2,
            attempts=1,
            loud=HEALED,
            faults=faults(skip_marker=1, pause=1, compact=1),
            **SOME,
            **ONE,
        ),
        Setting(
            name="a missing marker, two data partitions",
            drivers=1,
            faults=faults(skip_marker=1, pause=1),
            **SPREAD,
            **SOME,
        ),
        Setting(
            name="two missing markers, two data partitions, a restart",
            restart="failed",
            faults=faults(skip_marker=2, pause=1),
            **SPREAD,
            **SOME,
        ),
        Setting(
            name="a missing marker, a timeout",
            restart="failed",
            faults=faults(skip_marker=1, timeout=1, pause=1),
            **SPREAD,
            **SOME,
        ),
        Setting(
            name="a missing marker, records gone",
            restart="failed",
            faults=faults(skip_marker=1, clean=1, unavailable=1, pause=1),
            **{**SPREAD, "loud": HEALED | GONE},
            **SOME,
        ),
        Setting(
            name="a missing marker, a forgotten id",
            restart="failed",
            attempts=1,
            loud=LATER,
            faults=faults(skip_marker=1, expire=1, pause=1),
            **SOME,
            **ONE,
        ),
        Setting(
            name="a missing marker, late requests",
            restart="failed",
            attempts=1,
            loud=HEALED,
            faults=faults(skip_marker=1, float=1, pause=1),
            **SOME,
            **ONE,
        ),
        # Two attempts beside each other.
        Setting(
            name="a missing marker, a late attempt, sweeps",
            drivers=1,
            sweeps=True,
            loud=LATER,
            faults=faults(skip_marker=1, speculate=1),
            **SOME,
            **ONE,
        ),
        Setting(
            name="a missing marker, a late attempt fails",
            drivers=1,
            loud=LATER,
            faults=faults(skip_marker=1, speculate=1, unavailable=1),
            **SOME,
            **ONE,
        ),
        Setting(
            name="a missing marker, a late attempt, time",
            drivers=1,
            loud=LATER,
            faults=faults(skip_marker=1, speculate=1, pause=1),
            **SOME,
            **ONE,
        ),
        Setting(name="speculation", drivers=1, faults=faults(speculate=1), **EAGER),
        Setting(name="killed tasks", drivers=1, faults=faults(kill_task=1), **EAGER),
        Setting(name="dropped messages", drivers=1, faults=faults(drop_message=1), **EAGER),
        Setting(name="speculation and batches", drivers=1, batches=2, faults=faults(speculate=1), **EAGER, **ONE),
        Setting(name="sweeps and batches", drivers=1, batches=2, attempts=1, sweeps=True, **EAGER),
        Setting(
            name="sweeps, speculation, a restart",
            restart="failed",
            sweeps=True,
            faults=faults(speculate=1),
            **EAGER,
            **ONE,
        ),
        Setting(name="no responses", drivers=1, attempts=1, faults=faults(unavailable=1, pause=1), **EAGER),
        Setting(name="late requests", drivers=1, batches=2, attempts=1, faults=faults(float=1), **EAGER, **ONE),
        # Two drivers: after a crash at any point, after a failure, and beside each other.
        Setting(name="crash", restart="crash", zombie_tasks=False, attempts=1, **EAGER),
        Setting(name="crash, two batches", restart="crash", batches=2, zombie_tasks=False, attempts=1, **EAGER),
        Setting(name="crash of the driver, tasks live on", restart="crash", attempts=1, **EAGER, **ONE),
        Setting(
            name="crash and compaction",
            restart="crash",
            zombie_tasks=False,
            attempts=1,
            faults=faults(timeout=1, compact=1),
            **EAGER,
            **ONE,
        ),
        Setting(
            name="crash and expiry",
            restart="crash",
            zombie_tasks=False,
            attempts=1,
            faults=faults(timeout=1, expire=1),
            **EAGER,
            **ONE,
        ),
        # Copies of what was lost: lost again, made by two drivers, beside tasks that live on, of records that are gone.
        Setting(name="a copy lost again", drivers=1, attempts=1, faults=faults(timeout=2), **EAGER, **ONE),
        Setting(
            name="copies, a decision in pieces, late requests",
            drivers=1,
            attempts=1,
            piece_bytes=400,
            faults=faults(timeout=1, float=1),
            **EAGER,
            **ONE,
        ),
        Setting(
            name="crash while copying, tasks live on",
            restart="crash",
            attempts=1,
            faults=faults(timeout=1),
            **EAGER,
            **ONE,
        ),
        Setting(
            name="records gone",
            drivers=1,
            attempts=1,
            loud=GONE,
            faults=faults(timeout=2, clean=1),
            **EAGER,
        ),
        Setting(
            name="two missing markers",
            restart="failed",
            attempts=1,
            loud=HEALED,
            faults=faults(skip_marker=2, pause=2),
            **SOME,
            **ONE,
        ),
        Setting(name="timeouts and a restart", restart="failed", attempts=1, faults=faults(timeout=1), **EAGER, **ONE),
        Setting(name="two drivers beside each other", attempts=1, **EAGER, **ONE),
        Setting(name="second writes of a foreachBatch call", faults=faults(unavailable=1), **CALLS),
        Setting(name="versions in any order", **ANY_ORDER),
        Setting(name="versions in any order, a crash", **{**ANY_ORDER, "restart": "crash", "zombie_tasks": False}),
        Setting(
            name="versions in any order, timeouts and records gone",
            loud=GONE,
            faults=faults(timeout=1, clean=1),
            **{**ANY_ORDER, "drivers": 3},
        ),
        Setting(
            name="versions in any order, compaction and no responses",
            loud=UNRESOLVABLE,
            faults=faults(compact=1, unavailable=1),
            **ANY_ORDER,
        ),
        Setting(
            name="versions in any order, below the floor",
            loud=frozenset({"VERSION_TOO_OLD"}),
            **{
                **ANY_ORDER,
                "drivers": 3,
                "batches": 3,
                "most_ranges": 1,
                "start_version": lambda driver: 0 if driver else 2,
            },
        ),
        Setting(
            name="crash and restart in the same planner process",
            restart="crash",
            batches=2,
            attempts=1,
            remembers=lambda driver: driver - 1,
            **EAGER,
            **ONE,
        ),
        Setting(
            name="a planner process that remembers an older driver",
            restart="crash",
            batches=2,
            attempts=1,
            remembers=lambda driver: driver - 2,
            **EAGER,
            **ONE,
        ),
        # An operator resolves the version while its driver runs, has died, or is restarted.
        *(
            Setting(
                name=f"resolved as {resolution}{name}",
                resolution=resolution,
                attempts=1,
                **{"drivers": 1, "faults": faults(resolve=1), **EAGER, **changes},
                **ONE,
            )
            for resolution, more in _RESOLVED.items()
            for name, changes in {**_RESOLVED_EITHER, **more}.items()
        ),
    )
)

_STATES = {
    "one driver": (941, 528),
    "one driver, two batches": (400_001, 8_928),
    "one driver, lost responses": (6_336, 3_506),
    "one driver, timeouts": (10_937, 29_190),
    "one driver, a foreign abort": (10_905, 12_702),
    "one driver, a missing marker": (28_386, 25_140),
    "two batches, a missing marker": (22_596, 2_904),
    "a missing marker, two batches, no responses": (400_000, 400_001),
    "a missing marker, a restart, compaction": (400_000, 199_679),
    "a missing marker, two data partitions": (2_205, 1_955),
    "two missing markers, two data partitions, a restart": (276_328, 190_977),
    "a missing marker, a timeout": (400_000, 400_000),
    "a missing marker, records gone": (300_000, 300_000),
    "a missing marker, a forgotten id": (115_360, 98_921),
    "a missing marker, late requests": (400_000, 400_000),
    "a missing marker, a late attempt, sweeps": (502_201, 300_001),
    "a missing marker, a late attempt fails": (300_003, 300_000),
    "a missing marker, a late attempt, time": (300_000, 300_000),
    "speculation": (143_641, 300_000),
    "killed tasks": (2_425, 4_704),
    "dropped messages": (1_131, 1_424),
    "speculation and batches": (37_205, 105_899),
    "sweeps and batches": (7_233, 11_348),
    "sweeps, speculation, a restart": (60_743, 181_517),
    "no responses": (10_299, 16_487),
    "late requests": (2_461, 3_382),
    "crash": (6_873, 18_867),
    "crash, two batches": (115_145, 300_000),
    "crash of the driver, tasks live on": (1_590, 3_793),
    "crash and compaction": (24_091, 40_047),
    "crash and expiry": (17_354, 27_544),
    "a copy lost again": (747, 1_006),
    "copies, a decision in pieces, late requests": (12_713, 17_950),
    "crash while copying, tasks live on": (18_727, 52_645),
    "records gone": (44_333, 68_082),
    "two missing markers": (431_751, 389_164),
    "timeouts and a restart": (391, 620),
    "two drivers beside each other": (282_681, 197_219),
    "second writes of a foreachBatch call": (2_528, 3_207),
    "versions in any order": (54, 62),
    "versions in any order, a crash": (566, 824),
    "versions in any order, timeouts and records gone": (4_030, 5_613),
    "versions in any order, compaction and no responses": (11_969, 18_813),
    "versions in any order, below the floor": (90, 102),
    "crash and restart in the same planner process": (6_750, 22_184),
    "a planner process that remembers an older driver": (6_750, 22_184),
    "resolved as committed": (546, 497),
    "resolved as committed, twice": (158_829, 137_421),
    "resolved as committed, a timeout": (300_000, 235_738),
    "resolved as committed, a restart": (12_657, 13_727),
    "resolved as committed, a missing marker": (300_001, 300_000),
    "resolved as rewrite": (520, 469),
    "resolved as rewrite, a timeout": (300_000, 244_211),
    "resolved as rewrite, a restart": (11_351, 12_249),
    "resolved as rewrite, a missing marker": (300_000, 300_001),
    "resolved as rewrite, late requests": (300_000, 300_000),
}
STATES = {(name, version): states for name, of in _STATES.items() for version, states in zip((2, 0), of, strict=True)}
"""How many states each setting has, by name and transaction version: a search that finds fewer proves less than it did."""

NOT_ENDED = {
    ("resolved as rewrite, a missing marker", 2),
    ("resolved as rewrite, a missing marker", 0),
    ("resolved as rewrite, late requests", 2),
    ("resolved as rewrite, late requests", 0),
    ("one driver, two batches", 2),
    ("a missing marker, two batches, no responses", 2),
    ("a missing marker, two batches, no responses", 0),
    ("a missing marker, a restart, compaction", 2),
    ("a missing marker, records gone", 2),
    ("a missing marker, records gone", 0),
    ("a missing marker, a timeout", 2),
    ("a missing marker, a timeout", 0),
    ("a missing marker, late requests", 2),
    ("a missing marker, late requests", 0),
    ("a missing marker, a late attempt, sweeps", 0),
    ("a missing marker, a late attempt fails", 2),
    ("a missing marker, a late attempt fails", 0),
    ("a missing marker, a late attempt, time", 2),
    ("a missing marker, a late attempt, time", 0),
    ("speculation", 0),
    ("crash, two batches", 0),
    ("resolved as committed, a timeout", 2),
    ("resolved as committed, a missing marker", 2),
    ("resolved as committed, a missing marker", 0),
    ("resolved as rewrite, a timeout", 2),
}
"""Larger than anyone has searched yet: what is recorded of them is how far the search went."""

LARGE = named(
    (
        Setting(
            name="resolved as committed, records gone",
            drivers=1,
            attempts=1,
            loud=GONE,
            faults=faults(resolve=1, timeout=1, clean=1),
            **EAGER,
            **ONE,
        ),
        # A version is void, and so rewritten, only if its records are gone.
        Setting(
            name="resolved as rewrite, records gone",
            resolution="rewrite",
            drivers=1,
            attempts=1,
            loud=GONE,
            faults=faults(resolve=1, timeout=1, clean=1),
            **EAGER,
            **ONE,
        ),
        Setting(
            name="timeouts and a restart, two tasks",
            restart="failed",
            attempts=1,
            faults=faults(timeout=1),
            **EAGER,
        ),
        Setting(name="two drivers beside each other, timeouts", attempts=1, faults=faults(timeout=1), **EAGER, **ONE),
        Setting(name="two drivers, two tasks, two attempts", faults=faults(speculate=1), recover_from_every=200),
        Setting(name="two drivers, two tasks, two batches", batches=2, attempts=1, recover_from_every=200),
        Setting(name="two drivers, timeouts", faults=faults(timeout=1), recover_from_every=200),
        Setting(name="two drivers, late requests", attempts=1, faults=faults(float=1), recover_from_every=200),
        Setting(name="versions in any order, two drivers beside each other", **{**ANY_ORDER, "restart": "beside"}),
        Setting(name="two drivers, no responses", attempts=1, faults=faults(unavailable=1), recover_from_every=200),
    )
)
"""Searched as far as asked for."""

MANY = faults(timeout=2, lost=2, unavailable=2, float=2, speculate=2, kill_task=2, drop_message=1, pause=1)

WALKED = named(
    (
        Setting(name="three drivers, all faults of brokers and tasks", drivers=3, batches=2, faults=MANY),
        Setting(
            name="three drivers, compaction", drivers=3, batches=2, faults=faults(timeout=2, compact=3, unavailable=1)
        ),
        Setting(name="three drivers, expired ids", drivers=3, batches=2, faults=faults(timeout=2, expire=2, compact=1)),
        Setting(
            name="three tasks, two data partitions",
            drivers=3,
            batches=2,
            data_partitions=2,
            rows=lambda driver, version: ((0, 1), (2, 3), (4, 5)),
            faults=faults(timeout=2, speculate=2, kill_task=2, lost=1, float=1),
        ),
        Setting(
            name="a foreign writer",
            drivers=3,
            batches=2,
            foreign=True,
            data_partitions=2,
            faults=faults(timeout=1, speculate=1),
        ),
        Setting(name="foreign requests", drivers=2, batches=2, faults=faults(foreign_abort=1, foreign_init=1)),
        Setting(
            name="missing markers",
            drivers=3,
            batches=2,
            sweeps=True,
            loud=LATER,
            faults=faults(skip_marker=1, speculate=2, compact=2, pause=2, kill_task=1),
        ),
        Setting(
            name="markers by hand",
            drivers=3,
            batches=2,
            loud=UNRESOLVABLE,
            faults=faults(hand_marker=1, unavailable=1, pause=1),
        ),
        Setting(
            name="other rows at the re-run",
            drivers=3,
            batches=2,
            loud=UNRESOLVABLE,
            rows=swapped,
            faults=faults(timeout=2, compact=1),
        ),
        Setting(
            name="other partitions at the re-run",
            drivers=3,
            batches=2,
            loud=UNRESOLVABLE,
            rows=merged,
            faults=faults(timeout=2),
        ),
        Setting(
            name="transactions that never time out",
            drivers=3,
            batches=2,
            loud=UNRESOLVABLE,
            timeout_ms=NEVER_TIMES_OUT_MS,
            faults=faults(timeout=1, speculate=1, unavailable=1, foreign_abort=1),
        ),
        Setting(
            name="a short timeout",
            drivers=3,
            batches=2,
            timeout_ms=150_000,
            faults=faults(timeout=2, pause=3, speculate=1),
        ),
        Setting(
            name="two queries under one id",
            drivers=4,
            query_id=lambda driver: "ab"[driver % 2],
            start_version=lambda driver: 0,
            faults=faults(timeout=1, compact=1, speculate=1),
        ),
        Setting(
            name="empty partitions and batches",
            drivers=3,
            batches=3,
            rows=lambda driver, version: ((0,), ()) if version % 2 else ((), ()),
            faults=faults(timeout=1, speculate=1),
        ),
        Setting(
            name="batch writes without a hash",
            drivers=3,
            batches=2,
            streaming=False,
            offsets_hash=lambda driver, version: None,
            faults=faults(timeout=1, expire=1, compact=1, lost=1),
        ),
        Setting(
            name="random write ids",
            drivers=2,
            random_write_id=True,
            streaming=False,
            loud=UNRESOLVABLE,
            rows=lambda driver, version: ((2 * driver,), (2 * driver + 1,)),
            faults=faults(timeout=1, speculate=1, lost=1, unavailable=1),
        ),
        *(
            Setting(
                name=f"operators resolve as {resolution}",
                drivers=3,
                batches=2,
                sweeps=True,
                resolution=resolution,
                loud=UNRESOLVABLE,
                faults=faults(resolve=2, timeout=2, lost=1, float=1, speculate=1, pause=2, compact=1, foreign_abort=1),
            )
            for resolution in _RESOLVED
        ),
        Setting(
            name="everything",
            drivers=4,
            batches=3,
            foreign=True,
            same_slot=False,
            sweeps=True,
            loud=UNRESOLVABLE,
            faults=faults(
                timeout=3,
                lost=3,
                unavailable=2,
                float=1,
                speculate=3,
                kill_task=2,
                drop_message=2,
                pause=2,
                compact=3,
                expire=1,
                foreign_abort=1,
                foreign_init=1,
            ),
        ),
    )
)
"""Too large to exhaust: seeded random walks."""
