"""Requests about transactions (KIP-98, 360, 664, 890, 1152), one `Call` each."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from kafka_eos_sink.client.connection import ANY_VERSION, API_VERSIONS, BrokerVersions
from kafka_eos_sink.client.requests import MARKERS_FIRST_BACKOFF_MS, Call, KeyResult, OnCode, Requests, Route, single
from kafka_eos_sink.client.retry import Retry
from kafka_eos_sink.errors import BrokerRefusedError, BrokerUnavailableError, KafkaEosError, ProtocolError, peer_text
from kafka_eos_sink.logs import warn_once
from kafka_eos_sink.protocol import messages as m
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import LONGEST_STRING, ProducerIdentity, TopicPartition, by_topic
from kafka_eos_sink.protocol.reactions import RETRIES, in_words, reaction, refusal

CommittedOffset = m.OffsetFetchResponse.Group.Topic.Partition
_FEATURES_VALID_MS = 10_000
_HOLDER_MS = 2_000
"""For how long the coordinator is queried, after the deadline, for the transaction that blocks an id."""
_ID_OF_A_WRITE = re.compile(r"\.(?:(?:0|[1-9][0-9]*)\.[0-7]|driver)$")
"""How the ids of tasks and drivers end (`commit/transactional_id.py`)."""
INT32_MAX = 2**31 - 1
_NAMED_PARTITIONS = 8
_LIST = "the open transactions"


@dataclass(frozen=True, slots=True)
class EndTransaction:
    """An EndTxn; every try has the same API ``version``."""

    identity: ProducerIdentity
    committed: bool

    @property
    def version(self) -> int:
        """Version 5, which bumps the epoch (KIP-890), or else 3.

        Brokers treat 3 and 4 alike; 4 is new in Kafka 3.8. Version 5 belongs to transaction version 2.
        """
        return 5 if self.identity.bumps_epoch else 3


class TransactionsAdmin(Requests):
    """The half of `Admin` that is about transactions."""

    unlisted = ""
    """Why the last list of transactions lacks a broker's transactions; empty if it is complete."""
    _features_known_at: int | None = None

    def transaction_version(self, deadline_ms: int) -> int:
        """Return the finalized feature ``transaction.version`` (KIP-890): 0, 1 or 2.

        A cluster without the feature has 0. The value is at most 10 s old: brokers send their features when a connection opens,
        and a connection may outlive an upgrade.
        """
        self.client.any_node(deadline_ms)
        now = self.client.clock()
        if self._features_known_at is None:
            # `any_node` waited for a connection, and its ApiVersions response has just delivered the features.
            self._features_known_at = now
        if now - self._features_known_at > _FEATURES_VALID_MS:
            feature = "transaction.version"
            call = single(API_VERSIONS, Route.ANY, "feature", lambda found: [(found.error_code, None, found)])
            response = self.values(call, [feature], deadline_ms)[feature]
            self.client.learn_features(BrokerVersions.from_response(response))
            self._features_known_at = now
        return self.client.finalized_features().get("transaction.version", 0)

    def init_producer_id(
        self, transactional_id: str | None, transaction_timeout_ms: int, deadline_ms: int
    ) -> tuple[int, int]:
        """Return a fresh (producer id, producer epoch).

        Any broker gives one without a transactional id. Otherwise the coordinator fences the id's former owner and aborts its open
        transaction. This call waits for the abort.

        Raises:
            BrokerRefusedError: INVALID_TRANSACTION_TIMEOUT.
            BrokerUnavailableError: Past the deadline; the message shows the transaction that blocks the id.
            AuthorizationError, FencedError, TransactionAbortedError.
        """
        about = "an idempotent producer"
        if transactional_id is not None:
            about = f"{_transactional_id(transactional_id)} with transaction.timeout.ms={transaction_timeout_ms}"
        call: Call[str | None, tuple[int, int]] = Call(
            api=m.InitProducerIdRequest,
            route=Route.ANY if transactional_id is None else Route.TRANSACTION_COORDINATOR,
            request=lambda ids, _node: m.InitProducerIdRequest(
                transactional_id=ids[0], transaction_timeout_ms=transaction_timeout_ms
            ),
            read=lambda found, ids: [(ids[0], found.error_code, None, (found.producer_id, found.producer_epoch))],
            about=lambda _each: about,
            first_backoff_ms=MARKERS_FIRST_BACKOFF_MS,
            blocked_by=None if transactional_id is None else lambda _each: self.holder(transactional_id),
        )
        found = self.values(call, [transactional_id], deadline_ms)[transactional_id]
        if min(found) < 0:
            # -1 would write without idempotence and transaction.
            raise ProtocolError(f"{in_words(call.api, about)} returned the identity {found}")
        return found

    def add_partitions(
        self,
        identity: ProducerIdentity,
        partitions: Collection[TopicPartition],
        deadline_ms: int,
        on_code: OnCode = OnCode.RETURN,
    ) -> tuple[KeyResult[TopicPartition | None], bool]:
        """Add partitions to a transaction, below transaction version 2.

        In version 3 of the API, the last one for clients. Every retry is identical.

        Returns:
            The outcome, whose value is the partition that the code is about. Then, whether a try may have added the partitions although
            the code is an error: its response was lost, or its coordinator moved or timed out.
        """
        request = m.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=identity.transactional_id,
            v3_and_below_producer_id=identity.producer_id,
            v3_and_below_producer_epoch=identity.producer_epoch,
            v3_and_below_topics=by_topic(
                partitions, lambda name, of: m.AddPartitionsToTxnRequest.Topic(name=name, partitions=tuple(of))
            ),
        )
        may_be_added = False

        def read(
            response: m.AddPartitionsToTxnResponse,
        ) -> Iterator[tuple[int, str | None, TopicPartition | None]]:
            nonlocal may_be_added
            codes = {
                (topic.name, each.partition_index): each.partition_error_code
                for topic in response.results_by_topic_v3_and_below
                for each in topic.results_by_partition
            }
            # The coordinator adds all or none. OPERATION_NOT_ATTEMPTED is the result of the partitions that caused no error.
            refused = {each: code for each, code in sorted(codes.items()) if code != ErrorCode.NONE}
            reasons = {each: code for each, code in refused.items() if code != ErrorCode.OPERATION_NOT_ATTEMPTED}
            where, code = next(iter((reasons or refused).items()), (None, ErrorCode.NONE.value))
            # A coordinator that moved, or timed out during replication, may still have added the partitions.
            may_be_added |= reaction(type(request), code) in RETRIES
            if codes.keys() == set(partitions):
                yield code, None, where

        call: Call[str, TopicPartition | None] = single(
            request,
            Route.TRANSACTION_COORDINATOR,
            "transactional id",
            read,
            first_backoff_ms=MARKERS_FIRST_BACKOFF_MS,
            on_code=on_code,
        )
        outcome = self.perform(call, [identity.transactional_id], deadline_ms)[identity.transactional_id]
        return outcome, may_be_added or outcome.has_lost_response

    def describe_transactions(
        self, transactional_ids: Iterable[str], deadline_ms: int
    ) -> dict[str, m.TransactionState | None]:
        """Return each id's state at its coordinator, None if the id is unknown or expired.

        One request holds up to 1,000 ids of a coordinator, so tens of thousands of ids take a few requests.

        Raises:
            AuthorizationError, BrokerUnavailableError.
        """
        call = Call(
            api=m.DescribeTransactionsRequest,
            route=Route.TRANSACTION_COORDINATOR,
            request=lambda ids, _node: m.DescribeTransactionsRequest(transactional_ids=tuple(ids)),
            read=lambda response, _ids: (
                (each.transactional_id, each.error_code, None, None if each.error_code else each)
                for each in response.transaction_states
            ),
            about=_transactional_id,
        )
        return self.values(call, transactional_ids, deadline_ms)

    def end_transactions(
        self, transactions: Sequence[EndTransaction], deadline_ms: int
    ) -> list[KeyResult[m.EndTxnResponse]]:
        """Commit or abort transactions; return the outcomes in the same order.

        Requests are pipelined per coordinator and concurrent over brokers. Every retry is identical, API version included. At the
        deadline the last known outcome counts. No error code and no network error is raised. UNSUPPORTED_VERSION also means that
        the broker does not speak ``version``; then nothing was sent.
        """
        call: Call[EndTransaction, m.EndTxnResponse] = Call(
            api=m.EndTxnRequest,
            route=Route.TRANSACTION_COORDINATOR,
            # One EndTxn per request: the protocol has no batch of them. `call_all` pipelines instead.
            request=lambda ends, _node: m.EndTxnRequest(
                transactional_id=ends[0].identity.transactional_id,
                producer_id=ends[0].identity.producer_id,
                producer_epoch=ends[0].identity.producer_epoch,
                committed=ends[0].committed,
            ),
            read=lambda found, ends: [(ends[0], found.error_code, None, found)],
            about=lambda end: _transactional_id(end.identity.transactional_id),
            keys_per_request=1,
            first_backoff_ms=MARKERS_FIRST_BACKOFF_MS,
            on_code=OnCode.RETURN,
            coordinator_key=lambda end: end.identity.transactional_id,
            versions=lambda end: (end.version, end.version),
        )
        outcomes = self.perform(call, transactions, deadline_ms)
        return [outcomes[each] for each in transactions]

    def group_offsets(
        self, group_id: str, partitions: Collection[TopicPartition] | None, deadline_ms: int
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return the offsets of a consumer group; a partition may have none.

        Waits until no open transaction holds one of the offsets (KIP-447).

        Args:
            partitions: None for all that the group has and the principal may Describe.

        Raises:
            AuthorizationError, BrokerRefusedError, BrokerUnavailableError.
        """
        wanted = by_topic(
            partitions or (), lambda name, of: m.OffsetFetchRequest.Group.Topic(name=name, partition_indexes=tuple(of))
        )
        group = m.OffsetFetchRequest.Group(group_id=group_id, topics=None if partitions is None else wanted)
        call = single(
            m.OffsetFetchRequest(groups=(group,), require_stable=True),
            Route.GROUP_COORDINATOR,
            "group",
            lambda response: _read_offsets(group_id, response),
        )
        found: dict[TopicPartition, CommittedOffset] = self.values(call, [group_id], deadline_ms)[group_id]
        return found

    def list_transactions(
        self,
        *,
        states: Sequence[str] = ("Ongoing",),
        id_pattern: str | None = None,
        producer_ids: Sequence[int] = (),
        deadline_ms: int,
        partial: bool = False,
    ) -> tuple[m.ListTransactionsResponse.Transaction, ...]:
        """Return the cluster's transactions in one of ``states`` (empty: all).

        All brokers must respond in one round. Otherwise the list would miss the transactions of a broker that is still loading its
        part of the state, or whose part moves to other brokers. Brokers omit transactions that the principal may not Describe,
        without an error.

        Args:
            id_pattern: A regular expression for the whole id. The broker applies it (RE2) if it can (KIP-1152), else this client.
            partial: At the deadline, return what the other brokers have listed, and warn, instead of raising.

        Raises:
            AuthorizationError, BrokerRefusedError, BrokerUnavailableError.
        """
        self.unlisted = ""
        retry = Retry(self.client, _LIST, deadline_ms)
        # The request for metadata may hang at the very broker that does not list.
        metadata_by = (self.client.clock() + deadline_ms) // 2 if partial else deadline_ms
        found: dict[str, m.ListTransactionsResponse.Transaction] = {}
        # Not a `Call`: a retry must not wait for a dead broker, because its part of the state has moved to other brokers.
        while True:
            if not self.client.wait_for_metadata(metadata_by) and not partial:
                raise retry.timeout()
            if self._list_round(states, id_pattern, producer_ids, retry, found):
                return tuple(found.values())
            try:
                retry.pause()
            except BrokerUnavailableError as timeout:
                if not partial:
                    raise
                self.unlisted = timeout.message
                warn_once(f"{timeout.message}; continued without the transactions that it coordinates", about=_LIST)
                return tuple(found.values())

    def _list_round(
        self,
        states: Sequence[str],
        id_pattern: str | None,
        producer_ids: Sequence[int],
        retry: Retry,
        found: dict[str, m.ListTransactionsResponse.Transaction],
    ) -> bool:
        """List at all brokers of the snapshot into ``found``; return whether complete."""
        api = m.ListTransactionsRequest
        older = api(state_filters=tuple(states), producer_id_filters=tuple(producer_ids))
        # A pattern is longer than the id that it quotes. Above Kafka's limit, brokers list all ids, and this client filters.
        fits = id_pattern is not None and len(id_pattern.encode()) <= LONGEST_STRING
        newer = replace(older, transactional_id_pattern=id_pattern if fits else None)
        nodes = [each for each in self.client.metadata.brokers if each >= 0]
        # With a pattern in exactly the version that has it: the response of a broker that filters holds only our own ids. The client
        # must not decide by the version of a connection, because the response without a pattern may be too large for every connection.
        results = self.client.call_all(
            [(each, newer, (2, 2)) for each in nodes],
            retry.deadline_ms,
            # In the same call: a broker that hangs takes all the time of the first one.
            older=[(each, older, ANY_VERSION) for each in nodes],
        )
        is_complete = True
        for node_id, result in zip(nodes, results, strict=True):
            if isinstance(result, KafkaEosError):
                retry.on_error(result, node_id)
                is_complete = False
                continue
            if result.error_code:
                what = in_words(api, f"broker {node_id}")
                if retry.on_code(api, result.error_code, what, node_id) not in RETRIES:
                    raise refusal(api, result.error_code, what)
                is_complete = False
                continue
            _require_known_states(result, node_id)
            for line in result.transaction_states:
                if id_pattern is None or re.fullmatch(id_pattern, line.transactional_id) is not None:
                    found[line.transactional_id] = line
        return is_complete

    def transaction_of(self, producer_id: int) -> str:
        """Describe, for a warning, a producer's open transaction; empty if none is listed.

        Brokers omit the transactions that the principal may not Describe. If the queries fail, the description contains their error.
        """
        deadline_ms = self.client.clock() + _HOLDER_MS
        states = ("Ongoing", "PrepareCommit", "PrepareAbort")
        try:
            listed = self.list_transactions(states=states, producer_ids=(producer_id,), deadline_ms=deadline_ms)
            if not listed:
                return ""
            name = listed[0].transactional_id
            state = self.describe_transactions([name], deadline_ms)[name]
        except KafkaEosError as error:
            return f"which transaction that is could not be found out: {error.message}"
        if state is None or state.producer_id != producer_id or state.transaction_state != "Ongoing":
            return f"it is the one of {peer_text(name)!r}, which is being ended"
        age, timeout = time.time() - state.transaction_start_time_ms / 1000, state.transaction_timeout_ms
        ends = "It has no timeout" if timeout == INT32_MAX else f"Its timeout is {timeout / 1000:.0f} s"
        whose = "another write of this sink" if _ID_OF_A_WRITE.search(name) else "another producer"
        return (
            f"it is the one of {peer_text(name)!r}, of {whose}, open for {max(0, age):.0f} s. {ends}; readers continue once it has ended, "
            "and no marker is missing"
        )

    def holder(self, transactional_id: str) -> str:
        """Describe, for an error message, which transaction blocks this transactional id.

        The query has its own short deadline. If it fails, the description contains its error: the caller already raises one.
        """
        try:
            state = self.describe_transactions([transactional_id], self.client.clock() + _HOLDER_MS)[transactional_id]
        except KafkaEosError as error:
            return f"what blocks it is unknown: {error.message}"
        if state is None:
            return "the coordinator does not know the id"
        found = f"its transaction is in state {state.transaction_state}"
        partitions = sorted(state.partitions)
        if not partitions:
            return found
        named = ", ".join(f"{topic}-{index}" for topic, index in partitions[:_NAMED_PARTITIONS])
        more = len(partitions) - _NAMED_PARTITIONS
        return f"{found}, the marker is missing in {named}{f' and {more} more' if more > 0 else ''}"


def _transactional_id(each: str) -> str:
    return f"transactional id {each!r}"


def _read_offsets(
    group_id: str, response: m.OffsetFetchResponse
) -> Iterator[tuple[int, None, dict[TopicPartition, CommittedOffset]]]:
    for group in response.groups:
        if group.group_id != group_id:
            continue
        found = {(topic.name, each.partition_index): each for topic in group.topics for each in topic.partitions}
        code = next((each.error_code for each in found.values() if each.error_code), group.error_code)
        yield code, None, {where: each for where, each in found.items() if each.committed_offset >= 0}


def _require_known_states(response: m.ListTransactionsResponse, node_id: int) -> None:
    if response.unknown_state_filters:
        raise BrokerRefusedError(
            "BROKER_REFUSED",
            f"broker {node_id} does not know the transaction states {peer_text(', '.join(response.unknown_state_filters))} of this client",
        )
