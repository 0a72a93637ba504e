"""``kafka-eos recover``: finish a dead write's decided version, abort the rest."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from kafka_eos_sink.cli import EXIT_FAILURE, console
from kafka_eos_sink.cli.confirmation import require_consent
from kafka_eos_sink.commit.missing_markers import Finding, Verdict
from kafka_eos_sink.commit.outcome import Outcome
from kafka_eos_sink.commit.refusals import DISCARD, VISIBLE, WRITE_MARKERS, run_again, some
from kafka_eos_sink.commit.transactional_id import is_random_write_id
from kafka_eos_sink.commit.values import SettledDecision
from kafka_eos_sink.errors import KafkaEosError
from kafka_eos_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from kafka_eos_sink.operations.markers import Markers
    from kafka_eos_sink.operations.operator import EndedTransaction, OperatorSettings, Preview, Recovered

_SHOWN_TRANSACTIONS = 20
_MARKER_STYLES = {Verdict.MISSING: "bold yellow", Verdict.UNPROVEN: "bold red"}
_END = {True: "commit", False: "abort"}
_COPIES = " (copies of lost rows)"
_AbortUnknown = Annotated[
    bool,
    typer.Option(
        "--abort-unknown",
        help="Abort open transactions even if the commit log does not know W, because the log was lost.",
    ),
]


def recover(
    write_id: console.WriteId,
    bootstrap_servers: console.BootstrapServers = None,
    commit_log_topic: console.CommitLogTopic = console.COMMIT_LOG,
    history_topic: console.HistoryTopic = console.HISTORY,
    write_markers: Annotated[
        bool, typer.Option("--write-markers", help="Write the missing COMMIT markers of committed transactions.")
    ] = False,
    abort_unknown: _AbortUnknown = False,
    yes: console.Yes = False,
    as_json: console.AsJson = False,
    properties: console.PropertiesFile = None,
) -> None:
    """Finish the decided version of a dead write and abort the rest.

    Commits every transaction of a decided version, proves that its rows are visible, and aborts all other open transactions
    of the write id. If Kafka has aborted decided transactions, it copies their rows from the log, which needs Read on the
    topics. Use it if the driver is gone and will not start soon: the next run of the same write id does the same. A job or
    query that still runs under the write id is fenced, and its batch fails.

    It fails if the commit log has no records for W. `--abort-unknown` then aborts the open transactions of W; use it only if the
    log was lost. If a topic no longer accepts the copies, for example because max.message.bytes was lowered, the error is
    DECIDED_NOT_FINISHED: change the setting until recovery has run.

    Kafka 4.3 and newer can omit a COMMIT marker (KAFKA-20734), so that consumers wait for committed rows. The command searches
    for such markers first, on the topics that it may Read. `--write-markers` writes them for proven commits, which no tool of
    Kafka does, and needs Alter or ClusterAction on the cluster. For other transactions that stay open, the output shows how
    Kafka's own tool discards their records. A partition without a leader delays each step by up to two minutes.

    The history gets a record of each version that the command finishes, if its topic exists.

    It shows its effect and asks for confirmation on a terminal; elsewhere it needs --yes. Exit status 1 without
    confirmation, or if a transaction may still be open; the output shows it with the reason. Exit status 0 if nothing was open.

    Example: kafka-eos recover --write-id kafka-eos/nightly-orders/orders

    For a version whose outcome cannot be proven: kafka-eos resolve
    """
    from kafka_eos_sink.operations import markers, operator

    settings = console.operator_settings(
        bootstrap_servers, properties, write_id, commit_log_topic, history_topic, "kafka-eos recover"
    )
    found = None if yes else operator.preview(settings, partial(operator.recovery, abort_unknown=abort_unknown))
    # Before the fence, which can erase a proof.
    held = _search(settings, write=write_markers and yes)
    _show_findings(held, err=as_json)
    if found is not None:
        require_consent(found, _effect(write_id, found, held, write_markers, abort_unknown), err=as_json)
        if write_markers:
            held = _search(settings, write=True)  # again, because the answer may have taken long
    # Before recovery, which can wait long for a marker that is missing.
    _show_missing(settings, held, err=as_json, was_to_write=write_markers)
    try:
        with _notice(settings, "to finish what is decided"):
            done = operator.recover(settings, abort_unknown=abort_unknown)
    except KafkaEosError as failure:
        if not _show_discards(settings, held, failure):
            _show_left_open(settings, held, is_recovered=False)
        raise
    held = markers.still_open(settings, held)
    if any(each.decision.copies for each in done.decisions) and held.of(Verdict.UNPROVEN):
        # Decisions do not name parts whose rows were copied.
        held = replace(_search(settings, write=False), written=held.written)
    _show(settings, done, held, as_json=as_json)
    _show_left_open(settings, held, is_recovered=True)
    if not (done.all_ended and held.all_ended):
        raise typer.Exit(EXIT_FAILURE)


def _search(settings: OperatorSettings, *, write: bool) -> Markers:
    from kafka_eos_sink.operations.markers import find_markers

    with _notice(settings, "to look for missing markers"):
        return find_markers(settings, write=write)


def _notice(settings: OperatorSettings, to_do: str) -> AbstractContextManager[None]:
    return console.notice_if_slow(
        f"Waiting for brokers {to_do}, at most {settings.timeout_ms // 1000} s for each step. A partition without a leader, or a broker "
        "that is down, takes that long."
    )


def _effect(write_id: str, found: Preview, held: Markers, write_markers: bool, abort_unknown: bool) -> str:
    missing, others = len(held.of(Verdict.MISSING)), len(found.opened) - found.decided
    decided = [write for write in found.writes if write.state == "decided"]
    unproven = [write for write in decided if write.version in held.unproven]
    effects = (
        (missing * write_markers, "missing COMMIT marker", "write {} (KAFKA-20734)"),
        (found.decided, "open transaction", "commit {} of decided versions"),
        (sum(write.aborted for write in decided), "decided transaction", "copy the rows of {} that Kafka has aborted"),
        (len(decided) - len(unproven), "decided version", "find proof that the rows of {} are visible"),
        (others, f"{'other ' * bool(found.decided)}open transaction", "abort {}"),
    )
    would = [effect.format(console.counted(count, noun)) for count, noun, effect in effects if count]
    text = f"recover would fence every job or query that runs under {write_id}. It would "
    text += (
        f"{'; '.join(would)}." if would else "change nothing else: no transaction is open, and every version has ended."
    )
    if unproven:
        versions = some([str(write.version) for write in unproven])
        text += f" Nothing proves whether the rows of version {versions} are visible: recover would fail with UNRESOLVED, which "
        text += "shows what to do."
    if missing and not write_markers:
        text += f" Missing: {console.counted(missing, 'COMMIT marker')} (KAFKA-20734). Add --write-markers to write what is missing."
    if write_markers and not missing:
        text += f" {_none_missing(held)}"
    return text + " Rows that another commit log has decided would be lost." * abort_unknown


def _show_findings(found: Markers, *, err: bool) -> None:
    """Print what recovery does not end, and on standard error what was not checked."""
    if left := [each for each in found.findings if each.verdict is not Verdict.RUNNING]:
        console.show(findings_table(left), err=err)
        console.echo("", err=err)
    for names, why, do in (
        (found.no_response, "no response", "Run the command again when the brokers are back"),
        (found.unreadable, "missing Read permission", "Grant Read and run the command again"),
    ):
        if names:
            console.echo(f"Not checked: {', '.join(names)} ({why}). {do}.", err=True)


def _none_missing(found: Markers) -> str:
    checked = "" if found.all_checked else " on the partitions that were checked"
    return f"No COMMIT marker is missing{checked}."


def _show_missing(settings: OperatorSettings, found: Markers, *, err: bool, was_to_write: bool) -> None:
    """Print how many markers were written, or on standard error how to write them."""
    missing = len(found.of(Verdict.MISSING))
    if found.written:
        console.echo(f"COMMIT markers written: {missing}.", err=err)
    elif was_to_write:
        console.echo(_none_missing(found), err=err)
    elif missing:
        recover = settings.write.command("recover", WRITE_MARKERS)
        console.echo(f"COMMIT markers missing (KAFKA-20734): {missing}. To write them: {recover}", err=True)


def _show_discards(settings: OperatorSettings, found: Markers, failure: KafkaEosError) -> bool:
    """Print the commands that the error promises; return False without any.

    Only of transactions that nothing proves ended: one that is committed elsewhere would lose rows.
    """
    promised = DISCARD.format(settings.write.command("recover"))
    doubtful = [each for each in found.findings if each.outcome in (Outcome.OPEN, Outcome.UNRESOLVED)]
    aborts = _aborts(settings, [each for each in doubtful if each.where != settings.write.commit_log])
    if not aborts or promised not in failure.way_out:
        return False
    console.echo(f"To discard the records of the decided version:{aborts}", err=True)
    failure.way_out = failure.way_out.replace(promised, "Run the commands above, then ")
    return True


def _show_left_open(settings: OperatorSettings, found: Markers, *, is_recovered: bool) -> None:
    """Print on standard error what to do about transactions that stay open."""
    if unproven := found.of(Verdict.UNPROVEN):
        console.echo(_about_unproven(settings, unproven, is_recovered=is_recovered), err=True)
    if is_recovered and (running := found.of(Verdict.RUNNING)):
        names = some([f"{each.transactional_id} on {'{}-{}'.format(*each.where)}" for each in running])
        console.echo(f"Still open: {names}. Run the command again.", err=True)


def _about_unproven(settings: OperatorSettings, unproven: Sequence[Finding], *, is_recovered: bool) -> str:
    """Describe what to do about transactions that are not proven committed."""
    log = settings.write.commit_log
    # An ABORT marker after a decided part in the commit log would resemble the coordinator's.
    can_abort = [each for each in unproven if each.version is None or each.where != log]
    aborts = _aborts(settings, can_abort)
    text = f"Open on a partition, and not proven committed or aborted: {len(unproven)}."
    if len(can_abort) < len(unproven):
        text += " A decided part in the commit log blocks no reader; only compaction waits for it."
    elif all(each.where == log for each in unproven):
        return (
            f"Open in the commit log only: {len(unproven)}. No reader waits there, and no decision names what is open. So that compaction "
            f"continues:{aborts}"
        )
    if not is_recovered:
        text += " First do what the error says."
    if not aborts:
        return text
    # `resolve --as rewrite --allow-duplicates` replaces a decision without checking its rows.
    return (
        f"{text} {'Look' if is_recovered else 'If they still block readers then, look'} at their records from the start offset on, with "
        "isolation.level=read_uncommitted: they may be committed, if somebody has resolved their version as rewrite. Kafka's own tool "
        "aborts them, which discards these records on the partition. "
        + ("" if is_random_write_id(settings.write_id) else "Then run the job, which writes what is not decided. ")
        + f"Write by hand only the rows that the topic lacks after that:{aborts}"
    )


def _aborts(settings: OperatorSettings, findings: Sequence[Finding]) -> str:
    return "".join(
        f"\n    {console.abort_command(settings.client, each.where, each.start_offset)}" for each in findings
    )


def findings_table(findings: Sequence[Finding]) -> Table:
    """Build a table with one row per transaction and partition that is still open."""

    def row(finding: Finding) -> console.Row:
        (topic, partition), verdict = finding.where, finding.verdict
        owner = "an attempt" if finding.version is None else f"version {finding.version}"
        where = [finding.transactional_id, f"on {topic}-{partition}, {owner}"]
        return Text(verdict.value, style=_MARKER_STYLES[verdict]), where, finding.reason

    return console.table(("marker", "transaction and partition", "why"), map(row, findings))


def _show(settings: OperatorSettings, done: Recovered, held: Markers, *, as_json: bool) -> None:
    write_id = settings.write_id
    if as_json:
        console.print_json(recovered_json(write_id, done, held))
        return
    if not done.decisions:
        console.echo(console.no_decision(write_id, is_unfinished=bool(done.aborted)))
    if done.decisions or done.aborted:
        console.show(recovered_table(write_id, done))
    if done.ended:
        console.echo("")
        console.show(ended_table(done))
    elif not done.unlisted:
        listing = "" if done.decisions else f" To list the open transactions: {settings.write.status_of_all}"
        console.echo(f"No transaction of it was open.{listing}")
    if done.unlisted:
        console.echo(
            f"More transactions of it may be open ({done.unlisted}). Run recover again when all brokers respond."
        )


def recovered_table(write_id: str, done: Recovered) -> Table:
    """Build a table of each query id's newest decision, later aborts, and next steps."""

    def row(settled: SettledDecision) -> console.Row:
        decision = settled.decision
        state, meaning = _state(settled, decision.query_id in done.finished_now, write_id)
        style = "green" if settled.status.value == "finished" else "bold yellow"
        return decision.query_id, str(decision.version), Text(state, style=style), meaning

    rows = [*map(row, done.decisions)]
    meaning = f"it was not decided, none of its rows is visible: {run_again(write_id)}"
    rows += [
        (query_id, str(version), Text("aborted", style="bold yellow"), meaning) for query_id, version in done.aborted
    ]
    return console.table(("query id", "version", "state", "meaning"), rows, right=("version",))


def _state(settled: SettledDecision, now: bool, write_id: str) -> tuple[str, str]:
    """Name a decision's state, and what it means for the rows and the next run."""
    decision, finished = settled.decision, settled.status.value == "finished"
    if decision.resolution is not None:
        return f"resolved as {decision.resolution}", "an operator has resolved this version"
    if finished:
        copies = "; rows of transactions that Kafka had aborted are copies from the log"
        meaning = VISIBLE + "; finished just now" * now
        meaning += ": do not run the job again" * is_random_write_id(write_id)
        return "finished", meaning + copies * bool(decision.copies)
    return (
        "void",
        f"all its transactions were aborted and cannot be copied, none of its rows is visible: {run_again(write_id)}",
    )


def ended_table(done: Recovered) -> Table:
    """Build a table: requested end and result of each open or decided transaction."""
    # Transactions that may still be open come first, so that the shortened table shows them.
    ended = sorted(done.ended, key=lambda each: each.is_over)
    lines = [
        (each.identity.transactional_id + _COPIES * each.copies, _END[each.committed], _result(each)) for each in ended
    ]
    shown = lines[:_SHOWN_TRANSACTIONS]
    if len(lines) > len(shown):
        shown.append((f"and {len(lines) - len(shown)} more (--json)", "", ""))
    return console.table(("transaction", "requested", "result"), shown)


def _result(ended: EndedTransaction) -> str:
    if ended.error is None:
        return "no response: may still be open"
    if ended.succeeded:
        return "done"
    name = ErrorCode.of(ended.error).name
    return "had ended before" if ended.had_ended else f"not ended: {name}"


def recovered_json(write_id: str, done: Recovered, held: Markers) -> dict[str, Any]:
    """Build the result for ``--json``; ``over`` means the transaction is not open."""
    decisions = [
        console.fields(settled.decision, "query_id", "version", "resolution")
        | {
            "state": "resolved" if settled.decision.resolution else settled.status.value,
            "finished_now": settled.decision.query_id in done.finished_now,
        }
        for settled in done.decisions
    ]
    ended = [
        {
            "transactional_id": each.identity.transactional_id,
            "end": _END[each.committed],
            "answer": "no response" if each.error is None else ErrorCode.of(each.error).name,
            "over": each.is_over,
            "copies": each.copies,
        }
        for each in done.ended
    ]
    aborted = [{"query_id": query_id, "version": version} for query_id, version in done.aborted]
    found = {"write_id": write_id, "decisions": decisions, "aborted": aborted, "ended": ended}
    return found | {"unlisted": done.unlisted or None} | _markers_json(held)


def _markers_json(found: Markers) -> dict[str, Any]:
    """Build the fields of markers; ``version`` is null without a newest decision."""
    findings = [
        console.fields(each, "transactional_id", "start_offset", "version", "reason")
        | {"topic": each.where[0], "partition": each.where[1], "marker": each.verdict.value}
        for each in found.findings
    ]
    return {"markers": findings, "markers_written": found.written} | console.fields(found, "no_response", "unreadable")
