"""The command ``kafka-eos``: subcommands, failures as a sentence and exit status.

Each subcommand is a module of this package with a function of the same name; its docstring is the help text. The part from "Example:"
on follows the options at the end of the help.
A module is imported only when its command runs or when ``--help`` lists all commands, because some import pyarrow.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kafka_eos_sink import __version__
from kafka_eos_sink.cli import EXIT_FAILURE
from kafka_eos_sink.errors import KafkaEosError
from kafka_eos_sink.extras import install_command
from kafka_eos_sink.logs import escape_unencodable

if TYPE_CHECKING:
    import typer

_COMMANDS = (
    *("broker", "topics", "consume", "demo", "check", "status", "history", "audit", "top"),
    *("metrics", "recover", "resolve", "forget", "offsets", "explain", "jars"),
)
"""Modules of ``kafka_eos_sink.cli``, in the order in which ``--help`` lists them."""


def application(commands: Sequence[str] = _COMMANDS) -> typer.Typer:
    """Build the typer application with these subcommands."""
    import typer

    app = typer.Typer(
        name="kafka-eos",
        help="Exactly-once writes from Apache Spark to Apache Kafka: a broker to try it on, and an operator's tools.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )

    def show_version(wanted: bool) -> None:
        if wanted:
            typer.echo(f"kafka-eos {__version__}")
            raise typer.Exit

    # Typer would show a docstring of this function instead of the help text above.
    @app.callback()
    def options(
        version: bool = typer.Option(
            False, "--version", callback=show_version, is_eager=True, help="Show the version."
        ),
    ) -> None:
        pass

    for name in commands:
        function = getattr(importlib.import_module(f"kafka_eos_sink.cli.{name}"), name)
        # Terminals have other widths than source files, so each paragraph becomes one line.
        paragraphs = [" ".join(each.split()) for each in inspect.cleandoc(function.__doc__).split("\n\n")]
        text, example, end = "\n\n".join(paragraphs).partition("Example:")
        app.command(name, help=text, epilog=example + end)(function)
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    Returns:
        0 for success, 1 for a failure (one sentence on standard error), 2 for wrong usage, 130 if interrupted.
    """
    escape_unencodable()
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    wanted = arguments[:1] if arguments and arguments[0] in _COMMANDS else _COMMANDS
    try:
        app = application(wanted)
    except ModuleNotFoundError as missing:
        if missing.name not in ("typer", "rich"):
            raise
        # The package works without its extra; only this command needs typer and rich.
        sys.exit(
            f"kafka-eos: the command needs {missing.name}, and this Python does not have it. Run: {install_command('cli')}"
        )
    try:
        # Typer exits the process for help, usage errors (2) and typer.Exit; a plain return means success.
        app(arguments, prog_name="kafka-eos")
    except KafkaEosError as failure:
        print(f"kafka-eos: {failure}", file=sys.stderr)
        return EXIT_FAILURE
    except KeyboardInterrupt:
        return 130  # as shells report a command that SIGINT ended
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else EXIT_FAILURE if ended.code else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
