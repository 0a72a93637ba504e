"""``kafka-eos topics``: a cluster's topics and how much of them consumers see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from kafka_eos_sink.cli import console
from kafka_eos_sink.client.admin import Admin, connected
from kafka_eos_sink.client.metadata import TopicMetadata
from kafka_eos_sink.client.topics_admin import EARLIEST
from kafka_eos_sink.operations.transactions import open_transactions


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSize:
    """A topic.

    replicas           the smallest number of replicas that a partition has
    visible_offsets    last stable offset minus log start, over all partitions; None if a partition has no leader
    open_transactions  how many transactions with rows in the topic are open
    """

    name: str
    partitions: int
    replicas: int
    visible_offsets: int | None
    open_transactions: int


def topics(
    as_json: console.AsJson = False,
    bootstrap_servers: console.BootstrapServers = None,
    properties: console.PropertiesFile = None,
) -> None:
    """Show the topics, and how much of them consumers see.

    Visible offsets are those that read_committed consumers can reach. They are an upper bound for the visible rows, because
    transaction markers and aborted rows also have offsets. The command does not show Kafka's internal topics.

    Example: kafka-eos topics

    To read the rows of a topic: kafka-eos consume
    """
    with connected(console.client_config(bootstrap_servers, properties)) as admin:
        found = topic_sizes(admin, console.TIMEOUT_MS)
    console.present(found, as_json, topics_table, "There is no topic, or the Describe permission is missing.")


def topic_sizes(admin: Admin, timeout_ms: int) -> list[TopicSize]:
    """Return the topics by name, without Kafka's internal ones, in ``timeout_ms``."""
    deadline = admin.client.clock() + timeout_ms
    found = [topic for topic in admin.topics(deadline) if not topic.is_internal]
    led = [
        (str(topic.name), each.partition_index) for topic in found for each in topic.partitions if each.leader_id >= 0
    ]
    first = admin.list_offsets(led, deadline, isolation="read_uncommitted", timestamp=EARLIEST)
    stable = admin.list_offsets(led, deadline, isolation="read_committed")
    # A transaction with many partitions of a topic counts once.
    open_in = Counter(
        name for state in open_transactions(admin, timeout_ms) for name in {topic for topic, _ in state.partitions}
    )

    def size(topic: TopicMetadata) -> TopicSize:
        name = str(topic.name)
        where = [(name, each.partition_index) for each in topic.partitions]
        return TopicSize(
            name=name,
            partitions=len(where),
            replicas=topic.replication_factor,
            visible_offsets=sum(stable[each] - first[each] for each in where) if first.keys() >= set(where) else None,
            open_transactions=open_in[name],
        )

    return [size(topic) for topic in found]


def topics_table(found: Sequence[TopicSize]) -> Table:
    columns = ("topic", "partitions", "replicas", "visible offsets", "open transactions")

    def row(topic: TopicSize) -> console.Row:
        visible = "no leader" if topic.visible_offsets is None else topic.visible_offsets
        return topic.name, topic.partitions, topic.replicas, visible, topic.open_transactions

    return console.table(columns, map(row, found))
