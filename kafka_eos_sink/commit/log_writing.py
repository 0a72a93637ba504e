"""Procedures that append to the commit log."""

from __future__ import annotations

from contextlib import suppress

from kafka_eos_sink.commit.log_records import done_record, tombstones
from kafka_eos_sink.commit.procedure import Answered, Procedure
from kafka_eos_sink.commit.steps import (
    AddPartitions,
    Append,
    Appended,
    AppendInTransaction,
    End,
    EndTransactions,
    LogRecord,
    WallClock,
    Warn,
)
from kafka_eos_sink.commit.values import Decision
from kafka_eos_sink.errors import KafkaEosError
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import ProducerIdentity


def write_done(decision: Decision) -> Procedure[None]:
    """Append the done record of a finished decision; warn if that fails."""
    # Recovery is right without the record, so its failure must not fail the batch.
    now = yield from WallClock()
    try:
        yield from Append((done_record(decision, now),))
    except KafkaEosError as failure:
        yield from Warn(
            f"version {decision.version} of write id {decision.write_id!r} is finished, but its done record could not be appended to "
            f"the commit log ({failure.code}); the next run proves it again"
        )


def append_in_transaction(
    driver: ProducerIdentity, records: tuple[LogRecord, ...], base_sequence: int
) -> Procedure[Appended]:
    """Append in the driver's transaction, as first records if ``base_sequence`` is 0."""
    # From version 2 on Produce itself adds the partition to the transaction (KIP-890).
    if not driver.bumps_epoch:
        added = yield from AddPartitions(driver)
        if added.error != ErrorCode.NONE:
            return Appended(error=added.error, earlier_error=added.earlier_error)
    return (yield from AppendInTransaction(driver, base_sequence, records))


def forget(decision: Decision, driver: ProducerIdentity, base_sequence: int) -> Procedure[None]:
    """Remove a finished write with a random id by tombstones; warn if that fails."""
    with suppress(KafkaEosError):  # the batch is finished
        if (yield from commit_in_transaction(driver, tombstones(decision), base_sequence)).error == ErrorCode.NONE:
            return
    yield from Warn(f"the records of the finished write {decision.write_id!r} could not be removed from the commit log")


def commit_in_transaction(
    driver: ProducerIdentity, records: tuple[LogRecord, ...], base_sequence: int
) -> Procedure[Answered]:
    """Commit records in the driver's transaction, up to the first failed request.

    PAUSE: a newer driver fences this transaction, so a late tombstone never removes its records.
    """
    appended = yield from append_in_transaction(driver, records, base_sequence)
    if appended.error != ErrorCode.NONE:
        return appended
    ends = yield from EndTransactions((End(identity=driver, commit=True),))
    return Answered(error=ends[0].error)
