"""The DEBUG log shows every step of a procedure, and no content of a record."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.steps import Procedure
from kafka_eos_sink.commit.values import OffsetRange
from kafka_eos_sink.errors import BrokerUnavailableError
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.protocol.identity import ProducerIdentity
from kafka_eos_sink.protocol.wire_types import ZERO_UUID
from kafka_eos_sink.runtime import step_log
from kafka_eos_sink.runtime.executor import Executor

OWN = ProducerIdentity(transactional_id="w.0.3", producer_id=7, producer_epoch=2, transaction_version=2)
RECORD = steps.LogRecord(b"secret key", b"secret value")


def run(procedure: Any, **performers: Any) -> Any:
    client = SimpleNamespace(clock=lambda: 0, config=SimpleNamespace(client_id="me"))
    admin: Any = SimpleNamespace(client=client)
    executor = Executor(admin, ("log", 5), ProducerConfig(delivery_timeout_ms=1))
    executor._performers |= {getattr(steps, name): perform for name, perform in performers.items()}
    return executor.run(procedure)


def lose(_: Any) -> Any:
    raise BrokerUnavailableError("REQUEST_DEADLINE", "a message with a secret value")


def test_each_step_has_a_line_with_ids_milliseconds_and_outcome(caplog: pytest.LogCaptureFixture) -> None:
    def procedure() -> Procedure[None]:
        yield from steps.InitProducerId("w.0.3", 60_000)
        yield from steps.Append((RECORD,))
        try:
            yield from steps.EndTransactions((steps.End(identity=OWN, commit=True),))
        except BrokerUnavailableError:
            yield from steps.ReadLog(4)

    chunk = steps.LogChunk(entries=(), next_offset=9, log_start_offset=0, end_offset=9)
    with caplog.at_level(logging.DEBUG, "kafka_eos_sink"):
        run(
            procedure(),
            InitProducerId=lambda _: OWN,
            Append=lambda _: 8,
            EndTransactions=lose,
            ReadLog=lambda _: chunk,
        )
    lines = [re.sub(r"\d+\.\d ms", "N ms", record.getMessage()) for record in caplog.records]
    assert lines == [
        "[me] step InitProducerId: transactional_id=w.0.3, timeout_ms=60000; commit log log-5; N ms: w.0.3 (producer id 7, epoch 2)",
        "[me] step Append: records=[key=10 bytes, value=12 bytes]; commit log log-5; N ms: 8",
        "[me] step EndTransactions: ends=[identity=w.0.3 (producer id 7, epoch 2), commit=True]; commit log log-5; N ms: REQUEST_DEADLINE",
        "[me] step ReadLog: offset=4, wait=True; commit log log-5; N ms: entries=[], next_offset=9, log_start_offset=0, end_offset=9, "
        f"topic_id={ZERO_UUID}",
    ]


@pytest.mark.parametrize(
    ("step", "shown"),
    [
        (
            steps.DescribeTransactions(tuple(f"w.{each}.0" for each in range(9))),
            "transactional_ids=[w.0.0, w.1.0, w.2.0, w.3.0 and 5 more]",
        ),
        (steps.LastStableOffsets((("t", 1),), (4,)), "partitions=[t-1], last_offsets=[4]"),
        (
            steps.AppendInTransaction(OWN, 0, (RECORD,)),
            "identity=w.0.3 (producer id 7, epoch 2), base_sequence=0, records=[key=10 bytes, value=12 bytes]",
        ),
        (
            steps.CopyRecords(
                (
                    steps.Copy(
                        OWN,
                        replace(OWN, transactional_id="w.0.1", producer_id=6),
                        (OffsetRange(topic="t", partition=1, first_offset=4, last_offset=9),),
                        RECORD,
                    ),
                )
            ),
            "copies=[identity=w.0.3 (producer id 7, epoch 2), source=w.0.1 (producer id 6, epoch 2), ranges=[t-1 [4..9]], "
            "part=key=10 bytes, value=12 bytes]",
        ),
        (steps.Warn("a message with a secret value"), ""),
        (steps.Now(), ""),
        ((steps.EndResult(error=None), steps.EndResult(error=0)), "[no response, NONE]"),
        ({("t", 1): steps.Unseen.GONE}, f"[t-1: {steps.Unseen.GONE.value}]"),
    ],
)
def test_a_step_shows_its_fields_and_no_content(step: Any, shown: str) -> None:
    assert step_log.shown(step) == shown
