"""The errors and warnings of commit/, from templates in ``errors.toml``.

Every message has the layout of `errors.KafkaEosError`: what happened, the sentence on the rows, what to do, details. A command ends a text
or is followed by ``;``, so that a shell takes what was pasted.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kafka_eos_sink import errors
from kafka_eos_sink.commit.transactional_id import BATCH_QUERY_ID, if_transactional_id, is_random_write_id
from kafka_eos_sink.commit.values import LOG_PARTITIONS, BatchVersion, Hanging, PreparedTransaction, Write
from kafka_eos_sink.error_table import FILE, Cell, table
from kafka_eos_sink.errors import Job, KafkaEosError

_WITHOUT_TEXTS = (
    f"This installation of kafka-eos-sink lacks the file {FILE}, which has the texts of messages. Pass the whole package with --py-files, "
    "not only its modules"
)


def refused(key: str, **fields: Any) -> KafkaEosError:
    """Return an error whose message has templates.

    Args:
        key: ``CODE``, or ``CODE.case`` for a further message of the code.
        fields: What the templates name, except what is derived: the commands need ``write`` and ``decision`` or ``batch``.
    """
    code, _, case = key.partition(".")
    if not table().rows:
        return KafkaEosError(code, f"{case} {fields}".strip(), _WITHOUT_TEXTS)
    row = table().rows[code]
    message, given = row.messages[case], _Fields(fields)
    raised: type[KafkaEosError] = getattr(errors, row.raises)
    return raised(code, given.rendered(message.what), given.rendered(message.way_out))


def text(name: str, **fields: Any) -> str:
    """Return a warning, or a fragment of messages, from its template."""
    if not table().texts:
        return f"{name} {fields}. {_WITHOUT_TEXTS}"
    shown: str = _Fields(fields)[name]
    return shown


def job_of(write_id: str) -> Job:
    """Return the kind of job that has a write id: only a batch write's has a slash."""
    if is_random_write_id(write_id):
        return Job.RANDOM
    return Job.BATCH if "/" in write_id else Job.STREAM


def describe_ranges(prepared: Iterable[PreparedTransaction]) -> str:
    return some([str(part) for entry in prepared for part in entry.offsets])


def some(names: Sequence[str]) -> str:
    """List the first names, and how many more there are."""
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def held_open(hanging: Sequence[Hanging]) -> str:
    """List which id holds which partition."""
    return some(
        [f"{each.transactional_id} on {topic}-{partition}" for each in hanging for topic, partition in each.partitions]
    )


def resolve_command(write: Write, query_id: str, version: int | str, resolution: str) -> str:
    # A batch write has one query id. A stream's prefix may have served several checkpoints.
    of_query = "" if query_id == BATCH_QUERY_ID else f" --query-id {shlex.quote(query_id)}"
    return write.command("resolve", f"--version {version} --as {resolution}{of_query}")


class _Fields(dict[str, Any]):
    """The fields of a template: what was given, else what `_DERIVED` or a text gives."""

    def __missing__(self, name: str) -> Any:
        if name in _DERIVED:
            return _DERIVED[name](self)
        if name[0].isupper():
            shown = self[name[0].lower() + name[1:]]
            return shown[:1].upper() + shown[1:]
        return self.rendered(table().texts[name])

    def rendered(self, cell: Cell) -> str:
        if isinstance(cell, Mapping):
            job = job_of(self["write_id"]).name.lower()
            cell = cell[job] if job in cell else cell["other"]
        return " ".join(cell.split()).format_map(self)


def _the_version(fields: _Fields) -> str:
    # A batch write without txnAppId has one version, whose number its user has never seen.
    write_id = fields["write_id"]
    what = "the batch" if is_random_write_id(write_id) else f"version {fields['about'].version}"
    return f"{what} of write id {write_id!r}"


def _resolve(fields: _Fields, about: BatchVersion, resolution: str, above: int = 0) -> str:
    return resolve_command(fields["write"], about.query_id, about.version + above, resolution)


_DERIVED: Mapping[str, Callable[[_Fields], Any]] = {
    "write_id": lambda fields: fields["write"].id if "write" in fields else fields["decision"].write_id,
    "about": lambda fields: fields.get("decision") or fields["batch"],
    "the_version": _the_version,
    "hint": lambda _: "",
    "otherwise": lambda _: "",
    "if_transactional_id": lambda fields: if_transactional_id(fields["write_id"]),
    # commands
    "audit": lambda fields: fields["write"].history_command("audit"),
    "history": lambda fields: fields["write"].history_command("history"),
    "begin_again": lambda fields: fields["write"].command("recover", "--abort-unknown"),
    "discard": lambda fields: fields["write"].command("recover", "--discard"),
    "log_partitions": lambda _: LOG_PARTITIONS,
    "keep": lambda fields: _resolve(fields, fields["decision"], "committed"),
    "keep_batch": lambda fields: _resolve(fields, fields["batch"], "committed"),
    "keep_before": lambda fields: _resolve(fields, fields["batch"], "committed", -1),
    "previous": lambda fields: fields["batch"].version - 1,
    "from_floor": lambda fields: f", from {floor} on" if (floor := fields["decision"].written_versions.floor) else "",
    "begin_query": lambda fields: fields["request"].command(
        "Q" if job_of(fields["write_id"]) is Job.STREAM else BATCH_QUERY_ID, fields["request"].version
    ),
    "offsets_of_group": lambda fields: fields["write"].offsets_command("G"),
    "recover": lambda fields: fields["write"].command("recover"),
    "rewrite_random": lambda fields: resolve_command(fields["write"], BATCH_QUERY_ID, 0, "rewrite"),
    "rewrite": lambda fields: _resolve(fields, fields["about"], "rewrite"),
    "status": lambda fields: fields["write"].command("status"),
}
"""Fields of many templates."""
