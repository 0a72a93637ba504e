"""Where the installed command starts: says in one sentence what is missing where the extra is not installed."""

from __future__ import annotations

import sys


def main() -> int:
    """The exit status, which the installed script hands to the shell."""
    try:
        from kafka_eos_sink.cli.main import main as run
    except ModuleNotFoundError as missing:
        if missing.name not in ("typer", "rich"):
            raise
        sys.exit(
            f"kafka-eos: the command needs {missing.name}; install the package with its extra: pip install '.[cli]'"
        )
    return run()
