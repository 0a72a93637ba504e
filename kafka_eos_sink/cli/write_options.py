"""What the commands about one write have in common: its id, its commit log, and the settings that they come to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kafka_eos_sink.cli.cluster_connection import client_config

if TYPE_CHECKING:
    from kafka_eos_sink.runtime.operator import OperatorSettings

__all__ = ["CommitLogTopic", "WriteId", "operator_settings"]

WriteId = Annotated[str, typer.Option("--write-id", metavar="W", help="The write id, as errors and `commits` show it.")]
CommitLogTopic = Annotated[
    str, typer.Option("--commit-log-topic", metavar="TOPIC", help="The write's commit.log.topic.")
]


def operator_settings(
    bootstrap_servers: str | None, properties: Path | None, write_id: str, commit_log_topic: str
) -> OperatorSettings:
    """The settings of a command on this write. Raises as `client_config` does."""
    # Here, as it takes a moment that other commands need not wait for.
    from kafka_eos_sink.runtime.operator import OperatorSettings

    return OperatorSettings(
        write_id=write_id,
        commit_log_topic=commit_log_topic,
        client=client_config(bootstrap_servers, properties),
    )
