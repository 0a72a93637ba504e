"""Attempts that are too late: in a batch whose oldest transaction cannot outlive it, and after their batch was decided without them.

Without Spark, since Spark notices a failed task only when its next rows arrive (docs/internals/spark-behaviour.md).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from dead_writes import ROWS, abort_by_hand, rows_of, tasks, write_settings
from kafka_eos_sink.commit.values import TaskOutcome
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.errors import TransactionAbortedError
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.producer.rows import Rows
from kafka_eos_sink.runtime import session
from kafka_eos_sink.runtime.failpoints import VARIABLE
from kafka_testing import assert_nothing_open, create_topic, read_committed, wait_until

TIMEOUT_MS = 5_000
ROWS_GO_ON_FOR_S = 90


def late_rows(topic: str, first_after_s: float) -> Iterator[Rows]:
    """Rows that go on for far longer than any transaction of the batch may live."""
    time.sleep(first_after_s)
    give_up_at = time.monotonic() + ROWS_GO_ON_FOR_S
    while time.monotonic() < give_up_at:
        yield rows_of(topic, 1)
        time.sleep(0.05)


def short_lived(kafka: EmbeddedKafka, topic: str) -> session.WriteSettings:
    return replace(write_settings(kafka, topic), producer=ProducerConfig(transaction_timeout_ms=TIMEOUT_MS))


def second_task(settings: session.WriteSettings, plan: session.Plan, first_after_s: float, attempt: int = 1) -> None:
    identity = session.TaskIdentity(partition=1, attempt_number=attempt - 1, task_attempt_id=attempt)
    session.write_task(settings, plan, identity, late_rows(settings.batch.topic or "", first_after_s))


@pytest.mark.parametrize(
    ("first_row_after_s", "reason"),
    [(0.0, "this task's own transaction has run too long"), (7.0, "transaction of partition 0 was aborted")],
)
def test_a_straggler_fails_long_before_its_last_row(
    any_kafka: EmbeddedKafka, first_row_after_s: float, reason: str
) -> None:
    topic = create_topic(any_kafka.bootstrap_servers)
    settings = short_lived(any_kafka, topic)
    plan = session.plan(settings)
    # Where this attempt's own age is to be the reason, the other transaction must not time out before anybody looks.
    alone = first_row_after_s == 0.0
    messages = tasks(settings, replace(plan, transaction_timeout_ms=600_000) if alone else plan, 1)
    started = time.monotonic()
    with pytest.raises(TransactionAbortedError, match=r"\[KAFKA_EOS\.TRANSACTION_TOO_OLD\]") as raised:
        second_task(settings, plan, first_row_after_s)
    assert time.monotonic() - started < ROWS_GO_ON_FOR_S
    said = str(raised.value)
    for needed in (
        reason,
        "s have passed",
        "transactions end at 5.0 s",
        "kafka.transaction.timeout.ms",
        "smaller batches",
    ):
        assert needed in said
    if alone:
        abort_by_hand(settings, messages)
    # Spark tries again, and that attempt does not even wait for its rows: the batch is older than a transaction may be.
    assert_nothing_open(any_kafka.bootstrap_servers)
    wait_until(lambda: time.monotonic() - started > TIMEOUT_MS / 1_000, "the age of the batch")
    with pytest.raises(TransactionAbortedError, match="TRANSACTION_TOO_OLD"):
        second_task(settings, plan, ROWS_GO_ON_FOR_S, attempt=2)
    assert time.monotonic() - started < ROWS_GO_ON_FOR_S
    session.abort(settings, plan, [])
    assert read_committed(any_kafka.bootstrap_servers, topic) == []
    assert_nothing_open(any_kafka.bootstrap_servers)


def decide(settings: session.WriteSettings, plan: session.Plan) -> None:
    session.commit(settings, plan, tasks(settings, plan))


def take_over(settings: session.WriteSettings, plan: session.Plan) -> None:
    decide(settings, session.plan(settings))


@pytest.mark.parametrize("overtake", [decide, take_over])
@pytest.mark.parametrize("step", ["task.initialised", "task.flushed"])
def test_overtaken_attempt_leaves_no_open_transaction(
    any_kafka: EmbeddedKafka,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    overtake: Callable[[session.WriteSettings, session.Plan], None],
    step: str,
) -> None:
    """Spark does not tell it, and the driver has looked for losing attempts already."""
    topic = create_topic(any_kafka.bootstrap_servers)
    settings = write_settings(any_kafka, topic)
    plan = session.plan(settings)
    monkeypatch.setattr("kafka_eos_sink.commit.commit_batch.LOSERS_WITHIN_MS", 60_000)  # they are to be seen

    def losing(attempt: int) -> session.TaskMessage:
        identity = session.TaskIdentity(partition=1, attempt_number=attempt, task_attempt_id=6 + attempt)
        return session.write_task(settings, plan, identity, iter([rows_of(topic, 1)]))

    held = tmp_path / "held"
    monkeypatch.setenv(VARIABLE, f"{step}=wait:{held}")
    with ThreadPoolExecutor() as another:
        late = another.submit(losing, 1)
        try:
            wait_until(held.exists, "the losing attempt")
            overtake(settings, plan)
        finally:
            monkeypatch.delenv(VARIABLE)
            held.unlink(missing_ok=True)
        if step == "task.flushed" and any_kafka.transaction_version == 2:
            # Its transaction was open when the driver looked: the epoch is another now.
            with pytest.raises(TransactionAbortedError):
                late.result()
        else:
            assert late.result().outcome is TaskOutcome.OVERTAKEN
    assert losing(2).outcome is TaskOutcome.OVERTAKEN  # which begins only now
    assert_nothing_open(any_kafka.bootstrap_servers)
    found = Counter(record.value for record in read_committed(any_kafka.bootstrap_servers, topic))
    assert found == Counter(b"%d" % number for number in range(2 * ROWS))
