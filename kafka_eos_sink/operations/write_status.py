"""Reads the writes in the commit log, and then only what was appended to it."""

from __future__ import annotations

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.commit.log_access import read_to_end
from kafka_eos_sink.commit.log_view import LogView
from kafka_eos_sink.commit.refusals import refused
from kafka_eos_sink.commit.values import DEFAULT_TOPIC, LOG_PARTITIONS, log_partition_of
from kafka_eos_sink.commit.write_states import ENDED, FOREIGN_SHOWN, CommittedWrite, QueryIds, Writes, writes_by_query
from kafka_eos_sink.errors import BrokerUnavailableError
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.protocol.identity import TopicPartition
from kafka_eos_sink.runtime.executor import Executor


class CommitLogWatch:
    """Reads the commit log once, and from then on only what was appended to it.

    Args:
        timeout_ms: Bounds each request.
        write_id: None for all.
    """

    def __init__(
        self, admin: Admin, topic: str = DEFAULT_TOPIC, *, timeout_ms: int, write_id: str | None = None
    ) -> None:
        self._admin = admin
        self._topic = topic
        self._timeout_ms = timeout_ms
        partitions = range(LOG_PARTITIONS) if write_id is None else [log_partition_of(write_id)]
        self._views = {(topic, partition): LogView(write_id) for partition in partitions}
        self._known: dict[TopicPartition, dict[QueryIds, Writes]] = {where: {} for where in self._views}
        self.knows_write = False
        """Whether the log holds a decision or a run's begin of the write id, of any without one."""
        self.producer_ids: set[int] = set()
        """Of the tasks in the log; only with a write id."""
        self._is_of_one = write_id is not None

    def writes(self) -> tuple[CommittedWrite, ...]:
        """Return the writes in the commit log, the last finished ones last.

        Raises:
            BrokerRefusedError: NO_COMMIT_LOG if the topic does not exist.
            BrokerUnavailableError: REQUEST_DEADLINE if a partition cannot be read.
        """
        deadline = self._admin.client.clock() + self._timeout_ms
        if self._admin.topic(self._topic, deadline) is None:
            raise refused("NO_COMMIT_LOG", topic=self._topic)
        ends = self._admin.list_offsets(self._views, deadline, isolation="read_uncommitted")
        config = ProducerConfig(delivery_timeout_ms=self._timeout_ms)
        found: list[CommittedWrite] = []
        for where, view in self._views.items():
            # NEW LOG: it may be shorter than the old position.
            if ends[where] < view.next_offset:
                view.restart()
            if view.next_offset < ends[where]:
                Executor(self._admin, where, config).run(read_to_end(view))
                if view.next_offset < ends[where]:
                    raise BrokerUnavailableError(
                        "REQUEST_DEADLINE",
                        f"partition {where[1]} of the commit log {self._topic!r} was read to offset {view.next_offset} of {ends[where]}: "
                        "its brokers may be down; run the command again",
                    )
            self._known[where] = known = writes_by_query(view, self._known[where])
            writes = [write for of_query in known.values() for write in of_query]
            # Now, because a view forgets the barriers and the parts.
            self.knows_write |= not view.lacks_write
            if self._is_of_one:
                self.producer_ids |= view.producer_ids
            found += writes
            # A watch may run for weeks. Only a write in progress still needs its parts, and no other write keeps them for it.
            in_progress = {
                (write.write_id, write.query_id) for write in writes if write.state not in (*ENDED, "unreadable")
            }
            view.forget_superseded(in_progress, FOREIGN_SHOWN)
        return tuple(
            sorted(found, key=lambda write: (write.finished_ms is None, write.finished_ms or 0, write.write_id))
        )
