"""The producer machine's world of simulated brokers: every loss and every event is made on purpose, and time costs nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from faults.fault_proxy import Seen
from faults.planned_faults import PlannedFaults

from kafka_eos_sink.client.config import ClientConfig
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.producer.config import ProducerConfig

from . import simulated_cluster as kafka
from .producer_faults import MEANWHILE, Fault
from .producer_ledger import Row
from .simulated_broker_state import (
    ADDRESSES,
    MARKERS_AFTER_MS,
    PARTITIONS,
    SLOW_MARKERS_AFTER_MS,
    TOPIC,
)
from .simulated_network import SimulatedNetwork

TRANSACTIONAL_ID = "writer.0.0"
CALL_MS = 25_000
"""A call may wait for metadata, for memory, for its rows and for the coordinator, one after the other."""


class SimulatedWorld:
    """See `worlds.World`. Without `transactional` the producers are only idempotent."""

    def __init__(self, version: int, *, transactional: bool = True) -> None:
        self.version = version
        self.transactional_id = TRANSACTIONAL_ID if transactional else None
        self.topic = TOPIC
        self.events = (*MEANWHILE, "restart 2", "slow markers", "quick markers", "disconnect", "time passes")
        self.simulated = True
        self.deadline_ms = 8_000
        self.plugged_in = False
        self.faults = PlannedFaults()
        self.network = SimulatedNetwork(version, self.faults, self.happen)
        self.brokers = self.network.brokers

    def plug_in(self) -> None:
        self.network.plug_in()
        self.plugged_in = True

    def close(self) -> None:
        self.network.unplug()
        self.plugged_in = False

    def client(self, client_id: str) -> NetworkClient:
        return NetworkClient(
            ClientConfig(
                bootstrap_servers=tuple(ADDRESSES.values()),
                client_id=client_id,
                request_timeout_ms=500,
                retry_backoff_ms=10,
                retry_backoff_max_ms=300,
                reconnect_backoff_ms=10,
                reconnect_backoff_max_ms=300,
            ),
            clock=self.network.clock,
        )

    def producer_config(self, **settings: Any) -> ProducerConfig:
        return ProducerConfig(batch_size=40, linger_ms=0, delivery_timeout_ms=6_000, max_block_ms=5_000, **settings)

    def at_most_as_long_as_a_call(self) -> AbstractContextManager[None]:
        return self.network.at_most(CALL_MS)

    # what goes wrong

    def plan(self, fault: Fault) -> None:
        self.faults.plan(*fault)

    def happen(self, event: str) -> None:
        match event.split():
            case ["take", "over"]:
                self.brokers.take_over(TRANSACTIONAL_ID)
            case ["time", "out"]:
                self.brokers.time_out(TRANSACTIONAL_ID)
            case ["move", "leaders"]:
                self.brokers.move_leaders()
            case ["move", kind, "coordinator"]:
                self.brokers.move_coordinator(1 if kind == "transaction" else 0)
            case ["restart", node]:
                self.brokers.restart(int(node))
            case [pace, "markers"]:
                self.brokers.markers_after_ms = SLOW_MARKERS_AFTER_MS if pace == "slow" else MARKERS_AFTER_MS
            case ["disconnect"]:
                self.network.disconnect()
            case ["time", "passes"]:
                self.network.settle(1_000)

    def deliver_late(self) -> None:
        self.network.deliver_late()

    def already_wrote(self, identity: tuple[int, int], partition: int, sequence: int) -> bool:
        """Whether the leader now believes that it has this number; not outside the producer's own transaction, nor while a request is
        under way, which would arrive when its numbers have come round."""
        if self.network.under_way:
            return False
        log = self.brokers.log(partition)
        mine = log and log[-1].identity == identity and log[-1].committed in (None, self.transactional_id is None)
        if mine and log[-1].sequence != sequence:
            self.brokers.already_wrote(identity, partition, sequence, row=-1)
        return bool(mine)

    def calm(self) -> None:
        self.faults.clear(more_than=10)

    def heal(self) -> None:
        self.faults.clear()
        self.brokers.markers_after_ms = MARKERS_AFTER_MS
        self.network.deliver_late()
        self.network.settle(2_000)

    def settle(self) -> None:
        self.network.settle(2_000)

    @property
    def fired(self) -> Sequence[tuple[Any, Any]]:
        return self.faults.fired

    @property
    def taken_over(self) -> int:
        return self.brokers.taken_over

    @property
    def markers_missing(self) -> bool:
        found = self.brokers.cluster.transaction(TRANSACTIONAL_ID)
        return found is not None and found.state in kafka.PREPARING

    def may_fail_by_itself(self, age_ms: int) -> bool:
        """Time passes here only while a call waits, and the faults of one call fit into its timeouts."""
        return False

    # what was so

    @property
    def seen(self) -> Sequence[Seen]:
        return self.network.seen

    def agrees(self, identity: tuple[int, int], committed: bool, wrote: bool) -> None:
        """The coordinator's opinion at the moment in which the caller was told."""
        found = self.brokers.cluster.transaction(TRANSACTIONAL_ID)
        assert found is not None
        is_open = found.state == kafka.ONGOING and (found.producer_id, found.producer_epoch) == identity
        assert not is_open, f"{identity} was said to be ended, and is open"
        if committed and wrote:
            said = (found.state, found.producer_id, found.producer_epoch - identity[1])
            assert said[0] in (kafka.PREPARE_COMMIT, kafka.COMPLETE_COMMIT), (
                f"committed, it says; the coordinator: {said}"
            )
            assert said[1:] == (identity[0], 1 if self.version >= 2 else 0)

    def logs_now(self) -> Mapping[int, Sequence[Row]]:
        return {
            partition: [
                Row(entry.row, entry.committed, entry.offset, entry.identity)
                for entry in self.brokers.log(partition)
                if entry.row >= 0
            ]
            for partition in range(PARTITIONS)
        }

    def logs_at_the_end(self) -> Mapping[int, Sequence[Row]]:
        return self.logs_now()
