"""Partitions with one replica, whose node is killed: they have no leader until it is back.

On Kafka 4.3.1 and 4.4.0, whose coordinators leave the marker of a commit out of such a partition and call the transaction complete
(KAFKA-20734): the records would stay unread for ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from dead_writes import ROWS, tasks, varied, write_all, write_settings
from kafka_eos_sink.cli import recover
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.errors import DecisionPendingError
from kafka_eos_sink.operations.operator import OperatorSettings
from kafka_eos_sink.runtime import failpoints, session
from kafka_testing import READERS, assert_nothing_open, create_topic, read_committed, wait_until

from .three_nodes import QUICK_ELECTIONS, leader, leaderless_everywhere, make_whole

PARTITIONS = 3


@pytest.fixture(scope="module", params=["4.3.1", "4.4.0"])
def three(request: pytest.FixtureRequest) -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(brokers=3, version=request.param, heap="256m", properties=QUICK_ELECTIONS) as cluster:
        write_all(write_settings(cluster, create_topic(cluster.bootstrap_servers)))  # makes the internal topics
        yield cluster


@pytest.fixture(autouse=True)
def whole(three: EmbeddedKafka) -> None:
    make_whole(three)


def lonely_topic(three: EmbeddedKafka) -> str:
    """A topic whose partitions have one replica each, on three nodes."""
    return create_topic(three.bootstrap_servers, partitions=PARTITIONS, replication_factor=1)


def kill_leader(three: EmbeddedKafka, topic: str, partition: int) -> int:
    """Returns its node once nobody takes it for the leader any more."""
    node = leader(three, topic, partition)
    three.kill(node)
    wait_until(lambda: leaderless_everywhere(three, topic, partition), "a partition without a leader")
    return node


def values(three: EmbeddedKafka, topic: str) -> Counter[int]:
    found = [
        Counter(int(record.value or b"") for record in read_committed(three.bootstrap_servers, topic, reader=reader))
        for reader in READERS
    ]
    assert found[0] == found[1]
    return found[0]


def settings_of(three: EmbeddedKafka, topic: str) -> session.WriteSettings:
    given = write_settings(three, topic)
    return replace(given, producer=replace(given.producer, delivery_timeout_ms=6_000))


def test_what_hangs_behind_a_killed_leader_heals(
    three: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    servers, topic = three.bootstrap_servers, lonely_topic(three)
    given = settings_of(three, topic)
    written: set[int] = set()
    while len(written) < 2:  # rows without a key go to one partition per task, maybe to the same
        plan = session.plan(given)
        messages = tasks(given, plan)
        written = {part.partition for each in messages if each.prepared is not None for part in each.prepared.offsets}
    prepared = messages[0].prepared
    assert prepared is not None
    hidden = prepared.offsets[0].partition
    killed: list[int] = []

    def reached(name: str) -> None:
        if name == "commit.decided":
            killed.append(kill_leader(three, topic, hidden))

    with monkeypatch.context() as patched:
        patched.setenv(failpoints.VARIABLE, "commit.decided=here")
        patched.setattr(failpoints, "reached", reached)
        with pytest.raises(
            DecisionPendingError, match=rf"DECIDED_NOT_FINISHED\].*leader for {topic}-{hidden}.*recover"
        ):
            session.commit(given, plan, messages)
    (node,) = killed
    command = ["--bootstrap-servers", servers, "--write-id", given.write.id]
    with monkeypatch.context() as patched:
        patched.setattr(recover, "OperatorSettings", partial(OperatorSettings, timeout_ms=6_000))
        assert main(["recover", *command]) == 1, "not confirmed"
    shown = capsys.readouterr().err
    assert f"Not checked: {topic}-{hidden} (no response). Run the command again when the brokers are back." in shown
    three.start_node(node)
    wait_until(lambda: leader(three, topic, hidden) == node, "the leader that was killed")

    missing = set(range(2 * ROWS)) - set(values(three, topic))
    assert len(missing) >= prepared.rows
    assert main(["recover", *command]) == 1, "not confirmed"
    assert f"on {topic}-{hidden} from offset " in capsys.readouterr().out
    assert set(range(2 * ROWS)) - set(values(three, topic)) == missing
    # The next run discards what hangs, and copies its rows.
    session.plan(given)
    assert values(three, topic) == Counter(range(2 * ROWS))
    write_all(given)  # written already
    write_all(varied(given, version=given.batch.version + 1))
    assert values(three, topic) == Counter(dict.fromkeys(range(2 * ROWS), 2))
    assert_nothing_open(servers, [topic, given.write.log_topic])
