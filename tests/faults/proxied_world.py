"""The producer machine's world of a real broker behind the fault proxy; its truth is what clients see that are not ours.

Time passes here by itself, and on a slow machine requests are given up that met no fault. The next one repeats them, as after a fault that
is survived, so that an error without a cause is a mistake here, too. Two things are excepted (`may_fail_by_itself`): an error that comes
when a timeout may have run out, and a producer that may have been fenced by an InitProducerId that was given up and arrived late.
"""

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
from .fault_proxy import Answer, Cut, LoseRequest, Seen
from .planned_faults import PlannedFaults

TIMEOUT_MS = 15_000
"""Of calls, of rows and of metadata: longer than what the faults of one call cost, so that few errors come too late to be judged."""
CALL_S = 100.0
"""A call may wait for metadata, for memory, for its rows and for the coordinator, one after the other."""
MOST_TIMES = 3
"""A fault for a whole call would cost its timeout in real time."""


class ProxiedWorld:
    """See `model/worlds.py`. Brokers do not move here: the codes say that they had."""

    def __init__(
        self, bench: Bench, version: int, admin: kafka_python.KafkaAdminClient, *, transactional: bool = True
    ) -> None:
        self.version = version
        self.transactional_id = unique_topic("machine") if transactional else None
        self.topic = bench.topic()
        self.events = ("disconnect",)
        self.simulated = False
        self.deadline_ms = TIMEOUT_MS
        self.plugged_in = False
        self._may_be_fenced = False
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
        # What was asked for before and nobody waits for any more may arrive after the next owner's own request.
        answered = self._bench.proxy.answered
        self._may_be_fenced |= any(asked not in answered for asked in self._identities_asked_for())
        return NetworkClient(self._bench.client_config(client_id=client_id, request_timeout_ms=500))

    def producer_config(self, **settings: Any) -> ProducerConfig:
        return ProducerConfig(
            batch_size=40, linger_ms=0, delivery_timeout_ms=TIMEOUT_MS, max_block_ms=TIMEOUT_MS, **settings
        )

    @contextmanager
    def at_most_as_long_as_a_call(self) -> Iterator[None]:
        began = time.monotonic()
        yield
        assert time.monotonic() - began < CALL_S, "this call waited too long"

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
        if self.transactional_id is None:
            return
        if self.version < 2 and self._adds_were_repeated():
            # Where half a second passes without any fault, the request that was given up may arrive now, and would begin the ended
            # transaction anew (KIP-890). The id's next owner ends that one, or makes the request too old.
            with self.client("next-owner") as client:
                Admin(client).init_producer_id(self.transactional_id, 60_000, client.clock() + self.deadline_ms)
        # Hypothesis breaks runs off in their middle: what those have begun is open until it times out.
        self._bench.assert_nothing_open(self.topic, of=self.transactional_id)

    def _adds_were_repeated(self) -> bool:
        """Whether the last transaction's own additions were asked for more than once."""
        asked = [seen for seen in self.seen if seen.api in (m.ProduceRequest, m.AddPartitionsToTxnRequest)]
        last = [seen for seen in asked if seen.client_id == asked[-1].client_id]
        digests = [seen.digest for seen in last if seen.api is m.AddPartitionsToTxnRequest]
        return len(set(digests)) < len(digests)

    @property
    def fired(self) -> Sequence[tuple[Any, Any]]:
        return self._faults.fired

    @property
    def taken_over(self) -> int:
        """How often the id was asked for: what was asked for after a producer had its identity may have fenced it."""
        return len(self._identities_asked_for())

    @property
    def markers_missing(self) -> bool:
        return self._described().state.value in ("PrepareCommit", "PrepareAbort")

    def may_fail_by_itself(self, age_ms: int) -> bool:
        if age_ms >= TIMEOUT_MS or self._may_be_fenced:
            return True
        # Who asks again on another connection has given up the first, which may arrive last.
        asked = self._identities_asked_for()
        return len({(each.client_id, each.connection) for each in asked}) > len({each.client_id for each in asked})

    def _identities_asked_for(self) -> list[Seen]:
        """The InitProducerId requests for the transactional id that the broker gets, or may get some day."""
        return [
            seen
            for seen in self.seen
            if isinstance(seen.request, m.InitProducerIdRequest)
            and seen.request.transactional_id is not None
            and not isinstance(seen.fault, Answer | LoseRequest)
            and seen.fault != Cut("request")
        ]

    # what was so

    @property
    def seen(self) -> Sequence[Seen]:
        return self._bench.proxy.requests

    def agrees(self, identity: tuple[int, int], committed: bool, wrote: bool) -> None:
        """The coordinator's opinion at the moment in which the caller was told, as kafka-python is told of it."""
        found = self._described()
        state, described = str(found.state.value), (found.producer_id, found.producer_epoch)
        if self.version < 2 and state == "Ongoing" and self._adds_were_repeated():
            return  # The addition that was given up has arrived meanwhile, see `settle`.
        assert (state, described) != ("Ongoing", identity), f"{identity} was said to be ended, and is open"
        if committed and wrote:
            assert state in ("PrepareCommit", "CompleteCommit"), f"committed, it says; the coordinator: {state}"
            assert described == (identity[0], identity[1] + (self.version >= 2))

    def _described(self) -> Any:
        assert self.transactional_id is not None
        return self._admin.describe_transactions([self.transactional_id])[self.transactional_id]

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
