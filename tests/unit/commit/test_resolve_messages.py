"""What `kafka-eos resolve` says and warns of: what the log holds of the version, and the command that helps."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace

import pytest

from kafka_eos_sink.commit.admission import admit
from kafka_eos_sink.commit.resolve import resolve
from kafka_eos_sink.commit.steps import Procedure
from kafka_eos_sink.commit.values import Resolution, ResolveRequest, TaskOutcome, Write
from kafka_eos_sink.errors import KafkaEosError, WriteRefusedError
from kafka_eos_sink.operations.operator import up_to_fence
from tests.runs import drive, run_of

from .test_resolve import Cluster, Q, batch_of, finished

OPTIONS = "--bootstrap-servers ... --write-id w"


def way_out(cluster: Cluster, resolution: Resolution, version: int, query_id: str | None = None) -> str:
    """What a refusal before the fence advises."""
    with pytest.raises(WriteRefusedError) as refused:
        cluster.resolve(resolution, version, query_id)
    assert not cluster.fenced
    assert refused.value.message.endswith(". Nothing was changed")
    return refused.value.way_out


def test_different_batch_is_skipped_by_the_command_of_its_error() -> None:
    cluster = finished(Q)
    other = replace(batch_of(), schema="value string, other int", offsets_hash=None)
    with pytest.raises(WriteRefusedError, match="DIFFERENT_BATCH") as refused:
        admit(cluster.plan(), other)
    assert refused.value.way_out.endswith(f"kafka-eos resolve {OPTIONS} --version 3 --as committed")
    cluster.resolve("committed")
    assert admit(cluster.plan("again"), other)[0] is TaskOutcome.ALREADY_COMMITTED


def request(cluster: Cluster, resolution: Resolution = "committed", version: int = 3) -> ResolveRequest:
    return ResolveRequest(run=run_of("operator"), query_id=Q, version=version, resolution=resolution)


@pytest.mark.parametrize(("state", "warns"), [("finished", True), ("unknown", True), ("decided", False)])
def test_preview_changes_nothing_and_collects_the_warnings(state: str, warns: bool) -> None:
    cluster = {"finished": lambda: finished(Q), "unknown": Cluster, "decided": Cluster}[state]()
    if state == "decided":
        cluster.decided(0)
    before, warnings = cluster.kafka, list[str]()
    preview: Procedure[None] = up_to_fence(resolve(request(cluster)), warnings)
    drive(preview, cluster.perform)
    assert cluster.kafka == before
    assert bool(warnings) is warns
    assert cluster.warnings == [], "shown with the confirmation, not before it"


@pytest.mark.parametrize(
    ("write_id", "query_id"),
    [("kafka-eos/nightly orders/t", "batch"), ("kafka-eos-5f1c", "Q")],
    ids=["batch", "stream"],
)
@pytest.mark.parametrize("is_planned", [False, True])
def test_missing_query_id_is_in_the_command_of_the_error(write_id: str, query_id: str, is_planned: bool) -> None:
    cluster = Cluster()
    if is_planned:
        cluster.plan(write_id=write_id)
    run = run_of("operator", write=Write(write_id, "log", "--bootstrap-servers a:1"))
    asked = ResolveRequest(run=run, query_id=None, version=7, resolution="committed")
    with pytest.raises(KafkaEosError) as refused:
        cluster.run(resolve(asked))
    assert refused.value.code == ("QUERY_ID_NEEDED" if is_planned else "UNKNOWN_WRITE_ID")
    found = re.search(
        r"kafka-eos (resolve [^;]*)(; Q is the id in the checkpoint's file metadata)?$", refused.value.way_out
    )
    assert found is not None, refused.value.way_out
    where = ["--bootstrap-servers", "a:1", "--commit-log-topic", "log", "--write-id", write_id]
    assert shlex.split(found[1]) == ["resolve", *where, "--query-id", query_id, "--version", "7", "--as", "committed"]


def test_unknown_write_id_needs_no_rewrite() -> None:
    cluster = Cluster()
    with pytest.raises(WriteRefusedError, match=r"UNKNOWN_WRITE_ID\].*its next run writes all rows"):
        cluster.resolve("rewrite", 3, Q)
