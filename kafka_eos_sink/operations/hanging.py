"""Finds what hangs of a write.

Partitions hold it open, and no coordinator ends it any more: a broker has omitted its marker (KAFKA-20734). Recovery discards what hangs
of a decision. This module finds the rest: attempts that no decision lists, and ids that their coordinator has forgotten, which only a
marker by hand can end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.commit.log_view import LogView
from kafka_eos_sink.commit.settle import discard
from kafka_eos_sink.commit.steps import POLL_MS, DescribeTransactions, TransactionDescription
from kafka_eos_sink.commit.values import Hanging, PreparedTransaction, Run
from kafka_eos_sink.errors import AuthorizationError, BrokerRefusedError, BrokerUnavailableError
from kafka_eos_sink.protocol.identity import ProducerIdentity, TopicPartition
from kafka_eos_sink.protocol.messages import ProducerState, TopicIndexes, WriteTxnMarkersRequest
from kafka_eos_sink.runtime.executor import Executor

DISCARD_WITHIN_MS = 10_000
"""How long the markers of discarded attempts may take."""
LEADER_MS = 10_000
"""How long the search waits for a leader before it continues without it."""
NO_RESPONSE = "no response). Run the command again when the brokers are back."
NO_READ = "missing Read permission). Grant Read and run the command again."
Named = Mapping[int, Sequence[tuple[PreparedTransaction, int | None]]]
"""By producer id, the decided transactions of the write, with the version of a decision that is unfinished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOpen:
    """A transaction of the write that hangs on a partition.

    producer_id ... coordinator_epoch  as the partition's leader remembers them
    version       of the unfinished decision whose rows it holds; None for an attempt
    is_forgotten  its coordinator no longer knows its producer id, so no transaction of its transactional id can end it
    """

    transactional_id: str
    topic: str
    partition: int
    start_offset: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    version: int | None
    is_forgotten: bool

    @property
    def where(self) -> TopicPartition:
        return self.topic, self.partition

    @property
    def place(self) -> str:
        return f"on {self.topic}-{self.partition} from offset {self.start_offset}"

    @property
    def is_attempt(self) -> bool:
        """Whether no decision lists it, and the next transaction of its id can end it."""
        return self.version is None and not self.is_forgotten

    @property
    def abort_marker(self) -> WriteTxnMarkersRequest.Marker:
        """The marker that Kafka's own tool would write: an ABORT with the leader's epochs."""
        return WriteTxnMarkersRequest.Marker(
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            transaction_result=False,
            topics=(TopicIndexes(name=self.topic, partition_indexes=(self.partition,)),),
            coordinator_epoch=max(0, self.coordinator_epoch),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What hangs; ``not_checked`` lists what could not be searched, and why."""

    held: tuple[HeldOpen, ...] = ()
    not_checked: tuple[str, ...] = ()

    @property
    def all_ended(self) -> bool:
        return not self.held and not self.not_checked

    @property
    def forgotten(self) -> tuple[HeldOpen, ...]:
        return tuple(each for each in self.held if each.is_forgotten)

    @property
    def attempts(self) -> tuple[Hanging, ...]:
        """The attempts, each with all its partitions."""
        by_id: dict[tuple[str, int], list[TopicPartition]] = {}
        for each in self.held:
            if each.is_attempt:
                by_id.setdefault((each.transactional_id, each.producer_id), []).append(each.where)
        return tuple(
            Hanging(transactional_id=name, producer_id=producer_id, partitions=tuple(where))
            for (name, producer_id), where in by_id.items()
        )


def find_hanging(admin: Admin, executor: Executor, run: Run, view: LogView, timeout_ms: int) -> Found:
    """Ask coordinators and leaders. It changes nothing.

    Args:
        view: The whole log of the write.
    """
    newest = [found.decision for query in view.queries("decision") if (found := query.newest) is not None]
    # An attempt may be of an older batch with more Spark partitions, or of one that was never decided.
    partitions = {entry.partition for decision in newest for entry in decision.transactions}
    partitions.update(partition for query in view.queries("part") for partition in query.newest_parts)
    topics = {part.topic for decision in newest for entry in decision.transactions for part in entry.offsets}
    topics |= {decision.topic for decision in newest if decision.topic}
    if not partitions:
        return Found()
    described = _described(executor, run.write.task_ids(sorted(partitions)))
    if described is None:
        return Found(not_checked=(f"the coordinators ({NO_RESPONSE}",))
    producers, missing = producers_on(admin, {run.write.commit_log}, topics, timeout_ms)
    held = [*_held(producers, described, _named(view), run.write.commit_log)]
    # An attempt may have begun, or begun and ended, between these requests. Then its coordinator reports another state now.
    again = _described(executor, {each.transactional_id for each in held if not each.is_forgotten})
    if again is None:
        missing[NO_RESPONSE].append("the coordinators")

    def is_unchanged(name: str) -> bool:
        return again is not None and again[name] == described[name]

    hangs = tuple(each for each in held if each.is_forgotten or is_unchanged(each.transactional_id))
    not_checked = tuple(f"{', '.join(names)} ({why}" for why, names in missing.items() if names)
    return Found(held=hangs, not_checked=not_checked)


def _described(executor: Executor, ids: Iterable[str]) -> Mapping[str, TransactionDescription | None] | None:
    """Return what coordinators report; None if one does not respond."""
    try:
        return executor.run(iter(DescribeTransactions(tuple(ids))))
    except BrokerUnavailableError:
        return None


def _named(view: LogView) -> Named:
    """Return the decided transactions whose producer is the write's own."""
    own = {part.producer_id for query in view.queries("part") for part in query.newest_parts.values() if part.value}
    named: dict[int, list[tuple[PreparedTransaction, int | None]]] = {}
    for query in view.queries("decision"):
        if (newest := query.newest) is None:
            continue
        version = newest.decision.version if query.state_of(newest.decision).is_open else None
        for entry in newest.decision.transactions:
            # A principal with Write on the log can name another program's producer in a decision, but not write its part record.
            if entry.identity.producer_id in own or query.part_of(entry.identity.carrier) is not None:
                named.setdefault(entry.identity.producer_id, []).append((entry, version))
    return named


def _held(
    producers: Mapping[TopicPartition, Collection[ProducerState]],
    described: Mapping[str, TransactionDescription | None],
    named: Named,
    commit_log: TopicPartition,
) -> Iterator[HeldOpen]:
    ids = {found.producer_id: name for name, found in described.items() if found is not None and found.is_free}
    busy = {found.producer_id for found in described.values() if found is not None and not found.is_free}
    for where, remembered in producers.items():
        for producer in remembered:
            # JOIN: by producer id alone, because an attempt of a newer epoch may have joined the decided transaction.
            entries = named.get(producer.producer_id, ())
            of_decision = entries[0][0].identity.transactional_id if entries else None
            name, start = ids.get(producer.producer_id, of_decision), producer.current_txn_start_offset
            if start < 0 or name is None or producer.producer_id in busy:
                continue
            versions = (
                version
                for entry, version in entries
                for part in entry.offsets
                if version is not None
                and (where == commit_log or ((part.topic, part.partition) == where and start <= part.last_offset))
            )
            yield HeldOpen(
                transactional_id=name,
                topic=where[0],
                partition=where[1],
                start_offset=start,
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                coordinator_epoch=producer.coordinator_epoch,
                version=next(versions, None),
                is_forgotten=producer.producer_id not in ids,
            )


def discard_attempts(
    admin: Admin, executor: Executor, run: Run, driver: ProducerIdentity, view: LogView, timeout_ms: int
) -> tuple[tuple[HeldOpen, ...], Found]:
    """Abort attempts that hang; return those that were seen to end, and what is left.

    Args:
        driver: W.driver, which the caller holds.
        view: As in `find_hanging`.
    """
    found = find_hanging(admin, executor, run, view, timeout_ms)
    if not found.attempts:
        return (), found
    left = {each.producer_id for each in executor.run(discard(run, driver, found.attempts))}
    attempts = [each for each in found.held if each.is_attempt]
    ended = _seen_to_end(admin, [each for each in attempts if each.producer_id not in left], timeout_ms)
    return ended, replace(found, held=tuple(each for each in found.held if each not in ended))


def lacks_note(view: LogView, held: Sequence[HeldOpen]) -> bool:
    """Whether decided rows are held open that are not noted as unseen yet.

    BLIND: an ABORT would let retention and the cleaner remove these rows, and nothing would show then that they were never seen.
    """
    return any(
        entry.ended != "aborted"
        for _, newest in view.unfinished()
        for entry in newest.decision.transactions
        for part in entry.offsets
        for each in held
        if entry.identity.producer_id == each.producer_id
        and (part.topic, part.partition) == each.where
        and each.start_offset <= part.last_offset
    )


def discard_forgotten(admin: Admin, held: Sequence[HeldOpen], timeout_ms: int) -> tuple[HeldOpen, ...]:
    """Write ABORT markers for forgotten ids; return what was seen to end.

    Raises:
        AuthorizationError: Alter or ClusterAction on the cluster is missing.
    """
    for each in held:
        admin.write_txn_marker(each.abort_marker, admin.client.clock() + timeout_ms)
    return _seen_to_end(admin, held, timeout_ms)


def _seen_to_end(admin: Admin, held: Sequence[HeldOpen], timeout_ms: int) -> tuple[HeldOpen, ...]:
    """Wait for the markers; return what its leader no longer holds open."""
    until = admin.client.clock() + min(timeout_ms, DISCARD_WITHIN_MS)
    while True:
        # An accepted EndTxn proves nothing: a broker may omit this marker as well.
        producers, _ = producers_on(admin, {each.where for each in held}, (), timeout_ms)
        starts = {
            (where, each.producer_id): each.current_txn_start_offset
            for where, found in producers.items()
            for each in found
        }
        ended = tuple(
            each
            for each in held
            if each.where in producers and starts.get((each.where, each.producer_id)) != each.start_offset
        )
        if len(ended) == len(held) or admin.client.clock() >= until:
            return ended
        admin.client.wait(POLL_MS, until)


def producers_on(
    admin: Admin, partitions: Collection[TopicPartition], topics: Collection[str], timeout_ms: int
) -> tuple[dict[TopicPartition, tuple[ProducerState, ...]], dict[str, list[str]]]:
    """Describe the producers of partitions and of whole topics, if they exist.

    A leader that does not respond, or a topic without the Read permission, does not stop the query of the others.

    Returns:
        The producers; and under NO_RESPONSE the partitions, under NO_READ the topics, that are missing.
    """
    groups: dict[tuple[int, str], list[TopicPartition]] = {}
    found: dict[TopicPartition, tuple[ProducerState, ...]] = {}
    missing: dict[str, list[str]] = {NO_RESPONSE: [], NO_READ: []}
    for topic in sorted({*topics, *(topic for topic, _ in partitions)}):
        try:
            known = admin.topic(topic, admin.client.clock() + timeout_ms)
        except AuthorizationError:
            missing[NO_READ].append(topic)
            continue
        for each in () if known is None else known.partitions:
            where = (topic, each.partition_index)
            if topic in topics or where in partitions:
                groups.setdefault((each.leader_id, topic), []).append(where)
    silent = {-1}
    for (leader, topic), group in groups.items():
        try:
            if leader not in silent:
                found |= admin.describe_producers(group, admin.client.clock() + LEADER_MS)
        except AuthorizationError:
            if topic not in missing[NO_READ]:
                missing[NO_READ].append(topic)
            continue
        except BrokerUnavailableError:
            silent.add(leader)
        except BrokerRefusedError as refused:
            # The topic may have been deleted since its metadata was read.
            if refused.code != "UNKNOWN_TOPIC":
                raise
        missing[NO_RESPONSE] += [f"{topic}-{number}" for _, number in group if (topic, number) not in found]
    return found, missing
