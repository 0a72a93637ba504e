"""Whoever copies a command out of a message runs it on the commit log of the write that failed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kafka_eos_sink.commit import refusals
from kafka_eos_sink.commit.commit_log import DEFAULT_TOPIC
from kafka_eos_sink.commit.refusals import command, on_commit_log

COMMIT = Path(refusals.__file__).parent


@pytest.mark.parametrize("name", ["recover", "resolve", "repair"])
def test_a_command_gets_the_commit_log_of_its_write(name: str) -> None:
    message = f"the next run finishes it, or: {command(name, 'w', '--version 3')}; and kafka-eos {name} alone"
    assert f"kafka-eos {name} --bootstrap-servers ... --write-id 'w' --version 3;" in message
    assert on_commit_log(message, DEFAULT_TOPIC) == message
    named = on_commit_log(message, "ledger")
    assert f"kafka-eos {name} --bootstrap-servers ... --commit-log-topic 'ledger' --write-id 'w' --version 3" in named
    assert named.endswith(f"kafka-eos {name} alone")


def test_every_command_with_a_write_id_is_recognised() -> None:
    """`command` makes them all, but for one that names its commit log itself."""
    sources = {path.name: path.read_text() for path in sorted(COMMIT.rglob("*.py"))}
    assert sum(len(re.findall(r"command\(|_resolve\(", text)) for text in sources.values()) > 10
    by_hand = {name: re.findall(r".*--write-id '.*", text) for name, text in sources.items()}
    assert {name: len(lines) for name, lines in by_hand.items() if lines} == {"refusals.py": 1}
    joined = re.sub(r'"\s*\n\s*(?:\+ )?f?"', "", sources["refusals.py"])
    (names_its_log,) = re.findall(r"kafka-eos [^;]*?--write-id '", joined)
    assert "--commit-log-topic ..." in names_its_log
