"""What `forget` takes for ended."""

from __future__ import annotations

import pytest

from kafka_eos_sink.commit.forget import _require_ended
from kafka_eos_sink.commit.log_records import decision_records, part_record
from kafka_eos_sink.commit.log_view import LogView
from kafka_eos_sink.commit.steps import ReadRecord
from kafka_eos_sink.commit.values import Decision
from kafka_eos_sink.errors import WriteRefusedError
from kafka_eos_sink.protocol.identity import ProducerIdentity
from tests.unit.commit.scripted_world import DRIVER, PREPARED, TASK


@pytest.mark.parametrize("opened", [(), (TASK,)], ids=["nothing open", "a transaction open"])
@pytest.mark.parametrize("kind", ["decision", "part"])
def test_record_without_marker_is_forgotten_if_nothing_is_open(kind: str, opened: tuple[ProducerIdentity, ...]) -> None:
    """No recovery ends such a decision or attempt, so the command would be refused for ever."""
    decision = Decision(
        write_id="w",
        query_id="batch",
        version=1,
        nonce="n",
        driver=DRIVER,
        topic="t",
        schema="value string",
        offsets_hash=None,
        transactions=(PREPARED,),
    )
    (record,), by = decision_records(decision), DRIVER
    if kind == "part":
        record, by = part_record("w", "batch", 0, 1, 0), TASK
    written = ReadRecord(
        offset=0,
        producer_id=by.producer_id,
        producer_epoch=by.producer_epoch,
        transactional=True,
        key=record.key,
        value=record.value,
    )
    view = LogView("w")
    view.feed([written], 1, 0)
    if not opened:
        _require_ended(view, opened)
        return
    with pytest.raises(WriteRefusedError, match=r"WRITE_NOT_ENDED\].*1 transactions are open.*without an outcome"):
        _require_ended(view, opened)
