"""``docs/cli.md`` is what the commands say."""

from __future__ import annotations

import re

from documents import ROOT
from kafka_eos_sink.cli.main import _COMMANDS
from tools.cli_reference import COMMAND, cli_page

PAGE = ROOT / "docs" / "cli.md"


def test_the_page_of_the_commands_is_current() -> None:
    assert PAGE.read_text("utf-8") == cli_page(), f"run: {COMMAND}"


def test_each_command_has_a_section_with_an_example() -> None:
    sections = dict(re.findall(r"^## kafka-eos (\w+)\n(.*?)(?=^## )", cli_page(), re.MULTILINE | re.DOTALL))
    assert sorted(sections) == sorted(_COMMANDS)
    for name, text in sections.items():
        assert re.search(rf"^```\n\S*kafka-eos {name}\b.*\n```\n\n```text\n[^`]", text, re.MULTILINE)
        assert re.search(r": \[`kafka-eos \w+`\]\(#kafka-eos-\w+\)\.$", text.strip())
