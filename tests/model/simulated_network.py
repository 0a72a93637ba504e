"""The wire between the real `NetworkClient` and simulated brokers: frames, faults and time, without sockets.

The client's poller and transports are replaced, nothing above them: connections, handshakes, correlation ids, timeouts and
metadata are the real ones. Time stands still but for a poll that waits: then it goes on to the next thing that happens. Faults
are those of `faults/fault_proxy.py`, and one more: what somebody else does in the moment before a request arrives.
"""

from __future__ import annotations

import errno
import heapq
import itertools
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
from faults.broker_frames import SIZE, ReadRequest, answer_frame, read_request
from faults.error_responses import error_after, error_response, metadata_with_code
from faults.fault_proxy import (
    Action,
    Answer,
    AnswerAfter,
    Cut,
    Delay,
    DeliverLate,
    LoseRequest,
    LoseResponse,
    Seen,
    Throttle,
)
from faults.planned_faults import PlannedFaults

from kafka_eos_sink.client import node, pump
from kafka_eos_sink.client.config import ClientConfig
from kafka_eos_sink.client.transport import Address
from kafka_eos_sink.protocol import messages as m

from .simulated_broker_state import ADDRESSES
from .simulated_brokers import SimulatedBrokers

LATENCY_MS = 1
POLLS_IN_ONE_MOMENT = 2_000
"""A client that polls so often while no time passes waits for nothing."""


@dataclass(frozen=True, slots=True)
class Meanwhile:
    """Something happens to the cluster before the request arrives; the request itself goes through."""

    what: str


class SimulatedNetwork:
    """Brokers, the connections to them, and the time."""

    def __init__(self, version: int, faults: PlannedFaults, happen: Callable[[str], None]) -> None:
        self.now = 1_000_000
        self.brokers = SimulatedBrokers(version, self.after, on_down=self.disconnect)
        self.seen: list[Seen] = []
        self.under_way = 0
        """Requests that have been sent, also on connections that were given up, and have not arrived."""
        self._faults = faults
        self._happen = happen
        self._late: list[tuple[int, ReadRequest]] = []
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._occurrences: Counter[Any] = Counter()
        self._connections: set[SimulatedTransport] = set()
        self._numbers = itertools.count(1)
        self._give_up_at: int | None = None
        self._polls = (0, 0)
        self._patch = pytest.MonkeyPatch()

    def plug_in(self) -> None:
        """Clients connect to this network from here on."""
        self._patch.setattr(pump, "Poller", partial(SimulatedPoller, self))
        self._patch.setattr(node, "Transport", partial(SimulatedTransport, self))
        self._patch.setattr(
            node, "resolve_host", lambda host, port: (Address(family=socket.AF_INET, sockaddr=(host, port)),)
        )

    def unplug(self) -> None:
        self._patch.undo()

    # time

    def clock(self) -> int:
        return self.now

    @contextmanager
    def at_most(self, ms: int) -> Iterator[None]:
        """What happens within must not take longer."""
        self._give_up_at = self.now + ms
        try:
            yield
        finally:
            self._give_up_at = None

    def after(self, ms: int, happens: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + ms, next(self._order), happens))

    def run_until(self, end: int) -> None:
        """Let time go on to the next event, or to `end`, and let what is due happen."""
        self.now = max(self.now, min([end, *(at for at, _, _ in self._events[:1])]))
        while self._events and self._events[0][0] <= self.now:
            heapq.heappop(self._events)[2]()
        assert self._give_up_at is None or self.now <= self._give_up_at, "this wait does not end"
        at, polls = self._polls
        self._polls = (self.now, polls + 1 if at == self.now else 0)
        assert polls < POLLS_IN_ONE_MOMENT, "the client polls on and on, and waits for nothing"

    def settle(self, ms: int) -> None:
        """Let so much time pass without any client."""
        end = self.now + ms
        while self.now < end:
            self.run_until(end)

    # connections

    def connected(self, transport: SimulatedTransport) -> int:
        if transport.node in self.brokers.down:
            raise OSError(errno.ECONNREFUSED, "nobody listens")
        self._connections.add(transport)
        return next(self._numbers)

    def forget(self, transport: SimulatedTransport) -> None:
        self._connections.discard(transport)

    def disconnect(self, node_id: int | None = None) -> None:
        """End all connections, or those to one broker."""
        for transport in [each for each in self._connections if node_id in (None, each.node)]:
            transport.broken = True

    def deliver_late(self) -> None:
        """What was held back arrives; nobody awaits the answers any more."""
        late, self._late = self._late, []
        for node_id, read in late:
            self.brokers.answer(node_id, read.version, read.request)

    # requests

    def receive(self, transport: SimulatedTransport, frame: bytes) -> None:
        """A whole request was written to a connection: what is done to it, and when it arrives."""
        read = read_request(frame)
        self._occurrences[read.api] += 1
        occurrence = self._occurrences[read.api]
        fault = self._faults.choose(read.api, occurrence)
        seen = Seen(
            at=self.now,
            connection=transport.number,
            client_id=read.header.client_id or "",
            api=read.api,
            version=read.version,
            request=read.request,
            digest=read.digest,
            occurrence=occurrence,
            fault=fault,
        )
        self.seen.append(seen)
        match fault:
            case LoseRequest(close=close):
                transport.deaf = True
                if close:
                    self.after(LATENCY_MS, transport.break_off)
                return
            case Cut(side="request"):
                transport.deaf = True
                self.after(LATENCY_MS, transport.break_off)
                return
            case DeliverLate():
                transport.deaf = True
                self._late.append((transport.node, read))
                self.after(LATENCY_MS, transport.break_off)
                return
        delay = fault.ms if isinstance(fault, Delay) and fault.side == "request" else 0
        transport.arrives_at = max(transport.arrives_at, self.now + LATENCY_MS) + delay
        self.under_way += 1
        self.after(transport.arrives_at - self.now, lambda: self._arrive(transport, read, fault))

    def _arrive(self, transport: SimulatedTransport, read: ReadRequest, fault: Action | Meanwhile | None) -> None:
        self.under_way -= 1
        if transport.node in self.brokers.down:
            return
        if isinstance(fault, Meanwhile):
            self._happen(fault.what)
        if isinstance(fault, Answer) and read.api is not m.MetadataRequest:
            response = error_response(read.request, read.version, fault.code, fault.siblings)
        else:
            response = self.brokers.answer(transport.node, read.version, read.request)
        match fault:
            case Answer(code=code) | AnswerAfter(code=code) if read.api is m.MetadataRequest:
                response = metadata_with_code(response, code)
            case AnswerAfter(code=code, siblings=siblings):
                response = error_after(response, read.request, read.version, code, siblings)
            case Throttle(ms=ms):
                response = replace(response, throttle_time_ms=ms)
        frame = answer_frame(read.api, read.version, read.header.correlation_id, response)
        delay = fault.ms if isinstance(fault, Delay) and fault.side == "response" else 0
        transport.answers_at = max(transport.answers_at, self.now + LATENCY_MS) + delay
        self.after(transport.answers_at - self.now, lambda: transport.answered(frame, fault))


class SimulatedTransport:
    """Stands where `transport.Transport` stands: one connection, both ends of it."""

    def __init__(self, network: SimulatedNetwork, address: Address, _config: ClientConfig) -> None:
        self.address = address
        self.connected = False
        self.node = next(each for each, where in ADDRESSES.items() if where == tuple(address.sockaddr))
        self.broken = False
        self.deaf = False
        """The broker's side reads no more, or answers no more."""
        self.arrives_at = self.answers_at = 0
        self._mute = False
        self._network = network
        self._input = bytearray()
        self._output = bytearray()
        self.number = network.connected(self)

    # the client's end

    @property
    def wants_write(self) -> bool:
        return not self.connected

    @property
    def readable(self) -> bool:
        return bool(self._input) or self.broken

    def continue_connect(self, writable: bool) -> bool:
        self.connected = True
        return writable

    def write(self, buffers: Iterable[bytes | memoryview]) -> None:
        for buffer in buffers:
            self._output += bytes(buffer)
        while len(self._output) >= SIZE.size and not self.deaf and not self.broken:
            end = SIZE.size + SIZE.unpack_from(self._output)[0]
            if len(self._output) < end:
                return
            frame = bytes(self._output[:end])
            del self._output[:end]
            self._network.receive(self, frame)

    def flush(self) -> None:
        self.write(())

    def read(self) -> bytes | None:
        if self._input:
            data = bytes(self._input)
            self._input.clear()
            return data
        if self.broken:
            raise ConnectionResetError(errno.ECONNRESET, "closed by the broker")
        return None

    def close(self) -> None:
        self._network.forget(self)

    # the broker's end

    def break_off(self) -> None:
        self.broken = True

    def answered(self, frame: bytes, fault: Action | Meanwhile | None) -> None:
        if self.broken or self._mute:
            return
        match fault:
            case LoseResponse(close=True):
                self.broken = True
            case LoseResponse():
                self._mute = True
            case Cut():
                self._input += frame[: len(frame) // 2]
                self.broken = True
            case _:
                self._input += frame


class SimulatedPoller:
    """Stands where `transport.Poller` stands."""

    def __init__(self, network: SimulatedNetwork) -> None:
        self._network = network
        self._registered: dict[int, SimulatedTransport] = {}

    def register(self, node_id: int, transport: SimulatedTransport) -> None:
        self._registered[node_id] = transport

    def unregister(self, node_id: int) -> None:
        del self._registered[node_id]

    def poll(self, timeout_ms: int) -> list[tuple[int, bool, bool]]:
        until = self._network.now + max(0, timeout_ms)
        self._network.run_until(self._network.now)
        while not (ready := self._ready()) and self._network.now < until:
            self._network.run_until(until)
        return ready

    def _ready(self) -> list[tuple[int, bool, bool]]:
        return [
            (node_id, transport.readable, transport.wants_write)
            for node_id, transport in self._registered.items()
            if transport.readable or transport.wants_write
        ]

    def close(self) -> None:
        self._registered.clear()
