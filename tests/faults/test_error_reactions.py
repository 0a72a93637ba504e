"""What each error code of each API leads to, on the real code paths through a proxy that answers with it.

`tests/reaction_table.py` gives the codes of an API and their reactions, written from Kafka's protocol. The rows here say what a reaction
leads to, for each role that sends such requests: the driver, a task, a producer without a transaction. `again`: the write succeeds, every
row exactly once and in order, and nothing stays open. `ends`: our code is raised, nothing is visible, and the next run of the same write
leaves every row exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import pytest

from dead_writes import ROWS, varied
from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.client.security import PasswordCredentials, SaslConfig, Secret, SecurityConfig
from kafka_eos_sink.commit import transactions
from kafka_eos_sink.commit.steps import CommitGroupOffsets
from kafka_eos_sink.errors import DecisionPendingError, KafkaEosError
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.protocol import messages as m
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.reactions import Reaction, reaction, refusal
from kafka_eos_sink.protocol.schema import Request
from kafka_eos_sink.runtime import session
from kafka_eos_sink.runtime.driver_requests import commit_group_offsets
from kafka_testing import end_as_driver, started_producer, unique_topic
from reaction_table import LEADER, REACTIONS, UNLISTED_CODES, codes_of

from .bench import Bench, numbered, write_at_least_once, write_tasks, write_whole
from .error_responses import metadata_with_code
from .fault_proxy import Action, Answer, AnswerAfter, Change, LoseResponse, Reply, Rule, Seen

QUOTA = "THROTTLING_QUOTA_EXCEEDED"
THROTTLED_MS = 60
"""The silence that a THROTTLING_QUOTA_EXCEEDED asks for: longer than any backoff of the bench, which ends at 40 ms."""
SENT_AGAIN = (Reaction.RETRY, Reaction.REFRESH_METADATA, Reaction.FIND_COORDINATOR)
UNDECIDED_IN = 4_000
"""delivery.timeout.ms of the cases that wait for it to pass."""


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


def retried(api: type[Request[Any]]) -> list[int]:
    """The codes of an API after which the request is sent again."""
    return [code for (of, code), found in REACTIONS.items() if of is api and found in SENT_AGAIN]


def again(
    api: type[Request[Any]],
    of: Callable[[Any], bool],
    codes: str = "",
    *,
    versions: tuple[int, ...] = (2,),
    nth: int = 1,
    client: str = "",
    answer: Callable[[int], Action] = Answer,
    alone: bool = True,
    in_a_row: bool = True,
    **how: Any,
) -> Iterator[Case]:
    """Codes after which the same is requested again, or all such codes of the API: each alone, and all one after the other.

    The other transaction protocols than the first of `versions` get the row of all codes only, if there is one.
    """
    name = f"{api.__name__.removesuffix('Request')}-{of.__name__}-{nth}{client}{done(answer)}"
    actions = {named(code): throttled(api, answer(code)) for code in (codes_of(codes) if codes else retried(api))}
    for version in versions:
        if (alone and version == versions[0]) or not in_a_row:
            for code, action in actions.items():
                rule = Rule(api, action, nth=nth, where=of, client=client)
                yield Case(name=f"{name}-{code}", rules=(rule,), version=version, **how)
        if in_a_row:
            row = tuple(
                Rule(api, action, nth=nth + at, where=of, client=client) for at, action in enumerate(actions.values())
            )
            yield Case(name=f"{name}-one-after-the-other", rules=row, version=version, **how)


def done(answer: Callable[[int], Action]) -> str:
    return "-though-done" if answer is AnswerAfter else ""


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
    reactions: Mapping[Reaction, str] | None = None,
    but: Mapping[str, str] | None = None,
    *,
    versions: tuple[int, ...] = (2,),
    nth: int = 1,
    client: str = "",
    behind: bool = True,
    answer: Callable[[int], Action] = Answer,
    **how: Any,
) -> Iterator[Case]:
    """Codes that end the matter, as the first answer; of those with one outcome, the first one also behind a retry.

    Args:
        reactions: Our code for all codes of a reaction. `=`: it has Kafka's name.
        but: Our code for some of Kafka's codes, whatever their reaction. Empty: those codes are no case.
        behind: Whether there are cases behind a retry.
    """
    name = f"{api.__name__.removesuffix('Request')}-{of.__name__}-{nth}{client}{done(answer)}"
    exceptions = {code: ours for codes, ours in (but or {}).items() for code in codes_of(codes)}
    outcomes = {
        code: (reactions or {}).get(found, "") for (of_api, code), found in REACTIONS.items() if of_api is api
    } | exceptions
    retry = Rule(api, Answer(retried(api)[0]), nth=nth, where=of, client=client)
    for version in versions:
        seen = set[str]() if behind and version == versions[0] else set(outcomes.values())
        for code, ours in outcomes.items():
            if not ours:
                continue
            rule = Rule(api, answer(code), nth=nth, where=of, client=client)
            raised = named(code) if ours == "=" else ours
            case = partial(Case, ends=raised, version=version, **how)
            yield case(name=f"{name}-{named(code)}", rules=(rule,))
            if ours not in seen:
                seen.add(ours)
                yield case(name=f"{name}-{named(code)}-after-a-retry", rules=(retry, replace(rule, nth=nth + 1)))


def for_ever(
    api: type[Request[Any]], of: Callable[[Any], bool], codes: str, ours: str | None, **how: Any
) -> Iterator[Case]:
    """Codes that would be worth another try, if they did not come every time."""
    for code in codes_of(codes):
        name = f"{api.__name__.removesuffix('Request')}-{of.__name__}-{named(code)}-for-ever"
        yield Case(name=name, rules=(Rule(api, Answer(code), count=None, where=of),), ends=ours, **how)


def deadlines() -> Iterator[Case]:
    short = {"settings": {"delivery_timeout_ms": UNDECIDED_IN, "max_block_ms": UNDECIDED_IN}, "leaves_open": True}
    late: Callable[..., Iterator[Case]] = partial(for_ever, **short)
    loading, replicas = "COORDINATOR_LOAD_IN_PROGRESS", "NOT_ENOUGH_REPLICAS"
    both = f"CONCURRENT_TRANSACTIONS {loading}"
    for of, way in ((of_driver, "write"), (of_task, "write"), (of_task, "offsets")):
        yield from late(m.InitProducerIdRequest, of, both, "REQUEST_DEADLINE", way=way)
    yield from late(m.InitProducerIdRequest, anything, loading, "REQUEST_DEADLINE", way="at-least-once")
    yield from late(m.EndTxnRequest, of_driver, both, "DECISION_UNKNOWN")
    yield from late(m.EndTxnRequest, of_task, both, "DECIDED_NOT_FINISHED", decided=True)
    yield from late(m.FindCoordinatorRequest, of_task, loading, "REQUEST_DEADLINE")
    yield from late(m.ProduceRequest, of_data, f"NOT_LEADER_OR_FOLLOWER {replicas}", "DELIVERY_TIMEOUT")
    yield from late(m.ProduceRequest, of_barrier, replicas, "COMMIT_LOG_UNAVAILABLE")
    yield from late(m.ProduceRequest, of_driver, replicas, "NOT_DECIDED")
    gone = {"max_block_ms": 3_000, "delivery_timeout_ms": 60_000}
    yield from for_ever(m.ProduceRequest, of_data, "UNKNOWN_TOPIC_OR_PARTITION", "UNKNOWN_TOPIC", settings=gone)
    yield from late(m.ListTransactionsRequest, anything, loading, "REQUEST_DEADLINE")
    yield from late(m.DescribeTransactionsRequest, of_check, loading, "REQUEST_DEADLINE")
    # Losing attempts that nobody can look for stop no decision.
    yield from for_ever(m.DescribeTransactionsRequest, of_losers, loading, None)
    settings = "INVALID_REPLICATION_FACTOR INVALID_CONFIG POLICY_VIOLATION"
    yield from for_ever(m.CreateTopicsRequest, anything, settings, "COMMIT_LOG_TOPIC", way="new-log")


TRANSACTIONAL_ID, TOPIC, GROUP, CLUSTER = (
    f"{kind}_AUTHORIZATION_FAILED" for kind in ("TRANSACTIONAL_ID", "TOPIC", "GROUP", "CLUSTER")
)
FENCING = "INVALID_PRODUCER_EPOCH PRODUCER_FENCED"
REFUSED = {UNLISTED_CODES: "BROKER_REFUSED"}


def find_coordinator() -> Iterator[Case]:
    api, rights = m.FindCoordinatorRequest, {TRANSACTIONAL_ID: "=", **REFUSED}
    for client in ("", "-task-0", "-committer"):  # whether the attempt is overtaken, and for the decision's EndTxn
        yield from again(api, of_driver, client=client)
    yield from again(api, of_task)
    yield from again(api, of_group, way="offsets")
    for client in ("", "-task-0"):
        yield from ends(api, of_driver, but=rights, client=client, leaves_open=True)
    yield from ends(api, of_task, but=rights, leaves_open=True)
    yield from ends(api, of_group, but={GROUP: "="}, way="offsets", fenced=True)
    unknown = dict.fromkeys(rights, "DECISION_UNKNOWN")
    how = {"leaves_open": True, "settings": {"delivery_timeout_ms": UNDECIDED_IN}}
    yield from ends(api, of_driver, but=unknown, client="-committer", **how)


def init_producer_id() -> Iterator[Case]:
    api, timeout = m.InitProducerIdRequest, "INVALID_TRANSACTION_TIMEOUT"
    for of in (of_driver, of_task):
        yield from again(api, of, versions=(2, 0))
    yield from again(api, anything, way="at-least-once")
    # A task whose timeout nobody asked for takes less, as it may not know what the brokers allow.
    yield from again(api, of_task, timeout, in_a_row=False)
    refused = {
        Reaction.FENCED: "PRODUCER_FENCED",
        Reaction.ABORT: "TRANSACTION_ABORTED",
        Reaction.CONFIGURATION: "=",
    }
    too_old = {"UNSUPPORTED_VERSION": "BROKER_REFUSED"}
    yield from ends(api, of_driver, refused, too_old)
    yield from ends(api, of_task, refused, {**too_old, timeout: ""}, leaves_open=True)
    asked_for = {"settings": {"transaction_timeout_ms": 50_000}, "note": "asked-for"}
    yield from ends(api, of_task, but={timeout: "="}, leaves_open=True, **asked_for)
    yield from ends(api, anything, but={CLUSTER: "=", **too_old}, behind=False, way="at-least-once")


def add_partitions() -> Iterator[Case]:
    """Below version 2 only."""
    api = m.AddPartitionsToTxnRequest
    again_, ends_ = partial(again, api, versions=(0,)), partial(ends, api, versions=(0,))
    for of in (of_data, of_part, of_driver):
        yield from again_(of, alone=of is not of_part)
    yield from again_(of_data, answer=AnswerAfter, alone=False)

    def with_siblings(code: int) -> Answer:
        return Answer(code, ErrorCode.OPERATION_NOT_ATTEMPTED)

    yield from again_(of_data, "CONCURRENT_TRANSACTIONS", in_a_row=False, answer=with_siblings, note="siblings")
    aborts = {Reaction.ABORT: "TRANSACTION_ABORTED", Reaction.ABORT_CONFIGURATION: "="}
    yield from ends_(of_data, aborts)
    yield from ends_(of_data, {Reaction.FENCED: "PRODUCER_FENCED"}, {TRANSACTIONAL_ID: "="}, fenced=True)
    yield from ends_(of_part, but={"TRANSACTION_ABORTABLE": "TRANSACTION_ABORTED"})
    yield from ends_(of_part, but={"PRODUCER_FENCED": "PRODUCER_FENCED"}, fenced=True)
    yield from ends_(of_data, but={TOPIC: "="}, answer=with_siblings, note="siblings")
    at_decision = {Reaction.ABORT: "NOT_DECIDED", Reaction.FENCED: "NOT_DECIDED", Reaction.ABORT_CONFIGURATION: "="}
    yield from ends_(of_driver, at_decision, {FENCING: "FENCED", TRANSACTIONAL_ID: "="}, leaves_open=True)


def produce() -> Iterator[Case]:
    api = m.ProduceRequest
    yield from again(api, of_data, versions=(2, 0))
    yield from again(api, of_driver)
    for of in (of_part, of_barrier):
        yield from again(api, of, alone=False)
    yield from again(api, of_data, way="at-least-once")
    # What was written although the answer is a failure must not be written again.
    written = "REQUEST_TIMED_OUT NOT_ENOUGH_REPLICAS_AFTER_APPEND NETWORK_EXCEPTION"
    for of in (of_data, of_part, of_driver):
        yield from again(api, of, written, versions=(2, 0), answer=AnswerAfter)
    yield from again(api, of_data, written, answer=AnswerAfter, way="at-least-once")
    # The done record is a hint: that it cannot be written fails nothing.
    yield from again(api, of_barrier, f"{TOPIC} POLICY_VIOLATION {UNLISTED_CODES}", nth=3, in_a_row=False)
    yield from again(api, of_data, "MESSAGE_TOO_LARGE", versions=(2, 0), in_a_row=False)
    refused = {Reaction.CONFIGURATION: "BROKER_REFUSED"}
    named_by_kafka = {"INVALID_TIMESTAMP": "CLOCK_SKEW", f"{TOPIC} {TRANSACTIONAL_ID} {CLUSTER}": "="}
    late = Reaction.RETRY_BEHIND_EARLIER_BATCH
    aborts = {Reaction.ABORT: "TRANSACTION_ABORTED", late: "TRANSACTION_ABORTED"}
    yield from ends(api, of_data, refused | aborts, named_by_kafka, versions=(2, 0))
    # A batch that was sent once only and is known to the broker is another writer's.
    another = {"DUPLICATE_SEQUENCE_NUMBER": "TRANSACTION_ABORTED"}
    yield from ends(api, of_data, but=another, versions=(2, 0), behind=False)
    some = {"INVALID_PRODUCER_EPOCH": "TRANSACTION_ABORTED", "POLICY_VIOLATION": "BROKER_REFUSED", TOPIC: "="}
    yield from ends(api, of_part, but=some)
    one_row = {"settings": {"batch_size": 1}, "note": "single-rows"}
    yield from ends(api, of_data, but={"MESSAGE_TOO_LARGE": "RECORD_TOO_LARGE"}, versions=(2, 0), **one_row)
    at_decision = dict.fromkeys((Reaction.ABORT, late, Reaction.SPLIT, Reaction.SUCCESS), "NOT_DECIDED")
    yield from ends(api, of_driver, refused | at_decision, {**named_by_kafka, FENCING: "FENCED"}, leaves_open=True)
    yield from ends(api, of_driver, but={FENCING: "FENCED"}, versions=(0,), leaves_open=True)
    for nth in (1, 2):  # before the fence, and behind it
        yield from ends(api, of_barrier, but={"POLICY_VIOLATION": "BROKER_REFUSED", TOPIC: "="}, nth=nth)
    # Without a transaction the producer helps itself with the next epoch (KIP-360).
    own = "OUT_OF_ORDER_SEQUENCE_NUMBER UNKNOWN_PRODUCER_ID INVALID_PRODUCER_EPOCH INVALID_PRODUCER_ID_MAPPING"
    yield from again(api, of_data, own, way="at-least-once", note="next-epoch")
    yield from ends(api, of_data, refused | aborts, {**named_by_kafka, own: ""}, behind=False, way="at-least-once")
    # In a transaction the rows are there as well, but not where: the driver could not prove what it decides.
    for way, version, ours in (
        ("at-least-once", 2, None),
        ("write", 2, "OFFSET_UNKNOWN"),
        ("write", 0, "OFFSET_UNKNOWN"),
    ):
        yield Case(
            name="Produce-of_data-DUPLICATE_SEQUENCE_NUMBER-of-our-own-resend",
            rules=(
                Rule(api, LoseResponse(), where=of_data),
                Rule(api, Answer(ErrorCode.DUPLICATE_SEQUENCE_NUMBER), nth=2, where=of_data),
            ),
            ends=ours,
            way=way,
            version=version,
        )


def offsets() -> Iterator[Case]:
    superseded = {Reaction.FENCED: "PRODUCER_FENCED"}, {TRANSACTIONAL_ID: "="}
    api = m.AddOffsetsToTxnRequest
    how: dict[str, Any] = {"versions": (0,), "way": "offsets"}
    yield from again(api, anything, **how)
    yield from ends(api, anything, {Reaction.ABORT: "TRANSACTION_ABORTED", Reaction.ABORT_CONFIGURATION: "="}, **how)
    yield from ends(api, anything, *superseded, fenced=True, **how)
    commit = m.TxnOffsetCommitRequest
    yield from again(commit, anything, versions=(2, 0), way="offsets")
    yield from again(commit, anything, answer=AnswerAfter, alone=False, way="offsets")
    # A group with members: the sink warns, and sends the same offsets without a member id.
    members = "UNKNOWN_MEMBER_ID"
    yield from again(commit, anything, members, versions=(2, 0), in_a_row=False, way="offsets")
    of_groups = {Reaction.ABORT: "TRANSACTION_ABORTED", Reaction.ABORT_CONFIGURATION: "BROKER_REFUSED"}
    named_by_kafka = {f"{GROUP} {TOPIC}": "=", "GROUP_ID_NOT_FOUND": "SOURCE_OFFSETS", members: ""}
    yield from ends(commit, anything, of_groups, named_by_kafka, way="offsets")
    yield from ends(commit, anything, *superseded, fenced=True, way="offsets")
    yield from again(m.OffsetFetchRequest, anything, way="group")
    yield from ends(m.OffsetFetchRequest, anything, but={GROUP: "=", **REFUSED}, way="group")


def end_txn() -> Iterator[Case]:
    api = m.EndTxnRequest
    both: dict[str, Any] = {"versions": (2, 0)}
    doubtful = "INVALID_PRODUCER_ID_MAPPING INVALID_TXN_STATE UNKNOWN_PRODUCER_ID TRANSACTION_ABORTABLE"
    hopeless = f"{TRANSACTIONAL_ID} UNSUPPORTED_VERSION {UNLISTED_CODES}"
    for of in (of_driver, of_task):
        yield from again(api, of, **both)
        yield from again(api, of, answer=AnswerAfter, **both)
    # The decision. Whatever the answer, the commit log knows: its marker is there, or does not come.
    short = {"leaves_open": True, "settings": {"delivery_timeout_ms": UNDECIDED_IN}}
    unknown = dict.fromkeys((Reaction.UNKNOWN, Reaction.CONFIGURATION), "DECISION_UNKNOWN")
    yield from ends(api, of_driver, unknown, **short, **both)
    yield from again(api, of_driver, f"{doubtful} {hopeless}", answer=AnswerAfter, in_a_row=False, **both)
    # By the newer driver, whose the write is now.
    by_another = {FENCING: "DECIDED_NOT_FINISHED"}
    yield from ends(api, of_driver, but=by_another, answer=AnswerAfter, leaves_open=True, **both)
    # The tasks' transactions. Their partitions show how they ended; where nothing was ended yet, they hold them open.
    how = {"decided": True, "leaves_open": True, **both}
    yield from ends(api, of_task, dict.fromkeys(unknown, "DECIDED_NOT_FINISHED"), **how)
    yield from again(api, of_task, f"{FENCING} {doubtful}", answer=AnswerAfter, in_a_row=False, **both)
    # Codes that do not say whether the transaction has ended leave a batch decided that is in truth finished.
    yield from ends(api, of_task, but={hopeless: "DECIDED_NOT_FINISHED"}, answer=AnswerAfter, **how)


def questions() -> Iterator[Case]:
    """APIs that only read."""

    def of_partitions(code: int) -> Change:
        return Change(lambda answer: metadata_with_code(answer, code, of_partitions=True))

    for of in (of_data, of_log):
        yield from again(m.MetadataRequest, of, f"{LEADER} {QUOTA}")
        yield from again(m.MetadataRequest, of, LEADER, answer=of_partitions, note="partitions")
        yield from again(m.MetadataRequest, of, LEADER, nth=2, alone=False)
        yield from ends(m.MetadataRequest, of, but={TOPIC: "=", **REFUSED})
    yield from again(m.ListOffsetsRequest, of_data)
    after_decision = {"decided": True, "leaves_open": True, "settings": {"delivery_timeout_ms": 3_000}}
    pending = {Reaction.CONFIGURATION: "DECIDED_NOT_FINISHED"}
    yield from ends(m.ListOffsetsRequest, of_data, pending, **after_decision)
    for client in ("-planner", "-committer"):  # up to the barrier, and for the decision's marker
        yield from again(m.FetchRequest, of_log, client=client)
    planning = {TOPIC: "=", "OFFSET_OUT_OF_RANGE": "COMMIT_LOG_TRUNCATED", **REFUSED}
    yield from ends(m.FetchRequest, of_log, but=planning)
    deciding = dict.fromkeys(planning, "DECISION_UNKNOWN")
    yield from ends(m.FetchRequest, of_log, but=deciding, client="-committer", leaves_open=True)
    configs = m.DescribeConfigsRequest
    for nth in (1, 2):  # of a broker, and of the commit log's topic
        yield from again(configs, anything, nth=nth)
        yield from again(configs, anything, f"{CLUSTER} {TOPIC}", nth=nth, in_a_row=False)
        yield from ends(configs, anything, but=REFUSED, nth=nth)
    yield from ends(configs, anything, but={"UNKNOWN_TOPIC_OR_PARTITION": "UNKNOWN_TOPIC"}, nth=2)
    yield from again(m.DescribeProducersRequest, of_data)
    yield from ends(m.DescribeProducersRequest, of_data, but=REFUSED, leaves_open=True)
    for case in ends(m.DescribeProducersRequest, of_data, but={TOPIC: "="}, leaves_open=True):
        # The next request asks for each topic by itself, to learn which ones may not be read.
        yield replace(case, rules=(*case.rules[:-1], replace(case.rules[-1], count=None)))
    transactions, rights, forgotten = m.DescribeTransactionsRequest, TRANSACTIONAL_ID, "TRANSACTIONAL_ID_NOT_FOUND"
    for of, client in ((of_slots, ""), (of_check, ""), (of_question, "-task-0"), (of_question, "-planner")):
        yield from again(transactions, of, client=client)
        yield from ends(transactions, of, but={rights: "=", **REFUSED}, client=client, leaves_open=True)
    yield from again(transactions, of_question, client="-task-0", nth=2, alone=False)
    yield from again(transactions, of_losers)
    yield from again(transactions, of_losers, f"{rights} {UNLISTED_CODES} {forgotten}", in_a_row=False)
    for of, client in ((of_slots, ""), (of_question, "-task-0")):
        yield from again(transactions, of, forgotten, client=client, in_a_row=False)
    yield from ends(transactions, of_check, but={forgotten: "TRANSACTION_NOT_OPEN"}, leaves_open=True)
    yield from again(m.ListTransactionsRequest, anything)
    yield from ends(m.ListTransactionsRequest, anything, but=REFUSED)
    unknown_filters = Change(lambda answer: replace(answer, unknown_state_filters=("Ongoing",), transaction_states=()))
    rules = (Rule(m.ListTransactionsRequest, unknown_filters),)
    yield Case(name="ListTransactions-unknown-state-filters", rules=rules, ends="BROKER_REFUSED")


def handshake() -> Iterator[Case]:
    api = m.ApiVersionsRequest
    yield from again(api, anything, f"UNSUPPORTED_VERSION {UNLISTED_CODES} {QUOTA}")

    def without_flexible_produce(answer: m.ApiVersionsResponse) -> m.ApiVersionsResponse:
        keys = tuple(replace(key, max_version=8) if key.api_key == 0 else key for key in answer.api_keys)
        return replace(answer, api_keys=keys)

    rules = (Rule(api, Change(without_flexible_produce), count=None),)
    yield Case(name="ApiVersions-a-broker-too-old", rules=rules, ends="MISSING_API")


def commit_log() -> Iterator[Case]:
    api, how = m.CreateTopicsRequest, {"way": "new-log"}
    yield from again(api, anything, **how)
    # The first request that a single broker does not refuse by itself, for too many replicas.
    created = "TOPIC_ALREADY_EXISTS REQUEST_TIMED_OUT"
    yield from again(api, anything, created, answer=AnswerAfter, in_a_row=False, nth=3, **how)
    yield from again(
        api, anything, "INVALID_REPLICATION_FACTOR INVALID_CONFIG POLICY_VIOLATION", note="settings", **how
    )
    yield from ends(api, anything, {Reaction.CONFIGURATION: "COMMIT_LOG_TOPIC"}, **how)


GROUPS = (
    find_coordinator,
    init_producer_id,
    add_partitions,
    produce,
    offsets,
    end_txn,
    questions,
    handshake,
    commit_log,
    deadlines,
)
CASES = [case for group in GROUPS for case in group()]


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
    }
    drive = ways[case.way]
    bench.proxy.inject(*case.rules)
    if case.ends is None:
        drive()
        assert_fired(bench, case)
        assert_repeated(bench, case)
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
        if asked_for not in SENT_AGAIN:
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


WITHOUT_A_CASE = (m.WriteTxnMarkersRequest,)
"""An operator's command: broker/test_missing_markers.py."""


def test_each_row_of_the_reaction_table_has_a_case() -> None:
    assert len({str(case) for case in CASES}) == len(CASES)
    handshakes = {(m.ApiVersionsRequest, code) for code in codes_of(f"UNSUPPORTED_VERSION {UNLISTED_CODES} {QUOTA}")}
    answered = {
        (rule.api, rule.action.code)
        for case in CASES
        for rule in case.rules
        if isinstance(rule.action, Answer | AnswerAfter)
    }
    missing = {row for row in {*REACTIONS, *handshakes} - answered if row[0] not in WITHOUT_A_CASE}
    rows = sorted(f"{api.__name__} {named(code)}" for api, code in missing)
    advice = (
        "yield `again` or `ends` for them in a function of GROUPS; WITHOUT_A_CASE has the APIs that only commands send"
    )
    assert not rows, f"{advice}: {rows}"
