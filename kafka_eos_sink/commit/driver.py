"""The owner of a write id: the transactional id ``W.driver`` at its coordinator.

A newer driver fences an older one by InitProducerId of this id. The coordinator's state of it therefore shows whether a driver
still holds the write id.
"""

from __future__ import annotations

from kafka_eos_sink.commit.outcome import is_held_by, waits
from kafka_eos_sink.commit.procedure import Procedure
from kafka_eos_sink.commit.steps import DescribeTransactions, TransactionDescription
from kafka_eos_sink.commit.values import Plan
from kafka_eos_sink.protocol.identity import ProducerIdentity

DRIVER_TRANSACTION_TIMEOUT_MS = 60_000
"""Timeout of W.driver's transactions. They last for milliseconds; a longer one would block readers of the commit log."""


def still_holds(driver: ProducerIdentity) -> Procedure[bool]:
    """Whether this driver still holds the write id."""
    found = yield from described_driver(driver)
    return is_held_by(driver, found)


def described_driver(driver: ProducerIdentity) -> Procedure[TransactionDescription | None]:
    """Return the coordinator's state of W.driver, None if it does not know the id."""
    driver_id = driver.transactional_id
    described = yield from DescribeTransactions((driver_id,))
    return described.get(driver_id)


def is_overtaken(plan: Plan) -> Procedure[bool]:
    """Whether the driver has decided or aborted the batch, or a newer one fenced it.

    Until then W.driver is Empty, as the fence left it. Return False if the coordinator no longer knows the driver's id.

    A task calls this before its first row (JOIN: its id may belong to a transaction of this batch that was just committed), and after its
    last request (PAUSE: the driver may have searched for losing attempts before this one began its transaction).
    """
    mine = plan.driver
    found = yield from described_driver(mine)
    return found is not None and not waits(mine, found)
