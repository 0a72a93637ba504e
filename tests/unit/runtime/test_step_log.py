"""The DEBUG log shows every step of a procedure, and no content of a record."""

from __future__ import annotations

import logging
import re
from types import SimpleNamespace
from typing import Any

import pytest

from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.steps import Procedure
from kafka_eos_sink.errors import BrokerUnavailableError
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.protocol.identity import ProducerIdentity
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
        "[me] step InitProducerId: w.0.3; commit log log-5; N ms: w.0.3 (producer id 7, epoch 2)",
        "[me] step Append: 1 records; commit log log-5; N ms: 8",
        "[me] step EndTransactions: commit w.0.3 (producer id 7, epoch 2); commit log log-5; N ms: REQUEST_DEADLINE",
        "[me] step ReadLog: from offset 4; commit log log-5; N ms: 0 entries, next offset 9",
    ]
