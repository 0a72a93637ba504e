"""Facts that stand on two pages, or on a page and in the code, are the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer
from model.exhausted import EXHAUSTED, LARGE, NOT_ENDED, STATES, WALKED
from model.mutations import MUTATIONS

from documents import DOCUMENTS, README, ROOT, is_kafka_eos, read, words_of
from kafka_eos_sink.cli.main import application
from tests.campaign.mutants import MUTANTS

DOCS = ROOT / "docs"


def page(name: str) -> str:
    return (DOCS / name).read_text("utf-8")


def section(text: str, heading: str) -> str:
    """The text below a heading, up to the next one of any level."""
    found = re.search(rf"^#+ {re.escape(heading)}.*?\n(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, heading
    return found[1]


def number(text: str, pattern: str) -> int:
    (found,) = re.findall(pattern, text)
    return int(found.replace(",", ""))


def options(command: str) -> set[str]:
    commands = typer.main.get_command(application()).commands  # type: ignore[attr-defined]
    return {option for each in commands[command].params for option in each.opts}


def commands_with(option: str) -> set[str]:
    commands = typer.main.get_command(application()).commands  # type: ignore[attr-defined]
    return {name for name in commands if option in options(name)}


def test_numbers_of_the_search_are_those_that_it_checks() -> None:
    text = " ".join(page("internals/verification.md").split())
    ended = [states for key, states in STATES.items() if key not in NOT_ENDED]
    assert number(text, r"has (\d+) settings, each in transaction version 2 and 0") == len(EXHAUSTED)
    assert number(text, r"([\d,]+) of the \d+ searches") == len(ended)
    assert number(text, r"of the (\d+) searches") == len(STATES) == 2 * len(EXHAUSTED)
    assert number(text, r"without a violation: ([\d,]+) states") == sum(ended)
    assert number(text, r"(\d+) larger settings are walked") == len(WALKED)
    assert number(text, r"Of (\d+) others") == len(LARGE)


def test_numbers_of_mutations_are_those_of_the_search() -> None:
    text = " ".join(page("internals/verification.md").split())
    assert number(text, r"holds ([\d,]+) mutations") == len(MUTATIONS)
    assert number(
        README.read_text("utf-8"), r"\[([\d,]+) [^\]]+\]\(docs/internals/verification\.md#mutations\)"
    ) == len(MUTATIONS)
    assert number(text, r"plants one of (\d+) mutations") == len(MUTANTS)
    examples = re.findall(r'"([^"]+)"|\*(\w[^*]+)\*', section(page("internals/verification.md"), "Mutations"))
    names = {" ".join("".join(each).split()) for each in examples}
    assert len(names) == 3
    assert sorted(names - {mutation.name for mutation in MUTATIONS}) == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_block_has_a_command_below_one_that_asks(document: Path) -> None:
    """Pasted as a whole, the question would read the next line as its answer."""
    asking = commands_with("--yes")
    for block in read(document).blocks:
        *above, _ = [command for command in block.commands() if block.language != "text"] or [""]
        assert [each for each in above if is_kafka_eos(each) and words_of(each)[0] in asking] == [], block.name
