"""Commands as error messages print them."""

from __future__ import annotations

import re
import shlex

from kafka_eos_sink.cli.main import main


def printed_command(text: str, command: str) -> list[str]:
    """The words of the first ``kafka-eos`` command that begins with this regular expression."""
    named = re.search(rf"kafka-eos ({command}[^;(\n]*)", text)
    assert named is not None, text
    return shlex.split(named[1])


def run_printed(text: str, command: str) -> None:
    """Run it as it stands."""
    assert main([*printed_command(text, command), "--yes"]) == 0
