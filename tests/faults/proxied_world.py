"""The producer machine's world of a real broker behind the fault proxy; its truth is what clients see that are not ours."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import kafka as kafka_python
from model.producer_faults import LATER, Fault
from model.producer_ledger import Row
from model.simulated_network import Meanwhile

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.protocol import messages as m
from kafka_testing import read_uncommitted, unique_topic

from .bench import PARTITIONS, Bench
from .fault_proxy import Seen
from .planned_faults import PlannedFaults

ADDS = (m.AddPartitionsToTxnRequest, m.AddOffsetsToTxnRequest)
CALL_S = 60.0
MOST_TIMES = 3
"""A fault for a whole call would cost its timeout in real time."""


class ProxiedWorld:
    """See `model/worlds.py`. Brokers do not move here: the codes say that they had."""

    def __init__(self, bench: Bench, version: int, admin: kafka_python.KafkaAdminClient) -> None:
        self.version = version
        self.transactional_id: str | None = unique_topic("machine")
        self.topic = self.source = bench.topic()
        self.events = ("disconnect",)
        self.strict = False
        self.deadline_ms = 6_000
        self.plugged_in = False
        self._bench = bench
        self._admin = admin
        self._faults = PlannedFaults()

    def plug_in(self) -> None:
        self._bench.proxy.disconnect()
        self._bench.proxy.inject(random_faults=self._faults)
        self.plugged_in = True

    def close(self) -> None:
        self._bench.proxy.inject()
        self.plugged_in = False

    def client(self, client_id: str) -> NetworkClient:
        return NetworkClient(self._bench.client_config(client_id=client_id, request_timeout_ms=500))

    def producer_config(self, **settings: Any) -> ProducerConfig:
        return ProducerConfig(batch_size=40, linger_ms=0, delivery_timeout_ms=6_000, max_block_ms=5_000, **settings)

    @contextmanager
    def at_most_as_long_as_a_call(self) -> Iterator[None]:
        began = time.monotonic()
        yield
        assert time.monotonic() - began < CALL_S, "this call waited too long"

    def group(self, number: int) -> str:
        return f"{self.transactional_id}-{number}"

    # what goes wrong

    def plan(self, fault: Fault) -> None:
        if not isinstance(fault.action, Meanwhile):
            self._faults.plan(fault.api, fault.action, min(fault.times, MOST_TIMES))

    def happen(self, event: str) -> None:
        assert event == "disconnect"
        self._bench.proxy.disconnect()

    def deliver_late(self) -> None:
        self._bench.proxy.open_gate(LATER)
        self._bench.proxy.wait_until(lambda: not self._bench.proxy.late)
        self._bench.proxy.close_gate(LATER)

    def already_wrote(self, identity: tuple[int, int], partition: int, sequence: int) -> bool:
        return False

    def calm(self) -> None:
        """Nothing is planned for a whole call."""

    def heal(self) -> None:
        self._faults.clear()
        self.deliver_late()
        # What is delayed is lost with its connection: an InitProducerId that was given up would fence the next owner.
        self._bench.proxy.disconnect()

    def settle(self) -> None:
        if self.version < 2 and self._adds_were_repeated():
            # Where half a second passes without any fault, the request that was given up may arrive now, and would begin the ended
            # transaction anew (KIP-890). The id's next owner ends that one, or makes the request too old.
            with self.client("next-owner") as client:
                Admin(client).init_producer_id(self.transactional_id or "", 60_000, client.clock() + self.deadline_ms)
        # Hypothesis breaks runs off in their middle: what those have begun is open until it times out.
        self._bench.assert_nothing_open(self.topic, of=self.transactional_id or "")

    def _adds_were_repeated(self) -> bool:
        """Whether the last transaction's own additions were asked for more than once."""
        last = next(seen.client_id for seen in reversed(self.seen) if seen.api is m.EndTxnRequest)
        digests = [seen.digest for seen in self.seen if seen.api in ADDS and seen.client_id == last]
        return len(set(digests)) < len(digests)

    @property
    def fired(self) -> Sequence[tuple[Any, Any]]:
        return self._faults.fired

    @property
    def taken_over(self) -> int:
        return 0

    @property
    def markers_missing(self) -> bool:
        return False

    # what was so

    @property
    def seen(self) -> Sequence[Seen]:
        return self._bench.proxy.requests

    def agrees(self, identity: tuple[int, int], committed: bool, wrote: bool) -> None:
        """The coordinator's opinion at the moment in which the caller was told, as kafka-python is told of it."""
        assert self.transactional_id is not None
        found = self._admin.describe_transactions([self.transactional_id])[self.transactional_id]
        state, described = str(found.state.value), (found.producer_id, found.producer_epoch)
        assert (state, described) != ("Ongoing", identity), f"{identity} was said to be ended, and is open"
        if committed and wrote:
            assert state in ("PrepareCommit", "CompleteCommit"), f"committed, it says; the coordinator: {state}"
            assert described == (identity[0], identity[1] + (self.version >= 2))

    def logs_now(self) -> None:
        return None

    def logs_at_the_end(self) -> Mapping[int, Sequence[Row]]:
        visible = [set(numbers) for numbers in self._bench.read(self.topic)]
        written = read_uncommitted(self._bench.kafka.bootstrap_servers, self.topic)
        logs: dict[int, list[Row]] = {partition: [] for partition in range(PARTITIONS)}
        for record in written:
            number = int(record.value or b"")
            logs[record.partition].append(Row(number, number in visible[record.partition], record.offset))
        return logs

    def committed_offset(self, group: str) -> int | None:
        found = set(self._bench.committed_offsets(group, self.source))
        assert len(found) == 1, f"the group's partitions differ: {found}"
        return found.pop()
