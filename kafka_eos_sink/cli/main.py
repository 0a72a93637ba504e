"""The command ``kafka-eos``: puts the subcommands together and turns failures into one sentence and an exit status.

Each subcommand is a module of this package, of the same name and with a function ``register(app)``; the name is added
to `_COMMANDS`. Only the module that is asked for is imported, as some bring pandas and pyarrow with them.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

import typer

from kafka_eos_sink import __version__
from kafka_eos_sink.errors import KafkaEosError

__all__ = ["application", "main"]

_COMMANDS = ("broker", "demo", "check", "commits", "transactions", "recover", "repair", "resolve", "jars")
"""Modules of `kafka_eos_sink.cli`, in the order in which ``--help`` lists them."""

EXIT_FAILURE = 1
EXIT_USAGE = 2
_EXIT_INTERRUPTED = 130


def application(commands: Sequence[str] = _COMMANDS) -> typer.Typer:
    """The typer application with these subcommands, which are all unless told otherwise."""
    app = typer.Typer(
        name="kafka-eos",
        help="Exactly-once writes from Apache Spark to Apache Kafka: a broker to try it on and an operator's tools.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_version)
    for name in commands:
        importlib.import_module(f"kafka_eos_sink.cli.{name}").register(app)
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kafka-eos {__version__}")
        raise typer.Exit


def _version(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Show the version."),
) -> None:
    # Typer shows this function's docstring as the help of the whole command, and the text above is meant for that.
    pass


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status.

    0 is done, 1 a failure said in one sentence on standard error, 2 wrong usage, 130 interrupted.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    asked = arguments[:1] if arguments and arguments[0] in _COMMANDS else _COMMANDS
    try:
        # Typer ends the process by itself for help, usage errors (2) and typer.Exit; a plain return means success.
        application(asked)(arguments, prog_name="kafka-eos")
    except KafkaEosError as failure:
        print(f"kafka-eos: {failure}", file=sys.stderr)
        return EXIT_FAILURE
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else EXIT_FAILURE if ended.code else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
