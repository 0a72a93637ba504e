"""The view of `kafka-eos status` and `top`: its tables, its JSON, and how writes and history are joined."""

from __future__ import annotations

import json
import re
import time
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
from kafka_eos_sink.runtime.batch_record import BatchRecord


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


def test_header_counts_writes_not_their_versions() -> None:
    found = ClusterView(
        now_ms=NOW,
        writes=write_lines([write(), write(version=4, state="prepared"), write(query_id="q")], []),
        transactions=(transaction(),),
        blocked=(blocked("w.0.3"),),
    )
    assert shown(found).startswith("2023-11-14 22:14:20 UTC: 1 write, 1 open transaction, 1 blocked partition\n")


def test_view_of_an_empty_cluster_is_one_line() -> None:
    assert shown(ClusterView(now_ms=NOW)) == (
        "2023-11-14 22:14:20 UTC: 0 writes, 0 open transactions, 0 blocked partitions\n"
    )


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


def test_query_id_stands_below_a_write_id_without_it() -> None:
    given = write_lines([write("kafka-eos-1f", query_id="1f"), write("orders", query_id="2e")], [])
    text = shown(ClusterView(now_ms=NOW, writes=given))
    assert "query 2e" in text
    assert "query 1f" not in text


def test_many_rows_end_with_their_number() -> None:
    states = tuple(transaction(f"w.{number}") for number in range(25))
    text = shown(ClusterView(now_ms=NOW, transactions=states))
    assert "w.9 " in text
    assert "w.10 " not in text
    assert "and 15 more (kafka-eos status)" in text


def test_limit_shows_first_what_needs_action_and_how_many_more() -> None:
    writes = [write(f"w{number}", finished_ms=number) for number in range(1_500)]
    found = ClusterView(now_ms=NOW, writes=write_lines([*writes, write("dead", state="decided", finished_ms=None)], []))
    terminal = Console(width=120, color_system=None)
    with terminal.capture() as captured:
        terminal.print(Group(*view(found, limit=3)))
    shown_ids = [each.split()[0] for each in lines(captured.get())[2:]]
    assert shown_ids == ["dead", "w1499", "w1498", "and"]
    assert "and 1498 more (--limit 1501, or --prefix W for the ids that begin with W)" in captured.get()


def test_rate_is_that_of_the_newest_measured_batches() -> None:
    records = [
        batch(14, write_ms=None, recovered_by="abort"),  # nobody measured it
        *(batch(version, rows=100, write_ms=30, verify_ms=20) for version in range(13, 4, -1)),
        batch(4, rows=10**9),  # an eleventh one
        batch(3, write_id="another", rows=10**9),
    ]
    (line,) = write_lines([write(version=14)], records)
    assert (line.rows_per_second, line.transactions_copied) == (2_000, 0)


@pytest.mark.parametrize(
    "records",
    [
        [],
        [batch(query_id="another")],
        [batch(write_ms=None)],
    ],
    ids=["none", "another query", "not measured"],
)
def test_rate_is_empty_without_a_measured_batch(records: list[BatchRecord]) -> None:
    (line,) = write_lines([write()], records)
    assert line.rows_per_second is None


def test_transactions_copied_belong_to_their_version() -> None:
    (line,) = write_lines([write(version=4)], [batch(3, transactions_copied=2)])
    assert (line.rows_per_second, line.transactions_copied) == (5_000, None)


def test_prepared_version_has_no_rate() -> None:
    given = write_lines([write(), write(version=4, state="prepared", rows=None, finished_ms=None)], [batch()])
    assert [(line.write.state, line.rows_per_second) for line in given] == [("prepared", None), ("finished", 5_000)]


def test_writes_that_have_not_ended_stand_first() -> None:
    given = [
        write("old", finished_ms=1),
        write("new", finished_ms=2),
        write("decided", state="decided", finished_ms=None),
        write("resolved", state="resolved", finished_ms=None),
    ]
    assert [line.write.write_id for line in write_lines(given, [])] == ["decided", "new", "old", "resolved"]


def test_partition_is_blocked_by_all_its_transactions_in_order() -> None:
    topics = (TransactionState.Topic(topic="payments", partitions=(0,)),)
    states = (transaction("b"), transaction("a", topics=topics), transaction("c"))
    found = blocking(states, [("orders", 2), ("orders", 1)])
    assert [state.transactional_id for state in found["orders", 2]] == ["b", "c"]
    assert found["orders", 1] == []


def test_transactions_in_20000_partitions_take_no_minute() -> None:
    topics = (TransactionState.Topic(topic="orders", partitions=tuple(range(20_000))),)
    many = transaction("many", topics=topics)
    began = time.monotonic()
    found = blocking([many], many.partitions)
    assert len(found) == 20_000
    each = tuple(blocked("many", partition=at) for at in range(20_000))
    text = shown(ClusterView(now_ms=NOW, transactions=(transaction("w.0.0"),) * 20_000, blocked=each))
    assert "and 19990 more" in text
    assert time.monotonic() - began < 10


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
    assert set(read) == {"read_at", "transactions", "blocked", "writes", "not_read"}
    assert read["read_at"] == "2023-11-14T22:14:20+00:00"
    assert [(each["age_ms"], each["time_left_ms"]) for each in read["transactions"]] == [
        (60_000, 840_000),
        (60_000, None),
        (60_000, None),
    ]
    assert read["transactions"][0]["partitions"][0] == {"topic": "log", "partition": 5}
    assert read["blocked"] == [
        {
            "topic": "orders",
            "partition": 0,
            "hidden_offsets": 40,
            "blocked_by": ["w.0.3"],
            "since_ms": NOW,
            "hanging": None,
        }
    ]
    (line,) = read["writes"]
    assert (line["write_id"], line["version"], line["state"], line["rows"]) == ("w", 3, "finished", 1000)
    assert (line["finished_at"], line["rows_per_second"]) == ("2023-11-14T22:14:15.000+00:00", 5)
    assert read["not_read"] == ["rates"]


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


def of_transactions(*states: TransactionState) -> list[str]:
    return lines(shown(ClusterView(now_ms=NOW, transactions=states), 160))[2:]


def test_a_transaction_without_timeout_never_ends_by_itself() -> None:
    assert " never " in of_transactions(transaction(transaction_timeout_ms=2**31 - 1))[0]


def test_ending_transaction_shows_its_state_for_the_time_left() -> None:
    assert of_transactions(transaction(transaction_state="PrepareAbort"))[0] == (
        "w.0.3 1 min 0 s PrepareAbort 7, epoch 2 log 5"
    )


def test_transaction_that_has_not_started_shows_no_age() -> None:
    assert of_transactions(transaction(started_ms=-1))[0] == "w.0.3 7, epoch 2 log 5"


def test_many_partitions_are_counted() -> None:
    many = (TransactionState.Topic(topic="big", partitions=tuple(range(30))),)
    assert "big (30 partitions)" in of_transactions(transaction(topics=many))[0]


def test_longest_possible_id_widens_no_other_row(capsys: pytest.CaptureFixture[str]) -> None:
    longest, others = "x" * 32_767, [transaction(f"w.{number}.0") for number in range(100)]
    for part in view(ClusterView(now_ms=NOW, transactions=(transaction(longest), *others))):
        console.show(part)
    output = capsys.readouterr().out
    assert output.count("x") == len(longest)
    assert len(output) < 10 * len(longest)


def test_writes_show_query_resolution_and_the_first_offsets() -> None:
    offsets = tuple(OffsetRange(topic="t", partition=each, first_offset=0, last_offset=9) for each in range(20))
    given = [
        write(query_id="q-1", transactions=4, ranges=(offsets,)),
        write(query_id="q-2", state="decided", finished_ms=None, transactions=4),
        write("v", state="resolved", resolution="committed"),
    ]
    text = shown(ClusterView(now_ms=NOW, writes=write_lines(given)), 160, with_offsets=True)
    for part in ("query q-1", "2023-11-14 22:14:15", "1,000", "t-0: 0 to 9", "and 8 more"):
        assert part in text
    assert "resolved as committed" in text


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


def test_one_write_shows_its_transactions_and_offsets() -> None:
    offsets = (OffsetRange(topic="orders", partition=2, first_offset=5, last_offset=9),)
    given = write_lines([write(state="decided", finished_ms=None, transactions=3, ranges=(offsets,))])
    found = ClusterView(now_ms=NOW, writes=given)
    assert lines(shown(found, 160, with_offsets=True))[1:] == [
        "write id version state rows transactions partition: offsets",
        "w 3 decided 1,000 3 orders-2: 5 to 9",
    ]


def test_one_batch_write_names_its_written_versions() -> None:
    def line_of(written: Versions) -> str:
        found = ClusterView(now_ms=NOW, writes=write_lines([write(written=written)]))
        assert "written versions" not in shown(found, 160), "of one write only"
        return lines(shown(found, 4_000, with_offsets=True))[-1]

    ranges = (VersionRange(0, 1), VersionRange(3, 6))
    assert line_of(Versions(ranges)) == "written versions: 0 to 1, 3 to 6"
    assert line_of(Versions(ranges[1:], floor=3)) == (
        "written versions: 3 to 6; below 3 the commit log does not show them"
    )
    assert line_of(Versions()) == "written versions: none"
    many = Versions(tuple(VersionRange(each, each) for each in range(0, 300, 2)))
    assert line_of(many).startswith("written versions: 50 lower ranges (--json), 100, 102, ")
    assert line_of(many).endswith(", 296, 298")


def test_reason_stands_below_an_unreadable_write() -> None:
    given = write_lines([write(version=None, state="unreadable", rows=None, finished_ms=None, problem="no piece 2")])
    assert lines(shown(ClusterView(now_ms=NOW, writes=given)))[1:] == [
        "write id state",
        "w unreadable",
        "w: no piece 2",
    ]


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
    assert main(["status", "--bootstrap-servers", "127.0.0.1:1"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("kafka-eos: [KAFKA_EOS.BROKER_UNREACHABLE] no broker of 127.0.0.1:1")
