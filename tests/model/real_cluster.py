"""The requests of the simulation, sent one by one to a real broker.

Markers are waited for after every action (the simulation writes them at once then), so that both see the same cluster before the next one.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.protocol import messages
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.record_batch import encode_rows, read_record_batches, seal
from kafka_testing import find_coordinators

from . import simulated_cluster as kafka
from .simulated_cluster import Identity

REPEATED = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
    }
)


class RealCluster:
    """One topic of a broker with one node; its partition 0 stands for the commit log."""

    def __init__(self, admin: Admin, topic: str, partitions: int, version: int) -> None:
        self.admin = admin
        self.topic = topic
        self.version = version
        self.partitions = partitions
        admin.create_topic(topic, partitions, 1, {}, self.deadline)
        self.node = admin.client.any_node(self.deadline)

    @property
    def deadline(self) -> int:
        return self.admin.client.clock() + 60_000

    def _call(self, request: Any, code_of: Any, max_version: int | None = None) -> Any:
        deadline = self.admin.client.clock() + 60_000
        while True:
            response = self.admin.client.call(self.node, request, deadline_ms=deadline, max_version=max_version)
            if code_of(response) not in REPEATED:
                return response
            if self.admin.client.clock() > deadline:
                raise AssertionError(f"{request} is answered {ErrorCode.of(code_of(response)).name} for ever")
            self.admin.client.pump(5)

    def init_producer_id(self, transactional_id: str, timeout_ms: int) -> tuple[int, int]:
        find_coordinators(self.admin, [transactional_id], self.deadline)
        return self.admin.init_producer_id(transactional_id, timeout_ms, self.deadline)

    def add_partition(self, identity: Identity, partition: int) -> int:
        request = messages.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=identity.transactional_id,
            v3_and_below_producer_id=identity.producer_id,
            v3_and_below_producer_epoch=identity.producer_epoch,
            v3_and_below_topics=(messages.AddPartitionsToTxnRequest.Topic(name=self.topic, partitions=(partition,)),),
        )

        def code(response: Any) -> int:
            return int(response.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)

        return code(self._call(request, code))

    def produce(
        self, identity: Identity | None, partition: int, sequence: int, records: tuple[tuple[Any, Any], ...]
    ) -> tuple[int, int]:
        block = encode_rows(
            [(repr(key).encode(), b"", ()) for key, _ in records], timestamp_ms=time.time_ns() // 1_000_000
        )
        sealed = b"".join(
            bytes(part)
            for part in seal(
                block,
                producer_id=identity.producer_id if identity else -1,
                producer_epoch=identity.producer_epoch if identity else -1,
                base_sequence=sequence if identity else -1,
                transactional=identity is not None,
            )
        )
        data = messages.ProduceRequest.Topic.Partition(index=partition, records=sealed)
        request = messages.ProduceRequest(
            transactional_id=identity.transactional_id if identity else None,
            acks=-1,
            timeout_ms=30_000,
            topic_data=(messages.ProduceRequest.Topic(name=self.topic, partition_data=(data,)),),
        )

        def code(response: Any) -> int:
            return int(response.responses[0].partition_responses[0].error_code)

        response = self._call(request, code, 12 if self.version >= 2 else 11)
        result = response.responses[0].partition_responses[0]
        return int(result.error_code), int(result.base_offset) if result.error_code == 0 else -1

    def end_txn(self, identity: Identity, commit: bool, version: int) -> tuple[int, int, int]:
        request = messages.EndTxnRequest(
            transactional_id=identity.transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            committed=commit,
        )
        response = self._call(request, lambda answer: answer.error_code, version)
        if response.error_code != 0 or version < 5:
            return int(response.error_code), -1, -1
        return 0, int(response.producer_id), int(response.producer_epoch)

    def settle(self, ids: tuple[str, ...]) -> None:
        """Wait until no transaction is between its end and its last marker."""
        until = time.monotonic() + 60
        while any(found is not None and found[0] in kafka.PREPARING for found in self.describe(ids).values()):
            assert time.monotonic() < until
            self.admin.client.pump(2)

    def end_all(self, ids: Iterable[str]) -> None:
        """Abort whatever is open under these ids: a new InitProducerId of an id ends its transaction."""
        ids = tuple(ids)
        for transactional_id in ids:
            self.init_producer_id(transactional_id, 60_000)
        self.settle(ids)

    def await_state(self, transactional_id: str, state: str) -> None:
        """Wait for the coordinator's own doing, which comes by its clock: a timeout."""
        until = time.monotonic() + 60
        while (found := self.describe((transactional_id,))[transactional_id]) is None or found[0] != state:
            assert time.monotonic() < until
            self.admin.client.pump(50)

    def describe(self, ids: tuple[str, ...]) -> dict[str, tuple[str, int, int, tuple[int, ...]] | None]:
        found = self.admin.describe_transactions(ids, self.deadline)
        return {
            name: None
            if state is None
            else (
                state.transaction_state,
                state.producer_id,
                state.producer_epoch,
                tuple(sorted(partition for _, partition in state.partitions)),
            )
            for name, state in found.items()
        }

    def last_stable_offsets(self) -> tuple[int, ...]:
        wanted = [(self.topic, partition) for partition in range(self.partitions)]
        found = self.admin.list_offsets(wanted, self.deadline, isolation="read_committed")
        return tuple(found[where] for where in wanted)

    def producers(self, partition: int) -> dict[int, tuple[int, int]]:
        """Producer id to (epoch, start of its open transaction or -1)."""
        where = (self.topic, partition)
        return {
            producer.producer_id: (producer.producer_epoch, producer.current_txn_start_offset)
            for producer in self.admin.describe_producers((where,), self.deadline)[where]
        }

    def log(self, partition: int) -> list[tuple[Any, ...]]:
        """What lies in a partition: ("data", producer id, epoch, key) and ("control", producer id, epoch, commit)."""
        entries: list[tuple[Any, ...]] = []
        offset, end = 0, self._end(partition)
        while offset < end:
            result = self.admin.fetch(
                (self.topic, partition), offset, isolation="read_uncommitted", max_wait_ms=0, deadline_ms=self.deadline
            )
            batches = tuple(read_record_batches(result.records))
            assert batches, f"nothing between {offset} and {end}: {result}"
            for batch in batches:
                offset = batch.last_offset + 1
                if batch.control:
                    entries += [
                        ("control", batch.producer_id, batch.producer_epoch, control.type == 1)
                        for control in batch.control_records
                    ]
                else:
                    entries += [
                        ("data", batch.producer_id, batch.producer_epoch, record.key) for record in batch.records
                    ]
        return entries

    def aborted(self, partition: int) -> tuple[tuple[int, int], ...]:
        """All aborted transactions: each answer lists those that overlap what it brings, which can be a single batch."""
        found: set[tuple[int, int]] = set()
        offset, end = 0, self.last_stable_offsets()[partition]
        while offset < end:
            result = self.admin.fetch(
                (self.topic, partition), offset, isolation="read_committed", max_wait_ms=0, deadline_ms=self.deadline
            )
            found |= {(entry.producer_id, entry.first_offset) for entry in result.aborted_transactions or ()}
            offset = tuple(read_record_batches(result.records))[-1].last_offset + 1
        return tuple(sorted(found))

    def _end(self, partition: int) -> int:
        where = (self.topic, partition)
        return self.admin.list_offsets((where,), self.deadline, isolation="read_uncommitted")[where]
