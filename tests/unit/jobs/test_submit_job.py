"""How the jobs are told of a cluster and how they end, without Spark."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NoReturn

import pytest

from kafka_eos_sink.errors import ConfigurationError, one_sentence
from kafka_eos_sink.jobs.submit_job import (
    JobFailed,
    add_cluster_arguments,
    assignment,
    check_cluster_arguments,
    cluster_options,
    end,
    job_parser,
)


def parse(*argv: str) -> argparse.Namespace:
    parser = job_parser("job", "A job.", "The end.")
    add_cluster_arguments(parser, of="the sink")
    given = parser.parse_args(argv)
    check_cluster_arguments(parser, given)
    return given


def test_command_line_overrides_options_and_options_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=file:1\nclient.id=file\nlinger.ms=7\ngroup.id=none-of-ours\n", "utf-8")
    given = parse(
        "--properties", str(file), "--option", "kafka.Client.Id=option", "--option", "onCheckpointRollback=skip"
    )
    assert cluster_options(given) == {
        "kafka.bootstrap.servers": "file:1",
        "kafka.client.id": "option",
        "kafka.linger.ms": "7",
        "oncheckpointrollback": "skip",
    }
    assert capsys.readouterr().err == f"warning: {file}: not for this client: group.id\n"
    given = parse("--properties", str(file), "--option", "kafka.bootstrap.servers=o:1", "--bootstrap-servers", "a:1")
    assert cluster_options(given)["kafka.bootstrap.servers"] == "a:1"


@pytest.mark.parametrize("named", ["--bootstrap-servers=a:1", "--properties=x", "--option=KAFKA.bootstrap.servers=a:1"])
def test_missing_bootstrap_servers_are_wrong_usage(named: str, capsys: pytest.CaptureFixture[str]) -> None:
    parse(named)
    with pytest.raises(SystemExit) as caught:
        parse("--option", "kafka.client.id=x")
    assert caught.value.code == 2
    assert capsys.readouterr().err.endswith(
        "job.py: error: --bootstrap-servers is required (or bootstrap.servers in --properties)\n"
    )


def test_an_assignment_keeps_further_equals_signs() -> None:
    assert assignment("kafka.sasl.jaas.config=a b=c;") == ("kafka.sasl.jaas.config", "a b=c;")
    assert assignment("a=") == ("a", "")
    for wrong in ("a", "=b", ""):
        with pytest.raises(argparse.ArgumentTypeError, match="is not NAME=VALUE"):
            assignment(wrong)


def raised(error: BaseException) -> NoReturn:
    raise error


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (ConfigurationError("INVALID_OPTIONS", "no\nstack"), "[KAFKA_EOS.INVALID_OPTIONS] no"),
        (RuntimeError("Py4J says\n: x.Y: [KAFKA_EOS.FENCED] by a newer one \n\tat z"), "[KAFKA_EOS.FENCED] by a newer one"),
        (RuntimeError("\n[PATH_NOT_FOUND] no such path. SQLSTATE: 42K03\nplan"), "[PATH_NOT_FOUND] no such path. SQLSTATE: 42K03"),
        (RuntimeError("An error occurred while calling o1.save.\n: java.io.IOException: no disk\n"), "java.io.IOException: no disk"),
        (JobFailed("half of it"), "half of it"),
        (ZeroDivisionError(), "ZeroDivisionError"),
    ],
)  # fmt: skip
def test_a_failure_is_one_sentence_and_status_1(
    error: BaseException, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert one_sentence(error) == sentence
    assert end("job", lambda: raised(error)) == 1
    assert capsys.readouterr() == ("", f"job: {sentence}\n")
