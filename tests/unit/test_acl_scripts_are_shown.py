"""docs/access.md and docs/migrate.md show what conf/acls-*.sh print; broker/test_acl_scripts.py runs it."""

from __future__ import annotations

import os
import shlex
import subprocess

import pytest

from documents import ROOT, Block, all_blocks, output_blocks

SHOWN = output_blocks()
PAGES = ("docs/access.md", "docs/migrate.md")
BLOCKS = [block for block in all_blocks() if block.document in PAGES and "conf/acls-" in block.text]


def run(command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], **variables}
    return subprocess.run(
        ["sh", "-c", command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.name)
def test_page_shows_what_the_script_prints(block: Block) -> None:
    (command,) = block.commands()
    assert run(command).stdout == SHOWN[block.name].text


@pytest.mark.parametrize("name", ["writer", "watcher"])
def test_every_variable_reaches_the_commands(name: str) -> None:
    given = {
        "BOOTSTRAP_SERVERS": "broker1:9092",
        "COMMAND_CONFIG": "/etc/kafka/it's.properties",
        "PRINCIPAL": "User:CN=a b",
        "TOPICS": "one two",
        "PREFIX": "team-a",
        "COMMIT_LOG_TOPIC": "log",
        "HISTORY_TOPIC": "history",
        "GROUP": "the group",
        "SOURCE_TOPICS": "three",
    }
    lines = run(f"conf/acls-{name}.sh", **given).stdout.replace("\\\n", "").splitlines()
    commands = [shlex.split(line) for line in lines]
    everywhere = ["kafka-acls.sh", "--bootstrap-server", "broker1:9092", "--command-config", given["COMMAND_CONFIG"]]
    everywhere += ["--add", "--allow-principal", given["PRINCIPAL"]]
    assert [words[: len(everywhere)] for words in commands] == [everywhere] * len(commands)
    used = {word for words in commands for word in words}
    assert {*given.values(), "one", "two"} - {"one two"} <= used
