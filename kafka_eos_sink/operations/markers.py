"""Finds the missing markers of a write, and writes them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from kafka_eos_sink.client.admin import Admin, connected
from kafka_eos_sink.commit.missing_markers import Finding, Verdict, gather, judge, unproven_versions
from kafka_eos_sink.commit.steps import POLL_MS
from kafka_eos_sink.errors import AuthorizationError, BrokerRefusedError, BrokerUnavailableError
from kafka_eos_sink.operations.operator import OperatorSettings, connected_to_log
from kafka_eos_sink.protocol.identity import TopicPartition
from kafka_eos_sink.protocol.messages import ProducerState

LEADER_MS = 10_000
"""How long the search waits for a leader before it continues without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Markers:
    """Transactions of the write id that partitions hold open.

    written      whether the missing markers were written and are in effect
    no_response  partitions (topic-partition) whose leaders did not respond, or the coordinators
    unreadable   topics without the Read permission
    unproven     decided versions whose rows nothing proves visible
    """

    findings: tuple[Finding, ...] = ()
    written: bool = False
    no_response: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    unproven: frozenset[int] = frozenset()

    def of(self, verdict: Verdict) -> list[Finding]:
        return [each for each in self.findings if each.verdict is verdict]

    @property
    def all_checked(self) -> bool:
        return not (self.no_response or self.unreadable)

    @property
    def all_ended(self) -> bool:
        """Whether all partitions were examined, and none holds a transaction open."""
        return self.all_checked and len(self.findings) <= len(self.of(Verdict.MISSING)) * self.written


def producers_on(
    admin: Admin, partitions: Collection[TopicPartition], topics: Collection[str], timeout_ms: int
) -> tuple[dict[TopicPartition, tuple[ProducerState, ...]], list[TopicPartition], set[str]]:
    """Describe the producers of partitions and of whole topics, if they exist.

    A leader that does not respond, or a topic without the Read permission, does not stop the query of the others.

    Returns:
        The producers, the partitions that did not respond, and the topics without the Read permission.
    """
    groups: dict[tuple[int, str], list[TopicPartition]] = {}
    unreadable: set[str] = set()
    for topic in sorted({*topics, *(topic for topic, _ in partitions)}):
        try:
            known = admin.topic(topic, admin.client.clock() + timeout_ms)
        except AuthorizationError:
            unreadable.add(topic)
            continue
        for each in () if known is None else known.partitions:
            where = (topic, each.partition_index)
            if topic in topics or where in partitions:
                groups.setdefault((each.leader_id, topic), []).append(where)
    found: dict[TopicPartition, tuple[ProducerState, ...]] = {}
    no_response: list[TopicPartition] = []
    silent = {-1}
    for (leader, topic), group in groups.items():
        try:
            if leader not in silent:
                found |= admin.describe_producers(group, admin.client.clock() + LEADER_MS)
        except AuthorizationError:
            unreadable.add(topic)
            continue
        except BrokerUnavailableError:
            silent.add(leader)
        except BrokerRefusedError as refused:
            # The topic may have been deleted since its metadata was read.
            if refused.code != "UNKNOWN_TOPIC":
                raise
        no_response += [where for where in group if where not in found]
    return found, no_response, unreadable


def find_markers(settings: OperatorSettings, *, write: bool = False) -> Markers:
    """Find transactions that partitions hold open although they are committed.

    It fences no driver.

    Args:
        write: Write their missing markers.

    Raises:
        AuthorizationError: Read on the commit log is missing or, to write, Alter or ClusterAction on the cluster.
    """
    with connected_to_log(settings) as (admin, executor, run):
        try:
            evidence = executor.run(gather(run))
        except BrokerUnavailableError:
            # A coordinator that does not respond must not stop the command that repairs.
            return Markers(no_response=("the coordinators",))
        # An attempt that no newest decision names can block the readers of any partition of a topic.
        partitions = {part.where for part in evidence.parts} | ({run.write.commit_log} if evidence.described else set())
        producers, no_response, unreadable = producers_on(admin, partitions, evidence.topics, settings.timeout_ms)
        findings = judge(evidence, producers)
        written = [finding for finding in findings if write and finding.verdict is Verdict.MISSING]
        for finding in written:
            assert finding.marker is not None
            admin.write_txn_marker(finding.marker, admin.client.clock() + settings.timeout_ms)
        for finding in written:
            _await_end(admin, finding, admin.client.clock() + settings.timeout_ms)
        return Markers(
            findings=findings,
            written=bool(written),
            no_response=tuple(f"{topic}-{partition}" for topic, partition in no_response),
            unreadable=tuple(sorted(unreadable)),
            unproven=unproven_versions(evidence, producers),
        )


def still_open(settings: OperatorSettings, found: Markers) -> Markers:
    """Remove the transactions that no partition holds open any more, after recovery."""
    doubtful = [each for each in found.findings if each.verdict is not Verdict.MISSING]
    if not doubtful:
        return found
    with connected(settings.client) as admin:
        producers, _, _ = producers_on(admin, {each.where for each in doubtful}, (), settings.timeout_ms)

    def is_open(finding: Finding) -> bool:
        # A partition whose leader does not respond may still hold the transaction open.
        held = producers.get(finding.where)
        return held is None or finding.start_offset in [each.current_txn_start_offset for each in held]

    kept = [each for each in found.findings if each.verdict is Verdict.MISSING or is_open(each)]
    return replace(found, findings=tuple(kept))


def _await_end(admin: Admin, finding: Finding, deadline: int) -> None:
    """Wait until the leader does not hold the transaction open."""
    assert finding.marker is not None
    where, held = finding.where, (finding.marker.producer_id, finding.start_offset)
    # A leader responds to WriteTxnMarkers before the marker is in effect.
    while True:
        producers = admin.describe_producers([where], deadline)[where]
        if held not in [(each.producer_id, each.current_txn_start_offset) for each in producers]:
            return
        if admin.client.clock() >= deadline:
            raise BrokerUnavailableError(
                "REQUEST_DEADLINE",
                f"{where[0]}-{where[1]} accepted the marker of {finding.transactional_id} and still holds its transaction open; check the "
                "log of its leader",
            )
        admin.client.wait(POLL_MS, deadline)
