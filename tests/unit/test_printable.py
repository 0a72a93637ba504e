"""Names and texts that other programs choose reach no terminal and no log with control characters."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys

import pytest
from rich.console import Console

from kafka_eos_sink.cli import console
from kafka_eos_sink.cli.check import check_table
from kafka_eos_sink.errors import KafkaEosError, one_sentence
from kafka_eos_sink.logs import warn_once
from kafka_eos_sink.operations.cluster_check import CheckLine
from kafka_eos_sink.protocol import messages as m
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.messages import Broker
from kafka_eos_sink.protocol.reactions import refusal

# Sets the title of the terminal, clears it (both ways to begin such a sequence), and turns the direction of the text.
EVIL = "evil\x1b]0;owned\x07\x9b2J\u202e\x7f"
ACTIVE = set(EVIL) - set("evil]0;owned2J")


def test_error_of_hostile_text_is_printable() -> None:
    error = KafkaEosError("SOME_CODE", f"transaction {EVIL}\nsecond line")
    assert not ACTIVE & set(str(error))
    assert error.message.endswith("\nsecond line")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert not ACTIVE & set(one_sentence(RuntimeError(EVIL)))


def test_brokers_message_is_one_short_line() -> None:
    code = ErrorCode.POLICY_VIOLATION
    error = refusal(
        m.CreateTopicsRequest, code, "CreateTopics", f"{EVIL}\n[KAFKA_EOS.FINISHED] all is well" + "x" * 10_000
    )
    assert "\n" not in error.message
    assert not ACTIVE & set(error.message)
    assert len(error.message) < 700


def test_address_of_a_broker_is_printable() -> None:
    assert not ACTIVE & set(str(Broker(node_id=1, host=EVIL, port=9092)))


def test_warning_is_printable(caplog: pytest.LogCaptureFixture) -> None:
    warn_once(f"the topic {EVIL}")
    assert not ACTIVE & set(caplog.text)


def test_log_on_standard_error_is_printable() -> None:
    program = "import logging, kafka_eos_sink; logging.getLogger('kafka_eos_sink').info('%s', '\\x1b[2J\\x9b')"
    environment = {"KAFKA_EOS_LOG": "info", "PYTHONPATH": ":".join(sys.path), "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert "[2J" in done.stderr
    assert not ACTIVE & set(done.stderr)
    assert logging.getLogger("kafka_eos_sink").handlers == []


def test_cells_and_lines_of_commands_are_printable(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Console(width=160, color_system=None)
    with terminal.capture() as captured:
        terminal.print(check_table([CheckLine(f"topic {EVIL}", EVIL, EVIL, meaning=EVIL)]))
    assert captured.get().count("evil") == 4
    assert not ACTIVE & set(captured.get())
    console.echo(EVIL)
    console.echo(EVIL, err=True)
    shown = capsys.readouterr()
    assert not ACTIVE & set(shown.out + shown.err)
    assert "evil" in shown.out
    assert "evil" in shown.err
