"""The view of `kafka-eos status` and `top`: its tables, its JSON, and how writes and history are joined."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from rich.console import Console, Group

from cluster_views import EVIL, NOW, batch, blocked, transaction, write
from kafka_eos_sink.cli import console
from kafka_eos_sink.cli.status import _show_ways_out
from kafka_eos_sink.cli.view import view
from kafka_eos_sink.client.config import ClientConfig
from kafka_eos_sink.commit.values import Write
from kafka_eos_sink.operations.cluster_view import ClusterView, HangingTransaction, WriteLine, blocking, write_lines
from kafka_eos_sink.protocol.messages import TransactionState


def test_writes_that_need_action_come_first() -> None:
    lines = write_lines(
        [
            write("a", state="resolved", resolution="committed", finished_ms=None),
            write("b"),
            write("c", state="prepared", finished_ms=None),
            write("d", state="void", finished_ms=NOW - 90_000),
            write("e", state="resolved", resolution="rewrite", finished_ms=None),
            write("f", state="decided", finished_ms=None),
            write("g", state="unreadable", finished_ms=None),
        ],
        [],
    )
    assert [line.write.write_id for line in lines] == ["d", "e", "f", "g", "c", "b", "a"]


def shown(found: ClusterView, width: int = 80, **how: bool) -> str:
    terminal = Console(width=width, color_system=None)
    with terminal.capture() as captured:
        terminal.print(Group(*view(found, live=True, **how)))
    return captured.get()


def lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines() if line]


def test_hostile_texts_are_printable_and_add_no_line() -> None:
    found = ClusterView(
        now_ms=NOW,
        writes=write_lines([write(EVIL, query_id=f"{EVIL}2")], []),
        transactions=(transaction(EVIL),),
        blocked=(blocked(EVIL, topic=EVIL),),
    )
    text = shown(found, 200)
    assert not set("\x1b\x07\x9b\u202e") & set(text)
    assert text.count("evil") == 5
    assert len(lines(text)) == 1 + 3 + 2 + 3


def test_rate_is_that_of_the_newest_measured_batches() -> None:
    records = [
        batch(14, write_ms=None, recovered_by="abort"),  # nobody measured it
        *(batch(version, rows=100, write_ms=30, verify_ms=20) for version in range(13, 4, -1)),
        batch(4, rows=10**9),  # an eleventh one
        batch(3, write_id="another", rows=10**9),
    ]
    (line,) = write_lines([write(version=14)], records)
    assert (line.rows_per_second, line.transactions_copied) == (2_000, 0)


def test_partition_is_blocked_by_all_its_transactions_in_order() -> None:
    topics = (TransactionState.Topic(topic="payments", partitions=(0,)),)
    states = (transaction("b"), transaction("a", topics=topics), transaction("c"))
    found = blocking(states, [("orders", 2), ("orders", 1)])
    assert [state.transactional_id for state in found["orders", 2]] == ["b", "c"]
    assert found["orders", 1] == []


def test_json_holds_the_view(capsys: pytest.CaptureFixture[str]) -> None:
    found = ClusterView(
        now_ms=NOW,
        writes=(WriteLine(write=write(), rows_per_second=5, record=None),),
        transactions=(
            transaction(),
            transaction("ending", transaction_state="PrepareAbort"),
            transaction("never", transaction_timeout_ms=2**31 - 1),
        ),
        blocked=(blocked("w.0.3"),),
        not_read=("rates",),
    )
    console.print_json(found)
    read = json.loads(capsys.readouterr().out)
    assert (read["read_at"], read["not_read"]) == ("2023-11-14T22:14:20+00:00", ["rates"])
    assert [(each["age_ms"], each["time_left_ms"]) for each in read["transactions"]] == [
        (60_000, 840_000),
        (60_000, None),
        (60_000, None),
    ]
    assert read["transactions"][0]["partitions"][0] == {"topic": "log", "partition": 5}
    assert read["blocked"][0]["blocked_by"] == ["w.0.3"]
    assert (read["writes"][0]["write_id"], read["writes"][0]["rows_per_second"]) == ("w", 5)


@pytest.mark.parametrize(("by", "listed"), [((), ""), (("w.0.3",), "w.0.3 "), (("w.0.3", "b"), "w.0.3 and 1 more ")])
def test_hanging_transaction_is_shown_below_the_listed_ones(by: tuple[str, ...], listed: str) -> None:
    hanging = HangingTransaction(start_offset=7, producer_id=12)
    text = " ".join(lines(shown(ClusterView(now_ms=NOW, blocked=(blocked(*by, hanging=hanging),)))))
    assert text.endswith(f" orders-0 40 {listed}producer id 12 from offset 7: no coordinator lists it")


def test_kafkas_command_is_shown_only_for_what_the_write_has_no_record_of(capsys: pytest.CaptureFixture[str]) -> None:
    """On a decided transaction it would discard rows before the decision notes that no reader saw them."""
    on = ClusterView(
        now_ms=NOW,
        blocked=(
            blocked(hanging=HangingTransaction(start_offset=7, producer_id=12)),
            replace(blocked(hanging=HangingTransaction(start_offset=9, producer_id=13)), partition=1),
        ),
    )
    config = ClientConfig(bootstrap_servers=(("b", 1),))
    _show_ways_out(on, config, Write("w", "log", ""), own={12})
    own, others = capsys.readouterr().out.strip().split("\n\n")
    assert (
        own
        == "Of w above is what no coordinator lists. To end it: kafka-eos recover --commit-log-topic log --write-id w"
    )
    assert others.startswith("No coordinator lists what 13 (producer ids) hold open, and w has no record of them.")
    (command,) = [line.strip() for line in others.splitlines() if "kafka-transactions.sh" in line]
    assert command.endswith("--partition 1 --start-offset 9")
