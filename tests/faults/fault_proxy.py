"""A proxy between our client and real brokers that understands Kafka's frames and does harm by rules.

    with FaultProxy(kafka.bootstrap_servers) as proxy:
        proxy.inject(
            Rule(ProduceRequest, LoseResponse()),
            Rule(EndTxnRequest, AnswerAfter(ErrorCode.PRODUCER_FENCED), nth=2, where=lambda request: request.committed),
        )
        ...                      # a client with proxy.bootstrap_servers
        assert not proxy.unfired

Every broker has a listener here, and the addresses in Metadata, FindCoordinator and Produce answers are
replaced by those, so that nothing goes past the proxy. What no rule takes goes through as it is.

    LoseRequest     never reaches the broker          Answer        an error code, the broker is not asked
    LoseResponse    done, but the client is not told   AnswerAfter   done, and an error code all the same
    Cut             half a frame, then the end         Reply         an answer that the test makes itself
    Delay           later: after ms                    Change        the broker's answer, changed
    Throttle        throttle_time_ms in its answer
    DeliverLate     lost for the client; it reaches    OpenGate      goes through, then a gate opens
                    the broker when a gate opens       Twice         goes through, and once more when a gate opens

A rule counts the requests that it matches, also those that an earlier rule takes; the first rule in turn acts. Instead of
rules, `RandomFaults` draws from a menu, by the seed and the number of the request among those of its API; what it did is
in `faults`.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Literal, Protocol, TypeVar
from uuid import UUID

from kafka_eos_sink.client.config import parse_bootstrap_servers
from kafka_eos_sink.protocol import messages as m
from kafka_eos_sink.protocol.framing import decode_response
from kafka_eos_sink.protocol.schema import Request

from .broker_frames import SIZE, ReadRequest, answer_frame, read_request
from .error_responses import error_after, error_response, metadata_with_code

T = TypeVar("T")
Side = Literal["request", "response"]
PATIENCE_S = 30.0


# what can be done to a request


@dataclass(frozen=True, slots=True)
class LoseRequest:
    """Not forwarded; the connection ends, or (`close` False) everything on it is swallowed in silence from here on."""

    close: bool = True


@dataclass(frozen=True, slots=True)
class LoseResponse:
    """Forwarded and, once the broker has answered, the connection ends, or no answer comes on it any more."""

    close: bool = True


@dataclass(frozen=True, slots=True)
class Cut:
    """The connection ends in the middle of the frame of the request, or of the answer."""

    side: Side = "response"


@dataclass(frozen=True, slots=True)
class Delay:
    """The request, or the answer, and what comes behind it on the connection, waits."""

    ms: int
    side: Side = "request"


@dataclass(frozen=True, slots=True)
class OpenGate:
    """Goes through; when its answer has been written, the gate opens."""

    gate: str


@dataclass(frozen=True, slots=True)
class DeliverLate:
    """The connection ends at once; when the gate opens, the request goes to the broker on a connection of its own."""

    gate: str


@dataclass(frozen=True, slots=True)
class Twice:
    """Forwarded; a copy of it goes to the broker when the gate opens, on a connection of its own."""

    gate: str


@dataclass(frozen=True, slots=True)
class Answer:
    """Answered with a code and not forwarded (but Metadata, whose brokers are needed). See `error_response`.

    `throttle_time_ms`: the silence that the answer asks for besides (KIP-219).
    """

    code: int
    siblings: int | None = None
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class AnswerAfter:
    """Forwarded; when the broker has answered, the client is told a code instead. See `error_after`."""

    code: int
    siblings: int | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """Answered with what `build` makes of the request, not forwarded."""

    build: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Change:
    """Forwarded; the client gets what `change` makes of the broker's answer."""

    change: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Throttle:
    """Forwarded; the answer asks for so many ms of silence (KIP-219)."""

    ms: int


Action = (
    LoseRequest
    | LoseResponse
    | Cut
    | Delay
    | OpenGate
    | DeliverLate
    | Twice
    | Answer
    | AnswerAfter
    | Reply
    | Change
    | Throttle
)


# when


@dataclass(frozen=True, slots=True)
class Rule:
    """`action` for the matches number `nth` to `nth + count - 1` (`count` None: all from `nth` on) of an API's requests.

    What matches is said by `where`, and by how the client's id ends.
    """

    api: type[Request[Any]]
    action: Action
    nth: int = 1
    count: int | None = 1
    where: Callable[[Any], bool] = field(default=lambda _request: True)
    client: str = ""

    def matches(self, seen: Seen) -> bool:
        return self.api is seen.api and seen.client_id.endswith(self.client) and self.where(seen.request)

    def takes(self, match: int) -> bool:
        return self.nth <= match and (self.count is None or match < self.nth + self.count)


class Chooser(Protocol):
    """What is done to the request number `occurrence` of its API; None: nothing."""

    def choose(self, api: type[Request[Any]], occurrence: int) -> Action | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomFaults:
    """Each request of an API on the menu meets one of its actions with probability `rate`, the same ones for one seed."""

    seed: int
    rate: float
    menu: Mapping[type[Request[Any]], tuple[Action, ...]]

    def choose(self, api: type[Request[Any]], occurrence: int) -> Action | None:
        drawn = random.Random(f"{self.seed}/{api.__name__}/{occurrence}")
        actions = self.menu.get(api, ())
        return drawn.choice(actions) if actions and drawn.random() < self.rate else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What was done to the request number `occurrence` of its API."""

    api: type[Request[Any]]
    occurrence: int
    action: Action


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A request as it came: `digest` is of its body (without the correlation id), `at` in monotonic seconds."""

    at: float
    connection: int
    client_id: str
    api: type[Request[Any]]
    version: int
    request: Any
    digest: str
    occurrence: int
    fault: Action | None


class FaultProxy:
    """See the module's text. All methods may be called from the test's thread while the proxy runs in its own.

    `remember`: whether `requests` and `answered` are kept; in an hour they would take all memory.
    """

    def __init__(self, bootstrap_servers: str, *, remember: bool = True) -> None:
        self._remember = remember
        self._brokers = parse_bootstrap_servers(bootstrap_servers)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._changed = threading.Condition()
        self._listeners: dict[tuple[str, int], asyncio.Server] = {}
        self._listening = asyncio.Lock()
        self._connections: set[_Connection] = set()
        self._connection_count = 0
        self._late: set[asyncio.Task[None]] = set()
        self._rules: tuple[Rule, ...] = ()
        self._random: Chooser | None = None
        self._matches: list[int] = []
        self._fired: set[int] = set()
        self._occurrences: dict[type[Request[Any]], int] = {}
        self._gates: dict[str, asyncio.Event] = {}
        self._requests: list[Seen] = []
        self._answered: list[Seen] = []
        self._names: dict[UUID, str] = {}

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        addresses = [self._do(self.address_for(host, port)) for host, port in self._brokers]
        self.bootstrap_servers = ",".join(f"{host}:{port}" for host, port in addresses)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._do(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # for the test

    def inject(self, *rules: Rule, random_faults: Chooser | None = None) -> None:
        """These rules instead of the former ones; counts and logs begin anew, connections stay."""
        self._do(self._inject(rules, random_faults))

    def open_gate(self, gate: str) -> None:
        self._do(self._open(gate))

    def close_gate(self, gate: str) -> None:
        """What comes to it from here on waits until it is opened again."""
        self._do(self._close(gate))

    def drop_silently(self) -> None:
        """From here on nothing passes on the present connections, and neither side is told: as a load balancer drops idle ones."""
        self._do(self._drop_silently())

    def disconnect(self) -> None:
        """End all connections."""
        self._do(self._disconnect())

    @property
    def requests(self) -> tuple[Seen, ...]:
        """All requests since `inject`, in the order in which they came."""
        with self._changed:
            return tuple(self._requests)

    @property
    def answered(self) -> tuple[Seen, ...]:
        """The requests whose answer was written to the client, in that order."""
        with self._changed:
            return tuple(self._answered)

    @property
    def faults(self) -> tuple[Fault, ...]:
        """What was done, in order."""
        return tuple(
            Fault(api=seen.api, occurrence=seen.occurrence, action=seen.fault)
            for seen in self.requests
            if seen.fault is not None
        )

    @property
    def unfired(self) -> tuple[Rule, ...]:
        """The rules that have not acted."""
        with self._changed:
            return tuple(rule for at, rule in enumerate(self._rules) if at not in self._fired)

    @property
    def late(self) -> bool:
        """Whether something that `DeliverLate` took is still to reach the broker, or to be answered by it."""
        return bool(self._late)

    def wait_until(self, happened: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
        """Wait for something to be seen in `requests`, `answered` or `unfired`; AssertionError where it is not."""
        with self._changed:
            assert self._changed.wait_for(happened, patience_s), f"not seen within {patience_s:g} s"

    def _do(self, work: Awaitable[T]) -> T:
        async def run() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(PATIENCE_S)

    # in the proxy's thread

    async def _inject(self, rules: tuple[Rule, ...], random_faults: Chooser | None) -> None:
        with self._changed:
            self._rules, self._random = rules, random_faults
            self._matches = [0] * len(rules)
            self._fired = set()
            self._occurrences = {}
            self._gates = {}
            self._requests, self._answered = [], []

    async def _drop_silently(self) -> None:
        for connection in self._connections:
            connection.drop_silently()

    async def _disconnect(self) -> None:
        tasks = [connection.task for connection in self._connections if connection.task is not None]
        for task in (*tasks, *self._late):
            task.cancel()
        await asyncio.gather(*tasks, *self._late, return_exceptions=True)

    async def _stop(self) -> None:
        for server in self._listeners.values():
            server.close()
        await self._disconnect()

    async def _open(self, gate: str) -> None:
        self.gate(gate).set()

    async def _close(self, gate: str) -> None:
        self._gates.pop(gate, None)

    def gate(self, name: str) -> asyncio.Event:
        return self._gates.setdefault(name, asyncio.Event())

    async def address_for(self, host: str, port: int) -> tuple[str, int]:
        """Where clients reach the broker at `host`:`port` through this proxy."""
        async with self._listening:
            server = self._listeners.get((host, port))
            if server is None:

                async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                    self._connection_count += 1
                    connection = _Connection(self, self._connection_count, (host, port), reader, writer)
                    self._connections.add(connection)
                    connection.task = asyncio.current_task()
                    try:
                        await connection.run()
                    except asyncio.CancelledError:
                        return  # ours, in _disconnect; asyncio would log it as an error of the callback
                    finally:
                        self._connections.discard(connection)

                server = self._listeners[host, port] = await asyncio.start_server(serve, "127.0.0.1", 0)
        address: tuple[str, int] = server.sockets[0].getsockname()[:2]
        return address

    def see(self, connection: int, read: ReadRequest) -> Seen:
        """Note a request, and choose what is done to it."""
        api, request = read.api, read.request
        if isinstance(request, m.FetchRequest):
            request = self._with_names(request)
        with self._changed:
            occurrence = self._occurrences[api] = self._occurrences.get(api, 0) + 1
            seen = Seen(
                at=time.monotonic(),
                connection=connection,
                client_id=read.header.client_id or "",
                api=api,
                version=read.version,
                request=request,
                digest=read.digest,
                occurrence=occurrence,
                fault=None if self._random is None else self._random.choose(api, occurrence),
            )
            for at, rule in enumerate(self._rules):
                if not rule.matches(seen):
                    continue
                self._matches[at] += 1
                if seen.fault is None and rule.takes(self._matches[at]):
                    seen = replace(seen, fault=rule.action)
                    self._fired.add(at)
            if self._remember:
                self._requests.append(seen)
            self._changed.notify_all()
        return seen

    def _with_names(self, request: m.FetchRequest) -> m.FetchRequest:
        """The request with the names of its topic ids, which rules go by."""
        topics = (replace(each, topic=each.topic or self._names.get(each.topic_id, "")) for each in request.topics)
        return replace(request, topics=tuple(topics))

    def note_answered(self, seen: Seen) -> None:
        with self._changed:
            if self._remember:
                self._answered.append(seen)
            self._changed.notify_all()

    def deliver_late(self, broker: tuple[str, int], gate: str, frame: bytes) -> None:
        async def deliver() -> None:
            await self.gate(gate).wait()
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):  # a broker that died meanwhile gets nothing
                reader, writer = await asyncio.open_connection(*broker)
                try:
                    writer.write(frame)
                    await _read_frame(reader)
                finally:
                    writer.close()

        def done(task: asyncio.Task[None]) -> None:
            with self._changed:
                self._late.discard(task)
                self._changed.notify_all()

        task = asyncio.ensure_future(deliver())
        self._late.add(task)
        task.add_done_callback(done)

    async def with_own_addresses(self, answer: Any) -> Any:
        """The answer with this proxy's addresses in place of the brokers'."""

        async def moved(node: Any) -> Any:
            host, port = await self.address_for(node.host, node.port)
            return replace(node, host=host, port=port)

        match answer:
            case m.MetadataResponse():
                self._names |= {topic.topic_id: topic.name or "" for topic in answer.topics}
                return replace(answer, brokers=tuple([await moved(each) for each in answer.brokers]))
            case m.ProduceResponse() if answer.node_endpoints:
                return replace(answer, node_endpoints=tuple([await moved(each) for each in answer.node_endpoints]))
            case m.FindCoordinatorResponse():
                found = [await moved(each) if each.port > 0 else each for each in answer.coordinators]
                return replace(answer, coordinators=tuple(found))
        return None


_MOVES = (m.MetadataRequest, m.ProduceRequest, m.FindCoordinatorRequest)
"""APIs whose answers hold addresses."""


@dataclass(slots=True, eq=False)
class _Exchange:
    """A request on its way, and its answer as the client will get it."""

    seen: Seen
    frame: bytes
    correlation_id: int
    answer: asyncio.Future[bytes]


class _Ended(Exception):
    """The connection is to be ended, by a rule or by a peer."""


class _Connection:
    """One connection of a client and its counterpart to the broker; answers stay in the order of the requests."""

    def __init__(
        self,
        proxy: FaultProxy,
        number: int,
        broker: tuple[str, int],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.task: asyncio.Task[Any] | None = None
        self._proxy = proxy
        self._number = number
        self._broker = broker
        self._reader = reader
        self._writer = writer
        self._forwarded: deque[_Exchange] = deque()
        self._in_order: asyncio.Queue[_Exchange] = asyncio.Queue()
        self._deaf = False

    def drop_silently(self) -> None:
        self._deaf = True
        self._forwarded.clear()

    async def run(self) -> None:
        broker_writer: asyncio.StreamWriter | None = None
        tasks: list[asyncio.Task[None]] = []
        try:
            broker_reader, broker_writer = await asyncio.open_connection(*self._broker)
            work = (self._requests(broker_writer), self._responses(broker_reader), self._answers())
            tasks = [asyncio.ensure_future(each) for each in work]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except (OSError, asyncio.IncompleteReadError, _Ended):
            return
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for writer in (self._writer, broker_writer):
                if writer is not None:
                    with contextlib.suppress(OSError):
                        writer.close()

    async def _requests(self, broker: asyncio.StreamWriter) -> None:
        while True:
            frame = await _read_frame(self._reader)
            if self._deaf:
                continue
            exchange = self._exchange(frame)
            self._in_order.put_nowait(exchange)
            await self._begin(exchange, broker)

    def _exchange(self, frame: bytes) -> _Exchange:
        read = read_request(frame)
        seen = self._proxy.see(self._number, read)
        future = asyncio.get_running_loop().create_future()
        return _Exchange(seen=seen, frame=frame, correlation_id=read.header.correlation_id, answer=future)

    async def _begin(self, exchange: _Exchange, broker: asyncio.StreamWriter) -> None:
        """What is done to a request before, or instead of, forwarding it."""
        seen = exchange.seen
        match seen.fault:
            case LoseRequest(close=True):
                raise _Ended
            case LoseRequest():
                self._deaf = True
                return
            case Cut(side="request"):
                broker.write(exchange.frame[: len(exchange.frame) // 2])
                await broker.drain()
                raise _Ended
            case DeliverLate(gate=gate):
                self._proxy.deliver_late(self._broker, gate, exchange.frame)
                raise _Ended
            case Twice(gate=gate):
                self._proxy.deliver_late(self._broker, gate, exchange.frame)
            case Answer(code=code, siblings=siblings, throttle_time_ms=ms) if seen.api is not m.MetadataRequest:
                told = error_response(seen.request, seen.version, code, siblings)
                exchange.answer.set_result(self._encoded(exchange, replace(told, throttle_time_ms=ms) if ms else told))
                return
            case Reply(build=build):
                exchange.answer.set_result(self._encoded(exchange, build(seen.request)))
                return
            case Delay(ms=ms, side="request"):
                await asyncio.sleep(ms / 1000)
        self._forwarded.append(exchange)
        broker.write(exchange.frame)
        await broker.drain()

    async def _responses(self, broker: asyncio.StreamReader) -> None:
        while True:
            frame = await _read_frame(broker)
            if not self._forwarded:
                continue  # dropped silently
            exchange = self._forwarded.popleft()
            exchange.answer.set_result(await self._answer_to(exchange, frame))

    async def _answer_to(self, exchange: _Exchange, frame: bytes) -> bytes:
        """The answer for the client, made of the broker's."""
        seen = exchange.seen
        changes = isinstance(seen.fault, Answer | AnswerAfter | Change | Throttle)
        if not changes and seen.api not in _MOVES:
            return frame
        response = decode_response(seen.api, seen.version, memoryview(frame)[SIZE.size :], exchange.correlation_id)
        changed = await self._proxy.with_own_addresses(response)
        if changed is None and not changes:
            return frame
        response = response if changed is None else changed
        match seen.fault:
            case Answer(code=code) | AnswerAfter(code=code) if seen.api is m.MetadataRequest:
                response = metadata_with_code(response, code)
                if isinstance(seen.fault, Answer):
                    response = replace(response, throttle_time_ms=seen.fault.throttle_time_ms)
            case AnswerAfter(code=code, siblings=siblings):
                response = error_after(response, seen.request, seen.version, code, siblings)
            case Change(change=change):
                response = change(response)
            case Throttle(ms=ms):
                response = replace(response, throttle_time_ms=ms)
        return self._encoded(exchange, response)

    def _encoded(self, exchange: _Exchange, response: Any) -> bytes:
        return answer_frame(exchange.seen.api, exchange.seen.version, exchange.correlation_id, response)

    async def _answers(self) -> None:
        while True:
            exchange = await self._in_order.get()
            frame = await exchange.answer
            match exchange.seen.fault:
                case LoseResponse(close=True):
                    raise _Ended
                case LoseResponse():
                    await asyncio.get_running_loop().create_future()  # for ever
                case Cut():
                    self._writer.write(frame[: len(frame) // 2])
                    await self._writer.drain()
                    raise _Ended
                case Delay(ms=ms, side="response"):
                    await asyncio.sleep(ms / 1000)
            self._writer.write(frame)
            await self._writer.drain()
            self._proxy.note_answered(exchange.seen)
            if isinstance(exchange.seen.fault, OpenGate):
                self._proxy.gate(exchange.seen.fault.gate).set()


async def _read_frame(reader: asyncio.StreamReader) -> bytes:
    size = await reader.readexactly(SIZE.size)
    return size + await reader.readexactly(*SIZE.unpack(size))
