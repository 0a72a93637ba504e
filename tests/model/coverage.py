"""The cases of sections 4 and 5 of the protocol's design, each with a setting and what a trace through it must have met."""

from __future__ import annotations

from dataclasses import dataclass

from kafka_eos_sink.commit.transactions import NEVER_TIMES_OUT_MS

from .exhausted import UNRESOLVABLE, merged, one_row, swapped
from .settings import Setting, faults, named

SETTINGS = named(
    (
        Setting(name="plain", drivers=3, faults=faults(unavailable=1, timeout=2), batches=2),
        Setting(name="initialised", version=0, drivers=1, attempts=1, faults=faults(foreign_init=1)),
        Setting(name="expiry", drivers=3, faults=faults(timeout=2, expire=3, compact=2), loud=UNRESOLVABLE),
        Setting(name="swapped", drivers=3, rows=swapped, faults=faults(timeout=2), loud=UNRESOLVABLE),
        Setting(name="merged", drivers=3, rows=merged, faults=faults(timeout=2), loud=UNRESOLVABLE),
        Setting(
            name="never", drivers=3, timeout_ms=NEVER_TIMES_OUT_MS, faults=faults(foreign_abort=2), loud=UNRESOLVABLE
        ),
        Setting(
            name="random id",
            drivers=2,
            random_write_id=True,
            streaming=False,
            rows=lambda driver, version: ((2 * driver,), (2 * driver + 1,)),
            faults=faults(timeout=2),
            loud=UNRESOLVABLE,
        ),
        Setting(
            name="gone",
            drivers=3,
            faults=faults(timeout=2, clean=2),
            loud=frozenset({"LOST_PARTS", "EARLIER_VERSION_UNFINISHED"}),
        ),
        Setting(
            name="another batch",
            drivers=2,
            offsets_hash=lambda driver, version: f"hash-{driver}",
            rows=one_row,
            loud=UNRESOLVABLE,
        ),
        Setting(
            name="another topic",
            drivers=2,
            topic=lambda driver: f"t{driver}",
            rows=one_row,
        ),
        Setting(
            name="another topic, no hash",
            drivers=2,
            topic=lambda driver: f"t{driver}",
            offsets_hash=lambda driver, version: None,
            rows=one_row,
            loud=UNRESOLVABLE,
        ),
        Setting(
            name="rolled back", drivers=2, batches=2, start_version=lambda driver: 0, rows=one_row, loud=UNRESOLVABLE
        ),
        Setting(
            name="rolled back, skip",
            drivers=2,
            batches=2,
            rollback="skip",
            start_version=lambda driver: 0,
            rows=one_row,
        ),
        Setting(
            name="rolled back, rewrite",
            drivers=2,
            batches=2,
            rollback="rewrite",
            start_version=lambda driver: 0,
            rows=one_row,
        ),
        Setting(
            name="ahead",
            drivers=2,
            batches=2,
            start_version=lambda driver: min(driver, 1),
            faults=faults(timeout=2, clean=2),
            recover_from_every=0,
        ),
        Setting(name="log lost", drivers=1, first_batch=3, rows=one_row, recover_from_every=0),
        Setting(
            name="an older log",
            drivers=2,
            batches=3,
            start_version=lambda driver: 2 * driver,
            rows=one_row,
            recover_from_every=0,
        ),
        Setting(
            name="two queries",
            drivers=4,
            query_id=lambda driver: "ab"[driver % 2],
            start_version=lambda driver: 0,
            faults=faults(timeout=1),
        ),
        Setting(
            name="missing marker", drivers=3, faults=faults(skip_marker=1, pause=2), loud=UNRESOLVABLE, rows=one_row
        ),
        Setting(
            name="gone and forgotten",
            drivers=3,
            faults=faults(timeout=1, clean=1, expire=1),
            rows=one_row,
            loud=UNRESOLVABLE | {"LOST_PARTS"},
        ),
        Setting(name="by hand", drivers=2, faults=faults(hand_marker=1, unavailable=1), loud=UNRESOLVABLE),
        Setting(name="a person", drivers=3, faults=faults(foreign_abort=1), rows=one_row),
    )
)


@dataclass(frozen=True, slots=True)
class Case:
    section: str
    text: str
    setting: str
    met: tuple[str, ...]


CASES = (
    Case(
        "4.1",
        "an unfinished decision is ended and proven by the next driver",
        "plain",
        ("plan:EndTxn NONE", "plan:finished"),
    ),
    Case("4.2", "INVALID_TXN_STATE asks the partitions", "plain", ("plan:EndTxn INVALID_TXN_STATE",)),
    Case("4.2", "PRODUCER_FENCED asks the partitions", "initialised", ("commit:EndTxn PRODUCER_FENCED",)),
    Case(
        "4.2",
        "INVALID_PRODUCER_ID_MAPPING: the id expired, the partitions still show it",
        "expiry",
        ("plan:EndTxn INVALID_PRODUCER_ID_MAPPING", "plan:finished by copies"),
    ),
    Case("4.2", "records gone, and no coordinator knows how: loud", "gone and forgotten", ("plan:UNRESOLVED",)),
    Case("4.2", "a missing marker: what hangs is discarded and copied", "missing marker", ("plan:finished by copies",)),
    Case("4.3", "named transactions aborted: copied by the next driver", "plain", ("plan:finished by copies",)),
    Case("4.3", "named transactions aborted: copied by the commit itself", "plain", ("commit:copied",)),
    Case("4.3", "a random id: the commit copies by itself", "random id", ("commit:copied",)),
    Case("4.3", "no timeout, but a foreign abort: copied", "never", ("plan:finished by copies",)),
    Case(
        "4.4",
        "all aborted, and their records gone: void, the batch runs anew",
        "gone",
        ("plan:void", "commit:after void"),
    ),
    Case("4.4", "some aborted, and their records gone: loud", "gone", ("plan:LOST_PARTS",)),
    Case(
        "4.5",
        "the source has other rows meanwhile: the original ones are copied",
        "swapped",
        ("plan:finished by copies", "commit:already committed"),
    ),
    Case("5", "decided, crash before Spark's commit log: every task skips", "plain", ("commit:already committed",)),
    Case("5", "the same version with other source offsets: loud", "another batch", ("task:DIFFERENT_BATCH",)),
    Case("5", "below the newest decision: fail", "rolled back", ("task:CHECKPOINT_ROLLED_BACK",)),
    Case("5", "below the newest decision: skip", "rolled back, skip", ("commit:already committed", "commit:warning")),
    Case("5", "below the newest decision: rewrite", "rolled back, rewrite", ("commit:ok",)),
    Case(
        "5",
        "the same version to another topic, same hash: skipped with a warning",
        "another topic",
        ("commit:warning", "commit:already committed"),
    ),
    Case("5", "the same version to another topic, no hash: loud", "another topic, no hash", ("task:DIFFERENT_BATCH",)),
    Case("5", "a stream above a void decision: loud", "ahead", ("task:EARLIER_VERSION_UNFINISHED",)),
    Case("5", "not the first version and nothing known: loud", "log lost", ("task:COMMIT_LOG_LOST",)),
    Case("5", "above versions that the log lacks: loud", "an older log", ("task:COMMIT_LOG_LOST", "commit:ok")),
    Case(
        "5",
        "two query ids under one write id: each its own decisions",
        "two queries",
        ("commit:ok", "commit:FENCED", "commit:already committed"),
    ),
    Case("5", "another number of partitions, all committed: skipped", "merged", ("commit:already committed",)),
    Case("5", "another number of partitions, parts lost: copied", "merged", ("plan:finished by copies",)),
    Case("5", "a decision whose marker never came: undecided", "plain", ("commit:NOT_DECIDED", "commit:ok")),
    Case("5", "a decision without its marker: undecided", "missing marker", ("commit:DECISION_UNKNOWN",)),
    Case("5", "recovery interrupted: every run gets further", "plain", ("plan:DECIDED_NOT_FINISHED", "recovery:ok")),
    Case(
        "5",
        "a person ends a decided transaction: found on the partitions and copied",
        "a person",
        ("plan:finished by copies",),
    ),
    Case(
        "5", "an ABORT written by hand: found by recovery's Fetch, and copied", "by hand", ("plan:finished by copies",)
    ),
)
