"""``kafka-eos recover``: finish a dead write's decided version, abort the rest."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer
from rich.text import Text

from kafka_eos_sink.cli import EXIT_FAILURE, console
from kafka_eos_sink.cli.view import require_consent
from kafka_eos_sink.commit.refusals import some, text
from kafka_eos_sink.commit.transactional_id import is_random_write_id
from kafka_eos_sink.operations import operator
from kafka_eos_sink.operations.hanging import Found, HeldOpen
from kafka_eos_sink.operations.operator import EndedTransaction, OperatorSettings, Preview, Recovered, RecoveredVersion

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
    discard: Annotated[
        bool,
        typer.Option("--discard", help="Also abort what hangs under ids that their coordinators have forgotten."),
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

    Kafka 4.3 and newer can omit a marker (KAFKA-20734), so that consumers wait for a transaction that has ended. The command
    aborts such a hanging transaction, and copies the rows of decided ones. For that, the rights of the write suffice. If a
    coordinator has forgotten the id, only `--discard` can abort the transaction, which needs Alter or ClusterAction on the cluster.
    The command does not touch the transactions of other programs, which `kafka-eos status` shows. A partition without a leader
    delays each step by up to two minutes.

    The history gets a record of each version that the command finishes, if its topic exists.

    It shows its effect and asks for confirmation on a terminal; elsewhere it needs --yes. Exit status 1 without confirmation,
    or if a transaction may still be open, which the output shows with the reason. Exit status 0 also if nothing was open.

    Example: kafka-eos recover --write-id kafka-eos/nightly-orders/orders

    For a version whose outcome cannot be proven: kafka-eos resolve
    """
    settings = OperatorSettings(
        write_id=write_id,
        commit_log_topic=commit_log_topic,
        client=console.client_config(bootstrap_servers, properties),
        history_topic=history_topic,
        command="kafka-eos recover",
    )
    if not yes:
        procedure = partial(operator.recovery, abort_unknown=abort_unknown)
        found = operator.preview(settings, procedure, search=True)
        _show_hanging(settings, found.hanging, err=as_json)
        require_consent(settings, found, _effect(write_id, found, discard, abort_unknown), err=as_json)
    done = operator.recover(settings, abort_unknown=abort_unknown, discard=discard)
    console.print_json(done) if as_json else _show(settings, done)
    if not done.all_ended:
        _show_hanging(settings, done.hanging, err=True)
        raise typer.Exit(EXIT_FAILURE)


def _effect(write_id: str, found: Preview, discard: bool, abort_unknown: bool) -> str:
    others = len(found.transactions) - found.decided
    hanging, forgotten = found.hanging, len(found.hanging.forgotten)
    effects = (
        (found.decided, "open transaction", "commit"),
        (forgotten * discard, "transaction", "marker"),
        (sum(each.write.state == "decided" for each in found.writes), "decided version", "prove"),
        (others, f"{'other ' * bool(found.decided)}open transaction", "abort"),
        (len(hanging.held) - forgotten, "transaction", "discard"),
    )
    would = [
        text(f"recover_to_{do}", transactions=console.counted(count, noun)) for count, noun, do in effects if count
    ]
    would = would or [text("recover_to_do_nothing" + "_found" * bool(hanging.not_checked))]
    effect = [text("effect_recover", write_id=write_id, would="; ".join(would))]
    if forgotten and not discard:
        effect.append(text("still_forgotten", transactions=console.counted(forgotten, "transaction")))
    return " ".join((*effect, *[text("lost_by_recover")] * abort_unknown))


def _show_hanging(settings: OperatorSettings, found: Found, *, err: bool) -> None:
    """Print what hangs, and on standard error what was not checked."""

    def row(each: HeldOpen) -> console.Row:
        owner = "an attempt" if each.version is None else f"version {each.version}"
        why = "its coordinator has forgotten the id" if each.is_forgotten else "its coordinator has ended it"
        return [each.transactional_id, f"{each.place}, {owner}"], str(each.producer_id), why

    columns = ("hanging transaction", "producer id", "why")
    for part in console.listed(columns, found.held, row, limit=console.MOST, rest="--yes --json lists all"):
        console.show(part, err=err)
    for each in found.not_checked:
        console.echo(f"Not checked: {each}", err=True)
    if found.forgotten:
        discard = settings.write.command("recover", "--discard")
        console.echo(f"To abort what hangs under a forgotten id: {discard}", err=True)


def _show(settings: OperatorSettings, done: Recovered) -> None:
    """Print what became of the versions, and what was ended."""
    is_decided = any(each.state != "aborted" for each in done.versions)
    if not is_decided:
        console.echo(console.no_decision(settings.write, is_unfinished=bool(done.versions)))
    if done.versions:
        rows = [_version(each, settings.write_id) for each in done.versions]
        console.show(console.table(("query id", "version", "state", "meaning"), rows))
    # Transactions that may still be open come first, so that the shortened table shows them.
    ended = sorted(done.ended, key=lambda each: each.is_over)
    for part in console.listed(("transaction", "requested", "result"), ended, _ended, limit=console.MOST):
        console.show(part)
    if not done.ended and not done.hanging.not_checked:
        listing = "" if is_decided else f" To list the open transactions: {settings.write.status_of_all}"
        console.echo(f"No transaction of it was open.{listing}")
    if done.discarded:
        names = some([f"{each.transactional_id} {each.place}" for each in done.discarded])
        console.echo(f"Aborted where it hung: {names}.")


def _version(each: RecoveredVersion, write_id: str) -> console.Row:
    """Name a version's state, and what it means for the rows and the next run."""
    state, meaning = each.state, text(f"recovered_{each.state}", write_id=write_id)
    if state == "resolved":
        state = f"resolved as {each.resolution}"
    elif state == "finished":
        meaning += "; finished just now" * each.finished_now
        meaning += ": do not run the job again" * is_random_write_id(write_id)
        meaning += "; rows of transactions that Kafka had aborted are copies from the log" * each.has_copies
    style = "green" if state == "finished" else "bold yellow"
    return each.query_id, str(each.version), Text(state, style=style), meaning


def _ended(each: EndedTransaction) -> console.Row:
    result = "had ended before" if each.is_over else f"not ended: {each.answer}"
    if each.answer is None:
        result = "no response: may still be open"
    elif each.answer == "NONE":
        result = "done"
    return each.identity.transactional_id + " (copies of lost rows)" * each.copies, each.end, result
