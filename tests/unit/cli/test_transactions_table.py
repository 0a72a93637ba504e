from __future__ import annotations

import pytest
from rich.console import Console

from kafka_eos_sink.cli import console
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.cli.transactions import duration, transactions_table
from kafka_eos_sink.protocol.messages import TransactionState


def state(**given: object) -> TransactionState:
    fields: dict[str, object] = {
        "error_code": 0,
        "transactional_id": "w.0.3",
        "transaction_state": "Ongoing",
        "producer_id": 7,
        "producer_epoch": 2,
        "transaction_timeout_ms": 900_000,
        "transaction_start_time_ms": 1_000_000,
        "topics": (TransactionState.Topic(topic="orders", partitions=(2, 0)),),
    }
    return TransactionState(**(fields | given))  # type: ignore[arg-type]


def shown(*states: TransactionState, now_ms: int = 1_060_000) -> str:
    terminal = Console(width=160, color_system=None)
    with terminal.capture() as captured:
        terminal.print(transactions_table(states, now_ms))
    return captured.get()


def test_age_and_time_left_are_shown() -> None:
    line = shown(state()).splitlines()[1]
    assert line.split() == ["w.0.3", "Ongoing", "1", "min", "0", "s", "14", "min", "0", "s", "7", "2", "orders", "0,2"]


def test_a_transaction_without_timeout_never_ends_by_itself() -> None:
    assert " never " in shown(state(transaction_timeout_ms=2**31 - 1))


def test_ending_transaction_shows_no_time_left_unstarted_no_age() -> None:
    assert "14 min" not in shown(state(transaction_state="PrepareCommit"))
    assert shown(state(transaction_start_time_ms=-1)).splitlines()[1].split() == [
        "w.0.3",
        "Ongoing",
        "7",
        "2",
        "orders",
        "0,2",
    ]


def test_longest_possible_id_widens_no_other_row(capsys: pytest.CaptureFixture[str]) -> None:
    longest, others = "x" * 32_767, [state(transactional_id=f"w.{number}.0") for number in range(100)]
    console.show(transactions_table([state(transactional_id=longest), *others], 1_060_000))
    output = capsys.readouterr().out
    assert output.count("x") == len(longest)
    assert len(output) < 10 * len(longest)


def test_many_partitions_are_counted() -> None:
    many = (TransactionState.Topic(topic="big", partitions=tuple(range(30))),)
    assert "big (30 partitions)" in shown(state(topics=many))


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0.0 s"),
        (9_949, "9.9 s"),
        (10_000, "10 s"),
        (59_999, "59 s"),
        (200_000, "3 min 20 s"),
        (18_720_000, "5 h 12 min"),
        (183_600_000, "2 d 3 h"),
    ],
)
def test_durations_are_read_by_people(ms: int, text: str) -> None:
    assert duration(ms) == text


def test_unreachable_brokers_are_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafka_eos_sink.cli.console.TIMEOUT_MS", 300)
    assert main(["transactions", "--bootstrap-servers", "127.0.0.1:1"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("kafka-eos: [KAFKA_EOS.BROKER_UNREACHABLE] no broker of 127.0.0.1:1")
