from __future__ import annotations

import os
import subprocess
import sys

import pytest

from kafka_eos_sink.cli.main import main


@pytest.mark.parametrize(
    "arguments",
    [
        ["brokre"],
        ["broker", "--brokers", "2"],
        ["broker", "--transaction-version", "3"],
        ["broker", "--port", "0"],
        ["broker", "extra"],
        ["broker", "--no-such-option"],
        ["broker", "--topic", "orders"],
        ["broker", "--topic", "orders:0"],
        ["broker", "--topic", "orders:three"],
        ["broker", "--topic", "my orders:3"],
        ["broker", "--topic", "..:3"],
        ["broker", "--topic", "orders:3", "--topic", "orders:4"],
        ["consume"],
        ["consume", "--topic", "orders", "--count", "0"],
        ["forget"],
        ["forget", "--prefix", "x"],
        ["forget", "--write-id", "x", "--older-than", "1d"],
        ["resolve", "--write-id", "w", "--version", "1", "--as", "done"],
        ["resolve", "--write-id", "w", "--version", "1", "--as", "committed", "--allow-duplicates"],
        ["resolve", "--write-id", "w", "--version", "-1", "--as", "committed"],
        ["history", "--write-id", "w", "--prefix", "w"],
        ["history", "--topic", "t", "--partition", "0"],
        ["history", "--write-id", "w", "--topic", "t", "--partition", "0", "--offset", "0"],
    ],
)
def test_wrong_usage_is_status_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "kafka-eos" in capsys.readouterr().err


def test_a_failure_is_one_sentence_and_status_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert main(["broker"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[-1].startswith("kafka-eos: [KAFKA_EOS.JAVA_NOT_FOUND] JAVA_HOME is /nowhere")


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_text_that_the_output_cannot_encode_is_escaped(stream: str) -> None:
    """As the write id of a job that is named in another script, in the error of any command."""
    program = f"from kafka_eos_sink.cli.main import main; import sys; main(['--version']); print('\\U0001f600', file=sys.{stream})"
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1:strict"}
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, env=environment, timeout=60, check=True
    )
    assert b"\\U0001f600" in getattr(ended, stream)
