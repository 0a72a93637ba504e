"""Names that two writes must never share, and that a third must never be taken for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_eos_sink.commit import transactional_id as names

anything = st.text(st.sampled_from("ab./%0123-é "), max_size=8)
topic = st.text(st.sampled_from("ab._-0"), max_size=6)


def test_the_names_are_those_of_the_protocol() -> None:
    assert names.batch_write_id(None, "daily", " orders ") == "kafka-eos/daily/orders"
    assert names.batch_write_id("team/a", "50%", None) == "team%2Fa/50%25/"
    assert names.random_write_id(None, "1234") == "kafka-eos/1234"
    assert names.streaming_write_id(None, "1234") == "kafka-eos-1234"
    assert names.streaming_write_id("kafka-eos-1234", "") == names.streaming_write_id(None, "1234"), (
        "CHECKPOINT_NOT_READABLE advises it"
    )
    assert names.streaming_write_id("orders/eu", "1234") == "orders%2Feu"
    assert names.driver_transactional_id("orders") == "orders.driver"
    assert names.task_transactional_id("orders", 12, 7) == "orders.12.7"


@given(anything, st.integers(0, 2**31 - 1), st.integers(0, 7))
def test_a_task_id_parses_back_for_its_own_write_id(write_id: str, partition: int, slot: int) -> None:
    transactional_id = names.task_transactional_id(write_id, partition, slot)
    assert names.parse(transactional_id, write_id) == (partition, slot)


@given(anything, st.integers(0, 2**31 - 1), st.integers(0, 7))
def test_write_id_is_found_in_the_ids_of_task_and_driver(write_id: str, partition: int, slot: int) -> None:
    assert names.write_id_of(names.task_transactional_id(write_id, partition, slot)) == write_id
    assert names.write_id_of(names.driver_transactional_id(write_id)) == write_id


@pytest.mark.parametrize("stranger", ["orders", "orders.0", "orders.0.8", "orders.00.1", "orders-0-1", "driver", ""])
def test_id_of_another_program_has_no_write_id(stranger: str) -> None:
    assert names.write_id_of(stranger) is None


@given(anything, anything, st.integers(0, 99), st.integers(0, 7))
def test_a_task_id_parses_for_no_other_write_id(write_id: str, other: str, partition: int, slot: int) -> None:
    transactional_id = names.task_transactional_id(write_id, partition, slot)
    assert (names.parse(transactional_id, other) is None) == (write_id != other)


@given(st.tuples(anything, anything, topic), st.tuples(anything, anything, topic))
def test_two_different_batch_writes_never_share_a_write_id(
    one: tuple[str, str, str], other: tuple[str, str, str]
) -> None:
    assert (names.batch_write_id(*one) == names.batch_write_id(*other)) == (one == other)


@given(anything, anything, topic)
def test_batch_and_streaming_writes_never_share_a_write_id(prefix: str, app_id: str, topic_option: str) -> None:
    batch = names.batch_write_id(prefix, app_id, topic_option)
    assert batch.count("/") == 2
    assert names.random_write_id(prefix, app_id).count("/") == 1
    assert "/" not in names.streaming_write_id(prefix, app_id)


@pytest.mark.parametrize(
    "stranger",
    [
        "orders",
        "orders.driver",
        "orders.0",
        "orders.0.8",
        "orders.00.1",
        "orders.0.01",
        "orders.-1.0",
        "orders.+1.0",
        "orders.1_0.0",
        "orders.٣.0",
        "orders.0.0\n",
        "orders.0.0.0",
        "orders.v2.0.0",
        "orders2.0.0",
        "ordersx0x0",
        "xorders.0.0",
        "orders.2147483648.0",
    ],
)
def test_malformed_task_id_is_not_parsed(stranger: str) -> None:
    assert names.parse(stranger, "orders") is None


def test_only_a_write_without_an_app_id_has_a_random_id() -> None:
    unique = "0b6f2f50-5a3c-4b7e-9d15-6c0a6f4f8f11"
    assert names.is_random_write_id(names.random_write_id(None, unique))
    assert names.is_random_write_id(names.random_write_id("a/b", unique))
    assert not names.is_random_write_id(names.batch_write_id(None, unique, "orders"))
    assert not names.is_random_write_id(names.batch_write_id(None, "app", unique))
    assert not names.is_random_write_id(names.streaming_write_id(None, unique))


@pytest.mark.parametrize(("partition", "slot"), [(-1, 0), (2**31, 0), (0, -1), (0, 8)])
def test_numbers_that_no_task_has_are_refused(partition: int, slot: int) -> None:
    with pytest.raises(ValueError, match="no task has"):
        names.task_transactional_id("orders", partition, slot)
