"""``kafka-eos forget``: remove a write that has ended for good from the commit log."""

from __future__ import annotations

from kafka_eos_sink.cli import console
from kafka_eos_sink.cli.confirmation import require_consent


def forget(
    write_id: console.WriteId,
    yes: console.Yes = False,
    bootstrap_servers: console.BootstrapServers = None,
    commit_log_topic: console.CommitLogTopic = "__kafka_eos_commits",
    properties: console.PropertiesFile = None,
) -> None:
    """Remove a write that has ended for good from the commit log.

    Use it for a job or query that will not run again under this write id: the commit log keeps the newest version of every
    write id until somebody removes it. The rows in the data topics stay. The sink then no longer knows what was written: a
    later batch under the write id writes its rows whatever its version is, and a stream that continues from its checkpoint fails with
    COMMIT_LOG_LOST.

    The command refuses while anything of the write is open, undecided, or decided and not finished. It shows what it would do
    and asks on a terminal; elsewhere it needs --yes. Exit status 1 if nobody agreed.

    Example: kafka-eos forget --write-id kafka-eos/nightly/orders

    To finish or abort a write first: kafka-eos recover
    """
    from kafka_eos_sink.runtime import forget_write

    settings = console.operator_settings(bootstrap_servers, properties, write_id, commit_log_topic)
    if not yes:
        require_consent(forget_write.preview_forget(settings), _effect(write_id), err=False)
    tombstones = forget_write.forget(settings)
    console.echo(f"The commit log forgets {write_id}: {tombstones} tombstones were written.")


def _effect(write_id: str) -> str:
    return (
        f"forget would fence every job or query that runs under {write_id}, and write a tombstone for each of its records in the commit "
        "log. A later run writes its rows again, whatever its version is."
    )
