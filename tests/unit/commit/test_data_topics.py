"""What data topics prove that were deleted and created again, that have no leader, or whose records are gone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from kafka_eos_sink.client.topics_admin import AbortedTransaction, FetchedPartition
from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.evidence import look_at
from kafka_eos_sink.commit.outcome import Shown
from kafka_eos_sink.errors import BrokerRefusedError
from kafka_eos_sink.protocol.identity import ProducerIdAndEpoch, TopicPartition
from kafka_eos_sink.protocol.record_batch import _HEADER
from kafka_eos_sink.runtime.data_proofs import DataProofs, DataTopics
from tests.model.scripted_cluster import ScriptedCluster, decided
from tests.unit.commit.test_settle import in_doubt, settled

MAX_BLOCK_MS = 60_000
_, _DECIDED = decided()
(PREPARED,) = _DECIDED.decision.transactions
(PART,) = PREPARED.offsets


class NewTopic:
    """The topic was deleted and created again; its partition holds these batches: first and last offset, attributes, producer."""

    def __init__(self, *batches: tuple[int, int, int, ProducerIdAndEpoch]) -> None:
        self.batches = batches
        self.now = 1_000
        self.client = self

    @property
    def end(self) -> int:
        return self.batches[-1][1] + 1 if self.batches else 0

    def clock(self) -> int:
        return self.now

    def topic(self, name: str, deadline_ms: int) -> object:
        return object()

    def list_offsets(self, partitions: Sequence[TopicPartition], deadline_ms: int, **_: Any) -> dict[Any, int]:
        return dict.fromkeys(partitions, self.end)

    def describe_producers(self, partitions: Sequence[TopicPartition], deadline_ms: int) -> dict[Any, Any]:
        return dict.fromkeys(partitions, ())

    def fetch_each(self, offsets: Mapping[TopicPartition, int], deadline_ms: int, **_: Any) -> dict[Any, Any]:
        return {where: (None, self.fetched(offset)) for where, offset in offsets.items()}

    def fetched(self, offset: int) -> FetchedPartition:
        assert offset <= self.end
        found = next((each for each in self.batches if each[1] >= offset), None)
        records = b""
        if found is not None:
            first, last, attributes, (producer_id, epoch) = found
            count = last - first + 1
            records = _HEADER.pack(first, 49, 0, 2, 0, attributes, count - 1, 0, 0, producer_id, epoch, 0, count)
        return FetchedPartition(
            partition_index=0,
            error_code=0,
            high_watermark=self.end,
            last_stable_offset=self.end,
            log_start_offset=0,
            aborted_transactions=(),
            preferred_read_replica=-1,
            records=records,
        )


def test_abort_marker_in_a_new_topic_is_no_row_that_readers_see() -> None:
    """The transaction was open when its topic was deleted and created again. Its timeout left an ABORT marker of a producer that the new
    partition does not know, so no list of aborted transactions holds it. Another program has written since. The coordinator proves the
    abort, so the version has to be void or an error, not finished."""
    cluster, logged = in_doubt(is_aborted=True)
    (named,) = logged.decision.transactions
    control_and_transactional = 0x30
    aborted = (named.identity.producer_id, named.identity.producer_epoch + 1)
    admin = NewTopic((0, 0, control_and_transactional, aborted), (1, 30, 0, (-1, -1)))
    proofs = DataProofs(DataTopics(admin, timeout_ms=120_000, max_block_ms=MAX_BLOCK_MS))  # type: ignore[arg-type]
    cluster.own = {
        steps.AbortedTransactions: proofs.aborted_transactions,
        steps.DescribeProducers: proofs.describe_producers,
        steps.LastStableOffsets: proofs.last_stable_offsets,
    }
    assert settled(cluster, logged).lost == (named,), cluster.warnings


class OneResponse(NewTopic):
    """A partition whose batches all fit into one Fetch response, with the transactions that it lists as aborted."""

    def __init__(self, *batches: tuple[int, int, int, ProducerIdAndEpoch], aborted: Sequence[tuple[int, int]]) -> None:
        super().__init__(*batches)
        self.aborted = aborted
        self.fetches = 0

    def fetched(self, offset: int) -> FetchedPartition:
        self.fetches += 1
        rest = [
            super(OneResponse, self).fetched(first).records or b"" for first, last, *_ in self.batches if last >= offset
        ]
        listed = tuple(AbortedTransaction(producer_id=each, first_offset=first) for each, first in self.aborted)
        return replace(super().fetched(offset), records=b"".join(rest), aborted_transactions=listed)


def test_one_fetch_shows_all_ranges_that_its_response_holds() -> None:
    """Producer 7 aborted its first transaction and committed the second, producer 8 was aborted between them, and 9 committed."""
    control, data = 0x30, 0x10
    admin = OneResponse(
        (0, 9, data, (7, 0)),
        (10, 19, data, (9, 0)),
        (20, 20, control, (7, 0)),
        (21, 25, data, (8, 0)),
        (26, 29, data, (7, 1)),
        (30, 30, control, (7, 1)),
        (31, 31, control, (9, 0)),
        (32, 32, control, (8, 0)),
        aborted=((7, 0), (8, 21)),
    )
    ranges = {(0, 9): 7, (10, 19): 9, (21, 25): 8, (26, 29): 7}
    parts = [replace(PART, first_offset=first, last_offset=last) for first, last in ranges]
    proofs = DataProofs(DataTopics(admin, timeout_ms=120_000, max_block_ms=MAX_BLOCK_MS))  # type: ignore[arg-type]
    written = [
        replace(PREPARED, identity=replace(PREPARED.identity, producer_id=owner), offsets=(part,))
        for owner, part in zip(ranges.values(), parts, strict=True)
    ]
    cluster = ScriptedCluster()
    cluster.own = {steps.AbortedTransactions: proofs.aborted_transactions}
    assert cluster.run(look_at(written)) == [(Shown.DISCARDED,), (Shown.VISIBLE,), (Shown.DISCARDED,), (Shown.VISIBLE,)]
    assert admin.fetches == 1


def test_range_behind_batches_of_others_takes_one_more_fetch() -> None:
    """The cleaner has removed the first batch of the range, and other programs' batches follow."""
    admin = OneResponse(*((at, at, 0, (-1, -1)) for at in range(50)), aborted=())
    proofs = DataProofs(DataTopics(admin, timeout_ms=120_000, max_block_ms=MAX_BLOCK_MS))  # type: ignore[arg-type]
    part = replace(PART, first_offset=3, last_offset=200)
    found = proofs.aborted_transactions(steps.AbortedTransactions((part,), (7,)))
    assert found == {part: steps.Unseen.BLOCKED}
    assert admin.fetches == 2


class OneDeleted(NewTopic):
    """A cluster that has not known the topic ``deleted`` for as long as each query lets it."""

    def __init__(self) -> None:
        super().__init__((0, 9, 0x10, (7, 0)))
        self.waits = 0

    def topic(self, name: str, deadline_ms: int) -> object | None:
        return None if name == "deleted" else object()

    def list_offsets(self, partitions: Sequence[TopicPartition], deadline_ms: int, **_: Any) -> dict[Any, int]:
        self._know(partitions, deadline_ms)
        return super().list_offsets(partitions, deadline_ms)

    def fetch_each(self, offsets: Mapping[TopicPartition, int], deadline_ms: int, **_: Any) -> dict[Any, Any]:
        self._know(offsets, deadline_ms)
        return super().fetch_each(offsets, deadline_ms)

    def _know(self, partitions: Iterable[TopicPartition], deadline_ms: int) -> None:
        if "deleted" in {topic for topic, _ in partitions}:
            self.now = deadline_ms
            self.waits += 1
            raise BrokerRefusedError("UNKNOWN_TOPIC", "deleted-0: there is no such topic")


def test_deleted_topic_costs_max_block_ms_twice_and_hides_none() -> None:
    admin = OneDeleted()
    proofs = DataProofs(DataTopics(admin, timeout_ms=120_000, max_block_ms=MAX_BLOCK_MS))  # type: ignore[arg-type]
    deleted, kept = (
        replace(PART, topic=topic, partition=0, first_offset=0, last_offset=9) for topic in ("deleted", "kept")
    )
    for _ in range(3):
        stable = proofs.last_stable_offsets(steps.LastStableOffsets((("deleted", 0), ("kept", 0)), (9, 9)))
        assert stable == {("deleted", 0): None, ("kept", 0): 10}
        found = proofs.aborted_transactions(steps.AbortedTransactions((deleted, kept), (7, 7)))
        assert found == {deleted: steps.Unseen.GONE, kept: ()}
        with pytest.raises(steps.DataTopicGoneError, match="deleted-0: there is no such topic"):
            proofs.last_stable_offsets(steps.LastStableOffsets((("deleted", 0),), (9,)))
    # Once together with another topic, which might not have been unknown for so long, and once alone.
    assert (admin.waits, admin.now) == (2, 1_000 + 2 * MAX_BLOCK_MS)


@pytest.mark.parametrize("end", [0, 5])
def test_topic_that_ends_before_a_range_counts_as_gone_after_max_block_ms(end: int) -> None:
    """It was created again, and no marker will ever follow: a wait for one would end in DECIDED_NOT_FINISHED in every run."""
    admin = NewTopic(*[(at, at, 0, (-1, -1)) for at in range(end)])
    proofs = DataProofs(DataTopics(admin, timeout_ms=120_000, max_block_ms=MAX_BLOCK_MS))  # type: ignore[arg-type]
    look = steps.AbortedTransactions((replace(PART, first_offset=end, last_offset=9),), (7,))
    until = admin.now + MAX_BLOCK_MS
    while admin.now < until:
        assert set(proofs.aborted_transactions(look).values()) == {steps.Unseen.BLOCKED}
        admin.now += 500
    admin.now += 2_000
    with pytest.raises(steps.DataTopicGoneError, match="created again"):
        proofs.aborted_transactions(look)
