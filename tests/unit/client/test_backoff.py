"""Delays double up to their maximum, and the jitter stays within its bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_eos_sink.client.config import ExponentialBackoff


@pytest.mark.feature("connections")
def test_without_jitter_delays_double_up_to_the_maximum() -> None:
    backoff = ExponentialBackoff(100, 1_000, jitter=0)
    assert [backoff.delay_ms(attempts) for attempts in range(6)] == [100, 200, 400, 800, 1_000, 1_000]


def test_initial_delay_is_limited_by_maximum() -> None:
    assert ExponentialBackoff(5_000, 1_000, jitter=0).delay_ms(0) == 1_000


@given(
    initial=st.integers(0, 10_000),
    maximum=st.integers(0, 100_000),
    attempts=st.integers(0, 10_000),
    drawn=st.floats(0, 1, exclude_max=True),
)
def test_delay_is_between_zero_and_maximum(initial: int, maximum: int, attempts: int, drawn: float) -> None:
    assert 0 <= ExponentialBackoff(initial, maximum, uniform=lambda: drawn).delay_ms(attempts) <= maximum


@pytest.mark.feature("connections")
@given(drawn=st.floats(0, 1, exclude_max=True), attempts=st.integers(0, 4))
def test_jitter_is_a_fifth_either_way(drawn: float, attempts: int) -> None:
    delay = ExponentialBackoff(100, 1_000_000, uniform=lambda: drawn).delay_ms(attempts)
    assert 0.8 * 100 * 2**attempts <= delay <= 1.2 * 100 * 2**attempts
