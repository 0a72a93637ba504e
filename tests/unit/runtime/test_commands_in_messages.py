"""Whoever copies a command out of a message runs it on the commit log of the write that failed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kafka_eos_sink.commit import settle
from kafka_eos_sink.commit.commit_log import DEFAULT_TOPIC
from kafka_eos_sink.runtime.executor import with_commit_log

COMMIT = Path(settle.__file__).parent


@pytest.mark.parametrize("command", ["recover", "resolve", "repair"])
def test_a_command_gets_the_commit_log_of_its_write(command: str) -> None:
    bare = (
        f"the next run finishes it, or: kafka-eos {command} --write-id 'w' --version 3; and kafka-eos {command} alone"
    )
    full = f"first: kafka-eos {command} --bootstrap-servers ... --write-id 'w'"
    assert with_commit_log(bare, DEFAULT_TOPIC) == bare
    assert f"kafka-eos {command} --commit-log-topic 'ledger' --write-id 'w' --version 3" in with_commit_log(
        bare, "ledger"
    )
    assert with_commit_log(bare, "ledger").endswith(f"kafka-eos {command} alone")
    assert with_commit_log(full, "ledger").endswith(
        "--bootstrap-servers ... --commit-log-topic 'ledger' --write-id 'w'"
    )


def test_every_command_with_a_write_id_is_recognised() -> None:
    """As the sources join their literals; one that names its commit log already stays as it is."""
    text = "".join(path.read_text() for path in sorted(COMMIT.glob("*.py")))
    joined = re.sub(r'"\s*\n\s*(?:\+ )?f?"', "", text)
    commands = re.findall(r"kafka-eos (?:recover|resolve|repair) [^;]*?--write-id '", joined)
    assert len(commands) > 10
    missed = [each for each in commands if "--commit-log-topic" not in with_commit_log(each, "ledger")]
    assert missed == []
