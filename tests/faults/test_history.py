"""A broker that is silent about the history: the batch is committed, and its record takes at most two seconds (docs/metrics.md)."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Any

import pytest

from dead_writes import ROWS, varied, write_all, write_settings
from kafka_eos_sink.client.config import parse_bootstrap_servers
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.protocol import messages as m
from kafka_eos_sink.protocol.schema import Request
from kafka_eos_sink.runtime import history
from kafka_testing import assert_nothing_open, create_topic, read_committed, unique_topic

from .fault_proxy import FaultProxy, LoseRequest, Rule

BOUND_S = 2.0
SLACK_S = 1.5
"""For a machine that is busy."""


@pytest.mark.parametrize("api", [m.ProduceRequest, m.CreateTopicsRequest])
def test_silent_broker_delays_the_batch_by_two_seconds_at_most(
    kafka: EmbeddedKafka,
    api: type[Request[Any]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic, history_topic = create_topic(kafka.bootstrap_servers, partitions=2), unique_topic("history")
    if api is m.ProduceRequest:
        create_topic(kafka.bootstrap_servers, history_topic, partitions=1)
    waited: list[float] = []
    write = history.write

    def timed(*arguments: Any, **named: Any) -> None:
        began = time.monotonic()
        write(*arguments, **named)
        waited.append(time.monotonic() - began)

    monkeypatch.setattr(history, "write", timed)
    with FaultProxy(kafka.bootstrap_servers) as proxy:
        through = write_settings(kafka, topic).client
        client = replace(through, bootstrap_servers=parse_bootstrap_servers(proxy.bootstrap_servers))
        given = replace(write_settings(kafka, topic), client=client, history_topic=history_topic)
        proxy.inject(
            Rule(api, LoseRequest(close=False), count=None, where=lambda request: history_topic in repr(request))
        )
        write_all(given, 2)
        assert not proxy.unfired
        write_all(varied(given, version=given.batch.version + 1), 2)  # within a minute: not tried again
    assert len(read_committed(kafka.bootstrap_servers, topic)) == 4 * ROWS
    assert_nothing_open(kafka.bootstrap_servers, [topic])
    first, second = waited
    assert BOUND_S - 0.1 <= first <= BOUND_S + SLACK_S
    assert second < 0.1
    warnings = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert len([text for text in warnings if f"history topic {history_topic!r} lacks records" in text]) == 1
