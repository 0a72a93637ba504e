"""`kafka-eos explain` prints what a row of errors.toml says of a code, and the answers of a message."""

from __future__ import annotations

import json

import pytest

from documents import ERRORS, explained_errors, read
from kafka_eos_sink.cli import explain
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.errors import DecisionPendingError, Job, KafkaEosError


def explained(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    capsys.readouterr()
    assert main(["explain", *arguments, "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_every_code_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    known = explain.entries()
    assert [*known] == explained_errors()
    for code, entry in known.items():
        assert main(["explain", code]) == 0
        assert capsys.readouterr().out.startswith(f"{code}\n{entry.answers}\n\n{entry.text}")


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


TWICE, FAILS = "no, it would write rows twice", "no, it fails again until you act"


@pytest.mark.parametrize(
    ("text", "code", "answers", "also"),
    [
        # A task that was tried again, and then the job.
        (
            failed("CONNECTION_LOST", Job.BATCH) * 3 + failed("DECIDED_NOT_FINISHED", Job.BATCH),
            "DECIDED_NOT_FINISHED",
            ("maybe", "only with the same txnAppId and txnVersion"),
            ["CONNECTION_LOST"],
        ),
        # The message knows the job, which the page does not.
        (failed("DECIDED_NOT_FINISHED", Job.RANDOM), "DECIDED_NOT_FINISHED", ("maybe", TWICE), []),
        (failed("DELIVERY_TIMEOUT", Job.AT_LEAST_ONCE), "DELIVERY_TIMEOUT", ("maybe", TWICE), []),
        # A cause is no message of its own, but it is named.
        (
            failed("CONNECTION_LOST", Job.BATCH, "[KAFKA_EOS.COMMIT_LOG_LOST] of another log"),
            "CONNECTION_LOST",
            ("no", "yes"),
            ["COMMIT_LOG_LOST"],
        ),
        # A run that would write rows twice is graver than a run that fails again.
        (
            failed("DELIVERY_TIMEOUT", Job.AT_LEAST_ONCE) + failed("UNRESOLVED", Job.STREAM),
            "DELIVERY_TIMEOUT",
            ("maybe", TWICE),
            ["UNRESOLVED"],
        ),
        # Without its end, a message has no answers; it is still the gravest.
        (
            "ERROR [KAFKA_EOS.UNRESOLVED] cut off\n" + failed("CONNECTION_LOST", Job.STREAM),
            "UNRESOLVED",
            (None, None),
            ["CONNECTION_LOST"],
        ),
        # The answers of the page are for jobs: "run again" would send an operator into a second run.
        (f"kafka-eos: {KafkaEosError('UNKNOWN_TOPIC', 'no topic', 'create it')}", "UNKNOWN_TOPIC", (None, None), []),
        (f"kafka-eos: {KafkaEosError('UNKNOWN_WRITE_ID', 'what')}", "UNKNOWN_WRITE_ID", (None, None), []),
        ("TOPIC_NOT_READ", "TOPIC_NOT_READ", (None, None), []),
        ("fenced lost_parts", "LOST_PARTS", ("maybe", "only with the same txnAppId or checkpoint"), ["FENCED"]),
    ],
)
def test_gravest_message_counts_with_its_own_answers(
    text: str, code: str, answers: tuple[str | None, str | None], also: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    found = explained(capsys, text)
    assert (found["code"], (found["rows_visible"], found["run_again"]), found["also"]) == (code, answers, also)


def test_page_shows_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    command, output = [
        block for block in read(ERRORS).blocks if block.section == "read-a-message" and not block.text.startswith("[")
    ]
    assert main(command.commands()[0].split()[1:]) == 0
    assert capsys.readouterr().out == output.text
