"""What each error code of each API leads to, on the real code paths through a proxy that answers with it.

The cases are written from Kafka's protocol and docs/internals/protocol.md, not from `protocol/reactions.py`. Every row of its table
in `tests/reaction_table.py` has a case for the code as the first answer, and a case behind another answer: codes that ask for a retry
come one after the other, and a code that ends the request comes after one of those.

`again`: the write succeeds, every row exactly once and in order, and nothing stays open. `ends`: our code is raised,
nothing is visible, and the next run of the same write leaves every row exactly once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import pytest

from dead_writes import ROWS, varied
from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.client.security import PasswordCredentials, SaslConfig, Secret, SecurityConfig
from kafka_eos_sink.client.transactions_admin import EndTransaction
from kafka_eos_sink.commit import transactions
from kafka_eos_sink.commit.steps import CommitGroupOffsets
from kafka_eos_sink.errors import AuthenticationError, DecisionPendingError, KafkaEosError
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.protocol import messages as m
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import TransactionMarker
from kafka_eos_sink.protocol.reactions import RETRIES, Reaction, reaction, refusal
from kafka_eos_sink.protocol.schema import Request
from kafka_eos_sink.runtime import session
from kafka_eos_sink.runtime.driver_requests import commit_group_offsets
from kafka_testing import end_as_driver, started_producer, unique_topic
from reaction_table import COORDINATOR, LEADER, REACTIONS, UNLISTED_CODES, codes_of

from .bench import Bench, numbered, write_at_least_once, write_tasks, write_whole
from .error_responses import metadata_with_code, refused_records
from .fault_proxy import Action, Answer, AnswerAfter, Change, LoseRequest, LoseResponse, Reply, Rule, Seen

QUOTA = "THROTTLING_QUOTA_EXCEEDED"
THROTTLED_MS = 60
"""The silence that a THROTTLING_QUOTA_EXCEEDED asks for: longer than any backoff of the bench, which ends at 40 ms."""
UNDECIDED_IN = 4_000
"""delivery.timeout.ms of the cases that wait for it to pass."""
FIRST = "as the first answer"
BEHIND = "behind another"


# which requests of a write are meant


def of_driver(request: Any) -> bool:
    return _id(request).endswith(".driver")


def of_task(request: Any) -> bool:
    return bool(_id(request)) and not of_driver(request)


def _id(request: Any) -> str:
    if isinstance(request, m.FindCoordinatorRequest):
        return request.coordinator_keys[0]
    if isinstance(request, m.AddPartitionsToTxnRequest):
        return request.v3_and_below_transactional_id
    return request.transactional_id or ""


def of_data(request: Any) -> bool:
    """About the topic of the rows."""
    return any(topic.startswith("faulty-") for topic in _topics(request))


def of_log(request: Any) -> bool:
    return any(topic.startswith("__kafka_eos_commits") for topic in _topics(request))


def _topics(request: Any) -> list[str]:
    match request:
        case m.ProduceRequest():
            return [topic.name for topic in request.topic_data]
        case m.AddPartitionsToTxnRequest():
            return [topic.name for topic in request.v3_and_below_topics]
        case m.FetchRequest():
            return [topic.topic for topic in request.topics]
    return [topic.name for topic in request.topics]


def of_part(request: Any) -> bool:
    """The part record of a task."""
    return of_log(request) and of_task(request)


def of_barrier(request: Any) -> bool:
    """Appended to the commit log without a transaction: the barriers of a new write id and of its plan, at last the done record."""
    return of_log(request) and not _id(request)


def of_group(request: m.FindCoordinatorRequest) -> bool:
    return request.key_type == 0


def of_slots(request: m.DescribeTransactionsRequest) -> bool:
    """A task looks for a free id, or a message for what blocks one."""
    return len(request.transactional_ids) == 1 and not of_question(request)


def of_check(request: m.DescribeTransactionsRequest) -> bool:
    """The driver looks at what it is about to decide."""
    return 1 < len(request.transactional_ids) < 8


def of_losers(request: m.DescribeTransactionsRequest) -> bool:
    """And at all other ids of the batch, when the decision is written."""
    return len(request.transactional_ids) > 8


def of_question(request: m.DescribeTransactionsRequest) -> bool:
    """A task looks whether it is overtaken; the first plan of a write id, whether the id was used before."""
    return len(request.transactional_ids) == 1 and request.transactional_ids[0].endswith(".driver")


def anything(_request: Any) -> bool:
    return True


# what is driven


def offsets_in_transaction(bench: Bench, case: Case, topic: str) -> None:
    """Rows and the offsets of a group in one transaction, as the driver sends them; both are there or neither."""
    group, transactional_id = unique_topic("group"), unique_topic("offsets")
    with NetworkClient(bench.client_config()) as client:
        within_ms = case.settings.get("delivery_timeout_ms", 60_000)
        deadline = client.clock() + within_ms
        producer = started_producer(client, transactional_id, ProducerConfig(batch_size=40), within_ms)
        producer.write(numbered(topic, 0, 2 * ROWS))
        identity = producer.prepare()
        try:
            step = CommitGroupOffsets(identity, group, ((topic, 0, 5), (topic, 1, 7)))
            if (code := commit_group_offsets(Admin(client), step, deadline).error) != 0:
                raise refusal(case.rules[-1].api, code or 0, f"offsets of group {group!r}")
        except KafkaEosError:
            assert end_as_driver(client, identity, committed=False) == 0
            raise
        else:
            assert end_as_driver(client, identity, committed=True) == 0
        finally:
            assert bench.committed_offsets(group, topic) == ([5, 7] if case.ends is None else [None, None])


def offsets_of_group(bench: Bench, case: Case, topic: str) -> None:
    """What a group has committed, as the plan of a query's first batch reads it; then a write."""
    group, found = unique_topic("group"), (topic, 0)
    with NetworkClient(bench.client_config()) as client:
        deadline = client.clock() + case.settings.get("delivery_timeout_ms", 60_000)
        assert Admin(client).group_offsets(group, [found], deadline) == {}
    write_whole(bench.write_settings(topic, **case.settings))


def commit_log_made_anew(bench: Bench, case: Case, topic: str) -> None:
    """A write whose commit log does not exist yet."""
    write_whole(bench.write_settings(topic, commit_log=unique_topic("__kafka_eos_commits"), **case.settings))


def marker_by_hand(bench: Bench, _case: Case, topic: str) -> None:
    """An open transaction gets its ABORT marker on one partition past its coordinator, as `kafka-transactions.sh abort` does."""
    transactional_id = unique_topic("hanging")
    with NetworkClient(bench.client_config()) as client:
        admin, deadline = Admin(client), client.clock() + 60_000
        producer = started_producer(client, transactional_id)
        producer.write(numbered(topic, 0, 1))
        producer.flush()
        identity, version = (producer.producer_id, producer.producer_epoch), producer.transaction_version
        try:
            (open_one,) = admin.describe_producers([(topic, 0)], deadline)[topic, 0]
            admin.write_txn_marker(
                TransactionMarker(
                    topic=topic,
                    partition=0,
                    producer_id=identity[0],
                    producer_epoch=identity[1] + (1 if version >= 2 else 0),  # KIP-890
                    committed=False,
                    coordinator_epoch=max(0, open_one.coordinator_epoch),
                    transaction_version=version,
                ),
                deadline,
            )
            (ended,) = admin.describe_producers([(topic, 0)], deadline)[topic, 0]
            assert ended.current_txn_start_offset == -1
        finally:
            end = EndTransaction(
                transactional_id=transactional_id,
                producer_id=identity[0],
                producer_epoch=identity[1],
                committed=False,
                version=5 if version >= 2 else 4,
            )
            admin.end_transactions([end], client.clock() + 60_000)


@dataclass(frozen=True, kw_only=True)
class Case:
    """`ends`: the code that is raised, None where the write succeeds. `fenced`: the task may not end what it left open."""

    name: str
    rules: tuple[Rule, ...]
    ends: str | None = None
    way: str = "write"
    note: str = ""
    version: int = 2
    fenced: bool = False
    decided: bool = False
    """The failure comes after the decision: what is visible then is the batch or a part of it."""
    leaves_open: bool = False
    """The failure is the driver's: the next plan ends what is open."""
    settings: dict[str, Any] = field(default_factory=dict)
    says: str = ""
    """What is found in the message, a regular expression; TOPIC stands for the topic of the rows."""

    def __str__(self) -> str:
        return "-".join(filter(None, (self.way, self.name, self.note, f"v{self.version}")))

    @property
    def equivalence_class(self) -> tuple[object, ...]:
        """API, reactions to its codes, way and outcome: cases of one class take the same path through the client."""
        api, action = self.rules[0].api, self.rules[-1].action
        answered = isinstance(action, (Answer, AnswerAfter)) and action.code
        met_by = reaction(api, action.code) if answered else type(action).__name__
        return api.__name__, met_by, self.way, self.ends, len(self.rules) > 2


def named(code: int) -> str:
    return ErrorCode.of(code).name


def again(
    api: type[Request[Any]],
    of: Callable[[Any], bool],
    codes: str,
    *,
    versions: tuple[int, ...] = (2,),
    nth: int = 1,
    client: str = "",
    answer: Callable[[int], Action] = Answer,
    first: bool = True,
    in_a_row: bool = True,
    after: Action | None = None,
    **how: Any,
) -> Iterator[Case]:
    """Codes after which the same is asked for again: each as the first answer, and all of them one after the other, from
    the first to the last and back, so that the first comes behind another as well.

    Without `in_a_row`: each as the first answer, and behind `after`. The other transaction protocols than the first of
    `versions` get the row of all codes only, and below in `ends` each code once.
    """
    name = f"{api.__name__.removesuffix('Request')}-{of.__name__}-{nth}{client}"
    actions = {named(code): throttled(api, answer(code)) for code in codes_of(codes)}
    for version in versions:
        each = (first and version == versions[0]) or not in_a_row
        for code, action in actions.items() if each else ():
            done = "-though-done" if isinstance(action, AnswerAfter) else ""
            rules = (Rule(api, action, nth=nth, where=of, client=client),)
            yield Case(name=f"{name}-{code}{done}", rules=rules, version=version, **how)
            if after is not None:
                before = Rule(api, after, nth=nth, where=of, client=client)
                rules = (before, replace(rules[0], nth=nth + 1))
                yield Case(name=f"{name}-{code}{done}-after-a-retry", rules=rules, version=version, **how)
        if in_a_row:
            done = "-though-done" if AnswerAfter in map(type, actions.values()) else ""
            row = tuple(
                Rule(api, action, nth=nth + at, where=of, client=client) for at, action in enumerate(actions.values())
            )
            if len(row) == 1:
                row = (replace(row[0], count=3),)
            label = "one-after-the-other" if len(row) > 1 else f"{next(iter(actions))}-three-times"
            yield Case(name=f"{name}-{label}{done}", rules=row, version=version, **how)
            if len(row) > 1 and version == versions[0]:
                back = tuple(replace(rule, nth=nth + at) for at, rule in enumerate(reversed(row)))
                yield Case(name=f"{name}-{label}-back{done}", rules=back, version=version, **how)


def throttled(api: type[Request[Any]], action: Action) -> Action:
    """With the throttle time, where this API's answers have one. A connection that is refused ends with its silence."""
    quota = isinstance(action, Answer) and action.code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    has_time = any(each.name == "throttle_time_ms" for each in fields(api.RESPONSE))
    return (
        replace(action, throttle_time_ms=THROTTLED_MS)
        if quota and has_time and api is not m.ApiVersionsRequest
        else action
    )


def ends(
    api: type[Request[Any]],
    of: Callable[[Any], bool],
    rows: dict[str, str],
    *,
    versions: tuple[int, ...] = (2,),
    nth: int = 1,
    client: str = "",
    after: Action | None = None,
    answer: Callable[[int], Action] = Answer,
    **how: Any,
) -> Iterator[Case]:
    """Codes that end the matter: our code -> Kafka's (`=`: of the same name); as the first answer and behind `after`."""
    for version in versions:
        for ours, codes in rows.items():
            for code in codes_of(codes):
                for before in (None, after) if version == versions[0] else (None,):
                    action = answer(code)
                    rules = (Rule(api, action, nth=nth if before is None else nth + 1, where=of, client=client),)
                    if before is not None:
                        rules = (Rule(api, before, nth=nth, where=of, client=client), *rules)
                    when = "" if before is None else "-after-a-retry"
                    done = "-though-done" if isinstance(action, AnswerAfter) else ""
                    yield Case(
                        name=f"{api.__name__.removesuffix('Request')}-{of.__name__}-{nth}{client}-{named(code)}{done}{when}",
                        rules=rules,
                        ends=named(code) if ours == "=" else ours,
                        version=version,
                        **how,
                    )
                    if after is None:
                        break


def for_ever(
    api: type[Request[Any]],
    of: Callable[[Any], bool],
    codes: str,
    ours: str,
    *,
    says: str,
    beside: tuple[Rule, ...] = (),
    **how: Any,
) -> Iterator[Case]:
    """Codes that would be worth another try, if they did not come every time: past the deadline that is said."""
    for code in codes_of(codes):
        yield Case(
            name=f"{api.__name__.removesuffix('Request')}-{of.__name__}-{named(code)}-for-ever",
            rules=(Rule(api, Answer(code), count=None, where=of), *beside),
            ends=ours,
            says=says,
            **how,
        )


def held_by_orders(answer: m.DescribeTransactionsResponse) -> m.DescribeTransactionsResponse:
    """As if a transaction of the id were committed but for its marker in partition 3 of `orders`."""
    topics = (m.TransactionState.Topic(topic="orders", partitions=(3,)),)
    held = {"error_code": 0, "transaction_state": "PrepareCommit", "topics": topics}
    return replace(answer, transaction_states=tuple(replace(each, **held) for each in answer.transaction_states))


def deadlines() -> Iterator[Case]:
    short = {"settings": {"delivery_timeout_ms": UNDECIDED_IN, "max_block_ms": UNDECIDED_IN}, "leaves_open": True}
    late: Callable[..., Iterator[Case]] = partial(for_ever, **short)
    busy, loading = "CONCURRENT_TRANSACTIONS", "COORDINATOR_LOAD_IN_PROGRESS"
    unknown = "; the coordinator does not know the id"
    partitions = r"; its transaction is in state Ongoing, the marker is missing in __\S+, TOPIC-0, TOPIC-1\)"
    nobody = "(; the limits are max[^;]*)?$"
    for code, holder, held in ((busy, unknown, partitions), (loading, nobody, "")):
        for of, way in ((of_driver, "write"), (of_task, "write"), (of_task, "offsets")):
            yield from late(m.InitProducerIdRequest, of, code, "REQUEST_DEADLINE", says=f"{code}{holder}", way=way)
        yield from late(m.EndTxnRequest, of_driver, code, "DECISION_UNKNOWN", says="marker")
        yield from late(
            m.EndTxnRequest,
            of_task,
            code,
            "DECIDED_NOT_FINISHED",
            says=f"not confirmed the commit of .*{code}.*{held}",
            decided=True,
        )
    yield from late(
        m.InitProducerIdRequest, anything, loading, "REQUEST_DEADLINE", says=f"{loading}$", way="at-least-once"
    )
    yield Case(
        name=f"EndTxn-of_task-{busy}-and-then-nothing",
        rules=(
            Rule(m.EndTxnRequest, Answer(ErrorCode[busy]), count=2, where=of_task),
            Rule(m.EndTxnRequest, LoseRequest(close=False), nth=3, count=None, where=of_task),
        ),
        ends="DECIDED_NOT_FINISHED",
        says=rf"in time \(no response; an earlier try returned {busy}{partitions}",
        decided=True,
        **short,
    )
    # What holds an id is asked for the message only: whatever comes of that, the error is the same.
    refused = "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
    for note, action, said in (
        ("named", Change(held_by_orders), "in state PrepareCommit, the marker is missing in orders-3"),
        ("loading", Answer(ErrorCode[loading]), f"what blocks it is unknown: .*{loading}"),
        ("refused", Answer(ErrorCode[refused]), "what blocks it is unknown: .*transactional id"),
    ):
        of_holder = partial(Rule, m.DescribeTransactionsRequest, action, count=None, where=of_slots)
        how = {"says": f"{busy}.*; .*{said}", "note": f"holder-{note}"}
        for way, client, nth in (("write", "-task-0", 2), ("offsets", "", 1)):
            asked = (of_holder(client=client, nth=nth),)
            yield from late(m.InitProducerIdRequest, of_task, busy, "REQUEST_DEADLINE", way=way, beside=asked, **how)
        asked = (of_holder(client="-committer"),)
        yield from late(m.EndTxnRequest, of_task, busy, "DECIDED_NOT_FINISHED", decided=True, beside=asked, **how)
    yield from late(m.FindCoordinatorRequest, of_task, loading, "REQUEST_DEADLINE", says=loading)
    yield from late(m.ProduceRequest, of_data, "NOT_LEADER_OR_FOLLOWER", "DELIVERY_TIMEOUT", says="NOT_LEADER")
    yield from late(m.ProduceRequest, of_data, "NOT_ENOUGH_REPLICAS", "DELIVERY_TIMEOUT", says="NOT_ENOUGH_REPLICAS")
    yield from late(
        m.ProduceRequest, of_barrier, "NOT_ENOUGH_REPLICAS", "COMMIT_LOG_UNAVAILABLE", says="NOT_ENOUGH_REPLICAS"
    )
    yield from late(m.ProduceRequest, of_driver, "NOT_ENOUGH_REPLICAS", "NOT_DECIDED", says="NOT_ENOUGH_REPLICAS")
    gone = {"settings": {"max_block_ms": 3_000, "delivery_timeout_ms": 60_000}}
    yield from for_ever(
        m.ProduceRequest, of_data, "UNKNOWN_TOPIC_OR_PARTITION", "UNKNOWN_TOPIC", says="deleted", **gone
    )
    yield from late(m.ListTransactionsRequest, anything, loading, "REQUEST_DEADLINE", says=loading)
    yield from late(m.DescribeTransactionsRequest, of_check, loading, "REQUEST_DEADLINE", says=loading)
    # Losing attempts that nobody can look for stop no decision.
    yield Case(
        name=f"DescribeTransactions-of_losers-{loading}-for-ever",
        rules=(Rule(m.DescribeTransactionsRequest, Answer(ErrorCode[loading]), count=None, where=of_losers),),
    )


def find_coordinator() -> Iterator[Case]:
    api, loading = m.FindCoordinatorRequest, Answer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    codes = f"COORDINATOR_NOT_AVAILABLE COORDINATOR_LOAD_IN_PROGRESS REQUEST_TIMED_OUT {QUOTA}"
    rights = {"=": "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "BROKER_REFUSED": UNLISTED_CODES}
    yield from again(api, of_driver, codes)
    for client in ("-task-0", "-committer"):  # whether the attempt is overtaken, and for the decision's EndTxn
        yield from again(api, of_driver, codes, client=client)
    yield from again(api, of_task, codes)
    yield from again(api, of_group, codes, way="offsets")
    for client in ("", "-task-0"):
        yield from ends(api, of_driver, rights, client=client, after=loading, leaves_open=True)
    yield from ends(api, of_task, rights, after=loading, leaves_open=True)
    yield from ends(api, of_group, {"=": "GROUP_AUTHORIZATION_FAILED"}, after=loading, way="offsets", fenced=True)
    unknown = {"DECISION_UNKNOWN": f"TRANSACTIONAL_ID_AUTHORIZATION_FAILED {UNLISTED_CODES}"}
    how = {"leaves_open": True, "settings": {"delivery_timeout_ms": UNDECIDED_IN}}
    yield from ends(api, of_driver, unknown, client="-committer", after=loading, **how)


def init_producer_id() -> Iterator[Case]:
    api, busy = m.InitProducerIdRequest, Answer(ErrorCode.CONCURRENT_TRANSACTIONS)
    codes = f"CONCURRENT_TRANSACTIONS COORDINATOR_LOAD_IN_PROGRESS REQUEST_TIMED_OUT {COORDINATOR} {QUOTA}"
    refused = {
        "PRODUCER_FENCED": "INVALID_PRODUCER_EPOCH PRODUCER_FENCED",
        "TRANSACTION_ABORTED": f"TRANSACTION_ABORTABLE {UNLISTED_CODES}",
        "BROKER_REFUSED": "UNSUPPORTED_VERSION",
        "=": "TRANSACTIONAL_ID_AUTHORIZATION_FAILED CLUSTER_AUTHORIZATION_FAILED",
    }
    yield from again(api, of_driver, codes, versions=(2, 0))
    yield from again(api, of_task, codes, versions=(2, 0))
    yield from again(api, anything, codes, way="at-least-once")
    # A task whose timeout nobody asked for takes less, as it may not know what the brokers allow.
    yield from again(api, of_task, "INVALID_TRANSACTION_TIMEOUT")
    yield from ends(
        api, of_driver, {**refused, "INVALID_TRANSACTION_TIMEOUT": "INVALID_TRANSACTION_TIMEOUT"}, after=busy
    )
    yield from ends(api, of_task, refused, after=busy, leaves_open=True)
    yield from ends(
        api,
        of_task,
        {"=": "INVALID_TRANSACTION_TIMEOUT"},
        after=busy,
        leaves_open=True,
        settings={"transaction_timeout_ms": 50_000},
        note="asked-for",
    )
    rights = {"=": "CLUSTER_AUTHORIZATION_FAILED", "BROKER_REFUSED": "UNSUPPORTED_VERSION"}
    yield from ends(api, anything, rights, after=Answer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), way="at-least-once")


def add_partitions() -> Iterator[Case]:
    api, busy = m.AddPartitionsToTxnRequest, Answer(ErrorCode.CONCURRENT_TRANSACTIONS)
    codes = f"""CONCURRENT_TRANSACTIONS COORDINATOR_LOAD_IN_PROGRESS UNKNOWN_TOPIC_OR_PARTITION REQUEST_TIMED_OUT
        {COORDINATOR} {QUOTA}"""
    fencing = "INVALID_PRODUCER_EPOCH PRODUCER_FENCED"
    abortable = f"OPERATION_NOT_ATTEMPTED UNKNOWN_PRODUCER_ID TRANSACTION_ABORTABLE {UNLISTED_CODES}"
    for of in (of_data, of_part, of_driver):
        yield from again(api, of, codes, versions=(0,), first=of is not of_part)
    yield from again(api, of_data, codes, versions=(0,), answer=AnswerAfter)

    def with_siblings(code: int) -> Answer:
        return Answer(code, ErrorCode.OPERATION_NOT_ATTEMPTED)

    yield from again(api, of_data, "CONCURRENT_TRANSACTIONS", versions=(0,), answer=with_siblings, note="siblings")
    refused = {"TRANSACTION_ABORTED": abortable, "=": "TOPIC_AUTHORIZATION_FAILED"}
    yield from ends(api, of_data, refused, versions=(0,), after=busy)
    superseded = {
        "PRODUCER_FENCED": f"{fencing} INVALID_PRODUCER_ID_MAPPING INVALID_TXN_STATE",
        "=": "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    }
    yield from ends(api, of_data, superseded, versions=(0,), after=busy, fenced=True)
    yield from ends(api, of_part, {"TRANSACTION_ABORTED": "TRANSACTION_ABORTABLE"}, versions=(0,), after=busy)
    yield from ends(api, of_part, {"PRODUCER_FENCED": "PRODUCER_FENCED"}, versions=(0,), after=busy, fenced=True)
    siblings = {"=": "TOPIC_AUTHORIZATION_FAILED"}
    yield from ends(api, of_data, siblings, versions=(0,), after=busy, answer=with_siblings, note="siblings")
    at_decision = {
        "FENCED": fencing,
        "NOT_DECIDED": f"{abortable} INVALID_PRODUCER_ID_MAPPING INVALID_TXN_STATE",
        "=": "TOPIC_AUTHORIZATION_FAILED TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    }
    yield from ends(api, of_driver, at_decision, versions=(0,), after=busy, leaves_open=True)


PRODUCE_AGAIN = f"""{LEADER} REQUEST_TIMED_OUT NOT_ENOUGH_REPLICAS NOT_ENOUGH_REPLICAS_AFTER_APPEND CORRUPT_MESSAGE
    COORDINATOR_LOAD_IN_PROGRESS CONCURRENT_TRANSACTIONS {COORDINATOR} {QUOTA}"""
PRODUCE_RIGHTS = "TOPIC_AUTHORIZATION_FAILED TRANSACTIONAL_ID_AUTHORIZATION_FAILED CLUSTER_AUTHORIZATION_FAILED"
PRODUCE_REFUSED = """RECORD_LIST_TOO_LARGE INVALID_RECORD INVALID_TOPIC_EXCEPTION INVALID_REQUIRED_ACKS
    UNSUPPORTED_FOR_MESSAGE_FORMAT UNSUPPORTED_COMPRESSION_TYPE POLICY_VIOLATION"""
PRODUCE_FENCED = "INVALID_PRODUCER_EPOCH PRODUCER_FENCED"
PRODUCE_ABORTS = (
    f"UNKNOWN_PRODUCER_ID INVALID_TXN_STATE INVALID_PRODUCER_ID_MAPPING TRANSACTION_ABORTABLE {UNLISTED_CODES}"
)


def produce() -> Iterator[Case]:
    api, moved = m.ProduceRequest, Answer(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    yield from again(api, of_data, PRODUCE_AGAIN, versions=(2, 0))
    yield from again(api, of_driver, PRODUCE_AGAIN)
    yield from again(api, of_part, PRODUCE_AGAIN, first=False)
    yield from again(api, of_barrier, PRODUCE_AGAIN, first=False)
    yield from again(api, of_data, PRODUCE_AGAIN, way="at-least-once")
    # What was written although the answer is a failure must not be written again.
    written = "REQUEST_TIMED_OUT NOT_ENOUGH_REPLICAS_AFTER_APPEND NETWORK_EXCEPTION"
    for of in (of_data, of_part, of_driver):
        yield from again(api, of, written, versions=(2, 0), answer=AnswerAfter)
    yield from again(api, of_data, written, answer=AnswerAfter, way="at-least-once")
    # The done record is a hint: that it cannot be written fails nothing.
    yield from again(
        api, of_barrier, f"TOPIC_AUTHORIZATION_FAILED POLICY_VIOLATION {UNLISTED_CODES}", nth=3, in_a_row=False
    )
    yield from again(api, of_data, "MESSAGE_TOO_LARGE", versions=(2, 0), in_a_row=False)
    refused = {"BROKER_REFUSED": PRODUCE_REFUSED, "CLOCK_SKEW": "INVALID_TIMESTAMP", "=": PRODUCE_RIGHTS}
    # A batch that was sent once only and is known to the broker is another writer's.
    aborts = f"{PRODUCE_ABORTS} {PRODUCE_FENCED} OUT_OF_ORDER_SEQUENCE_NUMBER"
    by_task = {**refused, "TRANSACTION_ABORTED": aborts}
    yield from ends(api, of_data, by_task, versions=(2, 0), after=moved)
    yield from ends(api, of_data, {"TRANSACTION_ABORTED": "DUPLICATE_SEQUENCE_NUMBER"}, versions=(2, 0))
    some = {"TRANSACTION_ABORTED": "INVALID_PRODUCER_EPOCH", "BROKER_REFUSED": "POLICY_VIOLATION"}
    yield from ends(api, of_part, {**some, "=": "TOPIC_AUTHORIZATION_FAILED"}, after=moved)
    one_row = {"settings": {"batch_size": 1}, "note": "single-rows"}
    yield from ends(api, of_data, {"RECORD_TOO_LARGE": "MESSAGE_TOO_LARGE"}, versions=(2, 0), after=moved, **one_row)
    yield Case(
        name="Produce-of_data-records-named",
        rules=(Rule(api, Reply(lambda request: refused_records(request, 87, 1, "no such thing")), where=of_data),),
        ends="RECORD_REFUSED",
        says=r"topic TOPIC partition (0 .*row 2|1 .*row 3) of the task: no such thing",
    )
    at_decision = {
        **refused,
        "FENCED": PRODUCE_FENCED,
        "NOT_DECIDED": f"{PRODUCE_ABORTS} OUT_OF_ORDER_SEQUENCE_NUMBER MESSAGE_TOO_LARGE DUPLICATE_SEQUENCE_NUMBER",
    }
    yield from ends(api, of_driver, at_decision, after=moved, leaves_open=True)
    yield from ends(api, of_driver, {"FENCED": PRODUCE_FENCED}, versions=(0,), leaves_open=True)
    barrier = {"BROKER_REFUSED": "POLICY_VIOLATION", "=": "TOPIC_AUTHORIZATION_FAILED"}
    for nth in (1, 2):  # before the fence, and behind it
        yield from ends(api, of_barrier, barrier, nth=nth, after=moved)
    # Without a transaction the producer helps itself with the next epoch (KIP-360).
    own = "OUT_OF_ORDER_SEQUENCE_NUMBER UNKNOWN_PRODUCER_ID INVALID_PRODUCER_EPOCH INVALID_PRODUCER_ID_MAPPING"
    yield from again(api, of_data, own, way="at-least-once", note="next-epoch")
    lost = {
        **refused,
        "TRANSACTION_ABORTED": f"PRODUCER_FENCED INVALID_TXN_STATE TRANSACTION_ABORTABLE {UNLISTED_CODES}",
    }
    yield from ends(api, of_data, lost, way="at-least-once")
    yield Case(
        name="Produce-of_data-DUPLICATE_SEQUENCE_NUMBER-of-our-own-resend",
        rules=(
            Rule(api, LoseResponse(), where=of_data),
            Rule(api, Answer(ErrorCode.DUPLICATE_SEQUENCE_NUMBER), nth=2, where=of_data),
        ),
        way="at-least-once",
    )
    # In a transaction the rows are there as well, but not where: the driver could not prove what it decides.
    for version in (2, 0):
        yield Case(
            name="Produce-of_data-DUPLICATE_SEQUENCE_NUMBER-of-our-own-resend",
            rules=(
                Rule(api, LoseResponse(), where=of_data),
                Rule(api, Answer(ErrorCode.DUPLICATE_SEQUENCE_NUMBER), nth=2, where=of_data),
            ),
            ends="OFFSET_UNKNOWN",
            version=version,
        )


def offsets() -> Iterator[Case]:
    loading = Answer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    codes = f"""REQUEST_TIMED_OUT COORDINATOR_LOAD_IN_PROGRESS CONCURRENT_TRANSACTIONS UNKNOWN_TOPIC_OR_PARTITION
        {COORDINATOR} {QUOTA}"""
    superseded = {
        "PRODUCER_FENCED": "INVALID_PRODUCER_EPOCH PRODUCER_FENCED INVALID_TXN_STATE INVALID_PRODUCER_ID_MAPPING",
        "=": "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    }
    aborts = f"UNKNOWN_PRODUCER_ID TRANSACTION_ABORTABLE {UNLISTED_CODES}"
    of_group_members = """ILLEGAL_GENERATION FENCED_INSTANCE_ID FENCED_MEMBER_EPOCH STALE_MEMBER_EPOCH
        OFFSET_METADATA_TOO_LARGE"""
    yield from again(m.AddOffsetsToTxnRequest, anything, codes, versions=(0,), way="offsets")
    rows = {"=": "GROUP_AUTHORIZATION_FAILED", "TRANSACTION_ABORTED": aborts}
    yield from ends(m.AddOffsetsToTxnRequest, anything, rows, versions=(0,), after=loading, way="offsets")
    yield from ends(
        m.AddOffsetsToTxnRequest, anything, superseded, versions=(0,), after=loading, way="offsets", fenced=True
    )
    yield from again(m.TxnOffsetCommitRequest, anything, codes, versions=(2, 0), way="offsets")
    yield from again(m.TxnOffsetCommitRequest, anything, codes, answer=AnswerAfter, in_a_row=False, way="offsets")
    rows = {
        "=": "GROUP_AUTHORIZATION_FAILED TOPIC_AUTHORIZATION_FAILED",
        "BROKER_REFUSED": of_group_members,
        "SOURCE_OFFSETS": "GROUP_ID_NOT_FOUND",
        "TRANSACTION_ABORTED": aborts,
    }
    # A group with members: the sink warns, and sends the same offsets without a member id.
    yield from again(
        m.TxnOffsetCommitRequest,
        anything,
        "UNKNOWN_MEMBER_ID",
        versions=(2, 0),
        in_a_row=False,
        after=loading,
        way="offsets",
    )
    yield from ends(m.TxnOffsetCommitRequest, anything, rows, after=loading, way="offsets")
    yield from ends(m.TxnOffsetCommitRequest, anything, superseded, after=loading, way="offsets", fenced=True)
    codes = f"COORDINATOR_LOAD_IN_PROGRESS UNSTABLE_OFFSET_COMMIT {COORDINATOR} {QUOTA}"
    yield from again(m.OffsetFetchRequest, anything, codes, way="group")
    rows = {"=": "GROUP_AUTHORIZATION_FAILED", "BROKER_REFUSED": UNLISTED_CODES}
    yield from ends(m.OffsetFetchRequest, anything, rows, after=loading, way="group")


def end_txn() -> Iterator[Case]:
    api, loading = m.EndTxnRequest, Answer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    both: dict[str, Any] = {"versions": (2, 0)}
    codes = f"CONCURRENT_TRANSACTIONS COORDINATOR_LOAD_IN_PROGRESS REQUEST_TIMED_OUT {COORDINATOR} {QUOTA}"
    fencing = "INVALID_PRODUCER_EPOCH PRODUCER_FENCED"
    doubtful = "INVALID_PRODUCER_ID_MAPPING INVALID_TXN_STATE UNKNOWN_PRODUCER_ID TRANSACTION_ABORTABLE"
    hopeless = f"TRANSACTIONAL_ID_AUTHORIZATION_FAILED UNSUPPORTED_VERSION {UNLISTED_CODES}"
    for of in (of_driver, of_task):
        yield from again(api, of, codes, **both)
        yield from again(api, of, codes, answer=AnswerAfter, **both)
    # The decision. Whatever the answer, the commit log knows: its marker is there, or does not come.
    short = {"leaves_open": True, "settings": {"delivery_timeout_ms": UNDECIDED_IN}}
    unknown = {"DECISION_UNKNOWN": f"{fencing} {doubtful} {hopeless}"}
    yield from ends(api, of_driver, unknown, after=loading, **short, **both)
    yield from again(api, of_driver, f"{doubtful} {hopeless}", answer=AnswerAfter, in_a_row=False, **both)
    done = {"DECIDED_NOT_FINISHED": fencing}  # by the newer driver, whose the write is now
    yield from ends(api, of_driver, done, answer=AnswerAfter, after=loading, leaves_open=True, **both)
    # The tasks' transactions. Their partitions show how they ended; where nothing was ended yet, they hold them open.
    how = {"decided": True, "leaves_open": True, **both}
    pending = {"DECIDED_NOT_FINISHED": f"{fencing} {doubtful} {hopeless}"}
    yield from ends(api, of_task, pending, after=loading, **how)
    yield from again(api, of_task, f"{fencing} {doubtful}", answer=AnswerAfter, in_a_row=False, **both)
    # Codes that do not say whether the transaction has ended leave a batch decided that is in truth finished.
    yield from ends(api, of_task, {"DECIDED_NOT_FINISHED": hopeless}, answer=AnswerAfter, **how)


def questions() -> Iterator[Case]:
    """APIs that only read."""
    moved, loading = Answer(ErrorCode.NOT_LEADER_OR_FOLLOWER), Answer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    late = Answer(ErrorCode.REQUEST_TIMED_OUT)
    after_decision = {"decided": True, "leaves_open": True, "settings": {"delivery_timeout_ms": 3_000}}

    def of_partitions(code: int) -> Change:
        return Change(lambda answer: metadata_with_code(answer, code, of_partitions=True))

    for of in (of_data, of_log):
        yield from again(m.MetadataRequest, of, f"{LEADER} {QUOTA}")
        yield from again(m.MetadataRequest, of, LEADER, answer=of_partitions, note="partitions")
        yield from again(m.MetadataRequest, of, LEADER, nth=2, first=False)
        rows = {"=": "TOPIC_AUTHORIZATION_FAILED", "BROKER_REFUSED": UNLISTED_CODES}
        yield from ends(m.MetadataRequest, of, rows, after=moved)
    yield from again(m.ListOffsetsRequest, of_data, f"{LEADER} OFFSET_NOT_AVAILABLE {QUOTA}")
    rights = {"DECIDED_NOT_FINISHED": f"TOPIC_AUTHORIZATION_FAILED {UNLISTED_CODES}"}
    yield from ends(m.ListOffsetsRequest, of_data, rights, after=moved, **after_decision)
    for client in ("-planner", "-committer"):  # up to the barrier, and for the decision's marker
        yield from again(m.FetchRequest, of_log, f"{LEADER} INCONSISTENT_TOPIC_ID {QUOTA}", client=client)
    planning = {
        "=": "TOPIC_AUTHORIZATION_FAILED",
        "COMMIT_LOG_TRUNCATED": "OFFSET_OUT_OF_RANGE",
        "BROKER_REFUSED": UNLISTED_CODES,
    }
    yield from ends(m.FetchRequest, of_log, planning, after=moved)
    deciding = {"DECISION_UNKNOWN": f"TOPIC_AUTHORIZATION_FAILED OFFSET_OUT_OF_RANGE {UNLISTED_CODES}"}
    yield from ends(m.FetchRequest, of_log, deciding, client="-committer", after=moved, leaves_open=True)
    rights = "CLUSTER_AUTHORIZATION_FAILED TOPIC_AUTHORIZATION_FAILED"
    for nth in (1, 2):  # of a broker, and of the commit log's topic
        yield from again(m.DescribeConfigsRequest, anything, f"REQUEST_TIMED_OUT {QUOTA}", nth=nth)
        yield from again(m.DescribeConfigsRequest, anything, rights, nth=nth, in_a_row=False, after=late)
        yield from ends(m.DescribeConfigsRequest, anything, {"BROKER_REFUSED": UNLISTED_CODES}, nth=nth, after=late)
    deleted = {"UNKNOWN_TOPIC": "UNKNOWN_TOPIC_OR_PARTITION"}
    yield from ends(m.DescribeConfigsRequest, anything, deleted, nth=2, after=late)
    yield from again(m.DescribeProducersRequest, of_data, f"{LEADER} {QUOTA}")
    refused = partial(ends, m.DescribeProducersRequest, of_data, after=moved, leaves_open=True)
    yield from refused({"BROKER_REFUSED": UNLISTED_CODES})
    for case in refused({"=": "TOPIC_AUTHORIZATION_FAILED"}):
        # The next request asks for each topic by itself, to learn which ones may not be read.
        yield replace(case, rules=(*case.rules[:-1], replace(case.rules[-1], count=None)))
    codes = f"COORDINATOR_LOAD_IN_PROGRESS {COORDINATOR} {QUOTA}"
    rows = {"=": "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "BROKER_REFUSED": UNLISTED_CODES}
    for of, client in ((of_slots, ""), (of_check, ""), (of_question, "-task-0"), (of_question, "-planner")):
        yield from again(m.DescribeTransactionsRequest, of, codes, client=client)
        yield from ends(m.DescribeTransactionsRequest, of, rows, client=client, after=loading, leaves_open=True)
    yield from again(m.DescribeTransactionsRequest, of_question, codes, client="-task-0", nth=2, first=False)
    yield from again(m.DescribeTransactionsRequest, of_losers, codes)
    refused = f"{rows['=']} {UNLISTED_CODES} TRANSACTIONAL_ID_NOT_FOUND"
    yield from again(m.DescribeTransactionsRequest, of_losers, refused, in_a_row=False)
    for of, client in ((of_slots, ""), (of_question, "-task-0")):
        forgotten = "TRANSACTIONAL_ID_NOT_FOUND"
        yield from again(m.DescribeTransactionsRequest, of, forgotten, client=client, in_a_row=False)
    gone = {"TRANSACTION_NOT_OPEN": "TRANSACTIONAL_ID_NOT_FOUND"}
    yield from ends(m.DescribeTransactionsRequest, of_check, gone, after=loading, leaves_open=True)
    codes = f"COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE {QUOTA}"
    yield from again(m.ListTransactionsRequest, anything, codes)
    yield from ends(m.ListTransactionsRequest, anything, {"BROKER_REFUSED": UNLISTED_CODES}, after=loading)
    yield Case(
        name="ListTransactions-unknown-state-filters",
        rules=(
            Rule(
                m.ListTransactionsRequest,
                Change(lambda answer: replace(answer, unknown_state_filters=("Ongoing",), transaction_states=())),
            ),
        ),
        ends="BROKER_REFUSED",
    )


def handshake() -> Iterator[Case]:
    api = m.ApiVersionsRequest
    yield from again(api, anything, f"UNSUPPORTED_VERSION {UNLISTED_CODES} {QUOTA}")

    def without_flexible_produce(answer: m.ApiVersionsResponse) -> m.ApiVersionsResponse:
        keys = tuple(replace(key, max_version=8) if key.api_key == 0 else key for key in answer.api_keys)
        return replace(answer, api_keys=keys)

    rules = (Rule(api, Change(without_flexible_produce), count=None),)
    yield Case(name="ApiVersions-a-broker-too-old", rules=rules, ends="MISSING_API")


def commands() -> Iterator[Case]:
    api, not_controller = m.CreateTopicsRequest, Answer(ErrorCode.NOT_CONTROLLER)
    how = {"way": "new-log"}
    yield from again(api, anything, f"REQUEST_TIMED_OUT NOT_CONTROLLER {QUOTA}", **how)
    # The first request that a single broker does not refuse by itself, for too many replicas.
    done, third = "TOPIC_ALREADY_EXISTS REQUEST_TIMED_OUT", {"nth": 3}
    yield from again(api, anything, done, answer=AnswerAfter, in_a_row=False, after=not_controller, **third, **how)
    settings = "INVALID_REPLICATION_FACTOR INVALID_CONFIG POLICY_VIOLATION"
    yield from again(api, anything, settings, after=not_controller, note="settings", **how)
    says = r"--partitions 16 --replication-factor 1 --config cleanup\.policy=compact$"
    yield from for_ever(api, anything, settings, "COMMIT_LOG_TOPIC", says=says, **how)
    refused = f"CLUSTER_AUTHORIZATION_FAILED TOPIC_AUTHORIZATION_FAILED {UNLISTED_CODES}"
    yield from ends(api, anything, {"COMMIT_LOG_TOPIC": refused}, after=not_controller, **how)
    api, moved = m.WriteTxnMarkersRequest, Answer(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    how = {"way": "marker"}
    codes = f"{LEADER} REQUEST_TIMED_OUT NOT_ENOUGH_REPLICAS NOT_ENOUGH_REPLICAS_AFTER_APPEND {QUOTA}"
    yield from again(api, anything, codes, **how)
    rows = {
        "=": "CLUSTER_AUTHORIZATION_FAILED",
        "BROKER_REFUSED": f"TRANSACTION_COORDINATOR_FENCED INVALID_PRODUCER_EPOCH {UNLISTED_CODES}",
    }
    yield from ends(api, anything, rows, after=moved, **how)


GROUPS = (
    find_coordinator,
    init_producer_id,
    add_partitions,
    produce,
    offsets,
    end_txn,
    questions,
    handshake,
    commands,
    deadlines,
)
CASES = [case for group in GROUPS for case in group()]


@pytest.mark.feature(
    "producer id",
    "produce errors",
    "rejected records",
    "epoch bump",
    "coordinator lookup",
    "fencing",
    "consumer offsets",
    "error reactions",
    "metadata",
    "retries and errors",
)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_error_code_triggers_its_protocol_reaction(
    bench_of: Callable[[int], Bench], case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = bench_of(case.version)
    topic = bench.topic()
    settings = bench.write_settings(topic, **case.settings)
    ways: dict[str, Callable[[], None]] = {
        "write": lambda: write_whole(settings),
        "at-least-once": lambda: write_at_least_once(settings),
        "offsets": lambda: offsets_in_transaction(bench, case, topic),
        "group": lambda: offsets_of_group(bench, case, topic),
        "new-log": lambda: commit_log_made_anew(bench, case, topic),
        "marker": lambda: marker_by_hand(bench, case, topic),
    }
    drive = ways[case.way]
    bench.proxy.inject(*case.rules)
    if case.ends is None:
        drive()
        assert_fired(bench, case)
        assert_repeated(bench, case)
        if case.way == "marker":
            bench.assert_nothing_visible(topic)
        else:
            bench.assert_exactly_once(topic)
        bench.assert_nothing_open(topic)
        return
    # How long a task looks for a free id is no setting: a minute.
    slot_deadline_ms = 0 if "delivery_timeout_ms" in case.settings else transactions.SLOT_DEADLINE_MS
    with monkeypatch.context() as patched:
        patched.setattr(transactions, "SLOT_DEADLINE_MS", slot_deadline_ms)
        with pytest.raises(KafkaEosError) as raised:
            drive()
    assert raised.value.code == case.ends, str(raised.value)
    assert re.search(case.says.replace("TOPIC", topic), raised.value.message), raised.value.message
    assert_fired(bench, case)
    assert_repeated(bench, case)
    if case.way == "at-least-once":
        return
    if not case.decided:
        bench.assert_nothing_visible(topic)
    if not case.leaves_open and not (case.fenced and case.way != "offsets"):
        bench.assert_nothing_open(topic)
    if case.way == "write":
        bench.proxy.inject()
        write_whole(
            replace(settings, producer=replace(settings.producer, delivery_timeout_ms=60_000, max_block_ms=60_000))
        )
        bench.assert_exactly_once(topic)
        bench.assert_nothing_open(topic)


def assert_fired(bench: Bench, case: Case) -> None:
    """Every rule has acted, as often as it says (but for the handshakes of connections that were not needed)."""
    assert not bench.proxy.unfired
    if any(rule.count is None for rule in case.rules):
        return
    wanted = sum(rule.count or 1 for rule in case.rules if rule.api is not m.ApiVersionsRequest)
    assert len([fault for fault in bench.proxy.faults if fault.api is not m.ApiVersionsRequest]) == wanted


IDENTICAL = (
    m.InitProducerIdRequest,
    m.AddPartitionsToTxnRequest,
    m.AddOffsetsToTxnRequest,
    m.TxnOffsetCommitRequest,
    m.EndTxnRequest,
)
"""APIs that change something: their repeats are of the same bytes in the same version (so is each batch of a Produce)."""

# The client reports the topic as not found; a write requests its metadata again until max.block.ms has passed.
WITH_RETRIES = REACTIONS | {(m.MetadataRequest, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.value): Reaction.REFRESH_METADATA}


def assert_repeated(bench: Bench, case: Case) -> None:
    """What the proxy saw between an answer and the repeat that it asks for: fresh metadata, the coordinator looked for,
    or silence (of the connection, as KIP-219 has it); and that the repeat was one."""
    if any(rule.count is None for rule in case.rules):
        return  # the last answer has no repeat
    seen = bench.proxy.requests
    for at, refused in enumerate(seen):
        if not isinstance(refused.fault, Answer | AnswerAfter):
            continue
        asked_for = WITH_RETRIES.get((refused.api, refused.fault.code))
        if asked_for not in RETRIES:
            continue
        later = [each for each in seen[at + 1 :] if each.client_id == refused.client_id]
        (where, *_) = [rule.where for rule in case.rules if rule.action is refused.fault]
        repeat = next((each for each in later if is_about_the_same(refused, each, where)), None)
        if repeat is None:
            # Batches that were sent behind it may have ended the matter.
            assert refused.api is m.ProduceRequest, f"no repeat of {refused}"
            assert case.ends is not None, f"no repeat of {refused}"
            continue
        between = later[: later.index(repeat)]
        if refused.api in IDENTICAL:
            assert (repeat.version, repeat.digest) == (refused.version, refused.digest)
        if isinstance(refused.fault, Answer) and repeat.connection == refused.connection:
            # The client's clock counts whole ms.
            assert 1_000 * (repeat.at - refused.at) >= refused.fault.throttle_time_ms - 1
        if asked_for is Reaction.REFRESH_METADATA and refused.api is not m.MetadataRequest:
            if refused.api is m.ProduceRequest:
                # A batch waits for its own backoff, as in Java, and fresh metadata for its: close together, in no order.
                known = [topics for each in seen[:at] if (topics := described(each, refused.client_id))]
                assert known[-1] in [described(each, refused.client_id) for each in later], (
                    f"no metadata after {refused}"
                )
            else:
                assert any(each.api is m.MetadataRequest for each in between), f"no metadata before {repeat}"
        if asked_for is Reaction.FIND_COORDINATOR:
            key_type, keys = coordinated(refused.request)
            sought = [each.request for each in between if each.api is m.FindCoordinatorRequest]
            assert keys <= {key for each in sought if each.key_type == key_type for key in each.coordinator_keys}


def is_about_the_same(refused: Seen, later: Seen, where: Callable[[Any], bool]) -> bool:
    """Whether a later request asks what was refused; of a Produce, one of its batches, to the byte and in the same version."""
    if later.api is not refused.api or not where(later.request):
        return False
    if refused.api is m.ProduceRequest:
        return later.version == refused.version and not batches(refused.request).isdisjoint(batches(later.request))
    return refused.api not in IDENTICAL or _id(later.request) == _id(refused.request)


def batches(request: m.ProduceRequest) -> set[tuple[str, int, bytes]]:
    return {
        (topic.name, each.index, bytes(each.records or b""))
        for topic in request.topic_data
        for each in topic.partition_data
    }


def described(seen: Seen, client_id: str) -> frozenset[str]:
    """The topics whose metadata a client asks for; one that it did not know before is no reason to look at the others."""
    asked = seen.api is m.MetadataRequest and seen.client_id == client_id
    return frozenset(_topics(seen.request)) if asked else frozenset()


def coordinated(request: Any) -> tuple[int, set[str]]:
    """Whose coordinator a request goes to: key type and keys of FindCoordinator; none where any broker will do."""
    match request:
        case m.TxnOffsetCommitRequest():
            return 0, {request.group_id}
        case m.OffsetFetchRequest():
            return 0, {group.group_id for group in request.groups}
        case m.DescribeTransactionsRequest():
            return 1, set(request.transactional_ids)
    return 1, {_id(request)} - {""}


@pytest.mark.parametrize(
    ("api", "code"),
    [
        (m.SaslHandshakeRequest, "UNSUPPORTED_SASL_MECHANISM"),
        (m.SaslHandshakeRequest, "ILLEGAL_SASL_STATE"),
        (m.SaslAuthenticateRequest, "ILLEGAL_SASL_STATE"),
        (m.SaslAuthenticateRequest, "SASL_AUTHENTICATION_FAILED"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_rejected_principal_is_not_retried(
    bench_of: Callable[[int], Bench], api: type[Request[Any]], code: str
) -> None:
    """The proxy plays the listener's SASL: behind it the broker takes none and is asked nothing."""
    bench = bench_of(2)
    password = "not to be told"
    credentials = PasswordCredentials(username="alice", password=Secret(password))
    security = SecurityConfig(protocol="SASL_PLAINTEXT", sasl=SaslConfig(mechanism="PLAIN", credentials=credentials))
    taken = Reply(lambda request: m.SaslHandshakeResponse(error_code=0, mechanisms=(request.mechanism,)))
    bench.proxy.inject(Rule(api, Answer(ErrorCode[code]), count=None), Rule(m.SaslHandshakeRequest, taken, count=None))
    with pytest.raises(AuthenticationError) as raised:
        write_whole(bench.write_settings(bench.topic(), client={"security": security}))
    assert raised.value.code == code
    assert password not in str(raised.value)
    asked = [m.ApiVersionsRequest, m.SaslHandshakeRequest, m.SaslAuthenticateRequest]
    assert [seen.api for seen in bench.proxy.requests] == asked[: asked.index(api) + 1]


def test_login_rejected_after_the_decision_leaves_it_unknown(bench_of: Callable[[int], Bench]) -> None:
    """The broker has decided, its response is lost, and the next connection is not let in."""
    bench = bench_of(2)
    credentials = PasswordCredentials(username="alice", password=Secret("expires now"))
    security = SecurityConfig(protocol="SASL_PLAINTEXT", sasl=SaslConfig(mechanism="PLAIN", credentials=credentials))
    topic = bench.topic()
    settings = bench.write_settings(topic, client={"security": security})

    def login(_: Any) -> m.SaslAuthenticateResponse:
        is_decided = any(seen.api is m.EndTxnRequest for seen in bench.proxy.requests)
        code = ErrorCode.SASL_AUTHENTICATION_FAILED if is_decided else ErrorCode.NONE
        return m.SaslAuthenticateResponse(error_code=code, error_message=None, auth_bytes=b"")

    taken = Reply(lambda request: m.SaslHandshakeResponse(error_code=0, mechanisms=(request.mechanism,)))
    bench.proxy.inject(
        Rule(m.SaslHandshakeRequest, taken, count=None),
        Rule(m.SaslAuthenticateRequest, Reply(login), count=None),
        Rule(m.EndTxnRequest, LoseResponse()),
    )
    plan = session.plan(settings)
    messages = write_tasks(settings, plan)
    with pytest.raises(DecisionPendingError, match=r"DECISION_UNKNOWN\].*SASL_AUTHENTICATION_FAILED"):
        session.commit(settings, plan, messages)
    session.plan(varied(settings, client=bench.client_config()))
    bench.assert_exactly_once(topic)
    bench.assert_nothing_open(topic)


def test_each_row_of_the_reaction_table_has_a_case() -> None:
    assert len({str(case) for case in CASES}) == len(CASES)
    handshakes = {(m.ApiVersionsRequest, code) for code in codes_of(f"UNSUPPORTED_VERSION {UNLISTED_CODES} {QUOTA}")}
    wanted = {(api, code, when) for api, code in {*REACTIONS, *handshakes} for when in (FIRST, BEHIND)}
    missing = wanted - {placed for case in CASES for placed in places(case)}
    assert sorted(f"{api.__name__} {named(code)} {when}" for api, code, when in missing) == []


def places(case: Case) -> Iterator[tuple[type[Request[Any]], int, str]]:
    """The codes that a case answers with, and whether another answer to the same request, or none, came before."""
    for at, rule in enumerate(case.rules):
        if not isinstance(rule.action, Answer | AnswerAfter):
            continue
        earlier = [each for each in case.rules[:at] if each.api is rule.api and each.where is rule.where]
        yield rule.api, rule.action.code, BEHIND if earlier else FIRST
