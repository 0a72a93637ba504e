"""`kafka-eos explain` prints what a row of errors.toml says of a code."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from documents import ERRORS, error_codes, explained_errors, read
from kafka_eos_sink.cli import console, explain
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.errors import OF_A_COMMAND, DecisionPendingError, Job, KafkaEosError

SECTIONS = list(dict.fromkeys(each.section for each in explain.entries().values()))


def explained(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    capsys.readouterr()
    assert main(["explain", *arguments]) == status
    shown = capsys.readouterr()
    return shown.err if status else shown.out


def test_every_code_is_explained_without_markup() -> None:
    entries = explain.entries()
    assert [*entries] == explained_errors()
    for entry in entries.values():
        heading, safety, empty, first, *more = explain.lines_of(entry, 100)
        assert heading == entry.code
        assert safety == OF_A_COMMAND or re.fullmatch(r"Rows visible: \w+\. Safe to run again: [\w, ]+\.", safety)
        assert empty == ""
        assert len(first) > 20, entry.code
        text = "\n".join((first, *more))
        assert [markup for markup in ("**", "](", "`", "###", "\N{NO-BREAK SPACE}") if markup in text] == []
        assert [line for line in (first, *more) if len(line) > 125] == [], entry.code


@pytest.mark.parametrize(
    "words",
    [
        ["unknown_topic"],
        ["Unknown_Topic"],
        ["KAFKA_EOS.UNKNOWN_TOPIC"],
        ["[KAFKA_EOS.UNKNOWN_TOPIC]"],
        ["[kafka_eos.unknown_topic]"],
        ["org.apache.spark.SparkException: [KAFKA_EOS.UNKNOWN_TOPIC] topic 'aborted' did not appear\nat java.lang"],
        ["[KAFKA_EOS.UNKNOWN_TOPIC]", "topic", "t", "did", "not", "appear"],
        ["the job failed with UNKNOWN_TOPIC after it was aborted"],
        ["topic t did not appear (kafka-eos explain UNKNOWN_TOPIC)"],
    ],
)
def test_code_is_found_in_any_form_of_it(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert explained(capsys, *words).startswith("UNKNOWN_TOPIC\nRows visible: no. Safe to run again: yes.\n")


def test_message_with_a_cause_is_explained_by_its_own_code(capsys: pytest.CaptureFixture[str]) -> None:
    error = DecisionPendingError("DECISION_UNKNOWN", "no marker: [KAFKA_EOS.REQUEST_DEADLINE] not in time", "run again")
    error.concern(Job.BATCH)
    text = explained(capsys, str(error))
    assert text.startswith("DECISION_UNKNOWN\n")
    assert text.endswith("\nThe message also has REQUEST_DEADLINE: kafka-eos explain REQUEST_DEADLINE\n")


def failed(code: str, job: Job, cause: str = "", way_out: str = "") -> str:
    """A message as the job's log has it, with a trace of Java on both sides."""
    error = DecisionPendingError(code, f"it failed {cause}".strip(), way_out)
    error.concern(job)
    return f"org.apache.spark.SparkException: {error}\n\tat org.apache.spark.Task.run(Task.scala:141)\n"


FINISHED = (
    "WARN [KAFKA_EOS.DECIDED_NOT_FINISHED] all rows of version 7 of write id 'w' are written and visible. "
    "Rows visible: yes. Safe to run again: only with the same txnAppId or checkpoint. Do not write these rows again\n"
)


@pytest.mark.parametrize(
    ("text", "answer", "also"),
    [
        # A task that was tried again, and then the job, in both orders.
        (
            failed("CONNECTION_LOST", Job.BATCH) * 3 + failed("DECIDED_NOT_FINISHED", Job.BATCH),
            "DECIDED_NOT_FINISHED\nRows visible: maybe. Safe to run again: only with the same txnAppId and txnVersion.\n",
            ["CONNECTION_LOST"],
        ),
        (
            failed("DECIDED_NOT_FINISHED", Job.BATCH) + failed("CONNECTION_LOST", Job.BATCH),
            "DECIDED_NOT_FINISHED\nRows visible: maybe. Safe to run again: only with the same txnAppId and txnVersion.\n",
            ["CONNECTION_LOST"],
        ),
        # The message knows the job, which the page does not.
        (
            failed("DECIDED_NOT_FINISHED", Job.RANDOM, way_out="Run kafka-eos recover --write-id w"),
            "DECIDED_NOT_FINISHED\nRows visible: maybe. Safe to run again: no, it would write rows twice.\n\n"
            "    [KAFKA_EOS.DECIDED_NOT_FINISHED] it failed. Rows visible: maybe. Safe to run again: no, it would write rows twice. "
            "Do not run the job again, because it has no txnAppId. Run kafka-eos recover --write-id w "
            "(kafka-eos explain DECIDED_NOT_FINISHED)\n\n"
            "In general (where it differs, the message counts):\n\nThe batch is committed",
            [],
        ),
        (failed("FENCED", Job.RANDOM), "FENCED\nRows visible: no. Safe to run again: yes.\n", []),
        (
            failed("DELIVERY_TIMEOUT", Job.AT_LEAST_ONCE),
            "DELIVERY_TIMEOUT\nRows visible: maybe. Safe to run again: no, it would write rows twice.\n",
            [],
        ),
        # The abort has finished the batch; Spark prints the older error behind it.
        (
            FINISHED + failed("DECIDED_NOT_FINISHED", Job.BATCH),
            "DECIDED_NOT_FINISHED\nRows visible: yes. Safe to run again: only with the same txnAppId or checkpoint.\n",
            [],
        ),
        # A cause is no message of its own, but it is named.
        (
            failed("CONNECTION_LOST", Job.BATCH, "[KAFKA_EOS.COMMIT_LOG_LOST] of another log"),
            "CONNECTION_LOST\nRows visible: no. Safe to run again: yes.\n",
            ["COMMIT_LOG_LOST"],
        ),
        # A run that would write rows twice is graver than a run that fails again; a command's error says nothing.
        (
            failed("DELIVERY_TIMEOUT", Job.AT_LEAST_ONCE)
            + failed("UNRESOLVED", Job.STREAM)
            + f"{KafkaEosError('UNKNOWN_WRITE_ID', 'nothing of it', 'read the topic')}\n",
            "DELIVERY_TIMEOUT\nRows visible: maybe. Safe to run again: no, it would write rows twice.\n",
            ["UNRESOLVED", "UNKNOWN_WRITE_ID"],
        ),
        # One long line of JSON, several messages on it, and a code without its message.
        (
            json.dumps({"log": failed("CONNECTION_LOST", Job.STREAM) + failed("UNRESOLVED", Job.STREAM)}),
            "UNRESOLVED\nRows visible: maybe. Safe to run again: no, it fails again until you act.\n",
            ["CONNECTION_LOST"],
        ),
        (
            "ERROR [KAFKA_EOS.UNRESOLVED] cut off\n" + failed("CONNECTION_LOST", Job.STREAM),
            "UNRESOLVED\nRows visible: maybe. Safe to run again: no, it fails again until you act.\n",
            ["CONNECTION_LOST"],
        ),
    ],
)
def test_text_is_explained_by_its_gravest_message(
    text: str, answer: str, also: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    found = json.loads(explained(capsys, text, "--json"))
    safety = f"Rows visible: {found['rows_visible']}. Safe to run again: {found['run_again']}."
    assert f"{found['code']}\n{safety}\n" in answer
    assert found["also"] == also
    shown = explained(capsys, text)
    assert shown.startswith(answer)
    assert re.findall(r"\nThe message also has \w+: kafka-eos explain (\w+)\n", shown) == also


def test_message_of_a_newer_sink_has_its_own_answers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    newer = failed("OF_TOMORROW", Job.RANDOM).replace("Safe to run again: yes", "Safe to run again: no")
    assert "The message says: rows visible: no; safe to run again: no" in explained(capsys, newer, status=2)


def test_warning_of_a_section_is_shown_with_each_code(capsys: pytest.CaptureFixture[str]) -> None:
    for code in error_codes("After the decision"):
        text = " ".join(explained(capsys, code).split())
        assert "A batch without txnAppId must not run again after an error that follows the decision" in text, code


@pytest.mark.parametrize("words", [["fenced", "lost_parts"], ["FENCED", "LOST_PARTS"], ["FENCED LOST_PARTS"]])
def test_each_of_several_codes_is_named(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    text = explained(capsys, *words)
    assert text.startswith("LOST_PARTS\n")
    assert text.endswith("\nThe message also has FENCED: kafka-eos explain FENCED\n")


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("UNKNOWN_TOPICS", "the nearest codes are UNKNOWN_TOPIC"),
        ("unknown-topic", "the nearest codes are UNKNOWN_TOPIC"),
        ("[KAFKA_EOS.COMIT_LOG_LOST] what", "the nearest codes are COMMIT_LOG_LOST"),
        ("the transaction was aborted", "the nearest codes are TRANSACTION_ABORTED"),
        ("no code " * 100, "see what it left: kafka-eos status"),
        ("x" * 5_000, "kafka-eos explain lists all codes"),
        ("Stage 3 ABORTED by user", "see what it left: kafka-eos status"),
        ("NOT_LEADER_OR_FOLLOWER", "it is a code of Kafka itself; to find the errors of a log: grep KAFKA_EOS LOG"),
        ("unknown_producer_id", "it is a code of Kafka itself"),
        ("spark.log", "to find the errors of a log: grep KAFKA_EOS LOG"),
        ("xyzzy", "kafka-eos explain lists all codes"),
    ],
)
def test_unknown_code_is_wrong_usage_with_the_nearest(
    code: str, hint: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert hint in explained(capsys, code, status=2)


def test_list_has_each_code_once_in_its_section(capsys: pytest.CaptureFixture[str]) -> None:
    lines = explained(capsys).splitlines()
    codes = [line.strip().partition("  ")[0] for line in lines if line.startswith("  ")]
    assert codes == explained_errors()
    # A sentence, not its beginning, also if a list follows.
    assert [
        line for line in lines if line.startswith("  ") and not (len(line.split()) > 3 and line.endswith("."))
    ] == []
    for section in ("What the commit log forbids", "After the decision"):
        first = lines.index(section) + 2
        assert [line.split()[0] for line in lines[first:] if line][: len(error_codes(section))] == error_codes(section)


def test_list_keeps_one_line_per_code_on_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Console(width=80, force_terminal=True)
    monkeypatch.setattr(console, "output_console", lambda: terminal)
    lines = explained(capsys).splitlines()
    assert max(map(len, lines)) == 80
    assert sum(line.startswith("  ") for line in lines) == len(explained_errors())


def test_text_fits_80_columns_and_breaks_no_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "output_console", lambda: Console(width=80))
    text = explained(capsys, "TRANSACTIONS_NOT_VERIFIED")
    assert max(map(len, text.splitlines())) <= 80
    assert "kafka-features.sh --bootstrap-server S upgrade --feature transaction.version=2" in text
    assert "\n- If transaction.partition.verification.enable is false, run the command in the\n  message.\n" in text


def test_links_name_their_page_and_codes_their_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert "quota (docs/performance.md#quotas)" in " ".join(explained(capsys, "DELIVERY_TIMEOUT").split())
    assert "as for DELIVERY_TIMEOUT." in " ".join(explained(capsys, "BUFFER_EXHAUSTED").split())


def test_json_has_visibility_and_text(capsys: pytest.CaptureFixture[str]) -> None:
    one = json.loads(explained(capsys, "lost_parts", "--json"))
    assert (one["code"], one["section"]) == ("LOST_PARTS", "After the decision")
    assert (one["rows_visible"], one["run_again"]) == ("maybe", "only with the same txnAppId or checkpoint")
    assert one["text"].startswith("Rows of a committed version are missing")
    listed = json.loads(explained(capsys, "--json"))
    assert [each["code"] for each in listed] == explained_errors()
    assert one in [each | {"also": []} for each in listed]


@pytest.mark.parametrize("code", ["UNKNOWN_WRITE_ID", "TOPIC_NOT_READ"])
@pytest.mark.parametrize("way", ["code", "message"])
def test_error_of_a_command_has_no_answer_on_rows(code: str, way: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = code if way == "code" else f"kafka-eos: {KafkaEosError(code, 'what happened', 'what to do')}"
    shown = explained(capsys, given)
    assert shown.startswith(f"{code}\n{OF_A_COMMAND}\n\n")
    for words in ("Rows visible", "Safe to run again", "message"):
        assert words not in shown
    found = json.loads(explained(capsys, given, "--json"))
    assert (found["rows_visible"], found["run_again"]) == (None, None)


def test_message_of_a_command_with_a_code_of_jobs_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """It has no answer on rows, and the answers of the page are for jobs: "run again" would send an operator into a second run."""
    given = f"kafka-eos: {KafkaEosError('UNKNOWN_TOPIC', 'no topic', 'create it')}"
    shown = explained(capsys, given)
    assert shown.startswith("UNKNOWN_TOPIC\nThe message says nothing about rows")
    assert "The message is cut" not in shown
    assert "Safe to run again" not in shown.partition("\n\n")[0]
    found = json.loads(explained(capsys, given, "--json"))
    assert (found["rows_visible"], found["run_again"]) == (None, None)


def test_installed_package_is_not_sent_to_pages_that_it_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explain, "DOCS", tmp_path)
    assert re.findall(r"\w+\.md\b", explained(capsys, "--json")) == []
    assert "an unreachable leader, a quota, or a request" in " ".join(explained(capsys, "DELIVERY_TIMEOUT").split())


def test_page_shows_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    command, output = [
        block for block in read(ERRORS).blocks if block.section == "read-a-message" and not block.text.startswith("[")
    ]
    assert explained(capsys, *command.commands()[0].split()[2:]) == output.text
