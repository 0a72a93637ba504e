"""Writes through a `FaultProxy`, as Spark would drive them, and what an independent client sees of them afterwards.

A write here is plan, tasks and commit of `kafka_eos_sink.runtime.session`. Each of its tasks has ROWS numbered rows in
several batches, the even ones for partition 0 and the odd ones for partition 1.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pyarrow as pa

from dead_writes import ROWS, varied, write_settings
from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.config import ClientConfig, parse_bootstrap_servers
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.producer.rows import Rows
from kafka_eos_sink.protocol.record_columns import RecordColumns
from kafka_eos_sink.runtime import at_least_once, session
from kafka_testing import BEING_ENDED, OPEN, PATIENCE_S, unique_topic, wait_until

from .fault_proxy import FaultProxy

PARTITIONS = 2
TASKS = 2
BATCH_SIZE = 40
"""Bytes: two or three rows a batch, so that a task sends several to each partition."""
TOPICS_AT_ONCE = 40
LOOK_EVERY_S = 0.01


class Bench:
    """One broker, the proxy before it, and what looks at the broker past the proxy."""

    def __init__(self, kafka: EmbeddedKafka) -> None:
        self.kafka = kafka
        self.proxy = FaultProxy(kafka.bootstrap_servers).__enter__()
        self._topics: list[str] = []
        self._open_before: dict[str, str] = {}
        self._confluent = confluent_kafka.admin.AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        past_the_proxy = parse_bootstrap_servers(kafka.bootstrap_servers)
        self._client = NetworkClient(ClientConfig(bootstrap_servers=past_the_proxy, retry_backoff_ms=5))
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": kafka.bootstrap_servers,
                "group.id": unique_topic("reader"),
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,  # under read_committed that is the last stable offset
                "auto.offset.reset": "error",
                # A topic that is new to the consumer costs it a backoff or two; the defaults are half a second.
                "fetch.wait.max.ms": 5,
                "fetch.error.backoff.ms": 5,
                "retry.backoff.ms": 5,
                "topic.metadata.refresh.fast.interval.ms": 5,
            }
        )

        # The first use of transactions and of the commit log creates their topics, which takes seconds.
        write_whole(self.write_settings(self.topic()))

    def close(self) -> None:
        self._consumer.close()
        self._client.close()
        self.proxy.__exit__(None, None, None)

    def begin(self) -> None:
        """Before a test: no fault, no connection, and what a failed test left open is not this one's."""
        self.proxy.disconnect()
        self.proxy.inject()
        self._open_before = self._listed_as_open()

    # what to write with

    def topic(self) -> str:
        """A topic of PARTITIONS partitions that nobody has written to; made many at a time."""
        if not self._topics:
            names = [unique_topic("faulty") for _ in range(TOPICS_AT_ONCE)]
            wanted = [confluent_kafka.admin.NewTopic(name, num_partitions=PARTITIONS) for name in names]
            for future in self._confluent.create_topics(wanted, operation_timeout=30).values():
                future.result(PATIENCE_S)
            wait_until(lambda: self._all_led(names), "leaders of new topics", pause_s=LOOK_EVERY_S)
            # Which show themselves before their logs are made; this one is asked again until they are.
            partitions = [(name, partition) for name in names for partition in range(PARTITIONS)]
            Admin(self._client).list_offsets(partitions, self._client.clock() + 60_000)
            self._topics = names
        return self._topics.pop()

    def client_config(self, **settings: Any) -> ClientConfig:
        """Through the proxy, with backoffs that suit a test."""
        return ClientConfig(
            **{
                "bootstrap_servers": parse_bootstrap_servers(self.proxy.bootstrap_servers),
                "retry_backoff_ms": 5,
                "retry_backoff_max_ms": 40,
                "reconnect_backoff_ms": 5,
                "reconnect_backoff_max_ms": 40,
                "request_timeout_ms": 20_000,
                "client_id": unique_topic("client"),
                **settings,
            }
        )

    def write_settings(
        self, topic: str, *, client: dict[str, Any] | None = None, commit_log: str | None = None, **producer: Any
    ) -> session.WriteSettings:
        settings = write_settings(self.proxy, topic)  # type: ignore[arg-type]
        return varied(
            settings,
            client=self.client_config(**(client or {})),
            producer=replace(
                settings.producer,
                **{"batch_size": BATCH_SIZE, "delivery_timeout_ms": 60_000, "max_block_ms": 60_000, **producer},
            ),
            commit_log_topic=commit_log or settings.write.log_topic,
        )

    # what came of it

    def read(self, topic: str) -> list[list[int]]:
        """The numbers in each partition, in their order, as a read_committed consumer of librdkafka gets them."""
        wait_until(lambda: not self._being_ended(), lambda: f"the end of {self._being_ended()}", pause_s=LOOK_EVERY_S)
        beginning = confluent_kafka.OFFSET_BEGINNING
        self._consumer.list_topics(topic, timeout=PATIENCE_S)
        self._consumer.assign(
            [confluent_kafka.TopicPartition(topic, partition, beginning) for partition in range(PARTITIONS)]
        )
        found: list[list[int]] = [[] for _ in range(PARTITIONS)]
        unread = set(range(PARTITIONS))
        give_up_at = time.monotonic() + PATIENCE_S
        while unread:
            assert time.monotonic() < give_up_at, f"{topic}: the end of partitions {sorted(unread)} was not reached"
            for message in self._consumer.consume(1_000, timeout=0.05):
                error = message.error()
                if message.topic() != topic:
                    continue
                if error is None:
                    found[message.partition()].append(int((message.value() or b"").rstrip(b".")))
                elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    unread.discard(message.partition())
                else:
                    raise confluent_kafka.KafkaException(error)
        return found

    def assert_exactly_once(self, topic: str, count: int = TASKS * ROWS) -> None:
        """The numbers below `count`, each once, those of a task ascending in each partition. Tasks run at once, as do their copies."""
        found = self.read(topic)
        assert Counter(number for partition in found for number in partition) == Counter(range(count))
        of_tasks = [[number for number in rows if number // ROWS == task] for rows in found for task in range(count)]
        assert of_tasks == [sorted(rows) for rows in of_tasks]

    def assert_nothing_visible(self, topic: str) -> None:
        assert self.read(topic) == [[] for _ in range(PARTITIONS)]

    def assert_nothing_open(self, topic: str, of: str = "") -> None:
        """No transaction (whose id begins with `of`) is open that was not before the test, and readers of the topic get to the end of
        its log."""
        wait_until(
            lambda: not self._open(topic, of),
            lambda: f"the end of what is still open: {self._open(topic, of)}",
            pause_s=LOOK_EVERY_S,
        )

    def open_transactions(self) -> dict[str, str]:
        """The state of each transaction that is open, or being ended, and was not before the test."""
        return {name: state for name, state in self._listed_as_open().items() if name not in self._open_before}

    def committed_offsets(self, group: str, topic: str) -> list[int | None]:
        """The group's offset in each partition, None where it has none."""
        consumer = confluent_kafka.Consumer({"bootstrap.servers": self.kafka.bootstrap_servers, "group.id": group})
        try:
            asked = [confluent_kafka.TopicPartition(topic, partition) for partition in range(PARTITIONS)]
            found = consumer.committed(asked, timeout=PATIENCE_S)
        finally:
            consumer.close()
        return [None if each.offset < 0 else each.offset for each in found]

    def _open(self, topic: str, of: str) -> list[str]:
        admin, partitions = Admin(self._client), [(topic, partition) for partition in range(PARTITIONS)]
        deadline = self._client.clock() + 60_000
        stable = admin.list_offsets(partitions, deadline)
        ends = admin.list_offsets(partitions, deadline, isolation="read_uncommitted")
        held = [f"{where} stable to {stable[where]} of {ends[where]}" for where in partitions]
        return [
            *(f"{name} is {state}" for name, state in sorted(self.open_transactions().items()) if name.startswith(of)),
            *(line for where, line in zip(partitions, held, strict=True) if stable[where] < ends[where]),
        ]

    def _listed_as_open(self) -> dict[str, str]:
        listed = Admin(self._client).list_transactions(states=OPEN, deadline_ms=self._client.clock() + 60_000)
        return {each.transactional_id: each.transaction_state for each in listed}

    def _being_ended(self) -> list[str]:
        """What has been ended and has not all of its markers: a coordinator answers EndTxn before it has them written."""
        return [name for name, state in self._listed_as_open().items() if state in BEING_ENDED]

    def _all_led(self, names: Sequence[str]) -> bool:
        topics = self._confluent.list_topics(timeout=PATIENCE_S).topics
        return all(
            name in topics
            and len(topics[name].partitions) == PARTITIONS
            and all(each.leader >= 0 for each in topics[name].partitions.values())
            for name in names
        )


def numbered(topic: str, first: int, count: int, *, partition: int | None = None, size: int = 0) -> Rows:
    """Rows with the numbers from `first` on, the even ones for partition 0 and the odd ones for 1, or all for `partition`."""
    numbers = range(first, first + count)
    return Rows(
        topic=topic,
        partition=pa.array([number % PARTITIONS if partition is None else partition for number in numbers], pa.int32()),
        columns=RecordColumns(value=pa.array([(b"%d" % number).ljust(size, b".") for number in numbers])),
    )


def of_process(settings: session.WriteSettings, name: str) -> session.WriteSettings:
    """The settings in a process of their own: planner, tasks and committer share no connection, as in Spark."""
    return varied(settings, client=replace(settings.client, client_id=f"{settings.client.client_id}-{name}"))


def write_whole(settings: session.WriteSettings) -> None:
    """A whole write: two tasks, then the commit."""
    plan = session.plan(of_process(settings, "planner"))
    session.commit(of_process(settings, "committer"), plan, write_tasks(settings, plan))


def write_tasks(settings: session.WriteSettings, plan: session.Plan) -> list[session.TaskMessage]:
    """What the tasks hand over; each gets its rows in two deliveries."""
    topic = settings.batch.topic or ""

    def rows(task: int) -> Iterator[Rows]:
        yield numbered(topic, task * ROWS, ROWS // 2)
        yield numbered(topic, task * ROWS + ROWS // 2, ROWS - ROWS // 2)

    return [
        session.write_task(
            of_process(settings, f"task-{task}"),
            plan,
            session.TaskIdentity(partition=task, attempt_number=0, task_attempt_id=task),
            rows(task),
        )
        for task in range(TASKS)
    ]


def write_at_least_once(settings: session.WriteSettings) -> None:
    """All rows in one task without a transaction."""
    rows = iter([numbered(settings.batch.topic or "", 0, ROWS), numbered(settings.batch.topic or "", ROWS, ROWS)])
    at_least_once.write_rows(settings, rows)
