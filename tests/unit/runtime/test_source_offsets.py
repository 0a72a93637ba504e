"""A first batch is compared with its consumer group: a batch that begins below it is refused, and one that begins above it is warned of."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from kafka_eos_sink.client.transactions_admin import CommittedOffset
from kafka_eos_sink.commit.values import Write
from kafka_eos_sink.errors import WriteRefusedError
from kafka_eos_sink.protocol.identity import TopicPartition
from kafka_eos_sink.runtime.source_offsets import (
    FirstBatch,
    mark_of,
    marked_write,
    require_checkpoint,
)

WRITE = Write("kafka-eos-new", "__kafka_eos_commits", "--bootstrap-servers b:9092")
OLD = "kafka-eos write id kafka-eos-old"
Begins = dict[TopicPartition, int]


def batch(*sources: Begins) -> FirstBatch:
    return FirstBatch(query_id="new", checkpoint="/data/checkpoint", group_id="lag", sources=sources)


def group(offsets: Mapping[TopicPartition, int], metadata: str | None = OLD) -> Any:
    """An admin whose cluster has one group; it notes for which partitions the group is read."""

    def group_offsets(name: str, partitions: Any, deadline_ms: int) -> dict[TopicPartition, CommittedOffset]:
        assert (name, deadline_ms) == ("lag", 1_000)
        return {
            where: CommittedOffset(partition_index=where[1], committed_offset=offset, metadata=metadata, error_code=0)
            for where, offset in offsets.items()
            if where in partitions
        }

    return SimpleNamespace(group_offsets=group_offsets)


def check(admin: Any, first: FirstBatch, rollback: str = "fail") -> None:
    require_checkpoint(admin, WRITE, first, rollback, 1_000)


def refused(admin: Any, first: FirstBatch, rollback: str = "fail") -> WriteRefusedError:
    with pytest.raises(WriteRefusedError) as caught:
        check(admin, first, rollback)
    assert caught.value.code == "CHECKPOINT_LOST"
    return caught.value


def pasted(error: WriteRefusedError) -> list[Any]:
    """The values of startingOffsets that an error holds, one per source."""
    values = error.way_out.partition("continues exactly: ")[2].partition("; ")[0]
    return [json.loads(each) for each in values.split(" and, for another Kafka source, ")]


def test_batch_below_the_group_is_rejected_with_offsets() -> None:
    begins = {("in", 0): 0, ("in", 1): 40, ("in", 2): 7, ("new", 0): 3}
    error = refused(group({("in", 0): 100, ("in", 1): 90, ("in", 2): 7, ("other", 0): 5}), batch(begins))
    assert (
        ": in-0 begins at 0, the group stands at 100, in-1 begins at 40, the group stands at 90. The" in error.message
    )
    assert "in-2" not in error.message
    assert "write id 'kafka-eos-old'" in error.message
    # All partitions of the source, and no others: Spark rejects any other set.
    assert pasted(error) == [{"in": {"0": 100, "1": 90, "2": 7}, "new": {"0": 3}}]
    assert (
        "finish what the old query left undone: kafka-eos recover --bootstrap-servers b:9092 --write-id kafka-eos-old; then"
        in error.way_out
    )


def test_each_source_gets_the_offsets_of_its_own_partitions() -> None:
    left, right = {("a", 0): 0}, {("b", 0): 5}
    error = refused(group({("a", 0): 10, ("b", 0): 20}), batch(left, right))
    assert pasted(error) == [{"a": {"0": 10}}, {"b": {"0": 20}}]
    # The same topic twice: the lower beginning counts.
    error = refused(group({("a", 0): 10}), batch({("a", 0): 10}, {("a", 0): 4}))
    assert "a-0 begins at 4, the group stands at 10" in error.message
    assert pasted(error) == [{"a": {"0": 10}}]


@pytest.mark.parametrize(
    "offsets",
    [
        {},  # the group was deleted, is new, or has expired
        {("in", 0): 5, ("in", 1): 0},  # the checkpoint of a query that continues exactly, as the error advises
        {("other", 0): 50},  # a group of another query over other topics
    ],
    ids=["no offsets", "equal", "other topics"],
)
def test_batch_that_writes_nothing_twice_is_planned_silently(offsets: Begins, caplog: pytest.LogCaptureFixture) -> None:
    check(group(offsets), batch({("in", 0): 5, ("in", 1): 0}))
    assert caplog.text == ""


def test_partition_created_after_the_start_begins_at_earliest() -> None:
    begins = {("in", 0): 5, ("in", 1): -2}
    check(group({("in", 0): 5, ("in", 1): 0}), batch(begins))
    error = refused(group({("in", 0): 5, ("in", 1): 3}), batch(begins))
    assert "in-1 begins at the earliest, the group stands at 3" in error.message
    # A partition that the group lacks, too.
    assert pasted(refused(group({("in", 0): 6}), batch(begins))) == [{"in": {"0": 6, "1": -2}}]


def test_batch_above_the_group_warns_of_unwritten_rows(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        check(group({("in", 0): 5, ("in", 1): 8}), batch({("in", 0): 9, ("in", 1): 8}))
    assert "in-0 begins at 9, the group stands at 5. This query never writes the rows between" in caplog.text
    assert "kafka-eos offsets --bootstrap-servers b:9092 --group lag" in caplog.text
    assert "in-1" not in caplog.text


def test_skip_cannot_leave_out_a_part_of_a_batch() -> None:
    refused(group({("in", 0): 100}), batch({("in", 0): 0}), "skip")


def test_hostile_metadata_cannot_forge_a_command() -> None:
    error = refused(group({("in", 0): 1}, "kafka-eos write id x; rm -rf /\x1b[2J"), batch({("in", 0): 0}))
    assert "--write-id 'x; rm -rf /" in error.way_out
    assert "\x1b" not in str(error)


def test_committed_offset_names_its_write() -> None:
    assert marked_write(mark_of("kafka-eos-1.driver")) == "kafka-eos-1"
    assert mark_of("x" * 1_000 + ".driver") is None
    assert marked_write("") is marked_write(None) is None
