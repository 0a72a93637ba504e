"""A query dies within a commit, and its checkpoint is lost: the next query waits for what is in flight, and names what is unfinished."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from dataclasses import replace

import pytest

from dead_writes import ROWS, decided, tasks, varied, write_settings
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.commit.decide import GroupOffsets
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.errors import BrokerUnavailableError, WriteRefusedError
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.runtime import session
from kafka_eos_sink.runtime.source_offsets import FirstBatch
from kafka_testing import assert_nothing_open, create_topic, read_committed, unique_topic


def batch_of_a_query(kafka: EmbeddedKafka, source: str, group: str, *, begins: int, ends: int) -> session.WriteSettings:
    """The first batch of a query with a checkpoint of its own."""
    query_id = unique_topic("query")
    given = write_settings(
        kafka, create_topic(kafka.bootstrap_servers), write_id=f"kafka-eos-{query_id}", query_id=query_id, version=0
    )
    first = FirstBatch(query_id=query_id, checkpoint="/c", group_id=group, sources=({(source, 0): begins},))
    offsets = GroupOffsets(group_id=group, offsets=((source, 0, ends),))
    return replace(varied(given, streaming=True), group_offsets=offsets, first_batch=first)


def test_named_recover_finishes_the_batch_of_the_lost_query(
    any_kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch is decided, so the group stands behind it, and its rows become visible only if somebody finishes it."""
    servers = any_kafka.bootstrap_servers
    source, group = create_topic(servers), unique_topic("group")
    old = batch_of_a_query(any_kafka, source, group, begins=0, ends=7)
    decided(old, "commit.between_ends", monkeypatch, 2)
    with pytest.raises(WriteRefusedError, match="CHECKPOINT_LOST") as caught:
        session.plan(batch_of_a_query(any_kafka, source, group, begins=0, ends=9))
    assert f'{{"{source}":{{"0":7}}}}' in caught.value.way_out
    named = re.search(r"kafka-eos (recover [^;]*);", caught.value.way_out)
    assert named is not None
    assert main([*shlex.split(named[1]), "--yes"]) == 0
    rows = Counter(record.value for record in read_committed(servers, str(old.batch.topic)))
    assert (len(rows), set(rows.values())) == (2 * ROWS, {1})
    new = batch_of_a_query(any_kafka, source, group, begins=7, ends=9)
    plan = session.plan(new)
    session.commit(new, plan, tasks(new, plan))
    assert_nothing_open(servers, [str(old.batch.topic), str(new.batch.topic)])


def test_plan_waits_for_a_decision_of_the_lost_query(any_kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its transaction holds the group's offsets: whether the rows are written is not known before it has ended."""
    servers = any_kafka.bootstrap_servers
    source, group = create_topic(servers), unique_topic("group")
    old = batch_of_a_query(any_kafka, source, group, begins=0, ends=7)
    decided(old, "commit.decision_written", monkeypatch, 2)
    new = batch_of_a_query(any_kafka, source, group, begins=0, ends=9)
    hasty = replace(new, producer=ProducerConfig(delivery_timeout_ms=2_000))
    with pytest.raises(BrokerUnavailableError, match="UNSTABLE_OFFSET_COMMIT"):
        session.plan(hasty)
    assert main(["recover", "--yes", "--bootstrap-servers", servers, "--write-id", old.write.id]) == 0
    assert read_committed(servers, str(old.batch.topic)) == []
    plan = session.plan(new)  # the decision was aborted, so the group has no offsets, and all rows are to be written
    session.commit(new, plan, tasks(new, plan))
    rows = Counter(record.value for record in read_committed(servers, str(new.batch.topic)))
    assert (len(rows), set(rows.values())) == (2 * ROWS, {1})
    assert_nothing_open(servers, [str(old.batch.topic), str(new.batch.topic)])
