"""``kafka-eos status``: writes, open transactions, blocked readers."""

from __future__ import annotations

import gc
import shlex
from collections.abc import Collection

import typer

from kafka_eos_sink.cli import EXIT_FAILURE, console
from kafka_eos_sink.cli.view import view
from kafka_eos_sink.client.admin import connected
from kafka_eos_sink.client.config import ClientConfig
from kafka_eos_sink.commit.refusals import refused, some, text
from kafka_eos_sink.commit.values import Write
from kafka_eos_sink.operations.cluster_view import BlockedPartition, ClusterView, ClusterWatch

MOST_WAYS_OUT = 5


def status(
    write_id: console.OneWriteId = None,
    prefix: console.Prefix = None,
    as_json: console.AsJson = False,
    history_topic: console.HistoryTopic = console.HISTORY,
    commit_log_topic: console.CommitLogTopic = console.COMMIT_LOG,
    bootstrap_servers: console.BootstrapServers = None,
    properties: console.PropertiesFile = None,
) -> None:
    """Show writes, open transactions, and which readers they block.

    What needs action comes first: the oldest open transaction, and writes that are not finished. A blocked partition shows how
    many offsets read_committed consumers do not see, and which transactions hide them. `kafka-eos recover`, or the next run
    under the write id, commits or aborts the transactions of a dead write.

    A write shows its newest version. The column rows/s is the rate of the newest batches, from plan to verify, and copied is
    how many aborted transactions of the last batch were copied. With `--write-id` the table has the offsets of the rows, and a
    line below it the versions of a batch write that count as written. The command then also finds transactions that no coordinator
    lists. A table has 100 rows at most, and `--json` has all.

    finished: every row is visible. decided: the next run of W or `kafka-eos recover` finishes it; without txnAppId only
    `recover`. prepared: tasks have finished, and wait for the decision, or their job is dead. in-doubt: a decision was
    written, and its transaction is still open. resolved: an operator has recorded the outcome with `kafka-eos resolve`. void: none
    of its rows is visible, and it may be written again. unreadable: another program wrote into its records, or a part is gone.

    `--json` prints one object: the lists writes, transactions and blocked, and not_read with what a missing right hides. Exit
    status 1 if writes or transactions cannot be read, or if the commit log has no records for W.

    Example: kafka-eos status --write-id kafka-eos/nightly-orders/orders

    To watch the same live: kafka-eos top
    """
    config = console.client_config(bootstrap_servers, properties)
    write = Write(write_id or "", commit_log_topic, config.command_options)
    # The reading makes a million objects that live until the end of the process. Searching them for garbage takes a tenth of the time.
    gc.disable()
    with connected(config) as admin:
        topics = commit_log_topic, history_topic
        watch = ClusterWatch(admin, *topics, timeout_ms=console.TIMEOUT_MS, prefix=prefix, write_id=write_id)
        found = watch.look(hanging=write_id is not None)
    if as_json:
        console.print_json(found)
    else:
        for part in view(found, with_offsets=write_id is not None):
            console.show(part)
        if write_id is not None:
            _show_ways_out(found, config, write, watch.log.producer_ids)
    for failure in found.not_read:
        console.echo(f"kafka-eos: not shown: {failure}", err=True)
    if not (found.was_read("writes") and found.was_read("transactions")):
        raise typer.Exit(EXIT_FAILURE)
    if write_id is not None and not found.writes:
        if not watch.log.knows_write:
            raise refused("UNKNOWN_WRITE_ID", write=write)
        if not as_json:
            console.echo(console.no_decision(write))


def _show_ways_out(found: ClusterView, config: ClientConfig, write: Write, own: Collection[int]) -> None:
    """Print commands for what no coordinator lists; ``own``: the write's producers."""
    held = [(each, each.hanging) for each in found.blocked if each.hanging is not None]
    # Kafka's command on a decided transaction would discard its rows before the decision has noted that no reader saw them (BLIND).
    others = [(each, hanging) for each, hanging in held if hanging.producer_id not in own]
    if len(others) < len(held):
        console.echo(f"\nOf {write.id} above is what no coordinator lists. To end it: {write.command('recover')}")
    if others:
        producers = some(sorted({str(each.producer_id) for _, each in others}))
        console.echo(f"\n{text('of_another_program', write=write, held=producers)}")
    for each, hanging in others[:MOST_WAYS_OUT]:
        console.echo(f"    {_abort_command(config, each, hanging.start_offset)}")
    if len(others) > MOST_WAYS_OUT:
        console.echo(f"And {len(others) - MOST_WAYS_OUT} more (--json)")


def _abort_command(config: ClientConfig, where: BlockedPartition, start_offset: int) -> str:
    """Return the command of Kafka's own tool that aborts a transaction on a partition."""
    of_login = [] if config.properties_file is None else ["--command-config", config.properties_file]
    at = ["--topic", where.topic, "--partition", str(where.partition), "--start-offset", str(start_offset)]
    servers = config.bootstrap_servers_text
    return shlex.join(["kafka-transactions.sh", "--bootstrap-server", servers, *of_login, "abort", *at])
