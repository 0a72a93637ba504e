"""The question of `kafka-eos forget` says what the next run of each kind of write does."""

from __future__ import annotations

import pytest

from kafka_eos_sink.cli.forget import _effect

BATCH, STREAM = "kafka-eos/nightly-orders/orders", "kafka-eos-6c1f0a52-9d0e-4a57-8a0e-1b2c3d4e5f60"
AGAIN = "A later run writes its rows again, whatever its version is."
LOST = "A query that continues from its checkpoint then fails with COMMIT_LOG_LOST."


@pytest.mark.parametrize(("ids", "later"), [((BATCH,), AGAIN), ((STREAM,), LOST), ((BATCH, STREAM), f"{AGAIN} {LOST}")])
def test_question_names_what_the_next_run_does(ids: tuple[str, ...], later: str) -> None:
    text = _effect(ids)
    assert text.endswith(f"in the commit log. {later}")
    assert (f"under {ids[0]}," in text) is (len(ids) == 1)
