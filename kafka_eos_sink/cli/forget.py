"""``kafka-eos forget``: remove a write that never runs again from the commit log."""

from __future__ import annotations

from kafka_eos_sink.cli import console
from kafka_eos_sink.cli.confirmation import require_consent


def forget(
    write_id: console.WriteId,
    yes: console.Yes = False,
    bootstrap_servers: console.BootstrapServers = None,
    commit_log_topic: console.CommitLogTopic = console.COMMIT_LOG,
    properties: console.PropertiesFile = None,
) -> None:
    """Remove a write that will not run again from the commit log.

    The commit log keeps the newest version of every write id until this command removes it. The rows in the data topics
    stay. Afterwards a batch under the write id writes its rows whatever its version is, and a stream that continues from its
    checkpoint fails with COMMIT_LOG_LOST.

    The command fails while a transaction of the write is open, or a version is undecided or unfinished. It shows its effect and
    asks for confirmation on a terminal; elsewhere it needs --yes. Exit status 1 without confirmation.

    Example: kafka-eos forget --write-id kafka-eos/nightly-orders/orders

    To finish or abort a write first: kafka-eos recover
    """
    from kafka_eos_sink.commit.forget import forget_write
    from kafka_eos_sink.operations import operator

    settings = console.operator_settings(bootstrap_servers, properties, write_id, commit_log_topic)
    if not yes:
        found = operator.preview(settings, forget_write)
        require_consent(found, _effect(write_id), err=False)
    tombstones = operator.forget(settings)
    console.echo(f"The commit log forgets {write_id}: {tombstones} tombstones were written.")


def _effect(write_id: str) -> str:
    return (
        f"forget would fence every job or query that runs under {write_id}, and write a tombstone for each of its records in the commit "
        "log. A later run writes its rows again, whatever its version is."
    )
