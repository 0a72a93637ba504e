"""What `kafka-eos recover` prints of missing markers, before and after recovery."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kafka_eos_sink.cli import console
from kafka_eos_sink.cli import recover as command_line
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.client.config import ClientConfig
from kafka_eos_sink.commit import refusals
from kafka_eos_sink.commit.missing_markers import Finding, Verdict
from kafka_eos_sink.commit.outcome import Outcome
from kafka_eos_sink.commit.values import DEFAULT_TOPIC, log_partition_of
from kafka_eos_sink.commit.write_states import CommittedWrite, WriteState
from kafka_eos_sink.errors import AuthorizationError, DecisionPendingError
from kafka_eos_sink.operations import markers, operator
from kafka_eos_sink.operations.markers import Markers
from kafka_eos_sink.operations.operator import OperatorSettings, Preview, Recovered

FOUND = Finding(
    transactional_id="w.0.0", where=("orders", 3), start_offset=17, version=3, verdict=Verdict.UNPROVEN, reason="why"
)
MISSING = replace(FOUND, verdict=Verdict.MISSING)
RUNNING = replace(FOUND, verdict=Verdict.RUNNING)
ABORT = "kafka-transactions.sh --bootstrap-server localhost:1 abort --topic orders --partition 3 --start-offset 17"
WRITE = "kafka-eos recover --bootstrap-servers localhost:1 --write-id w --write-markers"


def said(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *options: str,
    after: Sequence[Finding] | None = None,
    fails: bool = False,
    way_out: str = "",
    **found: Any,
) -> tuple[int, str, str]:
    """Exit status and both outputs if the search finds this, and what partitions hold open `after` recovery."""
    monkeypatch.setenv("COLUMNS", "400")
    done = Recovered(decisions=(), finished_now=frozenset(), ended=())

    def recovery(*_: object, **__: object) -> Recovered:
        if fails:
            raise DecisionPendingError("DECIDED_NOT_FINISHED", "its rows are not proven visible", way_out)
        return done

    monkeypatch.setattr(
        markers, "find_markers", lambda _, *, write: Markers(**found, written=write and bool(found.get("findings")))
    )
    monkeypatch.setattr(
        markers, "still_open", lambda _, held: held if after is None else replace(held, findings=tuple(after))
    )
    monkeypatch.setattr(operator, "recover", recovery)
    status = main(["recover", "--yes", "--bootstrap-servers", "localhost:1", "--write-id", "w", *options])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_unchecked_partitions_end_with_exit_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = said(monkeypatch, capsys, unreadable=("secret",), no_response=("orders-1",))
    assert status == 1
    assert "Not checked: secret (missing Read permission)" in err
    assert "Not checked: orders-1 (no response)" in err
    status, out, err = said(monkeypatch, capsys)
    assert (status, err) == (0, "")
    assert "marker" not in out


def test_abort_unknown_reports_that_nothing_was_open(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = said(monkeypatch, capsys, "--abort-unknown")
    listing = "kafka-eos status --bootstrap-servers localhost:1"
    assert (status, err) == (0, "")
    assert f"No transaction of it was open. To list the open transactions: {listing}\n" in out


@pytest.mark.parametrize(
    ("waits_in", "text"), [(markers, "look for missing markers"), (operator, "finish what is decided")]
)
def test_long_wait_is_reported_while_it_lasts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], waits_in: object, text: str
) -> None:
    heard = threading.Event()
    echo = console.echo

    def listening(text_: str, *, err: bool = False) -> None:
        echo(text_, err=err)
        if text in text_:
            heard.set()

    def slow(*_: object, **__: object) -> object:
        assert heard.wait(30)
        return Markers() if waits_in is markers else Recovered(decisions=(), finished_now=frozenset(), ended=())

    monkeypatch.setattr(console, "SLOW_S", 0.01)
    monkeypatch.setattr(console, "echo", listening)
    monkeypatch.setattr(markers, "find_markers", lambda *_, **__: Markers())
    monkeypatch.setattr(
        operator, "recover", lambda *_, **__: Recovered(decisions=(), finished_now=frozenset(), ended=())
    )
    monkeypatch.setattr(waits_in, "find_markers" if waits_in is markers else "recover", slow)
    assert main(["recover", "--yes", "--bootstrap-servers", "localhost:1", "--write-id", "w"]) == 0
    assert f"Waiting for brokers to {text}, at most 120 s for each step." in capsys.readouterr().err


def test_write_markers_reports_that_none_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = said(monkeypatch, capsys, "--write-markers")
    assert (status, out.splitlines()[0]) == (0, "No COMMIT marker is missing.")
    status, out, _ = said(monkeypatch, capsys, "--write-markers", no_response=("orders-1",))
    assert (status, out.splitlines()[0]) == (1, "No COMMIT marker is missing on the partitions that were checked.")
    _, out, err = said(monkeypatch, capsys, "--write-markers", "--json")
    assert (json.loads(out)["markers"], err) == ([], "No COMMIT marker is missing.\n")


def test_missing_marker_is_named_with_the_command_that_writes_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = said(monkeypatch, capsys, findings=(MISSING,))
    assert status == 1
    assert "on orders-3, version 3" in out
    assert err == f"COMMIT markers missing (KAFKA-20734): 1. To write them: {WRITE}\n"
    status, out, err = said(monkeypatch, capsys, "--write-markers", findings=(MISSING,))
    assert (status, err) == (0, "")
    assert "COMMIT markers written: 1." in out


@pytest.mark.parametrize("as_json", [False, True])
def test_findings_are_printed_before_recovery_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    options = ["--json"] * as_json
    status, out, err = said(monkeypatch, capsys, *options, findings=(MISSING, RUNNING), fails=True)
    assert status == 1
    table, printed = (err, "") if as_json else (out, out)
    assert out == printed
    assert table.count("on orders-3") == 1, "recovery would have ended the running one"
    *_, missing, failure = err.splitlines()
    assert missing.endswith(WRITE)
    assert "[KAFKA_EOS.DECIDED_NOT_FINISHED]" in failure


@pytest.mark.parametrize("fails", [False, True])
def test_unproven_transaction_gets_the_command_that_aborts_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fails: bool
) -> None:
    status, out, err = said(monkeypatch, capsys, findings=(FOUND,), fails=fails)
    assert status == 1
    assert "w.0.0" in out
    advice, command, *_ = err.splitlines()
    assert command == f"    {ABORT}"
    assert ("First do what the error says. If they still block readers then, look" in advice) is fails
    # Its decision may have been replaced by an operator's.
    assert "they may be committed" in advice
    assert (
        "Then run the job, which writes what is not decided. Write by hand only the rows that the topic lacks after that"
        in advice
    )


def test_only_what_nothing_proves_ended_is_discarded_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A transaction that is committed in another partition would lose rows, and an attempt's may be committed."""
    way_out = refusals.DISCARD.format("kafka-eos recover --bootstrap-servers localhost:1 --write-id w") + "go on"
    log = (DEFAULT_TOPIC, log_partition_of("w"))
    findings = (
        replace(FOUND, outcome=Outcome.OPEN),
        replace(FOUND, outcome=Outcome.UNRESOLVED, start_offset=18),
        replace(FOUND, outcome=Outcome.COMMITTED, start_offset=19),
        replace(FOUND, outcome=None, start_offset=20),
        replace(FOUND, version=None, start_offset=21),
        replace(FOUND, outcome=Outcome.OPEN, where=log, start_offset=22),
    )
    _, _, err = said(monkeypatch, capsys, fails=True, way_out=way_out, findings=findings)
    shown = err.splitlines()
    assert [line.split()[-1] for line in shown if "kafka-transactions.sh" in line] == ["17", "18"]
    assert shown[0] == "To discard the records of the decided version:"
    assert "Run the commands above, then go on" in shown[-1]
    assert "kafka-eos recover --b" not in err

    _, _, err = said(monkeypatch, capsys, fails=True, way_out=way_out, findings=findings[2:])
    assert "First do what the error says" in err
    assert way_out in err.splitlines()[-1]


def test_transaction_that_recovery_ended_is_not_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = said(monkeypatch, capsys, "--json", findings=(FOUND, RUNNING), after=())
    assert status == 0
    assert "kafka-transactions.sh" not in err
    fields = json.loads(out)
    assert (fields["markers"], fields["markers_written"]) == ([], False)
    status, _, err = said(monkeypatch, capsys, findings=(RUNNING,), after=(RUNNING,))
    assert (status, err) == (1, "Still open: w.0.0 on orders-3. Run the command again.\n")


def test_decided_part_in_commit_log_gets_no_abort_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such an ABORT marker would look like the coordinator's, and call the part lost."""
    log = ("__kafka_eos_commits", log_partition_of("w"))
    status, _, err = said(monkeypatch, capsys, findings=(replace(FOUND, where=log),))
    assert status == 1
    assert "A decided part in the commit log blocks no reader" in err
    assert "kafka-transactions.sh" not in err
    _, _, err = said(monkeypatch, capsys, findings=(replace(FOUND, where=log, version=None),))
    assert "kafka-transactions.sh" in err


def test_only_transactions_held_open_stay_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A marker that is missing is reported anyway, and a leader that does not respond may still hold one open."""
    findings = {where: replace(FOUND, where=("orders", where)) for where in range(3)}
    missing = replace(MISSING, where=("orders", 0))
    queried = []

    def producers_on(_admin: object, partitions: set[tuple[str, int]], *_: object) -> Any:
        queried.append(partitions)
        held = {("orders", 0): (SimpleNamespace(current_txn_start_offset=-1),)}
        held["orders", 1] = (SimpleNamespace(current_txn_start_offset=17),)
        return held, [("orders", 2)], set()

    monkeypatch.setattr(markers, "producers_on", producers_on)
    settings = OperatorSettings(
        write_id="w", commit_log_topic="log", client=ClientConfig(bootstrap_servers=(("localhost", 1),))
    )
    left = markers.still_open(settings, Markers(findings=(missing, *findings.values())))
    assert left.findings == (missing, findings[1], findings[2])
    assert queried == [{("orders", each) for each in range(3)}]
    assert not left.all_ended


def write(state: WriteState, aborted: int = 0) -> CommittedWrite:
    return CommittedWrite(write_id="w", query_id="batch", version=3, state=state, aborted=aborted)


EFFECTS = [
    ((), 0, 0, "change nothing else"),
    ((write("finished", 2),), 0, 0, "change nothing else"),
    ((write("prepared"),), 2, 0, "abort 2 open transactions."),
    (
        (write("decided"),),
        2,
        2,
        "commit 2 open transactions of decided versions; find proof that the rows of 1 decided version are visible.",
    ),
    (
        (write("decided", 1),),
        3,
        1,
        "commit 1 open transaction of decided versions; copy the rows of 1 decided transaction that Kafka has aborted; "
        "find proof that the rows of 1 decided version are visible; abort 2 other open transactions.",
    ),
]


@pytest.mark.parametrize(("writes", "opened", "decided", "effect"), EFFECTS)
def test_effect_names_only_what_recovery_will_do(
    writes: tuple[CommittedWrite, ...], opened: int, decided: int, effect: str
) -> None:
    transactions: Any = (None,) * opened
    found = Preview(writes=writes, opened=transactions, decided=decided)
    text = command_line._effect("w", found, Markers(), False, False)
    assert text.partition("It would ")[2].startswith(effect)
    assert "marker" not in text
    held = Markers(findings=(MISSING, FOUND))
    assert "Missing: 1 COMMIT marker (KAFKA-20734). Add --write-markers" in command_line._effect(
        "w", found, held, False, False
    )
    assert "It would write 1 missing COMMIT marker (KAFKA-20734)" in command_line._effect("w", found, held, True, False)
    assert command_line._effect("w", found, Markers(), True, False).endswith(". No COMMIT marker is missing.")


def test_effect_foresees_what_recovery_cannot_prove() -> None:
    found = Preview(writes=(write("decided"),), opened=(), decided=0)
    text = command_line._effect("w", found, Markers(unproven=frozenset({3, 4})), False, False)
    assert "find proof" not in text
    assert "Nothing proves whether the rows of version 3 are visible: recover would fail with UNRESOLVED" in text
    finished = Preview(writes=(write("finished"),), opened=(), decided=0)
    assert "UNRESOLVED" not in command_line._effect("w", finished, Markers(unproven=frozenset({3})), False, False)


def test_without_the_right_to_write_markers_nothing_is_fenced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def find_markers(_: object, *, write: bool) -> Markers:
        assert write
        raise AuthorizationError("CLUSTER_AUTHORIZATION_FAILED", "Alter on the cluster is missing")

    monkeypatch.setattr(markers, "find_markers", find_markers)
    monkeypatch.setattr(operator, "recover", lambda *_, **__: pytest.fail("the driver was fenced"))
    assert main(["recover", "--write-markers", "--yes", "--bootstrap-servers", "localhost:1", "--write-id", "w"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "[KAFKA_EOS.CLUSTER_AUTHORIZATION_FAILED] Alter on the cluster is missing" in captured.err
