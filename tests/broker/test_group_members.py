"""A consumer in the group of `source.offsets.group`: refused in a query's first batch, warned of once in later ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import confluent_kafka
import confluent_kafka.admin
import pytest

from dead_writes import ROWS, tasks, varied, write_all, write_settings
from kafka_eos_sink.commit.decide import GroupOffsets
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.errors import ConfigurationError
from kafka_eos_sink.runtime import session
from kafka_testing import assert_nothing_open, change_config, create_topic, read_committed, unique_topic, wait_until
from tests.broker.share_reader import share_reader

CONSUMERS_OFFSET = 3


class Query:
    """Commits offset 10 of its source with batch 0, 20 with batch 1."""

    def __init__(self, kafka: EmbeddedKafka, group: str) -> None:
        self.servers, self.group = kafka.bootstrap_servers, group
        self.source, query_id = create_topic(self.servers, partitions=1), unique_topic("query")
        given = write_settings(
            kafka, create_topic(self.servers), write_id=f"kafka-eos-{query_id}", query_id=query_id, version=0
        )
        self.given, self.topic = varied(given, streaming=True), str(given.batch.topic)

    def settings(self, version: int) -> session.WriteSettings:
        offsets = GroupOffsets(group_id=self.group, offsets=((self.source, 0, 10 * (version + 1)),))
        return replace(varied(self.given, version=version), group_offsets=offsets)

    def committed(self) -> int:
        request = confluent_kafka.ConsumerGroupTopicPartitions(self.group)
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": self.servers})
        (found,) = admin.list_consumer_group_offsets([request])[self.group].result(60).topic_partitions
        return int(found.offset)

    def is_refused(self) -> str:
        """By which message; no row becomes visible."""
        given = self.settings(0)
        plan = session.plan(given)
        messages = tasks(given, plan)
        with pytest.raises(ConfigurationError, match="SOURCE_OFFSETS") as caught:
            session.commit(given, plan, messages)
        session.abort(given, plan, messages)
        assert read_committed(self.servers, self.topic) == []
        assert_nothing_open(self.servers, [self.topic])
        return str(caught.value)

    @contextmanager
    def member(self, protocol: str) -> Iterator[confluent_kafka.Consumer]:
        """A real consumer in the query's group, of the classic protocol or KIP-848."""
        settings = {"group.protocol": protocol, "enable.auto.commit": False}
        consumer = confluent_kafka.Consumer({"bootstrap.servers": self.servers, "group.id": self.group, **settings})
        consumer.subscribe([self.source])
        wait_until(consumer.assignment, "the consumer's partitions", meanwhile=lambda: consumer.poll(0.1))
        try:
            yield consumer
        finally:
            consumer.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_first_batch_into_a_group_with_members_is_refused(any_kafka: EmbeddedKafka, protocol: str) -> None:
    query = Query(any_kafka, unique_topic("group"))
    with query.member(protocol) as consumer:
        consumer.commit(offsets=[confluent_kafka.TopicPartition(query.source, 0, CONSUMERS_OFFSET)], asynchronous=False)
        text = query.is_refused()
        members = (
            f"kafka-consumer-groups.sh --bootstrap-server {query.servers} --describe --members --group {query.group}"
        )
        assert f"consumer group '{query.group}' of source.offsets.group has members" in text
        assert members in text
        assert query.committed() == CONSUMERS_OFFSET
    write_all(query.settings(0))
    assert (query.committed(), len(read_committed(query.servers, query.topic))) == (10, 2 * ROWS)


def test_share_group_holds_no_offsets_of_a_query(kafka: EmbeddedKafka, kafka_jars: Path) -> None:
    query = Query(kafka, unique_topic("group"))
    change_config(query.servers, "group", query.group, "share.auto.offset.reset", "earliest")
    producer = confluent_kafka.Producer({"bootstrap.servers": query.servers})
    producer.produce(query.source, "a row")
    assert producer.flush(30) == 0
    with share_reader(kafka, kafka_jars, query.group, query.source) as records:
        assert next(records) == ["0", "a row"]
        text = query.is_refused()
    assert f"the group '{query.group}' of source.offsets.group is no consumer group" in text
