"""``kafka-eos forget``: remove writes that never run again from the commit log."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated

import typer

from kafka_eos_sink.cli import EXIT_FAILURE, console
from kafka_eos_sink.cli.view import require_consent
from kafka_eos_sink.client.admin import connected
from kafka_eos_sink.commit.forget import forget_write
from kafka_eos_sink.commit.refusals import job_of, text
from kafka_eos_sink.errors import Job, WriteRefusedError
from kafka_eos_sink.operations import operator
from kafka_eos_sink.operations.cluster_view import write_lines
from kafka_eos_sink.operations.operator import OperatorSettings
from kafka_eos_sink.operations.write_status import find_old_writes

_DURATION = re.compile(r"([0-9]{1,6})([dh])", re.ASCII)
_UNIT_MS = {"d": 86_400_000, "h": 3_600_000}


def duration_ms(given: str) -> int:
    """Return the milliseconds of ``90d`` or ``12h``; raise `typer.BadParameter`."""
    if (found := _DURATION.fullmatch(given)) is None:
        raise typer.BadParameter(text("no_duration", given=given), param_hint="--older-than")
    return int(found[1]) * _UNIT_MS[found[2]]


def forget(
    write_id: console.OneWriteId = None,
    prefix: console.Prefix = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than", metavar="AGE", help="With --prefix: only ids that finished so long ago, 90d or 12h."
        ),
    ] = None,
    yes: console.Yes = False,
    bootstrap_servers: console.BootstrapServers = None,
    commit_log_topic: console.CommitLogTopic = console.COMMIT_LOG,
    properties: console.PropertiesFile = None,
) -> None:
    """Remove writes that will not run again from the commit log.

    The commit log keeps the newest version of every write id until this command removes it, while the rows in the data topics
    stay. Afterwards a batch under the write id writes its rows whatever its version is, and a stream that continues from its
    checkpoint fails with COMMIT_LOG_LOST.

    The command fences a job that still runs, and fails while a transaction of the write is open, or a version is in-doubt or
    unfinished. `--prefix` with `--older-than` removes all writes that finished so long ago, and lists the others with the
    reason. It shows its effect and asks for confirmation on a terminal; elsewhere it needs --yes. Exit status 1 without
    confirmation.

    Example: kafka-eos forget --write-id kafka-eos/nightly-orders/orders

    To finish or abort a write first: kafka-eos recover
    """
    if (write_id is None) == (prefix is None) or (prefix is None) != (older_than is None):
        raise typer.BadParameter(text("forget_one_of"))
    client = console.client_config(bootstrap_servers, properties)
    settings = OperatorSettings(write_id=write_id or prefix or "", commit_log_topic=commit_log_topic, client=client)
    if older_than is not None:
        _forget_old(settings, older_than, duration_ms(older_than), yes=yes)
        return
    if not yes:
        require_consent(settings, operator.preview(settings, forget_write), _effect([settings.write_id]))
    tombstones = operator.perform(settings, forget_write)
    console.echo(f"The commit log forgets {write_id}: it wrote {console.counted(tombstones, 'tombstone')}.")


def _forget_old(settings: OperatorSettings, older_than: str, age_ms: int, *, yes: bool) -> None:
    """Forget the writes whose ids begin with the settings' write id."""
    prefix, now_ms = settings.write_id, time.time_ns() // 1_000_000
    before_ms = now_ms - age_ms
    with connected(settings.client) as admin:
        found = find_old_writes(admin, settings.commit_log_topic, prefix, before_ms, timeout_ms=settings.timeout_ms)
    for part in console.listed(
        ("not forgotten", "reason"), [*found.left.items()], list, limit=console.MOST, rest="kafka-eos status"
    ):
        console.show(part)
    ids = found.write_ids
    if not ids:
        console.echo(f"Nothing to forget: no write id that begins with {prefix!r} has been at rest for {older_than}.")
        return
    if not yes:
        require_consent(settings, operator.Preview(now_ms=now_ms, writes=write_lines(found.at_rest)), _effect(ids))
    failed = 0
    for each in ids:
        try:
            operator.perform(replace(settings, write_id=each), partial(forget_write, finished_before_ms=before_ms))
        # A job has begun since. The others are still at rest.
        except WriteRefusedError as refused:
            failed += 1
            console.echo(f"kafka-eos: left {each}: {refused}", err=True)
    console.echo(f"The commit log forgets {console.counted(len(ids) - failed, 'write id')} with the prefix {prefix}.")
    if failed:
        raise typer.Exit(EXIT_FAILURE)


def _effect(ids: Sequence[str]) -> str:
    which = f"one of these {console.counted(len(ids), 'write id')}" if len(ids) > 1 else ids[0]
    jobs = {job_of(each) for each in ids}
    later = [text("forgotten_batch")] if jobs != {Job.STREAM} else []
    later += [text("forgotten_stream")] if Job.STREAM in jobs else []
    return text("effect_forget", which=which, later=" ".join(later))
