"""What an error says about its rows: in the message for each kind of job, and on the page for each code."""

from __future__ import annotations

import ast
import inspect
import pickle
from functools import cache
from pathlib import Path

import pytest

from documents import ROOT, error_codes
from kafka_eos_sink.error_table import table
from kafka_eos_sink.errors import (
    FencedError,
    Job,
    KafkaEosError,
    ProtocolError,
    RunAgain,
    safety_of,
    safety_sentence,
    speaks_of_rows,
)
from kafka_eos_sink.protocol.error_codes import ErrorCode

JOBS = (
    "kafka_eos_sink",
    "kafka_eos_sink.spark",
    "pyspark_kafka_eos",
    "spark_jobs.batch_to_kafka",
    "spark_jobs.stream_to_kafka",
)
"""Where a job that writes begins: it can raise every code of a module that these packages and modules import."""
NEVER_IN_A_JOB = {
    "UNKNOWN_WRITE_ID": "only commands take over with UnknownId.REFUSE",
    "NO_HISTORY": "the driver goes on without a history",
    "BOOTSTRAP_SERVERS": "options are read first, and report INVALID_OPTIONS",
}
"""Codes in modules of a job that it never raises."""
FOUND_ROWS = {"NOT_AS_DECIDED", "ROWS_ARE_VISIBLE"}
"""Codes of commands that say something about rows."""


SAFETY = {code: safety for code in table().rows if speaks_of_rows(code) and (safety := safety_of(code)) is not None}
"""The codes whose answers are their own."""


@cache
def modules() -> dict[str, ast.Module]:
    """The package and the jobs, by name."""
    paths = [
        path for name in ("kafka_eos_sink", "pyspark_kafka_eos", "spark_jobs") for path in (ROOT / name).rglob("*.py")
    ]
    return {named(path): ast.parse(path.read_text("utf-8")) for path in paths}


def named(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported_by(module: str) -> set[str]:
    found = set()
    for node in ast.walk(modules()[module]):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
    return found & modules().keys()


def of_a_job() -> set[str]:
    """The modules that a job which writes can run."""
    found: set[str] = set()
    left = {each for each in modules() if each in JOBS or each.startswith("kafka_eos_sink.spark.")}
    while left:
        found |= left
        left = set().union(*map(imported_by, left)) - found
    return found


def codes_of_commands() -> set[str]:
    """The codes that no module of a job has."""
    in_jobs, in_commands, jobs = set[str](), set[str](), of_a_job()
    for name, tree in modules().items():
        if name != "kafka_eos_sink.errors":
            texts = {
                node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
            }
            (in_jobs if name in jobs else in_commands).update(texts)
    nowhere = set(error_codes()) - in_jobs - in_commands - {inspect.signature(ProtocolError).parameters["code"].default}
    unused = sorted(nowhere - ErrorCode.__members__.keys())
    assert not unused, f"no module raises {unused}: remove their rows from kafka_eos_sink/errors.toml, or raise them"
    return (set(error_codes()) & in_commands - in_jobs) | NEVER_IN_A_JOB.keys()


def test_code_that_only_commands_raise_never_vouches_for_rows() -> None:
    """A job's default is "no row is visible, run again". From a command it would send an operator into a second run."""
    of_commands = {row.code for row in table().rows.values() if row.command}
    only, marked = codes_of_commands(), of_commands | FOUND_ROWS
    assert only <= marked, f"only commands raise {sorted(only - marked)}: give their rows in errors.toml command = true"
    assert marked <= only, (
        f"a job can raise {sorted(marked - only)}: remove command = true from their rows in errors.toml"
    )
    assert [code for code in of_commands if speaks_of_rows(code)] == []
    assert all(speaks_of_rows(code) for code in FOUND_ROWS)


def test_jobs_never_refuse_an_unknown_write_id() -> None:
    """Only for UnknownId.REFUSE take_over raises UNKNOWN_WRITE_ID (`standing_of`)."""
    users = {
        name
        for name, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "UnknownId.REFUSE"
    }
    assert users & of_a_job() == {"kafka_eos_sink.commit.log_standing"}


@pytest.mark.parametrize("code", ["FENCED", "PRODUCER_FENCED"])
def test_fenced_command_does_not_advise_a_random_job_to_run_again(code: str) -> None:
    """The job itself is fenced before its decision; a command that another one fences may have found a decided batch."""
    assert safety_sentence(code, Job.RANDOM) == "Rows visible: no. Safe to run again: yes."
    sentence = safety_sentence(code, Job.RANDOM, in_command=True)
    assert sentence.startswith(f"Rows visible: maybe. Safe to run again: {RunAgain.TWICE}. Do not run the job again")


def said(code: str, job: Job) -> str:
    error = KafkaEosError(code, "what happened", "what to do")
    error.concern(job)
    return str(error)


@pytest.mark.parametrize("code", sorted(SAFETY))
def test_job_without_an_id_is_never_advised_to_reuse_it(code: str) -> None:
    text = said(code, Job.RANDOM)
    assert "same txnAppId" not in text
    is_free = SAFETY[code].run_again is RunAgain.YES or code in ("FENCED", "PRODUCER_FENCED")
    assert ("Do not run the job again" in text) is not is_free


@pytest.mark.parametrize("job", [Job.BATCH, Job.STREAM])
def test_error_before_the_plan_does_not_speak_for_earlier_runs(job: Job) -> None:
    """An earlier run may have written the version, and this one has not looked."""
    for code in ("TOPIC_AUTHORIZATION_FAILED", "INVALID_OPTIONS", "CHECKPOINT_NOT_READABLE"):
        sentence = safety_sentence(code, job, has_plan=False)
        assert sentence.startswith("This run wrote nothing of the batch. Safe to run again: ")
        assert "Rows visible" not in sentence
    assert safety_sentence("UNRESOLVED", job, has_plan=False).startswith("Rows visible: maybe.")
    assert safety_sentence("INVALID_OPTIONS", Job.RANDOM, has_plan=False).startswith("Rows visible: no.")


@pytest.mark.parametrize("code", ["RECORD_TOO_LARGE", "DELIVERY_TIMEOUT", "TOPIC_GONE"])
def test_no_error_of_an_at_least_once_task_is_safe(code: str) -> None:
    text = said(code, Job.AT_LEAST_ONCE)
    assert (
        "Rows visible: maybe. Safe to run again: no, it would write rows twice. This write has delivery.guarantee=at-least-once: another "
        "run writes all rows again." in text
    )


def test_first_job_that_an_error_concerns_stands() -> None:
    error = KafkaEosError("UNKNOWN_TOPIC", "no topic t")
    error.concern(Job.AT_LEAST_ONCE)
    error.concern(Job.BATCH)
    assert str(error).count("Rows visible") == 1
    assert error.safety == safety_sentence("UNKNOWN_TOPIC", Job.AT_LEAST_ONCE)


def test_safety_survives_the_way_between_processes() -> None:
    error = FencedError("FENCED", "another run has replaced this run", "stop one")
    error.concern(Job.STREAM)
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error)
    assert copy.way_out == "stop one"
