"""What the error says that a transactional id is waiting for, when it answers CONCURRENT_TRANSACTIONS past the deadline."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.errors import AuthorizationError, BrokerRefusedError, BrokerUnavailableError, KafkaEosError
from kafka_eos_sink.protocol.messages import TransactionState

NOW = 5_000


class Describing(Admin):
    """An admin whose coordinator says `answer` of the id."""

    def __init__(self, answer: TransactionState | KafkaEosError | None) -> None:
        super().__init__(SimpleNamespace(clock=lambda: NOW))  # type: ignore[arg-type]
        self.answer = answer
        self.deadlines: list[int] = []

    def describe_transactions(self, transactional_ids: Any, deadline_ms: int) -> dict[str, TransactionState | None]:
        self.deadlines.append(deadline_ms)
        if isinstance(self.answer, KafkaEosError):
            raise self.answer
        return dict.fromkeys(transactional_ids, self.answer)


def state(name: str, *partitions: tuple[str, int]) -> TransactionState:
    return TransactionState(
        error_code=0,
        transactional_id="tx",
        transaction_state=name,
        producer_id=9,
        producer_epoch=2,
        transaction_timeout_ms=60_000,
        transaction_start_time_ms=-1,
        topics=tuple(TransactionState.Topic(topic=topic, partitions=(index,)) for topic, index in partitions),
    )


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            state("PrepareCommit", ("orders", 10), ("orders", 9)),
            "its transaction is in state PrepareCommit, the marker is missing in orders-9, orders-10",
        ),
        (
            state("PrepareAbort", *(("t", partition) for partition in range(20))),
            "its transaction is in state PrepareAbort, the marker is missing in "
            "t-0, t-1, t-2, t-3, t-4, t-5, t-6, t-7 and 12 more",
        ),
        (state("CompleteCommit"), "its transaction is in state CompleteCommit"),
        (None, "the coordinator does not know the id"),
        (BrokerUnavailableError("REQUEST_DEADLINE", "not in time"), "what blocks it is unknown: not in time"),
        (AuthorizationError("CODE", "no right"), "what blocks it is unknown: no right"),
        (BrokerRefusedError("BROKER_REFUSED", "strange"), "what blocks it is unknown: strange"),
    ],
)
def test_holder_of_an_id_or_the_lookup_failure_is_named(
    answer: TransactionState | KafkaEosError | None, said: str
) -> None:
    admin = Describing(answer)
    assert admin.holder("tx") == said.replace("not in time", getattr(answer, "message", ""))
    (deadline,) = admin.deadlines
    assert deadline - NOW <= 2_000


class Listing(Describing):
    """Lists one transaction of the producer id, or none."""

    def __init__(self, names: tuple[str, ...], answer: TransactionState | KafkaEosError | None) -> None:
        super().__init__(answer)
        self.names = names
        self.filters: list[Any] = []

    def list_transactions(self, **filters: Any) -> Any:
        self.filters.append(filters)
        if self.names == ("fails",):
            raise BrokerUnavailableError("REQUEST_DEADLINE", "broker 2 is down")
        return [SimpleNamespace(transactional_id=name, producer_id=9) for name in self.names]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("kafka-eos/nightly/orders.3.0", "of another write of this sink, open for"),
        ("kafka-eos-query.driver", "of another write of this sink, open for"),
        ("theirs", "of another producer, open for"),
        ("theirs.3.08", "of another producer, open for"),
    ],
)
def test_open_transaction_of_a_producer_is_named_with_its_age(name: str, said: str) -> None:
    ongoing = replace(state("Ongoing"), transaction_start_time_ms=round(time.time() * 1000) - 90_000)
    admin = Listing((name,), ongoing)
    found = admin.transaction_of(9)
    assert f"it is the one of {name!r}, {said}" in found
    assert re.search(r"open for 9[0-9] s\. Its timeout is 60 s; readers continue", found)
    assert "no marker is missing" in found
    assert admin.filters[0]["producer_ids"] == (9,)
