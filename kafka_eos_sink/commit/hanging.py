"""Discards what hangs.

A partition holds the transaction open, and no coordinator ends it any more: its marker is missing (JOIN). The leader ends what is open
under a producer id by the next marker of that id, of any newer epoch. So the next transaction of its transactional id ends it:
InitProducerId, AddPartitionsToTxn and EndTxn(abort), without a record. Never a commit: what is open may also hold the rows of an earlier
attempt.
"""

from __future__ import annotations

from collections.abc import Sequence

from kafka_eos_sink.commit.driver import still_holds
from kafka_eos_sink.commit.procedure import Procedure
from kafka_eos_sink.commit.refusals import refused
from kafka_eos_sink.commit.steps import AddPartitions, End, EndTransactions
from kafka_eos_sink.commit.task import fresh_identity
from kafka_eos_sink.commit.values import Hanging, Run
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import ProducerIdentity


def discard(run: Run, driver: ProducerIdentity, hanging: Sequence[Hanging]) -> Procedure[tuple[Hanging, ...]]:
    """Abort what hangs; return what could not be aborted.

    The caller reads the partitions again. If the coordinator has forgotten the id, it gives it another producer id, and then no transaction
    of it can end what hangs.

    Args:
        driver: W.driver, which the caller holds.

    Raises:
        FencedError: A newer driver holds W.driver. Nothing was aborted.
    """
    begun: dict[Hanging, ProducerIdentity] = {}
    for each in hanging:
        parsed = run.write.parse(each.transactional_id)
        assert parsed is not None
        # Another attempt may use the id, and may be decided, so it must have no open transaction.
        identity = yield from fresh_identity(run.write, parsed.partition, (parsed.slot,), run.transaction_timeout_ms)
        if identity.producer_id == each.producer_id:
            begun[each] = identity
    # PAUSE: after InitProducerId, because a newer driver may have committed a transaction under one of these ids, whose marker is missing.
    if not (yield from still_holds(driver)):
        raise refused("FENCED", write=run.write, why=f"it holds {driver.transactional_id}")
    ends: list[End] = []
    for each, identity in begun.items():
        if (yield from AddPartitions(identity, each.partitions)).error == ErrorCode.NONE:
            ends.append(End(identity=identity, commit=False))
    if ends:
        yield from EndTransactions(tuple(ends))
    ended = [end.identity for end in ends]
    return tuple(each for each in hanging if begun.get(each) not in ended)
