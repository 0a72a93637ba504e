"""``docs/cli.md``, written from the commands and their help.

``python -m tools.cli_reference > docs/cli.md`` writes the page. A unit test compares it with the commands.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin, get_type_hints

import typer

from kafka_eos_sink.cli import console
from kafka_eos_sink.cli.main import application

COMMAND = "python -m tools.cli_reference > docs/cli.md"
_WIDTH = 140

_INTRODUCTION = f"""\
# The command `kafka-eos`

<!-- Generated: do not edit. Change the command in kafka_eos_sink/cli and run
     {COMMAND} -->

It comes with `make setup` (`.venv/bin/kafka-eos`) or with `pip install '.[cli]'` in the clone.
`--help` after a command shows what stands here.
`kafka-eos --install-completion` switches on completion in your shell. [operate.md](operate.md#from-symptom-to-command) leads from a
symptom to the command.
"""

_END = f"""\
## Placeholders

In documents and help, a capital letter stands for a value of yours:

| | |
|---|---|
| S | the brokers, `host:port` and comma-separated: `broker1:9092,broker2:9092` |
| T | a topic |
| W | a [write id](#write-ids), or the first part of one |
| G | a consumer group |
| V | a version: a batch's `txnVersion`, or a stream's batch id |
| Q | a query id: `batch` for batch writes; error messages and `kafka-eos status --json` show a stream's |
| N | a number |
| A, P, O | an address, a partition, an offset |
| FILE | a [client properties file](secure.md#client-properties-files), or another file |

## Write ids

A write id names a write. Batch writes: `<transactional.id.prefix>/<txnAppId>/<topic>`, for example `kafka-eos/nightly-orders/orders`.
Streaming queries: `transactional.id.prefix`, or `kafka-eos-<query id>` without one. `kafka-eos status` lists them. A write without
`txnAppId` has a random one, such as `kafka-eos/b119f28e-40dc-420f-9ae2-817389028d00`: `kafka-eos status` shows it while something is open,
and if the write failed with a decision.

## Exit status

0: success. 1: a failure, in one sentence on standard error, or a result that needs attention. 2: wrong usage. 130: Ctrl-C, except for
commands that run until Ctrl-C. If no broker responds, a command fails after about 30 seconds; `recover`, `resolve` and `forget` fail
after about two minutes, and `metrics` tries again.

## Environment

| variable | |
|---|---|
| `{console.SERVERS_VARIABLE}` | stands for `--bootstrap-servers`; servers in a properties file win over it |
| `{console.PROPERTIES_VARIABLE}` | stands for `--properties`; a file that names servers is rejected beside a \
`--bootstrap-servers` with others, because its password is not for them |
| `KAFKA_EOS_REFERENCES` | `none` rejects `${{env:NAME}}` and `${{file:/path:key}}` in options and files, \
the option `kafka.properties.file` and `kafka.ssl.*.location`; default `all` |
| `KAFKA_EOS_CACHE` | the folder for Kafka's jars; default `~/.cache/kafka-eos` |
| `KAFKA_EOS_IVY_SETTINGS` | an Ivy settings file, for a mirror of Maven Central |
"""

_SHARED = ("--bootstrap-servers", "--properties", "--commit-log-topic", "--history-topic", "--yes", "--json")
"""Options with one meaning in all commands; they have one table."""


def cli_page() -> str:
    """Return the text of ``docs/cli.md``."""
    commands: dict[str, Any] = typer.main.get_command(application()).commands  # type: ignore[attr-defined]
    summaries = [f"| [`{name}`](#kafka-eos-{name}) | {_sentence(command)} |" for name, command in commands.items()]
    shared = [
        next(_row(command, each) for command in commands.values() for each in command.params if each.opts == [name])
        for name in _SHARED
    ]
    blocks = [_INTRODUCTION.rstrip(), "\n".join(("| command | |", "|---|---|", *summaries))]
    blocks += ["## Options of several commands", _table(shared)]
    for name, command in commands.items():
        blocks += _section(name, command)
    return "\n\n".join((*blocks, _END))


def _sentence(command: Any) -> str:
    return str(command.help).partition("\n")[0].rstrip(".")


def _section(name: str, command: Any) -> Iterator[str]:
    """Yield the blocks of a command's section."""
    example, _, neighbour = command.epilog.partition("\n\n")
    yield f"## kafka-eos {name}"
    for paragraph in command.help.split("\n\n"):
        yield textwrap.fill(paragraph, _WIDTH, break_long_words=False, break_on_hyphens=False)
    yield f"    {example.removeprefix('Example: ')}"
    if own := [_row(command, each) for each in command.params if each.opts[0] not in _SHARED]:
        yield _table(own)
    shared = [f"`{each}`" for option in command.params for each in option.opts if each in _SHARED]
    what, _, other = neighbour.rpartition(": kafka-eos ")
    lines = [
        f"Also: {', '.join(shared)}." if shared else "",
        f"{what}: [`kafka-eos {other}`](#kafka-eos-{other}).",
    ]
    yield "\n".join(filter(None, lines))


def _table(rows: list[str]) -> str:
    return "\n".join(("| option | default | meaning |", "|---|---|---|", *rows))


def _row(command: Any, option: Any) -> str:
    """Return an option's row: name and value, default, meaning."""
    value = default = ""
    if not option.is_flag:
        hint = get_type_hints(command.callback)[option.name]
        choices = "|".join(get_args(hint)) if get_origin(hint) is Literal else ""
        value = f" {option.metavar or choices or option.name.rpartition('_')[2].upper()}".replace("|", r"\|")
        default = "required" if option.required else "" if option.default is None else f"`{option.default}`"
    return f"| `{option.opts[0]}{value}` | {default} | {option.help} |"


if __name__ == "__main__":
    sys.stdout.write(cli_page())
