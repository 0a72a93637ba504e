from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kafka_eos_sink.errors import TransactionAbortedError
from kafka_eos_sink.runtime.part_producer import flush_and_prove, part_offset


def test_attempt_fails_when_a_request_was_abandoned() -> None:
    producer: Any = SimpleNamespace(tainted=True, flush=lambda: None)
    abandoned = r"REQUEST_ABANDONED\].*its transaction is aborted, and the rows are written again"
    with pytest.raises(TransactionAbortedError, match=abandoned):
        flush_and_prove(producer)
    with pytest.raises(TransactionAbortedError, match=abandoned):
        part_offset(producer, ("log", 0))
