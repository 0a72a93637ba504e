"""The group of ``source.offsets.group``, which also reveals a lost checkpoint.

A query with a new checkpoint has a new query id, under which the commit log has no decision. The group's offsets are committed with each
decision, so the rows below them are written. A first batch that begins below them would write these rows again.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.topics_admin import EARLIEST
from kafka_eos_sink.client.transactions_admin import CommittedOffset
from kafka_eos_sink.commit.refusals import refused, some, text
from kafka_eos_sink.commit.transactional_id import write_id_of
from kafka_eos_sink.commit.values import Write
from kafka_eos_sink.errors import KafkaEosError, MissingApiError, peer_text
from kafka_eos_sink.logs import warn_once
from kafka_eos_sink.protocol.identity import TopicPartition

MARK = "kafka-eos write id "
LONGEST_MARK = 1_000
"""Bytes. The brokers' offset.metadata.max.bytes is 4096 by default."""
LONGEST_JSON = 4_000
"""Characters in an error message; about 250 partitions."""

Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstBatch:
    """The first batch of a checkpoint, by the offsets at which its sources begin.

    ``sources`` has a mapping per Kafka source, with EARLIEST for a partition that was created after the query's start.
    """

    query_id: str
    checkpoint: str
    group_id: str
    sources: tuple[Offsets, ...]


def mark_of(driver_id: str) -> str | None:
    """Return an offset's metadata, which contains its write; None if it is too long."""
    mark = f"{MARK}{write_id_of(driver_id) or driver_id}"
    return mark if len(mark.encode()) <= LONGEST_MARK else None


def marked_write(metadata: str | None) -> str | None:
    """Return the write id that `mark_of` has put into an offset's metadata."""
    return metadata.removeprefix(MARK) if metadata and metadata.startswith(MARK) else None


def starting_offsets(offsets: Offsets) -> str:
    """Return the value of ``startingOffsets``, an option of Spark's Kafka source."""
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        topics.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(topics, separators=(",", ":"))


def require_checkpoint(admin: Admin, write: Write, first: FirstBatch, rollback: str, deadline_ms: int) -> None:
    """Require that the first batch of a query writes no row a second time.

    The group shows what an earlier query has written. It knows nothing if it was deleted, or if its offsets have expired.

    Args:
        rollback: The option ``onCheckpointRollback``.

    Raises:
        WriteRefusedError: CHECKPOINT_LOST. Nothing was written.
    """
    begins: dict[TopicPartition, int] = {}
    for where, offset in (each for source in first.sources for each in source.items()):
        begins[where] = min(offset, begins.get(where, offset))
    try:
        group = admin.group_offsets(first.group_id, begins, deadline_ms)
    except MissingApiError as missing:
        warn_once(
            f"a lost checkpoint would not be noticed, because group {first.group_id!r} cannot be read: {missing.message}"
        )
        return
    # EARLIEST, which is negative, can be offset 0: a partition at which the group is there begins where it should.
    twice = [where for where, found in group.items() if max(begins[where], 0) < found.committed_offset]
    left_out = [where for where, found in group.items() if begins[where] > found.committed_offset]
    if twice and rollback != "rewrite":
        raise _checkpoint_lost(write, first, group, _compared(twice, begins, group))
    if twice:
        compared = _compared(twice, begins, group)
        warn_once(text("begins_below_group", write=write, group_id=first.group_id, compared=compared))
    if left_out:
        compared, offsets = _compared(left_out, begins, group), write.offsets_command(first.group_id)
        warn_once(text("begins_above_group", write=write, group_id=first.group_id, compared=compared, offsets=offsets))


def beside_members(group_id: str, servers: str, *, first_batch: bool) -> None:
    """Warn of members in the group; before a query's first batch is decided, refuse.

    Raises:
        ConfigurationError: SOURCE_OFFSETS.
    """
    group = shlex.quote(group_id)
    members = f"kafka-consumer-groups.sh --bootstrap-server {servers} --describe --members --group {group}"
    if first_batch:
        raise refused("SOURCE_OFFSETS.members", group_id=group_id, members=members)
    warn_once(text("beside_members", group_id=group_id, members=members))


def _compared(
    partitions: Iterable[TopicPartition], begins: Offsets, group: Mapping[TopicPartition, CommittedOffset]
) -> str:
    return some(
        [
            f"{topic}-{partition} begins at {'the earliest' if begin == EARLIEST else begin}, the group stands at "
            f"{group[topic, partition].committed_offset}"
            for topic, partition in sorted(partitions)
            for begin in (begins[topic, partition],)
        ]
    )


def _checkpoint_lost(
    write: Write, first: FirstBatch, group: Mapping[TopicPartition, CommittedOffset], compared: str
) -> KafkaEosError:
    known = {where: found.committed_offset for where, found in group.items()}
    # Spark accepts only a value with exactly the partitions that the source reads. The group may lack some.
    values = dict.fromkeys(
        starting_offsets({**each, **{at: known[at] for at in each if at in known}}) for each in first.sources
    )
    continues = " and, for another Kafka source, ".join(values)
    if len(continues) > LONGEST_JSON:
        continues = f"what this command prints: {write.offsets_command(first.group_id)}"
    writers = sorted({each for found in group.values() if (each := marked_write(found.metadata)) is not None})
    who = f"write id {some([repr(peer_text(each)) for each in writers])}" if writers else "another program, or a person"
    # The plan has finished the decisions of its write id. An unfinished one of the old query times out if nobody recovers it.
    recover = "".join(
        f"finish what the old query left undone: {replace(write, id=each).command('recover')}; then "
        for each in writers
        if each != write.id
    )
    return refused(
        "CHECKPOINT_LOST",
        write=write,
        checkpoint=first.checkpoint,
        group_id=first.group_id,
        compared=compared,
        who=who,
        old_query=recover,
        continues=continues,
    )
