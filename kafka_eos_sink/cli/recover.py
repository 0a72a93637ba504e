"""``kafka-eos recover``: finish a dead write's decided version, abort the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from kafka_eos_sink.cli import EXIT_FAILURE, console
from kafka_eos_sink.cli.confirmation import require_consent
from kafka_eos_sink.commit.transactional_id import is_random_write_id
from kafka_eos_sink.commit.values import SettledDecision, plan_nonce
from kafka_eos_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from kafka_eos_sink.operations.operator import EndedTransaction, Preview, Recovered

_SHOWN_TRANSACTIONS = 20
_END = {True: "commit", False: "abort"}


def recover(
    write_id: console.WriteId,
    bootstrap_servers: console.BootstrapServers = None,
    commit_log_topic: console.CommitLogTopic = console.COMMIT_LOG,
    abort_unknown: Annotated[
        bool,
        typer.Option(
            "--abort-unknown",
            help="Abort open transactions even if the commit log does not know W, because the log was lost.",
        ),
    ] = False,
    yes: console.Yes = False,
    as_json: console.AsJson = False,
    properties: console.PropertiesFile = None,
) -> None:
    """Finish the decided version of a dead write and abort the rest.

    Commits every transaction of a decided version, proves that its rows are visible, and aborts all other open transactions
    of the write id. If Kafka has aborted decided transactions, it copies their rows from the log. Use it if the driver is
    gone and will not start soon: the next run of the same write id does the same. A job or query that still runs under the
    write id is fenced, and its batch fails. The command shows its effect and asks for confirmation on a terminal; elsewhere it
    needs --yes. Exit status 1 without confirmation, or if a transaction may still be open; the table names it with the reason.

    Example: kafka-eos recover --write-id kafka-eos/nightly-orders/orders

    For a version whose outcome cannot be proven: kafka-eos resolve
    """
    from kafka_eos_sink.operations import operator

    settings = console.operator_settings(bootstrap_servers, properties, write_id, commit_log_topic)
    if not yes:
        found = operator.preview(settings, operator.recovery(settings, abort_unknown=abort_unknown))
        require_consent(found, _effect(write_id, found, abort_unknown), err=as_json)
    done = operator.recover(settings, abort_unknown=abort_unknown)
    if as_json:
        console.print_json(recovered_json(write_id, done))
    else:
        _show(write_id, done)
    if not done.all_ended:
        raise typer.Exit(EXIT_FAILURE)


def _effect(write_id: str, found: Preview, abort_unknown: bool) -> str:
    aborted = sum(write.aborted for write in found.writes if write.state == "decided")
    those = f"the {aborted}" if aborted else "those"
    lost = " Rows that another commit log has decided would be lost." if abort_unknown else ""
    return (
        f"recover would fence every job or query that runs under {write_id}. It would commit the transactions of decided versions, "
        f"copy the rows of {those} that Kafka has aborted, and abort the other open transactions.{lost}"
    )


def _show(write_id: str, done: Recovered) -> None:
    if not done.decisions:
        console.echo(console.NO_DECISION.format(write_id=write_id))
    if done.decisions or done.aborted:
        console.show(recovered_table(write_id, done))
    if done.ended:
        console.echo("")
        console.show(ended_table(done))
    elif not done.unlisted:
        console.echo("No transaction of it was open.")
    if done.unlisted:
        console.echo(
            f"More transactions of it may be open ({done.unlisted}). Run recover again when all brokers respond."
        )


def recovered_table(write_id: str, done: Recovered) -> Table:
    """Build a table of each query id's newest decision, later aborts, and next steps."""

    def row(decision: SettledDecision) -> console.Row:
        state, meaning = _state(decision, decision.query_id in done.finished_now, write_id)
        style = "green" if decision.status.value == "finished" else "bold yellow"
        return decision.query_id, str(decision.version), Text(state, style=style), meaning

    rows = [*map(row, done.decisions)]
    meaning = f"it was not decided, none of its rows is visible: {_rerun(write_id)}"
    rows += [
        (query_id, str(version), Text("aborted", style="bold yellow"), meaning) for query_id, version in done.aborted
    ]
    return console.table(("query id", "version", "state", "meaning"), rows, right=("version",))


def _rerun(write_id: str) -> str:
    return "run the job again" if is_random_write_id(write_id) else "run this version again, it writes all rows"


def _state(decision: SettledDecision, now: bool, write_id: str) -> tuple[str, str]:
    """Name a decision's state, and what it means for the rows and the next run."""
    finished = decision.status.value == "finished"
    if decision.resolution is not None:
        return f"resolved as {decision.resolution}", "an operator has resolved this version"
    if finished:
        copies = "; rows of transactions that Kafka had aborted are copies from the log"
        meaning = "every row that its topics hold is visible" + ", finished just now" * now
        meaning += ": do not run the job again" * is_random_write_id(write_id)
        return "finished", meaning + copies * (decision.nonce != plan_nonce(decision.nonce))
    return (
        "void",
        f"all its transactions were aborted and cannot be copied, none of its rows is visible: {_rerun(write_id)}",
    )


def ended_table(done: Recovered) -> Table:
    """Build a table: requested end and result of each open or decided transaction."""
    # Transactions that may still be open come first, so that the shortened table names them.
    ended = sorted(done.ended, key=lambda each: each.is_over)
    lines = [(each.identity.transactional_id, _END[each.committed], _result(each)) for each in ended]
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
    return f"had ended before ({name})" if ended.had_ended else f"not ended: {name}"


def recovered_json(write_id: str, done: Recovered) -> dict[str, Any]:
    """Build the result for ``--json``; ``over`` means the transaction is not open."""
    decisions = [
        console.fields(decision, "query_id", "version", "resolution")
        | {
            "state": "resolved" if decision.resolution else decision.status.value,
            "finished_now": decision.query_id in done.finished_now,
        }
        for decision in done.decisions
    ]
    ended = [
        {
            "transactional_id": each.identity.transactional_id,
            "end": _END[each.committed],
            "answer": "no response" if each.error is None else ErrorCode.of(each.error).name,
            "over": each.is_over,
        }
        for each in done.ended
    ]
    aborted = [{"query_id": query_id, "version": version} for query_id, version in done.aborted]
    found = {"write_id": write_id, "decisions": decisions, "aborted": aborted, "ended": ended}
    return found | {"unlisted": done.unlisted or None}
