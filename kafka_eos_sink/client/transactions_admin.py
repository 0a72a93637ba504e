"""Transactions as the driver sees them: producer ids, describing, listing and ending (KIP-98, 360, 664, 890, 1152)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kafka_eos_sink.client.connection import API_VERSIONS, BrokerVersions
from kafka_eos_sink.client.coordinators import Coordinators, is_hopeless
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.client.retry import Retry, ask_any_node
from kafka_eos_sink.errors import BrokerRefusedError, BrokerUnavailableError, KafkaEosError
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.messages import (
    ApiVersionsRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from kafka_eos_sink.protocol.reactions import Reaction, reaction

TopicPartition = tuple[str, int]

_IDS_PER_REQUEST = 1_000
_CONCURRENT_TRANSACTIONS_FIRST_MS = 20
"""Markers are written within a few ms: the Java client begins with 20 ms here, too (TransactionManager)."""
_FEATURES_VALID_MS = 10_000
_HOLDER_MS = 2_000
"""How long to ask, after the deadline, what holds a transactional id up."""
_NAMED_PARTITIONS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionState:
    """What a coordinator says of a transactional id (DescribeTransactions).

    `state` is the coordinator's word: Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort,
    PrepareEpochFence, Dead, or one that a newer broker invents. `start_time_ms` is -1 outside a transaction.
    `partitions` are those of the transaction; while it is being ended, those whose marker is missing.
    """

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_time_ms: int
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTransaction:
    """One line of ListTransactions."""

    transactional_id: str
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransaction:
    """One EndTxn; `version` is the API version, the same at every repeat: 5 in transaction version 2, else 3 or 4."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTxnResult:
    """The last answer to an EndTxn: the raw error code, None where its answer did not come (it may have happened).

    `producer_id` and `producer_epoch` are those for the next transaction (EndTxn 5), -1 otherwise. `earlier_code` is what
    a try before the last one was answered, where that had no answer: for messages, it no longer says what is so.
    """

    error_code: int | None
    producer_id: int = -1
    producer_epoch: int = -1
    earlier_code: int | None = None


class TransactionsAdmin(Coordinators):
    """The transactional half of `Admin`."""

    def __init__(self, client: NetworkClient) -> None:
        super().__init__(client)
        self._features_known_at: int | None = None

    def transaction_version(self, deadline_ms: int) -> int:
        """The finalized feature `transaction.version`: 0, 1 or 2 (KIP-890); 0 where the cluster does not have it.

        No older than 10 s: connections say it when they begin, and may outlive an upgrade of the feature.
        """
        self.client.any_node(deadline_ms)
        now = self.client.clock()
        if self._features_known_at is None:
            self._features_known_at = now  # of the connection just made
        if now - self._features_known_at > _FEATURES_VALID_MS:
            retry = Retry(self.client, "ApiVersions", deadline_ms)
            while (answer := ask_any_node(self.client, API_VERSIONS, retry)).error_code:
                retry.answered(ApiVersionsRequest, answer.error_code)
                retry.pause()
            self.client.learn_features(BrokerVersions.from_response(answer))
            self._features_known_at = now
        return self.client.finalized_features().get("transaction.version", 0)

    def init_producer_id(
        self, transactional_id: str | None, transaction_timeout_ms: int, deadline_ms: int
    ) -> tuple[int, int]:
        """A fresh (producer id, producer epoch).

        Fences the id's former owner and aborts what it left open; that is waited for. None: an idempotent producer
        without transactions, at any broker. Raises BrokerRefusedError INVALID_TRANSACTION_TIMEOUT, AuthorizationError,
        FencedError, and past the deadline BrokerUnavailableError, which says what holds the id.
        """
        of_whom = "an idempotent producer" if transactional_id is None else f"transactional id {transactional_id!r}"
        what = f"InitProducerId of {of_whom}"
        retry = Retry(self.client, what, deadline_ms, first_ms=_CONCURRENT_TRANSACTIONS_FIRST_MS)
        request = InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=transaction_timeout_ms
        )
        code: int = ErrorCode.NONE
        while True:
            if transactional_id is None:
                response = ask_any_node(self.client, request, retry)
            else:
                node_id = self.find_coordinators([transactional_id], deadline_ms)[transactional_id]
                (response,) = self.client.call_all([(node_id, request, None)], deadline_ms)
            if isinstance(response, KafkaEosError):
                assert transactional_id is not None
                retry.failed(response)
                self.forget([transactional_id])
            else:
                code = response.error_code
                if not code:
                    return response.producer_id, response.producer_epoch
                if code == ErrorCode.INVALID_TRANSACTION_TIMEOUT:
                    what = f"{what} with transaction.timeout.ms={transaction_timeout_ms}"
                if retry.answered(InitProducerIdRequest, code, what) is Reaction.FIND_COORDINATOR:
                    self.forget([transactional_id] if transactional_id is not None else [])
            try:
                retry.pause()
            except BrokerUnavailableError:
                if transactional_id is None or code != ErrorCode.CONCURRENT_TRANSACTIONS:
                    raise
                retry.reason = f"{retry.reason}; {self.holder(transactional_id)}"
                raise retry.timeout() from None

    def describe_transactions(
        self, transactional_ids: Iterable[str], deadline_ms: int
    ) -> dict[str, TransactionState | None]:
        """What the coordinators say of each id; None where the id is unknown or expired.

        Batched per coordinator: tens of thousands of ids are a matter of some requests. Raises AuthorizationError,
        BrokerUnavailableError.
        """
        ids = list(dict.fromkeys(transactional_ids))
        retry = Retry(self.client, f"DescribeTransactions of {len(ids)} transactional ids", deadline_ms)
        states: dict[str, TransactionState | None] = {}
        remaining = ids
        while remaining:
            by_coordinator: dict[int, list[str]] = {}
            for transactional_id, node_id in self.find_coordinators(remaining, deadline_ms).items():
                by_coordinator.setdefault(node_id, []).append(transactional_id)
            requests = [
                (
                    node_id,
                    DescribeTransactionsRequest(transactional_ids=tuple(of_node[at : at + _IDS_PER_REQUEST])),
                    None,
                )
                for node_id, of_node in by_coordinator.items()
                for at in range(0, len(of_node), _IDS_PER_REQUEST)
            ]
            for (_, request, _), result in zip(requests, self.client.call_all(requests, deadline_ms), strict=True):
                if isinstance(result, KafkaEosError):
                    retry.failed(result)
                    self.forget(request.transactional_ids)
                    continue
                for answer in result.transaction_states:
                    transactional_id = answer.transactional_id
                    if answer.error_code:
                        what = f"DescribeTransactions of transactional id {transactional_id!r}"
                        asked_for = retry.answered(DescribeTransactionsRequest, answer.error_code, what)
                        if asked_for is Reaction.NOT_FOUND:
                            states[transactional_id] = None
                        elif asked_for is Reaction.FIND_COORDINATOR:
                            self.forget([transactional_id])
                        continue
                    states[transactional_id] = TransactionState(
                        transactional_id=transactional_id,
                        state=answer.transaction_state,
                        producer_id=answer.producer_id,
                        producer_epoch=answer.producer_epoch,
                        timeout_ms=answer.transaction_timeout_ms,
                        start_time_ms=answer.transaction_start_time_ms,
                        partitions=tuple((topic.topic, index) for topic in answer.topics for index in topic.partitions),
                    )
            remaining = [transactional_id for transactional_id in remaining if transactional_id not in states]
            if remaining:
                retry.pause()
        return {transactional_id: states[transactional_id] for transactional_id in ids}

    def list_transactions(
        self, *, states: Sequence[str] = ("Ongoing",), id_pattern: str | None = None, deadline_ms: int
    ) -> tuple[ListedTransaction, ...]:
        """The transactions that any coordinator of the cluster holds in one of `states` (empty: all).

        `id_pattern`: a regular expression that the whole id must match, by the broker (RE2) where it can (KIP-1152),
        else here. All brokers must answer in one round: where one is loading its part of the state, or has gone and
        others take its part over, a list without it would miss transactions. What the principal may not Describe is
        silently left out by the broker.
        """
        retry = Retry(self.client, "ListTransactions", deadline_ms)
        while True:
            if not self.client.wait_for_metadata(deadline_ms):
                raise retry.timeout()
            found = self._list_round(states, id_pattern, retry)
            if found is not None:
                return found
            retry.pause()

    def end_transactions(self, transactions: Sequence[EndTransaction], deadline_ms: int) -> list[EndTxnResult]:
        """End each transaction as told; results in the order given. Pipelined per coordinator, concurrent over brokers.

        Repeats (lost answer, coordinator moved or loading, CONCURRENT_TRANSACTIONS) are identical, API version
        included, and go on until the deadline; then the last answer is returned as it was. Neither codes nor the
        network's errors are raised. UNSUPPORTED_VERSION stands also for a broker that does not speak `version`: then
        nothing was sent.
        """
        results = [EndTxnResult(error_code=None) for _ in transactions]
        remaining = list(range(len(transactions)))
        retry = Retry(self.client, "EndTxn", deadline_ms, first_ms=_CONCURRENT_TRANSACTIONS_FIRST_MS)
        try:
            while remaining:
                remaining = self._end_round(transactions, remaining, results, retry)
                if remaining:
                    retry.pause()
        except BrokerUnavailableError:
            # The deadline: what stands in the results is what is known.
            return results
        return results

    def _end_round(
        self, transactions: Sequence[EndTransaction], remaining: list[int], results: list[EndTxnResult], retry: Retry
    ) -> list[int]:
        """Ask once for each of `remaining` whose coordinator is known; those that are to be asked again."""
        ids = dict.fromkeys(transactions[position].transactional_id for position in remaining)
        missing = self._look_up([key for key in ids if key not in self._coordinators], retry)
        again: list[int] = []
        asked: list[int] = []
        for position in remaining:
            transactional_id = transactions[position].transactional_id
            if transactional_id not in missing:
                asked.append(position)
                continue
            code = missing[transactional_id]
            if is_hopeless(code):
                results[position] = EndTxnResult(error_code=code)
            else:
                again.append(position)
        requests = []
        for position in asked:
            wanted = transactions[position]
            request = EndTxnRequest(
                transactional_id=wanted.transactional_id,
                producer_id=wanted.producer_id,
                producer_epoch=wanted.producer_epoch,
                committed=wanted.committed,
            )
            requests.append((self._coordinators[wanted.transactional_id], request, wanted.version))
        answers = self.client.call_all(requests, retry.deadline_ms, exact_versions=True)
        for position, answer in zip(asked, answers, strict=True):
            transactional_id = transactions[position].transactional_id
            if isinstance(answer, BrokerRefusedError):
                results[position] = EndTxnResult(error_code=ErrorCode.UNSUPPORTED_VERSION.value)
            elif isinstance(answer, KafkaEosError):
                if not isinstance(answer, BrokerUnavailableError):
                    # Sent and not answered: an earlier answer no longer says what is so.
                    known = results[position]
                    earlier = known.earlier_code if known.error_code is None else known.error_code
                    results[position] = EndTxnResult(error_code=None, earlier_code=earlier)
                retry.failed(answer)
                self.forget([transactional_id])
                again.append(position)
            else:
                results[position] = EndTxnResult(
                    error_code=answer.error_code,
                    producer_id=answer.producer_id,
                    producer_epoch=answer.producer_epoch,
                )
                asked_for = reaction(EndTxnRequest, answer.error_code) if answer.error_code else Reaction.SUCCESS
                if asked_for is Reaction.FIND_COORDINATOR:
                    self.forget([transactional_id])
                if asked_for in (Reaction.RETRY, Reaction.FIND_COORDINATOR):
                    again.append(position)
        return again

    def _list_round(
        self, states: Sequence[str], id_pattern: str | None, retry: Retry
    ) -> tuple[ListedTransaction, ...] | None:
        """What all brokers of the snapshot list; None where one did not answer."""
        waiting = [node_id for node_id in self.client.metadata.brokers if node_id >= 0]
        found: dict[str, ListedTransaction] = {}
        while waiting:
            with_pattern: list[int] = []
            requests = []
            for node_id in waiting:
                filtered = id_pattern is not None and self._filters_by_pattern(node_id)
                with_pattern += [node_id] if filtered else []
                request = ListTransactionsRequest(
                    state_filters=tuple(states), transactional_id_pattern=id_pattern if filtered else None
                )
                requests.append((node_id, request, None))
            loading: list[int] = []
            for node_id, result in zip(waiting, self.client.call_all(requests, retry.deadline_ms), strict=True):
                if isinstance(result, KafkaEosError):
                    retry.failed(result)
                    return None
                if result.error_code:
                    retry.answered(ListTransactionsRequest, result.error_code, f"ListTransactions of broker {node_id}")
                    loading.append(node_id)
                    continue
                _refuse_unknown_states(result, node_id)
                for line in result.transaction_states:
                    if (
                        id_pattern is None
                        or node_id in with_pattern
                        or re.fullmatch(id_pattern, line.transactional_id) is not None
                    ):
                        found[line.transactional_id] = ListedTransaction(
                            transactional_id=line.transactional_id,
                            producer_id=line.producer_id,
                            state=line.transaction_state,
                        )
            waiting = loading
            if waiting:
                retry.pause()
        return tuple(found.values())

    def _filters_by_pattern(self, node_id: int) -> bool:
        """Whether the node is connected and known to take a pattern; where it is not connected yet, we filter here."""
        if not self.client.ready(node_id):
            return False
        return self.client.api_version(node_id, ListTransactionsRequest) >= 2

    def holder(self, transactional_id: str) -> str:
        """Half a sentence on what a transactional id that answered CONCURRENT_TRANSACTIONS to the last is waiting for.

        For a person only: it has a short deadline of its own, and where the coordinator does not say it, that is said
        instead of raised, since whoever asks has an error to raise already.
        """
        try:
            state = self.describe_transactions([transactional_id], self.client.clock() + _HOLDER_MS)[transactional_id]
        except KafkaEosError as error:
            return f"what holds it could not be asked: {error.message}"
        if state is None:
            return "the coordinator does not know the id"
        said = f"its transaction is in state {state.state}"
        if not state.partitions:
            return said
        named = ", ".join(f"{topic}-{index}" for topic, index in sorted(state.partitions)[:_NAMED_PARTITIONS])
        more = len(state.partitions) - _NAMED_PARTITIONS
        return f"{said}, the marker is missing in {named}{f' and {more} more' if more > 0 else ''}"


def _refuse_unknown_states(response: ListTransactionsResponse, node_id: int) -> None:
    if response.unknown_state_filters:
        raise BrokerRefusedError(
            "BROKER_REFUSED",
            f"broker {node_id} does not know the transaction states {', '.join(response.unknown_state_filters)} that "
            "ListTransactions was asked to filter by",
        )
