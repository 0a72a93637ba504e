"""The view of `kafka-eos status` and `top`: its tables, its JSON, and how writes and history are joined."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from rich.console import Console, Group

from cluster_views import EVIL, NOW, batch, blocked, transaction, write
from kafka_eos_sink.cli import console
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.cli.status import _show_ways_out
from kafka_eos_sink.cli.view import duration, view
from kafka_eos_sink.client.config import ClientConfig
from kafka_eos_sink.commit.values import OffsetRange, Write
from kafka_eos_sink.commit.versions import VersionRange, Versions
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


LONG = "kafka-eos/" + "nightly-import-" * 5 + "/orders"


def shown(found: ClusterView, width: int = 80, **how: bool) -> str:
    terminal = Console(width=width, color_system=None)
    with terminal.capture() as captured:
        terminal.print(Group(*view(found, live=True, **how)))
    return captured.get()


def lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines() if line]


def test_view_shows_transactions_blocked_partitions_and_writes() -> None:
    found = ClusterView(
        now_ms=NOW,
        writes=write_lines([write()], [batch(transactions_copied=2)]),
        transactions=(transaction(), transaction("other", NOW - 1_000, transaction_state="PrepareCommit")),
        blocked=(blocked("w.0.3", "other"), blocked("w.0.3", "other", partition=2, hidden_offsets=None)),
    )
    assert lines(shown(found)) == [
        "2023-11-14 22:14:20 UTC: 1 write, 2 open transactions, 2 blocked partitions",
        "transactional id age times out in producer partitions",
        "w.0.3 1 min 0 s 14 min 0 s 7, epoch 2 log 5",
        "orders 0,2",
        "other 1.0 s PrepareCommit 7, epoch 2 log 5",
        "orders 0,2",
        "blocked partition hidden offsets blocked by",
        "orders-0 40 w.0.3",
        "and 1 more",
        "orders-2 w.0.3",
        "and 1 more",
        "write id version state finished rows rows/s copied",
        "w 3 finished 5.0 s ago 1,000 5,000 2",
    ]


def test_long_ids_are_folded_into_80_columns_and_whole() -> None:
    found = ClusterView(
        now_ms=NOW,
        writes=write_lines([write(LONG, 1_000_000, rows=123_456_789, finished_ms=0)], [batch(write_id=LONG)]),
        transactions=(transaction(f"{LONG}.0.3"),),
        blocked=(blocked(f"{LONG}.0.3", topic=LONG.replace("/", ".")),),
    )
    text = shown(found)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    # Ids stand in the first column, or, as blockers, in the last one.
    table = text.partition("write id")[2]
    assert "".join(line[:80].split(" ")[0] for line in table.splitlines()[1:]) == LONG
    for number in ("1000000", "123,456,789", "5,000"):
        assert number in text


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


def test_longest_possible_id_widens_no_other_row(capsys: pytest.CaptureFixture[str]) -> None:
    longest, others = "x" * 32_767, [transaction(f"w.{number}.0") for number in range(99)]
    for part in view(ClusterView(now_ms=NOW, transactions=(transaction(longest), *others))):
        console.show(part)
    output = capsys.readouterr().out
    assert output.count("x") == len(longest)
    assert len(output) < 10 * len(longest)


@pytest.mark.parametrize("kind", ["xterm", "dumb"])
def test_narrow_terminal_breaks_no_write_id(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", kind)
    monkeypatch.setenv("NO_COLOR", "1")
    write_id = "kafka-eos/" + "nightly-import-" * 5 + "/orders"
    offsets = (OffsetRange(topic="t" * 60, partition=0, first_offset=0, last_offset=9),)
    given = write_lines([write(write_id, rows=None, finished_ms=None, ranges=(offsets,))])
    for part in view(ClusterView(now_ms=NOW, writes=given), with_offsets=True):
        console.show(part)
    *_, line = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert line.split() == [write_id, "3", "finished", "0", f"{'t' * 60}-0:", "0", "to", "9"]


def test_one_batch_write_names_its_written_versions() -> None:
    def line_of(written: Versions) -> str:
        found = ClusterView(now_ms=NOW, writes=write_lines([write(written=written)]))
        assert "written versions" not in shown(found, 160), "of one write only"
        return lines(shown(found, 4_000, with_offsets=True))[-1]

    assert line_of(Versions((VersionRange(3, 6),), floor=3)) == (
        "written versions: 3 to 6; below 3 the commit log does not show them"
    )
    many = Versions(tuple(VersionRange(each, each) for each in range(0, 300, 2)))
    assert line_of(many).startswith("written versions: 50 lower ranges (--json), 100, 102, ")
    assert line_of(many).endswith(", 296, 298")


def test_unreachable_brokers_are_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafka_eos_sink.cli.console.TIMEOUT_MS", 300)
    assert main(["status", "--bootstrap-servers", "127.0.0.1:1"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("kafka-eos: [KAFKA_EOS.BROKER_UNREACHABLE] no broker of 127.0.0.1:1")


def test_table_of_writes_has_each_case() -> None:
    """Rate and copies are of the shown version, the query stands below a write id without it, and a reason below the table."""
    offsets = tuple(OffsetRange(topic="t", partition=each, first_offset=0, last_offset=9) for each in range(20))
    given = [
        write(query_id="q-1", transactions=4, ranges=(offsets,)),
        write("v-q-2", query_id="q-2", state="resolved", resolution="committed", rows=0),
        write(version=4, state="prepared", rows=None, finished_ms=None),
        write("u", None, "unreadable", rows=None, finished_ms=None, problem="no piece 2"),  # type: ignore[arg-type]
    ]
    records = [batch(3, transactions_copied=2), batch(3, query_id="q-1", write_ms=None)]
    text = shown(ClusterView(now_ms=NOW, writes=write_lines(given, records)), 400, with_offsets=True)
    assert lines(text)[2:4] == ["u unreadable 0", "w 4 prepared 0"]
    at = lines(text).index("w 3 finished 2023-11-14 22:14:15 1,000 0 4 t-0: 0 to 9")
    assert lines(text)[at + 1] == "query q-1 t-1: 0 to 9"
    assert "and 8 more (kafka-eos status --json)" in text
    assert "resolved as committed" in text
    assert "query q-2" not in text
    assert lines(text)[-1] == "u: no piece 2"


@pytest.mark.parametrize(
    ("state", "row"),
    [
        (transaction(transaction_timeout_ms=2**31 - 1), "w.0.3 1 min 0 s never 7, epoch 2 log 5"),
        (transaction(transaction_state="PrepareAbort"), "w.0.3 1 min 0 s PrepareAbort 7, epoch 2 log 5"),
        (transaction(started_ms=-1), "w.0.3 7, epoch 2 log 5"),
        (
            transaction(topics=(TransactionState.Topic(topic="big", partitions=tuple(range(30))),)),
            "w.0.3 1 min 0 s 14 min 0 s 7, epoch 2 big (30 partitions)",
        ),
    ],
)
def test_transaction_shows_age_and_time_left(state: TransactionState, row: str) -> None:
    assert lines(shown(ClusterView(now_ms=NOW, transactions=(state,)), 160))[2] == row


@pytest.mark.parametrize(("live", "most"), [(True, 10), (False, 100)])
def test_table_ends_with_the_number_of_the_other_rows(
    live: bool, most: int, capsys: pytest.CaptureFixture[str]
) -> None:
    states = tuple(transaction(f"w.{number}") for number in range(20_000))
    for part in view(ClusterView(now_ms=NOW, transactions=states), live=live):
        console.show(part)
    assert f"\nand {20_000 - most} more (" in capsys.readouterr().out


def test_durations_are_read_by_people() -> None:
    given = (0, 9_949, 10_000, 59_999, 200_000, 18_720_000, 183_600_000)
    assert [*map(duration, given)] == ["0.0 s", "9.9 s", "10 s", "59 s", "3 min 20 s", "5 h 12 min", "2 d 3 h"]
