"""The command line of batch_to_kafka.py, without Spark."""

from __future__ import annotations

import pytest

from spark_jobs.batch_to_kafka import arguments

FILES = ("--bootstrap-servers", "a:1", "--topic", "t", "data")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--topic", "t", "data"), "--bootstrap-servers is required (or bootstrap.servers in --properties)"),
        ((*FILES, "--txn-version", "1"), "--txn-app-id and --txn-version belong together"),
        (
            (*FILES, "--txn-app-id", "x", "--txn-version", "one"),
            "argument --txn-version: 'one' is not an integer from 0",
        ),
        ((*FILES, "--txn-app-id", "x", "--txn-version=-1"), "argument --txn-version: '-1' is not an integer from 0"),
        ((*FILES, "--sql", "SELECT 1", "--key", "a"), "--sql and --key exclude each other"),
    ],
)
def test_wrong_usage(argv: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        arguments(argv)
    assert caught.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"batch_to_kafka.py: error: {said}"
