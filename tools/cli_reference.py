"""``docs/cli.md``, written from the commands, their help, and what their examples print (tools/cli_outputs).

``python -m tools.cli_reference > docs/cli.md`` writes the page. Tests compare it with the commands, and the outputs with what they print.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator
from itertools import chain, groupby
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import typer

from kafka_eos_sink.cli import console
from kafka_eos_sink.cli.main import application

COMMAND = "python -m tools.cli_reference > docs/cli.md"
_WIDTH = 140
_OUTPUTS = Path(__file__).parent / "cli_outputs"
"""What the example of each command prints. tests/broker/test_shown_output.py shows a new one when it fails."""

_INTRODUCTION = f"""\
# The command `kafka-eos`

<!-- Generated: do not edit. Change the command in kafka_eos_sink/cli, or its output in tools/cli_outputs, and run
     {COMMAND} -->

`make setup` installs the command as `.venv/bin/kafka-eos`, and `pip install '.[cli]'` in the clone installs it as `kafka-eos`.
`kafka-eos COMMAND --help` prints the same text as this page, and `kafka-eos --install-completion` switches on completion in your shell.
[The runbooks](runbooks.md#from-symptom-to-command) lead from a symptom to the command.

The examples expect the brokers in `{console.SERVERS_VARIABLE}`.
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

| write | its write id | example |
|---|---|---|
| batch | `<transactional.id.prefix>/<txnAppId>/<topic>` | `kafka-eos/nightly-orders/orders` |
| batch without `txnAppId` | random | `kafka-eos/b119f28e-40dc-420f-9ae2-817389028d00` |
| streaming query | `transactional.id.prefix`, or `kafka-eos-<query id>` without one | `kafka-eos-6c1f0a52-9d0e-4a57-8a0e-1b2c3d4e5f60` |

`kafka-eos status` lists them. A random id appears only while something is open, or if the write failed with a decision. The transactional
ids of a write are its write id with two numbers, or with `.driver`. Inside a part of
a write id, `/` is written as `%2F`, and `%` as `%25`.

## Exit status

| status | meaning |
|---|---|
| 0 | success |
| 1 | a failure, in one sentence on standard error, or a result that needs attention |
| 2 | wrong usage |
| 130 | Ctrl-C, except for commands that run until Ctrl-C |

If no broker responds, a command fails after about 30 seconds; `recover`, `resolve` and `forget` fail after about two minutes, and `metrics`
tries again.

## Environment

| variable | |
|---|---|
| `{console.SERVERS_VARIABLE}` | replaces `--bootstrap-servers`; servers in a properties file override it |
| `{console.PROPERTIES_VARIABLE}` | replaces `--properties`; a file with other servers than `--bootstrap-servers` is rejected, \
because its password is not for them |
| `KAFKA_EOS_REFERENCES` | `none` rejects `${{env:NAME}}` and `${{file:/path:key}}` in options and files, \
the option `kafka.properties.file` and `kafka.ssl.*.location`; default `all` |
| `KAFKA_EOS_QUICKACK` | `off` lets tasks delay their TCP acknowledgements to Spark's JVM; default `on`, \
see [latency](performance.md#latency) |
| `KAFKA_EOS_CACHE` | the folder for Kafka's jars; default `~/.cache/kafka-eos` |
| `KAFKA_EOS_IVY_SETTINGS` | an Ivy settings file, for a mirror of Maven Central |
"""

_ITEM = re.compile(r"[a-z]+(?: [a-z]+)?: ")
"""A paragraph that explains words, as ``finished: every row is visible. decided: ...``, becomes a list."""
_NEXT_ITEM = rf"(?<=\.) (?={_ITEM.pattern})"
_PURPOSES = {
    "try it": ("broker", "topics", "consume", "demo", "jars"),
    "watch writes": ("status", "top", "history", "audit", "metrics"),
    "act after a failure": ("explain", "recover", "resolve", "offsets"),
    "prepare and clean up": ("check", "forget"),
}
_SHARED = ("--bootstrap-servers", "--properties", "--commit-log-topic", "--history-topic", "--yes", "--json")
"""Options with one meaning in all commands; they have one table."""


def cli_page() -> str:
    """Return the text of ``docs/cli.md``."""
    commands: dict[str, Any] = typer.main.get_command(application()).commands  # type: ignore[attr-defined]
    assert sorted(chain(*_PURPOSES.values())) == sorted(commands), "each command has one purpose"
    purposes = [
        f"| {purpose} | {', '.join(f'[`{name}`](#kafka-eos-{name})' for name in names)} |"
        for purpose, names in _PURPOSES.items()
    ]
    shared = [
        next(_row(command, each) for command in commands.values() for each in command.params if each.opts == [name])
        for name in _SHARED
    ]
    blocks = [_INTRODUCTION.rstrip(), "\n".join(("| to | commands |", "|---|---|", *purposes))]
    blocks += ["## Options of several commands", _table(shared)]
    for name, command in commands.items():
        blocks += _section(name, command)
    return "\n\n".join((*blocks, _END))


def _section(name: str, command: Any) -> Iterator[str]:
    """Yield the blocks of a command's section."""
    example, _, neighbour = command.epilog.partition("\n\n")
    yield f"## kafka-eos {name}"
    for are_items, paragraphs in groupby(command.help.split("\n\n"), key=lambda each: bool(_ITEM.match(each))):
        if are_items:
            yield "\n".join(_filled(item, "- ") for each in paragraphs for item in re.split(_NEXT_ITEM, each))
        else:
            yield "\n\n".join(map(_filled, paragraphs))
    yield f"```\n{example.removeprefix('Example: ')}\n```"
    yield f"```text\n{(_OUTPUTS / f'{name}.txt').read_text('utf-8').rstrip()}\n```"
    if own := [_row(command, each) for each in command.params if each.opts[0] not in _SHARED]:
        yield _table(own)
    shared = [f"`{each}`" for option in command.params for each in option.opts if each in _SHARED]
    what, _, other = neighbour.rpartition(": kafka-eos ")
    lines = [
        f"Also: {', '.join(shared)}." if shared else "",
        f"{what}: [`kafka-eos {other}`](#kafka-eos-{other}).",
    ]
    yield "\n".join(filter(None, lines))


def _filled(text: str, mark: str = "") -> str:
    return textwrap.fill(
        mark + text, _WIDTH, subsequent_indent=" " * len(mark), break_long_words=False, break_on_hyphens=False
    )


def _table(rows: list[str]) -> str:
    return "\n".join(("| option | default | meaning |", "|---|---|---|", *rows))


def _row(command: Any, option: Any) -> str:
    """Return an option's row: name and value, default, meaning; or that of an argument."""
    if option.param_type_name == "argument":
        return f"| `{option.metavar}` | | {option.help} |"
    value = default = ""
    if not option.is_flag:
        hint = get_type_hints(command.callback)[option.name]
        choices = "|".join(get_args(hint)) if get_origin(hint) is Literal else ""
        value = f" {option.metavar or choices or option.name.rpartition('_')[2].upper()}".replace("|", r"\|")
        default = "required" if option.required else "" if option.default is None else f"`{option.default}`"
    return f"| `{option.opts[0]}{value}` | {default} | {option.help} |"


if __name__ == "__main__":
    sys.stdout.write(cli_page())
