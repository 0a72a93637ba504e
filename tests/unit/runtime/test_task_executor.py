from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kafka_eos_sink.errors import TransactionAbortedError
from kafka_eos_sink.runtime.task_executor import TaskExecutor


def test_attempt_fails_when_a_request_was_abandoned() -> None:
    producer: Any = SimpleNamespace(tainted=True)
    with pytest.raises(
        TransactionAbortedError, match=r"REQUEST_ABANDONED\].*Spark's next attempt writes the rows again"
    ):
        TaskExecutor._require_untainted(TaskExecutor.__new__(TaskExecutor), producer)
