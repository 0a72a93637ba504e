"""What several commands read: partitions of a topic, open transactions."""

from __future__ import annotations

from typing import Any

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.commit.refusals import refused
from kafka_eos_sink.commit.transactions import NEVER_TIMES_OUT_MS
from kafka_eos_sink.errors import counted
from kafka_eos_sink.protocol.identity import TopicPartition
from kafka_eos_sink.protocol.messages import TransactionState

_OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort")


def partitions_of(admin: Admin, topic: str, partition: int | None, deadline_ms: int) -> list[TopicPartition]:
    """Return all partitions of a topic, or this one.

    Raises:
        BrokerRefusedError: UNKNOWN_TOPIC.
    """
    described = admin.topic(topic, deadline_ms)
    where = [] if described is None else [(topic, each.partition_index) for each in described.partitions]
    found = where if partition is None else [each for each in where if each[1] == partition]
    if not found:
        what = f"no topic {topic!r}" if described is None else f"no partition {partition} in topic {topic!r}"
        has = f", which has {counted(len(where), 'partition')}" if where else ""
        raise refused("UNKNOWN_TOPIC.of_command", what=what, has=has)
    return found


def open_transactions(admin: Admin, timeout_ms: int) -> tuple[TransactionState, ...]:
    """Find open transactions, the oldest first; ``timeout_ms`` bounds all requests."""
    deadline = admin.client.clock() + timeout_ms
    # If no broker is reachable, this call raises an error that lists the brokers.
    admin.client.any_node(deadline)
    listed = admin.list_transactions(states=_OPEN_STATES, id_pattern=None, deadline_ms=deadline)
    described = admin.describe_transactions([entry.transactional_id for entry in listed], deadline)
    # A transaction can end between the two requests.
    still_open = [
        state for state in described.values() if state is not None and state.transaction_state in _OPEN_STATES
    ]
    return tuple(sorted(still_open, key=lambda state: state.transaction_start_time_ms))


def times_ms(state: TransactionState, now_ms: int) -> tuple[int | None, int | None]:
    """Return age and time left in ms; None if unknown or not applicable."""
    if state.transaction_start_time_ms < 0:
        return None, None
    # The coordinator's clock can be ahead of this machine's.
    age = max(0, now_ms - state.transaction_start_time_ms)
    # The timeout no longer applies to a transaction whose end is decided.
    if state.transaction_state != "Ongoing" or state.transaction_timeout_ms == NEVER_TIMES_OUT_MS:
        return age, None
    return age, max(0, state.transaction_timeout_ms - age)


def transaction_json(state: TransactionState, now_ms: int) -> dict[str, Any]:
    age, left = times_ms(state, now_ms)
    partitions = [{"topic": topic, "partition": partition} for topic, partition in sorted(state.partitions)]
    names = ("transactional_id", "producer_id", "producer_epoch", "transaction_timeout_ms", "transaction_start_time_ms")
    found = {name: getattr(state, name) for name in names} | {"state": state.transaction_state}
    return found | {"partitions": partitions, "age_ms": age, "time_left_ms": left}
