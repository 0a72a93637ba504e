"""The simulated cluster gives the answers of a real broker: the same random requests to both, compared one by one."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.config import ClientConfig, parse_bootstrap_servers
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.protocol.record_batch import read_record_batches

from . import simulated_cluster as kafka
from .real_cluster import RealCluster
from .simulated_cluster import Data, Identity

PARTITIONS = 3
WALKS = 12
ACTIONS = 60
SHORT_MS, LONG_MS = 5_000, 600_000
"""Long enough that a busy machine has produced before the time is over; nothing else ever times out."""


@pytest.fixture(params=[2, 0], ids=["tv2", "tv0"])
def version(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def admin(request: pytest.FixtureRequest, version: int) -> Iterator[Admin]:
    broker: EmbeddedKafka = request.getfixturevalue("kafka" if version else "kafka_tv0")
    config = ClientConfig(bootstrap_servers=parse_bootstrap_servers(broker.bootstrap_servers))
    with NetworkClient(config) as client:
        yield Admin(client)


@pytest.fixture
def pair(admin: Admin, version: int) -> Iterator[Pair]:
    """Ends what a walk left open: the broker is shared, and other tests hold that nothing is open there."""
    pair = Pair(RealCluster(admin, f"reality-{uuid.uuid4().hex}", PARTITIONS, version), version)
    yield pair
    pair.real.end_all({identity.transactional_id for identity in pair.identities})


class Pair:
    """Both clusters, and which producer id of the one is which of the other."""

    def __init__(self, real: RealCluster, version: int) -> None:
        self.real = real
        self.simulated = kafka.empty_cluster(version, PARTITIONS - 1)
        self.version = version
        self.real_ids: dict[int, int] = {-1: -1}
        self.story: list[str] = []
        self.identities: list[Identity] = []
        """All identities ever given out, as the simulation names them; the older ones are stale."""

    def to_real(self, identity: Identity) -> Identity:
        return identity._replace(producer_id=self.real_ids.get(identity.producer_id, -7))

    def expect(self, what: str, simulated: Any, real: Any) -> None:
        self.story.append(f"{what} -> {simulated}")
        assert simulated == real, "\n".join([*self.story, f"the broker says {real}"])

    def settle(self) -> None:
        ids = tuple(name for name, _ in self.simulated.transactions)
        while True:
            found = next(
                ((name, entry.missing[0]) for name, entry in self.simulated.transactions if entry.missing), None
            )
            if found is None:
                break
            self.simulated = kafka.write_marker(self.simulated, *found)
        self.real.settle(ids)

    def init(self, transactional_id: str, timeout_ms: int = LONG_MS) -> Identity:
        answer: Any = kafka.BLOCKED
        while answer is kafka.BLOCKED:
            self.simulated, answer = kafka.init_producer_id(self.simulated, transactional_id, timeout_ms)
            if answer is kafka.BLOCKED:
                entry = self.simulated.transaction(transactional_id)
                assert entry is not None
                for partition in entry.missing:
                    self.simulated = kafka.write_marker(self.simulated, transactional_id, partition)
        real_id, real_epoch = self.real.init_producer_id(transactional_id, timeout_ms)
        self.real_ids.setdefault(answer[0], real_id)
        self.expect(f"InitProducerId {transactional_id}", (self.real_ids[answer[0]], answer[1]), (real_id, real_epoch))
        identity = Identity(transactional_id, *answer, self.version)
        self.identities.append(identity)
        return identity

    def add(self, identity: Identity, partition: int) -> None:
        self.simulated, answer = kafka.add_partition(self.simulated, identity, partition)
        self.expect(
            f"AddPartitionsToTxn {identity} {partition}",
            answer,
            self.real.add_partition(self.to_real(identity), partition),
        )

    def produce(self, identity: Identity | None, partition: int, sequence: int, key: Any) -> int:
        records = ((key, None),)
        self.simulated, answer = kafka.produce(self.simulated, identity, partition, sequence, records)
        real = self.real.produce(identity and self.to_real(identity), partition, sequence, records)
        self.expect(f"Produce {identity} {partition} sequence {sequence}", answer, real)
        return int(answer[0])

    def end(self, identity: Identity, commit: bool, api_version: int) -> None:
        self.simulated, answer = kafka.end_txn(self.simulated, identity, commit, api_version)
        error, producer_id, epoch = self.real.end_txn(self.to_real(identity), commit, api_version)
        expected = (answer[0], self.real_ids[answer[1]], answer[2])
        self.expect(f"EndTxn v{api_version} {commit} {identity}", expected, (error, producer_id, epoch))
        if answer[0] == kafka.NONE and answer[2] >= 0:
            self.identities.append(Identity(identity.transactional_id, answer[1], answer[2], self.version))

    def time_out(self, transactional_id: str, partition: int, key: Any) -> None:
        identity = self.init(transactional_id, SHORT_MS)
        if self.version < 2:
            self.add(identity, partition)
        self.produce(identity, partition, 0, key)
        self.real.await_state(transactional_id, kafka.COMPLETE_ABORT)
        self.simulated = kafka.fence(self.simulated, transactional_id)
        self.story.append(f"{transactional_id} times out")

    def compare(self) -> None:
        ids = tuple(name for name, _ in self.simulated.transactions)
        described = {
            name: (
                entry.state,
                self.real_ids[entry.producer_id],
                entry.producer_epoch,
                entry.partitions if entry.state == kafka.ONGOING else (),
            )
            for name, entry in self.simulated.transactions
        }
        self.expect("DescribeTransactions", described, self.real.describe(ids))
        stable = tuple(kafka.last_stable_offset(self.simulated, partition) for partition in range(PARTITIONS))
        self.expect("last stable offsets", stable, self.real.last_stable_offsets())

    def compare_logs(self) -> None:
        for partition in range(PARTITIONS):
            entries = [
                ("data", self.real_ids[entry.producer_id], entry.producer_epoch, repr(entry.key).encode())
                if isinstance(entry, Data)
                else ("control", self.real_ids[entry.producer_id], entry.producer_epoch, entry.commit)
                for entry in self.simulated.logs[partition]
            ]
            self.expect(f"the log of partition {partition}", entries, self.real.log(partition))
            # Beyond the last stable offset the broker lists what its index happens to hold; no reader gets there.
            stable = kafka.last_stable_offset(self.simulated, partition)
            aborted = {
                (self.real_ids[producer_id], first)
                for producer_id, first in kafka.aborted_transactions(self.simulated, partition, 0)
                if first < stable
            }
            listed = {entry for entry in self.real.aborted(partition) if entry[1] < stable}
            self.expect(f"aborted transactions of partition {partition}", aborted, listed)
            opened = {
                self.real_ids[producer_id]: first
                for producer_id, (first, _) in kafka.open_transactions(self.simulated, partition).items()
            }
            held = {found: start for found, (_, start) in self.real.producers(partition).items() if start >= 0}
            self.expect(f"open transactions of partition {partition}", opened, held)


def random_walk(pair: Pair, chance: random.Random, names: tuple[str, ...]) -> None:
    sequences: dict[tuple[Identity, int], int] = {}
    for number in range(ACTIONS):
        action = chance.choices(("init", "add", "produce", "end", "plain", "timeout"), (3, 4, 12, 7, 1, 0.15))[0]
        recent = pair.identities[-6:]
        identity = (
            chance.choice(recent) if recent and chance.random() < 0.8 else chance.choice(pair.identities or [None])
        )  # type: ignore[list-item]
        partition = chance.randrange(PARTITIONS)
        if action == "plain":
            pair.produce(None, partition, -1, ("plain", number))
        elif action == "init" or identity is None:
            pair.init(chance.choice(names))
        elif action == "timeout":
            pair.time_out(chance.choice(names), partition, ("late", number))
        elif action == "add":
            if pair.version < 2:
                pair.add(identity, partition)
        elif action == "produce":
            expected = sequences.get((identity, partition), 0)
            # What a leader below version 2 makes of another first sequence number of a transaction than the next one depends on
            # refused requests before it (docs/internals/kafka-behaviour.md); no producer of ours does that.
            opened = kafka.open_transactions(pair.simulated, partition).get(identity.producer_id, (0, -1))
            known = pair.version >= 2 or opened[1] == identity.producer_epoch
            sequence = chance.randrange(3) if known and chance.random() < 0.15 else expected
            if pair.version < 2 and chance.random() < 0.7:
                pair.add(identity, partition)
            if pair.produce(identity, partition, sequence, ("row", number)) == kafka.NONE:
                sequences[identity, partition] = max(expected, sequence + 1)
        else:
            own = 5 if pair.version >= 2 else 4
            # EndTxn v5 is never sent below version 2: where it would change something it wedges the id (docs/internals/kafka-behaviour.md).
            other = own == 5 and chance.random() < 0.2
            pair.end(identity, chance.random() < 0.5, 4 if other else own)
        pair.settle()
        if number % 5 == 4:
            pair.compare()
    pair.compare()
    pair.compare_logs()


@pytest.mark.parametrize("seed", range(WALKS))
def test_random_requests_get_the_same_responses_as_from_a_broker(pair: Pair, seed: int) -> None:
    owner = f"reality-{uuid.uuid4().hex}"
    random_walk(pair, random.Random(seed), (f"{owner}.0.0", f"{owner}.1.0", f"{owner}.driver"))


def test_a_log_shows_the_same_rows_to_both(pair: Pair, version: int) -> None:
    """What the simulation calls visible is what a read_committed reader of the broker gets."""
    owner = f"reality-{uuid.uuid4().hex}"
    own = 5 if version >= 2 else 4
    for number in range(8):
        identity = pair.init(f"{owner}.{number % 2}.0")
        for partition in (0, 1):
            if version < 2:
                pair.add(identity, partition)
            pair.produce(identity, partition, 0, ("row", number))
        if number != 6:
            pair.end(identity, number % 3 != 0, own)
        pair.settle()
    pair.compare_logs()
    ended = kafka.outcomes(pair.simulated, 1)
    stable = kafka.last_stable_offset(pair.simulated, 1)
    expected = [
        repr(entry.key).encode()
        for offset, entry in enumerate(pair.simulated.logs[1][:stable])
        if isinstance(entry, Data) and ended[offset]
    ]
    pair.expect("the visible rows", expected, visible_rows(pair.real.admin, pair.real.topic, 1))


def visible_rows(admin: Admin, topic: str, partition: int) -> list[bytes]:
    """What a read_committed consumer keeps: Kafka's own rule over the list of aborted transactions."""
    deadline = admin.client.clock() + 60_000
    where = (topic, partition)
    end = admin.list_offsets((where,), deadline, isolation="read_committed")[where]
    aborting: set[int] = set()
    rows: list[bytes] = []
    offset = 0
    while offset < end:
        result = admin.fetch(
            (topic, partition), offset, isolation="read_committed", max_wait_ms=0, deadline_ms=deadline
        )
        aborted = sorted((entry.first_offset, entry.producer_id) for entry in result.aborted_transactions or ())
        for batch in read_record_batches(result.records):
            offset = batch.last_offset + 1
            while aborted and aborted[0][0] <= batch.last_offset:
                aborting.add(aborted.pop(0)[1])
            if batch.control:
                aborting.discard(batch.producer_id)
            elif not (batch.transactional and batch.producer_id in aborting):
                rows += [record.key or b"" for record in batch.records]
    return rows
