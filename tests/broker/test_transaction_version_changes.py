"""The feature `transaction.version` is raised from 0 to 2 while writes are under way, as in a cluster that comes from Kafka 3.

Each transaction is ended by the rules under which it began, which its driver has noted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from dead_writes import POINTS, RESTORE_POINTS, ROWS, abort_open, varied, write_all, write_settings
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.runtime import failpoints
from kafka_testing import READERS, assert_nothing_open, create_topic, read_committed, unique_topic
from tests.broker.transaction_versions import set_transaction_version


@pytest.fixture(scope="module")
def changing_kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(transaction_version=0) as cluster:
        yield cluster


@pytest.mark.parametrize("point", [*POINTS, *RESTORE_POINTS])
def test_write_during_feature_upgrade_is_visible_once(
    changing_kafka: EmbeddedKafka, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = changing_kafka.bootstrap_servers
    set_transaction_version(changing_kafka, 0)
    topic = create_topic(servers, partitions=3)
    given = write_settings(changing_kafka, topic)
    # A client of its own: those of other tests know of the version that the feature had.
    given = varied(given, client=replace(given.client, client_id=unique_topic("client")))
    write_all(varied(given, version=given.batch.version - 1))
    reached: list[str] = []

    def change(name: str) -> None:
        if name == "commit.decided" and point in RESTORE_POINTS:
            abort_open(given)
        if name == point and not reached:
            reached.append(name)
            set_transaction_version(changing_kafka, 2)

    with monkeypatch.context() as patched:
        patched.setenv(failpoints.VARIABLE, f"{point}=here")
        patched.setattr(failpoints, "reached", change)
        write_all(given)
    assert reached == [point]
    write_all(given)
    write_all(varied(given, version=given.batch.version + 1))
    for reader in READERS:
        values = Counter(int(each.value or b"") for each in read_committed(servers, topic, reader=reader))
        assert values == Counter(dict.fromkeys(range(2 * ROWS), 3))
    assert_nothing_open(servers)
