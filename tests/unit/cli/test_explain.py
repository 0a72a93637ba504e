"""`kafka-eos explain` prints what a row of errors.toml says of each code; a message keeps its own answers."""

from __future__ import annotations

import json
import re

import pytest

from documents import ERRORS, explained_errors, read
from kafka_eos_sink.cli import explain
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.error_table import table
from kafka_eos_sink.errors import DecisionPendingError, Job, KafkaEosError


def explained(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    """The one section that the command prints."""
    (found,) = all_explained(capsys, *arguments)
    return found


def all_explained(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, object]]:
    capsys.readouterr()
    assert main(["explain", *arguments, "--json"]) == 0
    found: list[dict[str, object]] = json.loads(capsys.readouterr().out)
    return found


def test_every_code_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert [*table().rows] == explained_errors()
    for code in table().rows:
        entry = explain.entry(code)
        assert main(["explain", code]) == 0
        shown = capsys.readouterr().out
        assert shown.startswith(f"{code}\n{entry.answers}\n\n")
        assert "](" not in shown
        of_this_page = re.sub(r"\]\(#[^)]*\)", "]", f"{code} {entry.answers} {entry.text.replace('```text', '')}")
        wanted = re.findall(r"\w+", re.sub(r"\]\(", "] docs/", of_this_page))
        assert re.findall(r"\w+", shown)[: len(wanted)] == wanted


@pytest.mark.parametrize(
    "words",
    [
        ["unknown_topic"],
        ["[kafka_eos.unknown_topic]"],
        ["[KAFKA_EOS.UNKNOWN_TOPIC]", "topic", "t", "did", "not", "appear"],
        ["the job failed with UNKNOWN_TOPIC after it was aborted"],
        ["topic t did not appear (kafka-eos explain UNKNOWN_TOPIC)"],
    ],
)
def test_code_is_found_in_any_form_of_it(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert explained(capsys, *words)["code"] == "UNKNOWN_TOPIC"


def failed(code: str, job: Job, cause: str = "") -> str:
    """A message as the job's log has it, with a trace of Java on both sides."""
    error = DecisionPendingError(code, f"it failed {cause}".strip())
    error.concern(job)
    return f"org.apache.spark.SparkException: {error}\n\tat org.apache.spark.Task.run(Task.scala:141)\n"


NO_ANSWERS = (None, None)


@pytest.mark.parametrize(
    ("text", "codes", "answers"),
    [
        # A task that was tried again, and then the job.
        (
            failed("CONNECTION_LOST", Job.BATCH) * 3 + failed("DECIDED_NOT_FINISHED", Job.BATCH),
            ["CONNECTION_LOST", "DECIDED_NOT_FINISHED"],
            NO_ANSWERS,
        ),
        # The message knows the job, which the page does not: the page's answer would send an operator into a second run.
        (failed("DECIDED_NOT_FINISHED", Job.RANDOM), ["DECIDED_NOT_FINISHED"], NO_ANSWERS),
        # A cause is no message of its own, but it is named.
        (
            failed("CONNECTION_LOST", Job.BATCH, "[KAFKA_EOS.COMMIT_LOG_LOST] of another log"),
            ["CONNECTION_LOST", "COMMIT_LOG_LOST"],
            NO_ANSWERS,
        ),
        # A newer sink has raised the outer error.
        (failed("OF_TOMORROW", Job.BATCH, "[KAFKA_EOS.FENCED] by W"), ["FENCED"], NO_ANSWERS),
        ("ERROR [KAFKA_EOS.UNRESOLVED] cut off", ["UNRESOLVED"], NO_ANSWERS),
        # The answers of the page are for jobs.
        (f"kafka-eos: {KafkaEosError('UNKNOWN_TOPIC', 'no topic', 'create it')}", ["UNKNOWN_TOPIC"], NO_ANSWERS),
        (f"kafka-eos: {KafkaEosError('UNKNOWN_WRITE_ID', 'what')}", ["UNKNOWN_WRITE_ID"], NO_ANSWERS),
        ("TOPIC_NOT_READ", ["TOPIC_NOT_READ"], NO_ANSWERS),
        ("lost_parts", ["LOST_PARTS"], ("maybe", "only with the same txnAppId or checkpoint")),
    ],
)
def test_message_has_a_section_per_code_and_keeps_its_own_answers(
    text: str, codes: list[str], answers: tuple[str | None, str | None], capsys: pytest.CaptureFixture[str]
) -> None:
    found = all_explained(capsys, text)
    assert [each["code"] for each in found] == codes
    assert {(each["rows_visible"], each["run_again"]) for each in found} == {answers}
    assert answers != NO_ANSWERS or "[KAFKA_EOS." not in str(found), "the example is of another write"


def test_page_shows_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    command, output = [
        block for block in read(ERRORS).blocks if block.section == "read-a-message" and not block.text.startswith("[")
    ]
    assert main(command.commands()[0].split()[1:]) == 0
    assert capsys.readouterr().out == output.text
