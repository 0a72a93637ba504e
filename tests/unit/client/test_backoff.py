"""Delays double up to their maximum, and the jitter stays within its bounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kafka_eos_sink.client.config import ExponentialBackoff


def test_without_jitter_delays_double_up_to_the_maximum() -> None:
    backoff = ExponentialBackoff(100, 1_000, jitter=0)
    assert [backoff.delay_ms(attempts) for attempts in range(6)] == [100, 200, 400, 800, 1_000, 1_000]


@given(drawn=st.floats(0, 1, exclude_max=True), attempts=st.integers(0, 4))
def test_jitter_is_a_fifth_either_way(drawn: float, attempts: int) -> None:
    delay = ExponentialBackoff(100, 1_000_000, uniform=lambda: drawn).delay_ms(attempts)
    assert 0.8 * 100 * 2**attempts <= delay <= 1.2 * 100 * 2**attempts
