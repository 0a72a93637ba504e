"""``kafka-eos recover``: take over a dead write, finish what was decided, end what was not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from kafka_eos_sink.cli.cluster_connection import BootstrapServers, PropertiesFile
from kafka_eos_sink.cli.output import output_console
from kafka_eos_sink.cli.write_options import CommitLogTopic, WriteId, operator_settings
from kafka_eos_sink.commit.transactional_id import is_random_write_id
from kafka_eos_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from kafka_eos_sink.commit.prepared_transaction import SettledDecision
    from kafka_eos_sink.runtime.operator import EndedTransaction, Recovered

__all__ = ["ended_table", "recovered_json", "recovered_table", "register"]

_SHOWN_TRANSACTIONS = 20
_EXIT_OPEN = 1
_UNSEEN = "whether readers see the rows is not proven, as they are held up and the right to Read the topics is missing"
_WHY_LEFT = "its id is of a decision that is not proven, whose rows its abort could take along"


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("recover", short_help="Take over a dead write: finish what was decided, end what was not.")(recover)


def recover(
    write_id: WriteId,
    bootstrap_servers: BootstrapServers = None,
    commit_log_topic: CommitLogTopic = "__kafka_eos_commits",
    abort_unknown: Annotated[
        bool,
        typer.Option(
            "--abort-unknown", help="Abort what is open although the commit log knows nothing of W: the log was lost."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    properties: PropertiesFile = None,
) -> None:
    """Take over a dead write: commit what was decided and prove it visible, abort every other open transaction of it.

    It takes the write id over: a job or query that still runs under it is fenced and its batch fails. For a write whose
    driver is gone and will not soon be started again; the next run of the same id does the same by itself. Status 1 where a transaction
    may still be open, named with the reason.
    """
    from kafka_eos_sink.runtime import operator

    settings = operator_settings(bootstrap_servers, properties, write_id, commit_log_topic)
    done = operator.recover(settings, abort_unknown=abort_unknown)
    if as_json:
        typer.echo(json.dumps(recovered_json(write_id, done), indent=2))
    else:
        _show(write_id, done)
    if not done.all_ended:
        raise typer.Exit(_EXIT_OPEN)


def _show(write_id: str, done: Recovered) -> None:
    if done.decisions:
        output_console().print(recovered_table(write_id, done))
    else:
        typer.echo(f"Nothing was ever decided under {write_id}.")
    if done.ended or done.left_open:
        typer.echo("")
        output_console().print(ended_table(done))
    else:
        typer.echo("No transaction of it was open.")


def recovered_table(write_id: str, done: Recovered) -> Table:
    """One line per query id: its newest decision, what is proven of it, and what follows."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("query id", overflow="fold")
    table.add_column("version", justify="right")
    table.add_column("state")
    table.add_column("meaning", overflow="fold")
    can_be_rerun = not is_random_write_id(write_id)
    for decision in done.decisions:
        state, meaning = _state(decision, decision.query_id in done.finished_now, can_be_rerun)
        style = "green" if decision.status.value == "finished" and decision.proven else "bold yellow"
        table.add_row(Text(decision.query_id), str(decision.version), Text(state, style=style), Text(meaning))
    return table


def _state(decision: SettledDecision, now: bool, can_be_rerun: bool) -> tuple[str, str]:
    if decision.resolution is not None:
        return f"resolved as {decision.resolution}", "an operator's answer stands"
    if decision.status.value == "finished" and not decision.proven:
        return (
            "not proven",
            f"every transaction is committed, as their coordinators say; {_UNSEEN}: recover it again with that right",
        )
    if decision.status.value == "finished":
        return "finished", "every row is visible" + (", finished just now" if now else "")
    if decision.status.value == "void":
        return (
            "void",
            "all its transactions were aborted by their timeout, none of its rows is visible: "
            + ("run this version again, it writes all rows anew" if can_be_rerun else "run the job again"),
        )
    lost = ", ".join(map(str, sorted(decision.lost)))
    visible = "visible" if decision.proven else f"committed, as their coordinators say ({_UNSEEN})"
    return (
        "lost parts",
        f"{len(decision.committed)} parts are {visible}, those of Spark partitions {lost} were aborted: "
        + (
            "run this version again, it writes exactly the lost rows"
            if can_be_rerun
            else "this write had no txnAppId, so nobody can write exactly the lost rows again, and a new run of the job writes all of "
            "them; compare the topic with the source"
        ),
    )


def ended_table(done: Recovered) -> Table:
    """One line per transaction that was found open or that a decision named: what was asked for, and what is known of its end."""
    ended, left_open = done.ended, done.left_open
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("transaction", overflow="fold")
    table.add_column("asked for")
    table.add_column("answer")
    lines = [
        *((identity.transactional_id, "nothing", f"left open: {_WHY_LEFT}") for identity in left_open),
        *(
            (each.identity.transactional_id, "commit" if each.committed else "abort", _answer(each))
            for each in sorted(ended, key=lambda each: each.is_over)  # first what may still be open
        ),
    ]
    for transactional_id, asked_for, answer in lines[:_SHOWN_TRANSACTIONS]:
        table.add_row(Text(transactional_id), asked_for, Text(answer))
    if len(lines) > _SHOWN_TRANSACTIONS:
        table.add_row(f"and {len(lines) - _SHOWN_TRANSACTIONS} more (--json)", "", "")
    return table


def _answer(ended: EndedTransaction) -> str:
    if ended.error is None:
        return "no answer: may be open still"
    if ended.succeeded:
        return "done"
    name = ErrorCode.of(ended.error).name
    return f"{name}: had ended before" if ended.had_ended else f"not ended: {name}"


def recovered_json(write_id: str, done: Recovered) -> dict[str, Any]:
    """The whole result; `lost` and `committed` are Spark partitions, `over` what is known not to be open any more."""
    return {
        "write_id": write_id,
        "decisions": [
            {
                "query_id": decision.query_id,
                "version": decision.version,
                "state": "resolved" if decision.resolution else decision.status.value,
                "resolution": decision.resolution,
                "proven": decision.proven,
                "finished_now": decision.query_id in done.finished_now,
                "committed": sorted(decision.committed),
                "lost": sorted(decision.lost),
            }
            for decision in done.decisions
        ],
        "ended": [
            {
                "transactional_id": each.identity.transactional_id,
                "end": "commit" if each.committed else "abort",
                "answer": "no answer" if each.error is None else ErrorCode.of(each.error).name,
                "over": each.is_over,
            }
            for each in done.ended
        ],
        "left_open": [
            {
                "transactional_id": identity.transactional_id,
                "producer_id": identity.producer_id,
                "producer_epoch": identity.producer_epoch,
            }
            for identity in done.left_open
        ],
    }
