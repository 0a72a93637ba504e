"""The errors for rejected and expired batches, with topic, partition and rows."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Container, Sequence
from datetime import UTC, datetime
from typing import Final

from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.errors import (
    BrokerRefusedError,
    BrokerUnavailableError,
    InvalidRowError,
    KafkaEosError,
    TransactionAbortedError,
    peer_text,
)
from kafka_eos_sink.producer.partition_queue import ProducerBatch
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import TopicPartition
from kafka_eos_sink.protocol.messages import ProduceRequest, ProduceResponse
from kafka_eos_sink.protocol.reactions import EXPIRED_ID, in_words, refusal

MAX_NAMED_ROWS = 5
LARGE_REQUEST_BYTES = 64 * 1024
"""No broker is known whose socket.request.max.bytes is lower; Kafka's default is 100 MB."""
TIMESTAMP_LIMITS: Final = ("message.timestamp.before.max.ms", "message.timestamp.after.max.ms")
_OUT_OF_RANGE = re.compile(r"Timestamp (\d+) .*should be within \[(-?\d+), (-?\d+)\]")


def transaction_aborted_error(batch: ProducerBatch, problem: str) -> TransactionAbortedError:
    cause = "A newer producer fenced this one, the transaction timed out, or the leader lost data, as in a topic that was created again"
    if problem.startswith(ErrorCode.INVALID_PRODUCER_ID_MAPPING.name):
        cause = f"A newer producer fenced this one, or {EXPIRED_ID}"
    return TransactionAbortedError(
        "TRANSACTION_ABORTED",
        f"topic {batch.topic} partition {batch.partition} rejected a batch of {batch.record_count} records with "
        f"sequence {batch.base_sequence} of producer id {batch.identity[0]} epoch {batch.identity[1]}: "
        f"{problem}. {cause}. The next attempt starts a new transaction",
    )


def records_lost_error(batch: ProducerBatch, offset: int) -> TransactionAbortedError:
    return TransactionAbortedError(
        "TRANSACTION_ABORTED",
        f"topic {batch.topic} partition {batch.partition} has lost records of this transaction: its leader put later records at offset "
        f"{offset}, not after the earlier ones. The topic was deleted and created again, or an unclean leader election lost records. The "
        "next attempt writes all rows",
    )


def record_too_large_error(batch: ProducerBatch, problem: str) -> InvalidRowError:
    row = batch.row_number(0)
    return InvalidRowError(
        "RECORD_TOO_LARGE",
        f"topic {batch.topic} partition {batch.partition} rejected a record of "
        f"{batch.block.uncompressed_bytes} bytes ({batch.size_bytes} as a batch)"
        f"{'' if row is None else f', row {row} of the task'}: {problem}. Raise the topic's max.message.bytes or "
        "set dead.letter.topic",
    )


def unknown_topic_error(batch: ProducerBatch, since_ms: int, max_block_ms: int) -> InvalidRowError:
    return InvalidRowError(
        "UNKNOWN_TOPIC",
        f"the brokers have not known topic {batch.topic} partition {batch.partition} for {since_ms} ms "
        f"(kafka.max.block.ms {max_block_ms}). If the topic was deleted, create it again, unless it is the commit log: then first read "
        "kafka-eos explain COMMIT_LOG_LOST",
    )


def health_or_quota(client: NetworkClient, since: int, node_ids: Container[int | None] | None = None) -> str:
    """Begin the advice for a timeout: name the quota that throttled the client."""
    ms, quota = client.throttling(since, node_ids)
    if not ms:
        return "Check the brokers' health"
    first = "Raise it" if 2 * ms >= client.clock() - since else "Check the brokers' health, raise the quota"
    return f"{quota[0].upper()}{quota[1:]}. {first}"


def delivery_timeout_error(batch: ProducerBatch, after: str, reason: str, advice: str) -> BrokerUnavailableError:
    return BrokerUnavailableError(
        "DELIVERY_TIMEOUT",
        f"topic {batch.topic} partition {batch.partition} did not acknowledge {batch.record_count} records after {after} "
        f"and {batch.attempts} attempts; last problem: {reason}. {advice}",
    )


def undelivered_reason(batch: ProducerBatch, client: NetworkClient) -> str:
    """Describe why a batch is not acknowledged: last result, and leader's state."""
    leader = client.metadata.leader(batch.topic, batch.partition)
    state = "the partition has no leader" if leader is None else client.why_unreachable(leader)
    size = batch.lost_request_bytes
    if not state and size >= LARGE_REQUEST_BYTES and batch.attempts > 1:
        state = (
            f"the connection broke while a request of {size} bytes was in flight, and the broker can be reached: if its "
            "socket.request.max.bytes is lower, it closes the connection. Then lower kafka.max.request.size and kafka.batch.size, or "
            "raise socket.request.max.bytes on the brokers"
        )
    known = [batch.last_problem, "" if state and state in batch.last_problem else state]
    return "; ".join(filter(None, known)) or "the producer could not send it"


def clock_skew_error(
    where: TopicPartition,
    response: ProduceResponse.Topic.Partition,
    client: NetworkClient,
    is_by_clock: Callable[[int | None], bool] = lambda index: True,
) -> BrokerRefusedError | None:
    """Build the error for a rejected timestamp from this host's clock: no row is bad.

    Args:
        is_by_clock: Whether the record with an index, or without an index each record, has such a timestamp.

    Returns:
        None if the leader rejected something else.
    """
    if response.error_code != ErrorCode.INVALID_TIMESTAMP:
        return None
    texts = [response.error_message] if not response.record_errors and is_by_clock(None) else []
    # One code covers every rejected record of the response. Only a record's text shows its own cause.
    texts += [each.batch_index_error_message for each in response.record_errors if is_by_clock(each.batch_index)]
    reasons = (text or response.error_message or "the broker named no limit of the timestamp" for text in texts)
    reason = next((each for each in reasons if "timestamp" in each.lower()), None)
    if reason is None:
        return None
    limit = " or ".join(TIMESTAMP_LIMITS)
    if found := _OUT_OF_RANGE.search(reason):
        showed, earliest, latest = map(int, found.groups())
        # Without an upper limit, Kafka's sum for the latest time overflows.
        is_ahead = showed >= earliest
        limit = TIMESTAMP_LIMITS[is_ahead]
        bound = f"later than {_utc(latest)}" if is_ahead else f"earlier than {_utc(earliest)}"
        reason = f"the clock showed {_utc(showed)}, and the broker accepts no time {bound}"
    configs = f"kafka-configs.sh --bootstrap-server {client.config.bootstrap_servers_text} --entity-type topics"
    return BrokerRefusedError(
        "CLOCK_SKEW",
        f"topic {where[0]} partition {where[1]} rejected a timestamp that the sink took from the clock of host {platform.node()}: "
        f"{peer_text(reason).rstrip('.')} ({limit} of the topic)",
        "Compare the clock of this host with the clocks of the brokers, and set the wrong one (NTP). If all are right, raise "
        f"{limit}. To see it: {configs} --entity-name {where[0]} --describe --all",
    )


def _utc(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms since 1970"


def rejected_batch_error(
    batch: ProducerBatch, response: ProduceResponse.Topic.Partition, client: NetworkClient
) -> tuple[KafkaEosError, Sequence[int]]:
    """Build the error for a final rejection, with up to five rejected rows (KIP-467).

    Returns:
        The error, and the records of the batch that it concerns; none if their rows are not at fault.
    """
    where = f"topic {batch.topic} partition {batch.partition}"
    skewed = clock_skew_error((batch.topic, batch.partition), response, client, batch.is_by_clock)
    if skewed is not None:
        return skewed, ()
    if not response.record_errors:
        what = in_words(ProduceRequest, where)
        return refusal(ProduceRequest, response.error_code, what, response.error_message), ()
    named = []
    for each in response.record_errors[:MAX_NAMED_ROWS]:
        row = batch.row_number(each.batch_index)
        place = f"record {each.batch_index} of its batch" if row is None else f"row {row} of the task"
        named.append(f"{place}: {peer_text(each.batch_index_error_message or 'the broker gave no reason')}")
    more = len(response.record_errors) - len(named)
    at_fault = (each.batch_index for each in response.record_errors)
    error = InvalidRowError(
        "RECORD_REFUSED",
        f"the broker rejected records for {where} ({ErrorCode.of(response.error_code).name}"
        f"{f', {peer_text(response.error_message)}' if response.error_message else ''}): {'; '.join(named)}"
        f"{f'; and {more} more' if more else ''}",
    )
    return error, [at for at in at_fault if 0 <= at < batch.record_count]
