"""Against a broker that is not Apache Kafka: franz-go's fake cluster, which shares no code with Kafka or with this project.

It runs as Kafka releases, and with what services publish of their APIs. A refusal must name what is missing, all of it, before
anything is written. These tests build the cluster with Go from the modules that `fake_broker/go.sum` pins.
"""

from __future__ import annotations

import logging
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import confluent_kafka.admin
import pytest

from dead_writes import write_all, write_settings
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.errors import ConfigurationError, DecisionPendingError, MissingApiError
from kafka_eos_sink.protocol import messages as m
from kafka_eos_sink.protocol.schema import Request
from kafka_eos_sink.runtime import session
from kafka_eos_sink.runtime.requirements import NEEDED, OTHER_SERVICES
from kafka_testing import read_committed, read_uncommitted

PROGRAM = Path(__file__).parents[1] / "fake_broker"
BUILD_S = 500
TOPIC = "orders"
Limits = Mapping[type[Request[Any]], int]
"""The newest version of an API that the broker offers; -1: none."""

# What the services' documents and users list; docs/compatibility.md has the sources.
REDPANDA: Limits = {
    m.ProduceRequest: 7,
    m.FetchRequest: 11,
    m.ListOffsetsRequest: 4,
    m.MetadataRequest: 8,
    m.FindCoordinatorRequest: 3,
    m.InitProducerIdRequest: 3,
    m.AddOffsetsToTxnRequest: 1,
}
EVENT_HUBS: Limits = {m.ProduceRequest: 7, m.FetchRequest: 6, m.MetadataRequest: 5}
URSA: Limits = dict.fromkeys(
    (
        m.AddPartitionsToTxnRequest,
        m.AddOffsetsToTxnRequest,
        m.EndTxnRequest,
        m.DescribeProducersRequest,
        m.DescribeTransactionsRequest,
        m.ListTransactionsRequest,
    ),
    -1,
)
BUFSTREAM: Limits = {m.WriteTxnMarkersRequest: -1}
WARPSTREAM: Limits = {m.DescribeProducersRequest: -1, m.WriteTxnMarkersRequest: -1}
KAFKA_2_8: Limits = {
    m.FindCoordinatorRequest: 3,
    m.DescribeTransactionsRequest: -1,
    m.ListTransactionsRequest: -1,
    m.ListOffsetsRequest: 6,
}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")  # where go.dev's archive is unpacked
    if go is None:
        pytest.fail(
            "these tests need Go 1.26 or newer (go.dev), which builds franz-go's fake cluster; make test needs none"
        )
    built = tmp_path_factory.mktemp("fake_broker") / "fake_broker"
    command = [go, "build", "-mod=readonly", "-buildvcs=false", "-o", str(built), "."]
    subprocess.run(command, cwd=PROGRAM, check=True, timeout=BUILD_S)
    return built


@contextmanager
def running(program: Path, release: str, limits: Limits | None = None) -> Iterator[Any]:
    """A fake cluster of one broker with the topic; it ends with its standard input."""
    given = [f"{api.API_KEY}={version}" for api, version in (limits or {}).items()]
    command = [str(program), release, TOPIC, *given]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as broker:
        assert broker.stdout is not None
        try:
            yield SimpleNamespace(bootstrap_servers=broker.stdout.readline().strip())
        finally:
            broker.communicate(timeout=60)


def assert_untouched(servers: str) -> None:
    """Nothing was written, and no commit log was created."""
    topics = confluent_kafka.admin.AdminClient({"bootstrap.servers": servers}).list_topics(timeout=60).topics
    assert set(topics) == {TOPIC}
    assert read_uncommitted(servers, TOPIC) == []


@pytest.mark.parametrize(
    ("release", "limits", "missing"),
    [
        ("3.9", REDPANDA, REDPANDA),
        ("3.9", EVENT_HUBS, EVENT_HUBS),
        ("3.9", URSA, URSA),
        ("3.9", WARPSTREAM, {m.DescribeProducersRequest}),
        ("2.8", {}, KAFKA_2_8),
        *(("3.9", {api: -1}, {api}) for api in NEEDED),
    ],
    ids=["Redpanda", "Event Hubs", "Ursa", "WarpStream", "2.8", *(api.__name__ for api in NEEDED)],
)
def test_plan_and_check_name_each_missing_api(
    program: Path, release: str, limits: Limits, missing: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(program, release, limits) as broker:
        with pytest.raises(MissingApiError) as refused:
            session.plan(write_settings(broker, TOPIC))
        text = refused.value.message.partition("needs: ")[2].removesuffix(OTHER_SERVICES)
        named = {part.split(" ")[0] for part in text.rstrip(". ").split("; ")}
        assert named == {api.__name__.removesuffix("Request") for api in missing}
        assert main(["check", "--bootstrap-servers", broker.bootstrap_servers, "--topic", TOPIC]) == 1
        shown = capsys.readouterr()
        assert "1 of these would make a write fail" in shown.err
        assert all(name in shown.out for name in named)
        # librdkafka, which looks, needs these itself; it tells the format of records by Produce.
        needed = (m.ProduceRequest, m.FetchRequest, m.ListOffsetsRequest, m.MetadataRequest)
        if all(limits.get(api, 0) >= 0 for api in needed):
            assert_untouched(broker.bootstrap_servers)


def test_release_without_verified_appends_is_refused_untouched(
    program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(program, "3.5") as broker:
        with pytest.raises(
            ConfigurationError, match=r"TRANSACTIONS_NOT_VERIFIED\] nothing .*another service must show"
        ):
            session.plan(write_settings(broker, TOPIC))
        assert main(["check", "--bootstrap-servers", broker.bootstrap_servers, "--topic", TOPIC]) == 1
        assert "verified appends" in capsys.readouterr().out
        assert_untouched(broker.bootstrap_servers)


@pytest.mark.parametrize("limits", [{}, BUFSTREAM], ids=["all", "Bufstream"])
def test_write_works_if_every_required_api_is_offered(
    program: Path, limits: Limits, caplog: pytest.LogCaptureFixture
) -> None:
    with running(program, "3.9", limits) as broker:
        given = write_settings(broker, TOPIC)
        with caplog.at_level(logging.WARNING):
            write_all(given)
            write_all(given)  # the same version again
        values = sorted(int(record.value or b"") for record in read_committed(broker.bootstrap_servers, TOPIC))
        assert values == list(range(20))
        assert "does not offer" not in caplog.text
        assert main(["check", "--bootstrap-servers", broker.bootstrap_servers, "--topic", TOPIC]) == 0


def test_commit_marker_of_another_epoch_is_no_proof(program: Path) -> None:
    """The fake cluster bumps the epoch behind the marker; a broker with transaction.version 2 bumps it before (KIP-890)."""
    with running(program, "4.1") as broker, pytest.raises(DecisionPendingError, match="DECISION_UNKNOWN"):
        write_all(write_settings(broker, TOPIC))
