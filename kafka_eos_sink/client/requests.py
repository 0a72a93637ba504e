"""The engine for every request outside the data path.

A `Call` describes one kind of request. `Requests.perform` runs it in rounds. Each round finds the node of every open key, and sends
to all nodes at once, each node's requests pipelined. It reacts to each key's error code by the table in `protocol/reactions.py`.
Keys that may succeed later stay open for the next round, after a back-off. A request that changes the cluster's state is built
from its keys alone, so a resend has identical bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Generic, TypeVar, cast

from kafka_eos_sink.client.connection import ANY_VERSION, Versions
from kafka_eos_sink.client.metadata import partition_of
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.client.retry import Retry
from kafka_eos_sink.errors import AuthorizationError, BrokerRefusedError, BrokerUnavailableError, KafkaEosError, counted
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import TopicPartition
from kafka_eos_sink.protocol.messages import FindCoordinatorRequest, FindCoordinatorResponse, MetadataRequest
from kafka_eos_sink.protocol.reactions import COMPLETES, CONFIGURATION, RETRIES, Reaction, in_words, refusal
from kafka_eos_sink.protocol.schema import Request

K = TypeVar("K")
V = TypeVar("V")
log = logging.getLogger(__name__)

MARKERS_FIRST_BACKOFF_MS = 20
"""First back-off while a coordinator writes markers, which takes a few ms. Java's ``TransactionManager`` also begins with 20 ms."""

MOST_COORDINATORS = 200_000
"""Coordinators that are remembered, in about 40 MB: those of a batch of 20,000 tasks, which has eight ids for each. Each batch write
without ``txnAppId`` has its own ids."""


class Route(Enum):
    """Which node a request about a key goes to."""

    ANY = auto()
    ANY_IDENTIFIED = auto()
    """Any broker whose node id is known. A bootstrap address does not say which broker it reaches."""
    BROKER = auto()
    """The key itself is the node id."""
    CONTROLLER = auto()
    LEADER = auto()
    """The key is a (topic, partition)."""
    TRANSACTION_COORDINATOR = auto()
    GROUP_COORDINATOR = auto()


_KEY_TYPES = {Route.GROUP_COORDINATOR: 0, Route.TRANSACTION_COORDINATOR: 1}
"""The routes to a coordinator, with the key type of FindCoordinator."""


class OnCode(Enum):
    """How to handle a rejected key, and the keys that are open at the deadline."""

    RAISE = auto()
    """Raise the code's error; raise REQUEST_DEADLINE at the deadline."""
    RAISE_CONFIGURATION = auto()
    """Raise errors that only another configuration or permission can resolve; return every other code."""
    RETURN = auto()
    """Return every code; at the deadline return the last known outcome."""


Result = tuple[K, int, str | None, V]
"""One key's part of a response: the key, its error code, the broker's error message, the value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[K, V]):
    """One kind of request: its route, how to build it, and how to read its response.

    Args:
        request: Builds the request from the keys of one node and the node id.
        read: Reads a response, given the keys of its request. A key without a result stays open.
        about: Describes a key in messages, as in "topic 'orders'".
        coordinator_key: The transactional id or group of a key; for the coordinator routes.
        versions: The bounds of the API version for a key's request. If there is a lowest one, and the broker speaks none of them,
            nothing is sent, and the key's code is UNSUPPORTED_VERSION.
        blocked_by: Describes what blocks a key that still returns CONCURRENT_TRANSACTIONS at the deadline.
    """

    api: type[Request[Any]]
    route: Route
    request: Callable[[Sequence[K], int], Request[Any]]
    read: Callable[[Any, Sequence[K]], Iterable[Result[K, V]]]
    about: Callable[[K], str]
    keys_per_request: int = 1_000
    first_backoff_ms: int | None = None
    on_code: OnCode = OnCode.RAISE
    coordinator_key: Callable[[K], str] = str
    versions: Callable[[K], Versions] = lambda _key: ANY_VERSION
    blocked_by: Callable[[K], str] | None = None

    def describe(self, keys: Sequence[K]) -> str:
        """Name request and keys, as in "the coordinator of group 'g' and 2 more"."""
        more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
        return f"{in_words(self.api, self.about(keys[0]))}{more}" if keys else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyResult(Generic[V]):
    """What is known of one key.

    ``error_code`` is None if the last try had no response: the broker may have processed it. ``earlier_code`` is then the code of an
    earlier try. Use that code only in messages, because the last try may have changed the broker's state. ``has_lost_response`` is
    true if any try had no response: the broker may still receive that request.
    """

    error_code: int | None = None
    value: V | None = None
    earlier_code: int | None = None
    has_lost_response: bool = False

    def after(self, error_code: int, value: V | None = None) -> KeyResult[V]:
        """Return the outcome after a later try has a result."""
        return KeyResult(error_code=error_code, value=value, has_lost_response=self.has_lost_response)

    def after_lost_response(self) -> KeyResult[V]:
        """Return the outcome after a later try was sent and its response was lost."""
        code = self.earlier_code if self.error_code is None else self.error_code
        return KeyResult(earlier_code=code, has_lost_response=True)


class _Operation(Generic[K, V]):
    """A call in progress: each key's outcome so far, and the keys that are still open."""

    def __init__(self, call: Call[K, V], keys: Iterable[K], retry: Retry) -> None:
        self.call = call
        self.retry = retry
        self.keys_per_request = call.keys_per_request
        self.outcomes: dict[K, KeyResult[V]] = dict.fromkeys(keys, KeyResult())
        self.open: dict[K, None] = dict.fromkeys(self.outcomes)

    def settle(self, key: K, outcome: KeyResult[V]) -> None:
        self.outcomes[key] = outcome
        self.open.pop(key, None)

    def settle_unsent(self, key: K, error_code: int) -> None:
        """Settle a key whose last try was not sent."""
        self.settle(key, self.outcomes[key].after(error_code))


class Requests:
    """Performs calls on one `NetworkClient`; caches coordinators."""

    def __init__(self, client: NetworkClient) -> None:
        self.client = client
        self._coordinators: dict[tuple[Route, str], int] = {}
        self._stale: set[tuple[Route, str]] = set()

    def perform(self, call: Call[K, V], keys: Iterable[K], deadline_ms: int) -> dict[K, KeyResult[V]]:
        """Perform a call for all keys.

        Args:
            deadline_ms: Absolute time of the client's clock.

        Returns:
            The outcome of each key, in the order of the keys.

        Raises:
            BrokerUnavailableError: REQUEST_DEADLINE or BROKER_UNREACHABLE, only if ``call.on_code`` is RAISE.
            AuthorizationError, BrokerRefusedError, FencedError, TransactionAbortedError: by `refusal`.
        """
        if len(self._coordinators) + len(self._stale) > MOST_COORDINATORS:
            self._coordinators.clear()
            self._stale.clear()
        operation = _Operation(call, keys, Retry(self.client, "", deadline_ms, first_ms=call.first_backoff_ms))
        try:
            while operation.open:
                operation.retry.what = call.describe(list(operation.open))
                self._round(operation)
                if operation.open:
                    operation.retry.pause()
        except BrokerUnavailableError:
            # With the other policies the deadline is no error: return the last known outcome of each key.
            if call.on_code is OnCode.RAISE:
                self._raise_blocked(operation)
                raise
        return operation.outcomes

    def values(self, call: Call[K, V], keys: Iterable[K], deadline_ms: int) -> dict[K, V]:
        """Perform a call that raises every rejection; return each key's value."""
        return {key: cast(V, outcome.value) for key, outcome in self.perform(call, keys, deadline_ms).items()}

    def leaders(self, partitions: Iterable[TopicPartition], deadline_ms: int) -> dict[TopicPartition, int]:
        """Return the node id of each partition's leader. Waits for elections.

        Raises:
            BrokerRefusedError: UNKNOWN_TOPIC if a topic or partition did not appear before the deadline.
            AuthorizationError, BrokerUnavailableError.
        """
        wanted = list(dict.fromkeys(partitions))
        topics = {topic for topic, _partition in wanted}
        while True:
            self.client.want_topics(topics)  # in each round, because metadata.max.idle.ms may be shorter
            if not topics <= self.client.metadata.topics.keys():
                self.refresh_metadata(in_words(MetadataRequest, ", ".join(sorted(topics))), deadline_ms)
            metadata = self.client.metadata
            found = {each: leader for each in wanted if (leader := metadata.leader(*each)) is not None}
            if len(found) == len(wanted):
                return found
            missing = next(each for each in wanted if each not in found)
            known = metadata.topics.get(missing[0])
            # For example a missing permission: waiting for an election would not help.
            if known is not None and known.error_code and not ErrorCode.of(known.error_code).retriable:
                raise refusal(MetadataRequest, known.error_code, in_words(MetadataRequest, f"topic {missing[0]!r}"))
            if not self.client.wait_for_metadata(deadline_ms):
                raise self.no_leader(*missing)

    def refresh_metadata(self, what: str, deadline_ms: int) -> None:
        """Wait for fresh metadata.

        Raises:
            BrokerUnavailableError: BROKER_UNREACHABLE or REQUEST_DEADLINE.
        """
        if not self.client.wait_for_metadata(deadline_ms):
            self.client.any_node(deadline_ms)
            raise Retry(self.client, what, deadline_ms).timeout()

    def no_leader(self, topic: str, partition: int) -> KafkaEosError:
        """Return the error for a partition without a leader at the deadline."""
        known = self.client.metadata.topics.get(topic)
        is_listed = known is not None and (known.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or known.partitions)
        if known is not None and is_listed and partition_of(known, partition) is None:
            size = (
                f"it has {counted(len(known.partitions), 'partition')}"
                if known.partitions
                else "there is no such topic"
            )
            return BrokerRefusedError(
                "UNKNOWN_TOPIC",
                f"{topic}-{partition} did not appear in the cluster before the deadline: {size}; create it, or grant Describe on "
                "the topic if it exists",
            )
        return Retry(self.client, f"The election of a leader for {topic}-{partition}", 0).timeout()

    # one round

    def _round(self, operation: _Operation[K, V]) -> None:
        """Send the open keys whose node is known; settle those with a final outcome."""
        call = operation.call
        by_node: dict[int, list[K]] = {}
        for key, node_id in self._nodes(operation).items():
            by_node.setdefault(node_id, []).append(key)
        batches = [
            (node_id, keys[at : at + operation.keys_per_request])
            for node_id, keys in by_node.items()
            for at in range(0, len(keys), operation.keys_per_request)
        ]
        requests = [(node_id, call.request(keys, node_id), call.versions(keys[0])) for node_id, keys in batches]
        try:
            responses = self.client.call_all(requests, operation.retry.deadline_ms)
        except KafkaEosError:
            # Any broker's failure ends the call, for example if DNS does not know the bootstrap servers any more. Requests are in flight.
            for _node_id, keys in batches:
                operation.outcomes |= {key: operation.outcomes[key].after_lost_response() for key in keys}
            raise
        for (node_id, keys), response in zip(batches, responses, strict=True):
            if isinstance(response, KafkaEosError):
                self._on_error(operation, node_id, keys, response)
                continue
            omitted = dict.fromkeys(keys)
            for key, code, message, value in call.read(response, keys):
                omitted.pop(key, None)
                # A response may hold keys that the request does not, or one key twice.
                if key in operation.open:
                    self._on_result(operation, node_id, key, operation.outcomes[key].after(code, value), message)
            for key in omitted:
                # The response omits this key, but the broker may have processed it. So the earlier code no longer describes the key.
                operation.outcomes[key] = operation.outcomes[key].after_lost_response()

    def _nodes(self, operation: _Operation[K, V]) -> dict[Any, int]:
        """Return the node of each open key, except those with an unknown coordinator."""
        route, deadline_ms = operation.call.route, operation.retry.deadline_ms
        keys: list[Any] = list(operation.open)
        match route:
            case Route.BROKER:
                return {key: key for key in keys}
            case Route.LEADER:
                return dict(self.leaders(keys, deadline_ms))
            case Route.TRANSACTION_COORDINATOR | Route.GROUP_COORDINATOR:
                return self._coordinator_nodes(operation)
            case Route.CONTROLLER if (controller := self.client.metadata.controller) in self.client.metadata.brokers:
                return dict.fromkeys(keys, controller)
        node_id = self.client.any_node(deadline_ms)
        while route is Route.ANY_IDENTIFIED and node_id < 0:
            self.refresh_metadata(in_words(MetadataRequest, "the cluster"), deadline_ms)
            node_id = self.client.any_node(deadline_ms)
        return dict.fromkeys(keys, node_id)

    def _coordinator_nodes(self, operation: _Operation[K, V]) -> dict[K, int]:
        """Return the coordinator of each open key, after one look-up of the missing ones."""
        # Only one look-up: an id without an available coordinator must not delay the others.
        call = operation.call
        ids = {key: call.coordinator_key(key) for key in operation.open}
        missing = [each for each in dict.fromkeys(ids.values()) if self._coordinator(call.route, each) is None]
        if missing:
            on_code = OnCode.RETURN if call.on_code is OnCode.RETURN else OnCode.RAISE
            lookup: _Operation[str, Any] = _Operation(_find_coordinator(call.route, on_code), missing, operation.retry)
            self._round(lookup)
            self._learn_coordinators(call.route, lookup.outcomes)
            for key, each in ids.items():
                outcome = lookup.outcomes.get(each)
                if outcome is not None and outcome.error_code and each not in lookup.open:
                    operation.settle_unsent(key, outcome.error_code)
        nodes = {key: self._coordinator(call.route, ids[key]) for key in operation.open}
        return {key: node_id for key, node_id in nodes.items() if node_id is not None}

    def _on_error(self, operation: _Operation[K, V], node_id: int, keys: Sequence[K], error: KafkaEosError) -> None:
        lowest, _ = operation.call.versions(keys[0])
        if lowest is not None and isinstance(error, BrokerRefusedError):
            # The broker does not speak the version. Another version would not be the identical request.
            for key in keys:
                operation.settle_unsent(key, ErrorCode.UNSUPPORTED_VERSION.value)
            return
        operation.retry.on_error(error, node_id)
        # The coordinator may have moved because its broker died; then no NOT_COORDINATOR ever arrives.
        self._forget_keys(operation.call, keys)
        if not isinstance(error, BrokerUnavailableError):
            # The response may have been too large: other programs choose how many producers a partition has. Request fewer keys at once.
            operation.keys_per_request = max(1, min(operation.keys_per_request, len(keys) // 10))
            # The request was sent. So an earlier response may no longer describe the key.
            for key in keys:
                operation.outcomes[key] = operation.outcomes[key].after_lost_response()

    def _on_result(
        self, operation: _Operation[K, V], node_id: int, key: K, outcome: KeyResult[V], message: str | None
    ) -> None:
        call, code = operation.call, outcome.error_code
        if not code:
            operation.settle(key, outcome)
            return
        what = call.describe([key])
        action = operation.retry.on_code(call.api, code, what, node_id)
        if action in RETRIES:
            operation.outcomes[key] = outcome
            if action is Reaction.FIND_COORDINATOR:
                self._forget_keys(call, [key])
            return
        if action not in COMPLETES and call.on_code is not OnCode.RETURN:
            error = refusal(call.api, code, what, message)
            # Only the user can grant a missing permission, so raise it even if the table's reaction to the code is FENCED.
            if call.on_code is OnCode.RAISE or action in CONFIGURATION or isinstance(error, AuthorizationError):
                raise error
        operation.settle(key, outcome)

    def _raise_blocked(self, operation: _Operation[K, V]) -> None:
        """Raise the deadline's error with what a key waits for, if that is known."""
        retry, blocked_by = operation.retry, operation.call.blocked_by
        if retry.last_code is ErrorCode.COORDINATOR_NOT_AVAILABLE and (
            why := self._why_no_coordinator(operation.call.route)
        ):
            raise BrokerUnavailableError(
                "NO_COORDINATOR", f"{retry.what} did not succeed before its deadline: {why}"
            ) from None
        if blocked_by is None:
            return
        for key in operation.open:
            outcome = operation.outcomes[key]
            if ErrorCode.CONCURRENT_TRANSACTIONS in (outcome.error_code, outcome.earlier_code):
                retry.reason = f"{retry.reason}; {blocked_by(key)}"
                raise retry.timeout() from None

    # coordinators

    def _why_no_coordinator(self, route: Route) -> str:
        """Describe, for an error message, why no coordinator responds; empty if unknown."""
        return ""

    def _coordinator(self, route: Route, each: str) -> int | None:
        key = (route, each)
        return None if key in self._stale else self._coordinators.get(key)

    def _learn_coordinators(
        self, route: Route, found: Mapping[str, KeyResult[FindCoordinatorResponse.Coordinator]]
    ) -> None:
        for each, outcome in found.items():
            coordinator = outcome.value
            if outcome.error_code or coordinator is None:
                continue
            # The coordinator may run on a broker that joined after the newest metadata.
            self.client.learn_broker(coordinator.node_id, coordinator.host, coordinator.port)
            before = self._coordinators.get((route, each))
            if before not in (None, coordinator.node_id):
                log.info("%s moved from broker %s to broker %d", _describe_id(route, each), before, coordinator.node_id)
            self._coordinators[route, each] = coordinator.node_id
            self._stale.discard((route, each))

    def _forget_keys(self, call: Call[K, V], keys: Iterable[K]) -> None:
        """Look up the coordinators of these keys again at their next use."""
        if call.route in _KEY_TYPES:
            # The cache keeps the old node, so that the client can log a move.
            self._stale.update((call.route, call.coordinator_key(key)) for key in keys)


def single(
    request: Request[Any],
    route: Route,
    about: str,
    read: Callable[[Any], Iterable[tuple[int, str | None, V]]],
    **options: Any,
) -> Call[Any, V]:
    """Build the call of one fixed request about one key.

    Args:
        read: Reads the response as (error code, broker's message, value).
        about: What the key is, as in "transactional id".
        options: Further fields of `Call`.
    """
    return Call(
        api=type(request),
        route=route,
        request=lambda _keys, _node: request,
        read=lambda response, keys: ((keys[0], *result) for result in read(response)),
        about=lambda key: f"{about} {'-'.join(map(str, key)) if isinstance(key, tuple) else repr(key)}",
        **options,
    )


def _find_coordinator(route: Route, on_code: OnCode) -> Call[str, FindCoordinatorResponse.Coordinator]:
    """FindCoordinator, many keys per request (KIP-699)."""
    return Call(
        api=FindCoordinatorRequest,
        route=Route.ANY,
        request=lambda ids, _node: FindCoordinatorRequest(key_type=_KEY_TYPES[route], coordinator_keys=tuple(ids)),
        read=lambda response, _ids: ((c.key, c.error_code, c.error_message, c) for c in response.coordinators),
        about=lambda each: _describe_id(route, each),
        on_code=on_code,
    )


def _describe_id(route: Route, each: str) -> str:
    return f"{'group' if route is Route.GROUP_COORDINATOR else 'transactional id'} {each!r}"
