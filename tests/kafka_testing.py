"""What tests of a real Kafka share: topics, readers that are not ours, and the question whether anything stayed open.

Importable from every test as ``kafka_testing`` (pytest's ``pythonpath`` names the folder). The readers are librdkafka
(confluent-kafka) and kafka-python, so that what they see does not depend on code of this project.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import confluent_kafka
import confluent_kafka.admin
import kafka as kafka_python

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.config import ClientConfig, parse_bootstrap_servers
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.client.pump import monotonic_ms
from kafka_eos_sink.client.transactions_admin import EndTransaction
from kafka_eos_sink.commit.log_records import part_record
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.producer.producer import Producer
from kafka_eos_sink.protocol.identity import ProducerIdentity
from kafka_eos_sink.protocol.messages import FindCoordinatorRequest
from kafka_eos_sink.runtime import part_producer
from kafka_eos_sink.settings.kafka_properties import read_kafka_properties

PATIENCE_S = 60.0
OPEN = ("Ongoing", "PrepareCommit", "PrepareAbort")
BEING_ENDED = OPEN[1:]
READERS: tuple[Literal["confluent", "kafka-python"], ...] = ("confluent", "kafka-python")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRecord:
    """One record as a consumer got it; timestamp in ms since 1970."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int


def of_properties(properties: Mapping[str, str]) -> ClientConfig:
    """The client of a properties file with these lines, which has no problem."""
    problems: list[str] = []
    found = read_kafka_properties({"client.id": "test", **properties}, problems)
    assert problems == []
    assert found is not None
    return found.client


def started_producer(
    client: NetworkClient,
    transactional_id: str | None,
    config: ProducerConfig | None = None,
    within_ms: int = int(PATIENCE_S * 1_000),
) -> Producer:
    """A producer in a transaction, as a task begins one; without a transactional id one that is only idempotent."""
    admin, config, deadline_ms = Admin(client), config or ProducerConfig(), client.clock() + within_ms
    if transactional_id is None:
        producer = Producer(admin, config, transactional_id=None)
        producer.init_producer_id(deadline_ms)
        return producer
    return part_producer.begin(admin, config, initialised(admin, transactional_id, deadline_ms))


def initialised(admin: Admin, transactional_id: str, deadline_ms: int | None = None) -> ProducerIdentity:
    """What InitProducerId gives, with the transaction version of the cluster."""
    deadline_ms = deadline_ms or admin.client.clock() + int(PATIENCE_S * 1_000)
    producer_id, epoch = admin.init_producer_id(transactional_id, 60_000, deadline_ms)
    return ProducerIdentity(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=epoch,
        transaction_version=admin.transaction_version(deadline_ms),
    )


def end_as_driver(
    client: NetworkClient, prepared: ProducerIdentity, committed: bool, deadline_ms: int | None = None
) -> int | None:
    """The code of the driver's EndTxn of what a task has handed over; None: no answer."""
    end = EndTransaction(prepared, committed)
    (result,) = Admin(client).end_transactions([end], deadline_ms or client.clock() + int(PATIENCE_S * 1_000))
    return result.error_code


def commit_as_driver(client: NetworkClient, producer: Producer) -> None:
    """Hand the transaction over, and commit it."""
    assert end_as_driver(client, producer.prepare(), committed=True) == 0


def unique_topic(prefix: str = "topic") -> str:
    """A name that no other test has."""
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


def wait_until(
    condition: Callable[[], Any],
    what: str | Callable[[], str],
    *,
    meanwhile: Callable[[], object] = lambda: None,
    patience_s: float = PATIENCE_S,
    pause_s: float = 0.05,
) -> None:
    """Looks again until the condition holds; `meanwhile` is done between two looks. `what` (or what it returns) names what is missing."""
    give_up_at = time.monotonic() + patience_s
    while True:
        last = time.monotonic() >= give_up_at  # before the look, which may itself be held up
        if condition():
            return
        assert not last, f"waited {patience_s:g} s for {what if isinstance(what, str) else what()}"
        meanwhile()
        time.sleep(pause_s)


def create_topic(
    bootstrap_servers: str,
    name: str | None = None,
    *,
    partitions: int = 4,
    replication_factor: int = -1,
    configs: Mapping[str, str] | None = None,
) -> str:
    """Creates a topic (a unique name unless given; -1 is the cluster's own replication) and waits for its leaders."""
    name = unique_topic() if name is None else name
    admin = _confluent_admin(bootstrap_servers)
    new = confluent_kafka.admin.NewTopic(
        name, num_partitions=partitions, replication_factor=replication_factor, config=dict(configs or {})
    )
    admin.create_topics([new], operation_timeout=30)[name].result(PATIENCE_S)

    def led() -> bool:
        found = admin.list_topics(name, timeout=PATIENCE_S).topics[name]
        return len(found.partitions) == partitions and all(part.leader >= 0 for part in found.partitions.values())

    wait_until(led, f"leaders of topic {name}")
    wait_until(lambda: _answers_for(admin, name, partitions), f"the logs of topic {name}")
    return name


def _answers_for(admin: confluent_kafka.admin.AdminClient, topic: str, partitions: int) -> bool:
    """Whether each leader has made its log; a broker shows itself as the leader a moment before."""
    latest = confluent_kafka.admin.OffsetSpec.latest()
    asked = {confluent_kafka.TopicPartition(topic, partition): latest for partition in range(partitions)}
    answers = admin.list_offsets(asked, request_timeout=PATIENCE_S)
    return all(answer.exception(PATIENCE_S) is None for answer in answers.values())


def topic_names(bootstrap_servers: str) -> set[str]:
    """All topics. A request for all of them creates none, in contrast to one that names a topic."""
    return set(_confluent_admin(bootstrap_servers).list_topics(timeout=PATIENCE_S).topics)


def delete_topic(bootstrap_servers: str, name: str) -> None:
    """Deletes a topic and waits until the cluster does not list it any more."""
    admin = _confluent_admin(bootstrap_servers)
    admin.delete_topics([name])[name].result(PATIENCE_S)
    wait_until(lambda: name not in topic_names(bootstrap_servers), f"the end of topic {name}")


def change_config(
    bootstrap_servers: str, kind: Literal["topic", "broker", "group"], name: str, key: str, value: str
) -> None:
    """Sets a dynamic property and waits until the broker shows it: the controller has it first, and the broker follows."""
    admin = _confluent_admin(bootstrap_servers)
    entry = confluent_kafka.admin.ConfigEntry(
        key, value, incremental_operation=confluent_kafka.admin.AlterConfigOpType.SET
    )
    resource = confluent_kafka.admin.ConfigResource(kind, name, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)
    wait_until(lambda: admin.describe_configs([resource])[resource].result(PATIENCE_S)[key].value == value, key)


def read_committed(
    bootstrap_servers: str,
    topic: str,
    *,
    reader: Literal["confluent", "kafka-python"] = "confluent",
    security: Mapping[str, str] | None = None,
) -> list[ReadRecord]:
    """All records of `topic` up to its last stable offsets, as a read_committed consumer gets them.

    In order of partition, then offset. Where a transaction is open, that is less than the topic holds; see
    `assert_nothing_open`. `security` are librdkafka's own properties for a listener that is not plaintext.
    """
    if security is not None:
        records = _read_with_confluent(bootstrap_servers, topic, "read_committed", security)
        return sorted(records, key=lambda record: (record.partition, record.offset))
    return _read(bootstrap_servers, topic, reader, "read_committed")


def read_uncommitted(
    bootstrap_servers: str, topic: str, *, reader: Literal["confluent", "kafka-python"] = "confluent"
) -> list[ReadRecord]:
    """All records of `topic` up to its high watermarks, those of open and aborted transactions too."""
    return _read(bootstrap_servers, topic, reader, "read_uncommitted")


def _read(bootstrap_servers: str, topic: str, reader: str, isolation: str) -> list[ReadRecord]:
    if reader not in READERS:
        raise ValueError(f"no reader {reader!r}; there are {READERS}")
    read = _read_with_confluent if reader == "confluent" else _read_with_kafka_python
    records = read(bootstrap_servers, topic, isolation)
    return sorted(records, key=lambda record: (record.partition, record.offset))


def _read_with_confluent(
    bootstrap_servers: str, topic: str, isolation: str, security: Mapping[str, str] | None = None
) -> list[ReadRecord]:
    consumer = confluent_kafka.Consumer(
        {
            **(security or {}),
            "bootstrap.servers": bootstrap_servers,
            "group.id": f"reader-{uuid.uuid4()}",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,  # under read_committed that is the last stable offset
            "auto.offset.reset": "error",
        }
    )
    try:
        unread = set(consumer.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions)
        assert unread, f"there is no topic {topic}"
        beginning = confluent_kafka.OFFSET_BEGINNING
        consumer.assign([confluent_kafka.TopicPartition(topic, each, beginning) for each in sorted(unread)])
        records: list[ReadRecord] = []
        give_up_at = time.monotonic() + PATIENCE_S
        while unread:
            assert time.monotonic() < give_up_at, f"{topic}: the ends of {sorted(unread)} were not reached"
            for message in consumer.consume(10_000, timeout=0.2):
                error = message.error()
                if error is None:
                    record = ReadRecord(
                        partition=message.partition(),
                        offset=message.offset(),
                        key=message.key(),
                        value=message.value(),
                        headers=tuple(message.headers() or ()),
                        timestamp=message.timestamp()[1],
                    )
                    records.append(record)
                elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    unread.discard(message.partition())
                else:
                    raise confluent_kafka.KafkaException(error)
        return records
    finally:
        consumer.close()


def _read_with_kafka_python(bootstrap_servers: str, topic: str, isolation: str) -> list[ReadRecord]:
    consumer = kafka_python.KafkaConsumer(
        bootstrap_servers=bootstrap_servers.split(","),
        group_id=None,
        isolation_level=isolation,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        allow_auto_create_topics=False,
    )
    try:
        found = consumer.partitions_for_topic(topic)
        assert found, f"there is no topic {topic}"
        partitions = [kafka_python.TopicPartition(topic, each) for each in found]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        ends = consumer.end_offsets(partitions)  # under read_committed the last stable offsets
        records: list[ReadRecord] = []
        give_up_at = time.monotonic() + PATIENCE_S
        while unread := [each for each in partitions if consumer.position(each) < ends[each]]:
            assert time.monotonic() < give_up_at, f"{topic}: the ends of {unread} were not reached"
            for where, batch in consumer.poll(timeout_ms=200, max_records=10_000).items():
                for record in batch:
                    if record.offset < ends[where]:
                        read = ReadRecord(
                            partition=record.partition,
                            offset=record.offset,
                            key=record.key,
                            value=record.value,
                            headers=tuple(record.headers),
                            timestamp=record.timestamp,
                        )
                        records.append(read)
        return records
    finally:
        consumer.close()


def open_transaction(
    servers: str, transactional_id: str, topic: str, *more: tuple[str, int], partitions: int = 3
) -> confluent_kafka.Producer:
    """Of somebody with this id, on the first partitions of a topic and on some others (there as a part record would be)."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": servers, "transactional.id": transactional_id, "transaction.timeout.ms": 600_000}
    )
    producer.init_transactions(60)
    producer.begin_transaction()
    for partition in range(partitions):
        producer.produce(topic, b"-1", partition=partition)
    part = part_record(transactional_id.rsplit(".", 2)[0], "some query", 0, 0, 0)
    for where in more:
        producer.produce(where[0], part.value, part.key, partition=where[1])
    assert producer.flush(60) == 0
    return producer


def assert_nothing_open(
    bootstrap_servers: str, topics: Collection[str] | None = None, *, of: str = "", patience_s: float = PATIENCE_S
) -> None:
    """No transaction is open or being ended, and every last stable offset is at the end of its log.

    Of all topics unless some are given, and of all transactional ids that begin with `of`. A broker writes the markers
    after it has answered EndTxn, so what is still being ended gets `patience_s`.
    """
    problems: list[str] = []

    def look() -> bool:
        problems[:] = [
            *(line for name, line in _transactions_in(bootstrap_servers, *OPEN) if name.startswith(of)),
            *_held_partitions(bootstrap_servers, topics),
        ]
        return not problems

    wait_until(
        look, lambda: "the end of what is still open: " + "; ".join(problems), patience_s=patience_s, pause_s=0.1
    )


def await_markers(bootstrap_servers: str) -> None:
    """What has been ended is ended in its partitions, too: a coordinator answers EndTxn before it has the markers written."""
    wait_until(lambda: not _transactions_in(bootstrap_servers, *BEING_ENDED), "the markers of what was ended")


def _transactions_in(bootstrap_servers: str, *states: str) -> list[tuple[str, str]]:
    """The transactional ids, and what to say of each."""
    config = ClientConfig(bootstrap_servers=parse_bootstrap_servers(bootstrap_servers))
    with NetworkClient(config) as client:
        until = monotonic_ms() + int(PATIENCE_S * 1_000)
        listed = Admin(client).list_transactions(states=states, deadline_ms=until)
    return [
        (each.transactional_id, f"transaction {each.transactional_id} is {each.transaction_state}") for each in listed
    ]


def _held_partitions(bootstrap_servers: str, topics: Collection[str] | None) -> list[str]:
    admin = _confluent_admin(bootstrap_servers)
    found = admin.list_topics(timeout=PATIENCE_S).topics
    partitions = [
        confluent_kafka.TopicPartition(name, partition)
        for name, topic in found.items()
        if topics is None or name in topics
        for partition in topic.partitions
    ]
    latest = {partition: confluent_kafka.admin.OffsetSpec.latest() for partition in partitions}
    ends: dict[str, dict[tuple[str, int], int]] = {}
    for isolation in ("READ_COMMITTED", "READ_UNCOMMITTED"):
        level = getattr(confluent_kafka.IsolationLevel, isolation)
        answers = admin.list_offsets(latest, isolation_level=level, request_timeout=PATIENCE_S) if latest else {}
        try:
            ends[isolation] = {(each.topic, each.partition): answer.result().offset for each, answer in answers.items()}
        except confluent_kafka.KafkaException as moved:  # a topic that was deleted meanwhile, a leader that has changed
            return [f"the ends of the logs are not known: {moved}"]
    return [
        f"{topic}-{partition} is stable up to {stable} of {ends['READ_UNCOMMITTED'][topic, partition]}"
        for (topic, partition), stable in sorted(ends["READ_COMMITTED"].items())
        if stable < ends["READ_UNCOMMITTED"][topic, partition]
    ]


def _confluent_admin(bootstrap_servers: str) -> confluent_kafka.admin.AdminClient:
    return confluent_kafka.admin.AdminClient({"bootstrap.servers": bootstrap_servers})


def find_coordinators(admin: Admin, keys: Iterable[str], deadline_ms: int, *, key_type: int = 1) -> dict[str, int]:
    """The node id of each coordinator; `key_type` is 1 for transactional ids, 0 for groups."""
    request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=tuple(keys))
    while True:
        found = admin.client.call(admin.client.any_node(deadline_ms), request, deadline_ms=deadline_ms).coordinators
        if not any(each.error_code for each in found):
            for each in found:
                admin.client.learn_broker(each.node_id, each.host, each.port)
            return {each.key: each.node_id for each in found}
        assert admin.client.clock() < deadline_ms, found
        admin.client.wait(100, deadline_ms)
