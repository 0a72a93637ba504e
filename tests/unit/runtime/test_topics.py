"""What makes a commit log weak; how it is created is seen on three nodes, in ``tests/broker/test_commit_log_creation.py``."""

from __future__ import annotations

import pytest

from kafka_eos_sink.runtime.topics import weaknesses

INSYNC, UNCLEAN = "min.insync.replicas", "unclean.leader.election.enable"


@pytest.mark.parametrize(
    ("replicas", "brokers", "configs", "found"),
    [
        (3, 3, {INSYNC: "2", UNCLEAN: "false"}, ""),
        (2, 3, {INSYNC: "2"}, "only 2 of 3 brokers as replicas"),
        (2, 5, {INSYNC: "1", UNCLEAN: "true"}, f"only 2 of 5 brokers as replicas, {INSYNC}=1, {UNCLEAN}=true"),
        (2, 2, {INSYNC: "1"}, f"{INSYNC}=1"),
        (1, 1, {INSYNC: "1", UNCLEAN: "true"}, ""),  # a single broker can do no better
        (3, 3, {}, ""),  # settings that may not be read
        (-1, 3, {}, ""),  # nor the replicas of a new topic
    ],
)
def test_weaknesses_are_those_that_the_cluster_could_mend(
    replicas: int, brokers: int, configs: dict[str, str], found: str
) -> None:
    assert weaknesses(replicas, brokers, configs) == found
