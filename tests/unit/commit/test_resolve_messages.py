"""What `kafka-eos resolve` says and warns of: what the log holds of the version, and the command that helps."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace

import pytest

from kafka_eos_sink.cli.resolve import resolved_sentence
from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.admission import admit
from kafka_eos_sink.commit.log_view import LogView
from kafka_eos_sink.commit.resolve import resolve
from kafka_eos_sink.commit.resolve_refusals import warnings
from kafka_eos_sink.commit.steps import Procedure
from kafka_eos_sink.commit.values import Resolution, ResolveRequest, TaskOutcome, Write
from kafka_eos_sink.commit.write_states import writes_in
from kafka_eos_sink.errors import KafkaEosError, WriteRefusedError
from kafka_eos_sink.operations.operator import up_to_fence
from tests.model.scripted_cluster import ROWS
from tests.runs import drive, run_of

from .test_resolve import STREAM, Cluster, Q, batch_of, finished, identity

OPTIONS = "--bootstrap-servers ... --write-id w"


def way_out(cluster: Cluster, resolution: Resolution, version: int, query_id: str | None = None) -> str:
    """What a refusal before the fence advises."""
    with pytest.raises(WriteRefusedError) as refused:
        cluster.resolve(resolution, version, query_id)
    assert not cluster.fenced
    assert refused.value.message.endswith(". Nothing was changed")
    return refused.value.way_out


@pytest.mark.parametrize("query_id", [Q, STREAM])
def test_begun_write_counts_all_lower_versions(query_id: str) -> None:
    said = resolved_sentence(Cluster().resolve("committed", 7, query_id), allow_duplicates=False)
    assert said.startswith(f"Version 7 of w, query id {query_id}, and every ")
    assert ("their next run is skipped" in said) is (query_id == Q)
    assert ("the query continues with batch 8" in said) is (query_id != Q)
    assert "held no decision of this query id before" in said
    assert said.endswith("If an id is wrong, other writes and queries are not affected.")


def test_version_that_recovery_finishes_needs_no_record() -> None:
    cluster = Cluster()
    decision = cluster.decided(0, 1)
    done = cluster.resolve("committed")
    assert (cluster.newest(), cluster.done()) == (decision, decision.nonce)
    assert f"is finished, with {2 * ROWS} rows. Its next run skips it, and nothing was recorded." in resolved_sentence(
        done, allow_duplicates=False
    )
    (write,) = writes_in(cluster.view())
    assert (write.state, write.rows, len(write.offsets)) == ("finished", 2 * ROWS, 2)


def test_different_batch_is_skipped_by_the_command_of_its_error() -> None:
    cluster = finished(Q)
    other = replace(batch_of(), schema="value string, other int", offsets_hash=None)
    with pytest.raises(WriteRefusedError, match="DIFFERENT_BATCH") as refused:
        admit(cluster.plan(), other)
    assert refused.value.way_out.endswith(f"kafka-eos resolve {OPTIONS} --version 3 --as committed")
    cluster.resolve("committed")
    assert admit(cluster.plan("again"), other)[0] is TaskOutcome.ALREADY_COMMITTED


@pytest.mark.parametrize(
    ("known", "holds"),
    [
        ("nothing", "NOTHING of write id 'w'."),
        ("a plan", "no decision of query id 'batch'."),
        ("another query", "no decision of query id 'batch'. It holds query ids 'q2' of this write id."),
    ],
)
def test_query_id_that_the_log_lacks_is_warned_of_before_fence(known: str, holds: str) -> None:
    """A mistyped write id or query id is recorded as well; after a lost log, nothing else can say that the rows are there."""
    cluster = Cluster()
    if known != "nothing":
        cluster.plan()
    if known == "another query":
        cluster.decided(0, query_id="q2")
        cluster.plan("finishes it")
    cluster.before(steps.InitProducerId, lambda: said.extend(cluster.warnings))
    said: list[str] = []
    cluster.warnings.clear()
    cluster.resolve("committed", 7, Q)
    (warning,) = said
    assert warning.startswith(
        f"The commit log holds {holds} Version 7, and every version below it, would count as written"
    )
    assert warning.endswith(": kafka-eos status --bootstrap-servers ...")
    assert cluster.newest().version == 7


def test_version_above_the_newest_is_no_warning() -> None:
    cluster = finished()
    cluster.resolve("committed", 7, STREAM)
    assert cluster.warnings == []


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


def test_rewrite_with_duplicates_does_not_call_the_version_void() -> None:
    """Its rows may be visible, and `status` shows it as resolved."""
    cluster = finished(Q)
    said = resolved_sentence(cluster.resolve("rewrite", allow_duplicates=True), allow_duplicates=True)
    again = "is resolved as rewrite: restart the query from its checkpoint"
    assert said.endswith(f"{again}; rows of it that are visible are then there twice.")
    (write,) = writes_in(cluster.view())
    assert (write.state, write.resolution) == ("resolved", "rewrite")
    cluster = Cluster()
    cluster.end(identity(cluster.decided(0)), commit=False)
    said = resolved_sentence(cluster.resolve("rewrite"), allow_duplicates=False)
    assert said.endswith(f"{again}; none of its rows is visible.")


def test_prepared_batch_write_is_not_advised_as_a_stream() -> None:
    """COMMIT_LOG_LOST exists for streams only."""
    cluster = Cluster()
    cluster.plan()
    cluster.prepare(0)
    with pytest.raises(WriteRefusedError, match=r"NOTHING_TO_RESOLVE\].*its job runs, or has died") as refused:
        cluster.resolve("committed", 3, Q)
    assert "COMMIT_LOG_LOST" not in str(refused.value)
    assert f"kafka-eos recover {OPTIONS}; then " in refused.value.way_out
    assert refused.value.way_out.endswith(f"kafka-eos resolve {OPTIONS} --query-id batch --version 3 --as committed")


def test_nothing_to_resolve_names_the_next_command() -> None:
    cluster = finished()
    status = f"See what the commit log holds: kafka-eos status {OPTIONS}; "
    assert way_out(cluster, "rewrite", 4) == f"{status}version 4 needs no resolution, because its next run writes it"
    assert way_out(cluster, "committed", 2, STREAM) == (
        f"{status}to correct batch 2, or to add rows that it lacks, write them with a batch job under another txnAppId"
    )
    assert way_out(cluster, "committed", 4) == (
        f"{status}to let the stream continue above version 4: kafka-eos resolve {OPTIONS} --query-id 5f1c --version 4 --as committed"
    )
    cluster = Cluster()
    lost = cluster.decided(0, query_id=STREAM)
    assert way_out(cluster, "committed", 4, STREAM) == (
        f"{status}first finish version 3: kafka-eos recover {OPTIONS}; then run this command again"
    )
    cluster.end(identity(lost), commit=False)
    cluster.resolve("rewrite", 3, STREAM)
    assert way_out(cluster, "committed", 4, STREAM).endswith(
        f"which writes version 3, or give its rows up: kafka-eos resolve {OPTIONS} --version 3 --as committed --query-id 5f1c"
    )


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


def test_transactional_id_in_place_of_a_write_id_is_warned_of() -> None:
    """Under a query id, resolve records a version for a write id that the log does not know."""
    hint = "If it is a transactional id, leave out .1.1: its write id is w. "
    for write_id, expected in (("w.1.1", True), ("w", False)):
        request = ResolveRequest(
            run=run_of(write=Write(write_id, "log", "")), query_id=STREAM, version=3, resolution="committed"
        )
        view = LogView(write_id)
        (warning,) = warnings(view, view.query(STREAM), request)
        assert (hint in warning) == expected


def test_unknown_write_id_needs_no_rewrite() -> None:
    cluster = Cluster()
    with pytest.raises(WriteRefusedError, match=r"UNKNOWN_WRITE_ID\].*its next run writes all rows"):
        cluster.resolve("rewrite", 3, Q)
