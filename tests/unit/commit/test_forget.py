"""What `forget` takes for ended."""

from __future__ import annotations

from typing import NoReturn

import pytest

from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.forget import _require_ended
from kafka_eos_sink.errors import BrokerUnavailableError, DecisionPendingError, WriteRefusedError
from tests.runs import WRITE
from tests.unit.commit.scripted_cluster import written


def cut_off(_: steps.EndTransactions) -> NoReturn:
    raise BrokerUnavailableError("REQUEST_DEADLINE", "EndTxn was not done in time")


@pytest.mark.parametrize("is_open", [False, True], ids=["nothing open", "a transaction open"])
@pytest.mark.parametrize("kind", ["decision", "part"])
def test_record_without_marker_is_forgotten_if_nothing_is_open(kind: str, is_open: bool) -> None:
    """No recovery ends such a decision or attempt, so the command would be refused for ever."""
    cluster, (message,) = written()
    assert message.prepared is not None
    if kind == "decision":
        cluster.own = {steps.EndTransactions: cut_off}
        with pytest.raises(DecisionPendingError):
            cluster.commit([message])
    opened = (message.prepared.identity,) if is_open else ()
    view = cluster.view()
    if not opened:
        _require_ended(WRITE, view, opened)
        return
    with pytest.raises(WriteRefusedError, match=r"WRITE_NOT_ENDED\].*1 transactions are open.*without an outcome"):
        _require_ended(WRITE, view, opened)
