"""What to do about an option that the sink does not know.

Options of Spark's Kafka source, of streaming queries and of Kafka's other clients are known by name. Any other name gets a hint only if
a name that the sink accepts is near.
"""

from __future__ import annotations

import difflib
import re

from kafka_eos_sink.client.config import with_prefix
from kafka_eos_sink.settings.table import JAVA, PREFIX, SINK, STREAMING, Setting

_OTHER_CLIENTS = """
    allow.auto.create.topics auto.commit.interval.ms auto.offset.reset bootstrap.controllers check.crcs client.rack
    default.api.timeout.ms enable.auto.commit exclude.internal.topics fetch.max.bytes fetch.max.wait.ms fetch.min.bytes group.id
    group.instance.id group.protocol group.remote.assignor heartbeat.interval.ms isolation.level key.deserializer
    max.partition.fetch.bytes max.poll.interval.ms max.poll.records partition.assignment.strategy session.timeout.ms
    share.acknowledgement.mode value.deserializer
"""
OTHER_CLIENTS = frozenset(_OTHER_CLIENTS.split())
"""Names of Java's consumer and admin client that its producer does not have."""
_SOURCE = """
    assign subscribe subscribePattern startingOffsets startingOffsetsByTimestamp startingOffsetsByTimestampStrategy startingTimestamp
    endingOffsets endingOffsetsByTimestamp endingTimestamp failOnDataLoss fetchOffset.numRetries fetchOffset.retryIntervalMs
    groupIdPrefix kafkaConsumer.pollTimeoutMs maxOffsetsPerTrigger maxRecordsPerPartition maxTriggerDelay minOffsetsPerTrigger
    minPartitions
"""

# From 0, nothing in common, to 1, equal. Below this, names such as client.rack and client.id would be near each other.
_NEAR = 0.84
_READS = "is an option of Spark's Kafka source: give it to the query that reads, and remove it here"
_STREAMS = "is an option of streaming queries: remove it"
_SPARKS = {
    **dict.fromkeys(_SOURCE.split(), _READS),
    "includeHeaders": f"{_READS}; the sink writes a column headers without an option",
    "group.id": f"{_READS}; a streaming query commits its source's offsets to the consumer group in source.offsets.group",
    "checkpointLocation": f"{_STREAMS}. txnAppId and txnVersion identify a batch write, so that a rerun writes its rows once",
    "queryName": f"{_STREAMS}. txnAppId names a batch program",
    "mode": 'is no option: call .mode("append") on the writer of a batch',
    "outputMode": "is no option: call .outputMode(...) on the writer of a streaming query",
    "trigger": "is no option: call .trigger(...) on the writer of a streaming query",
}
ASYNC_PROGRESS = "asyncprogresstracking"
_WRITTEN = {name.lower(): name for name in (*SINK, *STREAMING, *_SPARKS)}


def written_name(name: str) -> str:
    """Return an option's name as users write it; Spark passes names in lower case."""
    return _WRITTEN.get(name.lower(), name)


def about_unknown(name: str) -> str:
    """Return a sentence about an option that the sink does not know, with the way out.

    Args:
        name: As it arrived, with ``kafka.`` if the user wrote it.
    """
    written = written_name(name)
    java = name.lower().removeprefix(PREFIX)
    if (sentence := _SPARKS.get(written) or _SPARKS.get(java)) is not None:
        return f"{written} {sentence}"
    if name.lower().startswith(ASYNC_PROGRESS):
        return f"{written} {_STREAMS}"
    if java in OTHER_CLIENTS:
        return f"{written} is an option of Kafka's consumer or admin client, and the sink only writes: remove it"
    row = JAVA.get(java)
    if row is not None and not _is_accepted(row):
        what = "has no effect" if row.group == "without effect" else "is not possible"
        why = row.meaning if row.contradiction is None else row.contradiction.reason
        return f"{written} {what}: {with_prefix(PREFIX, why)}"
    near = difflib.get_close_matches(_spelling(name), _ACCEPTED, n=1, cutoff=_NEAR)
    hint = (
        f"the nearest known name is {_ACCEPTED[near[0]]}"
        if near
        else "no known name is near it; help(KafkaEosDataSource) shows the usual ones"
    )
    return f"{written} is not known; {hint}"


def _spelling(name: str) -> str:
    # Without the prefix, which would make short names near each other, and without the separators.
    return re.sub("[._-]", "", name.lower().removeprefix(PREFIX))


def _is_accepted(row: Setting) -> bool:
    """Return whether a user may set the option, and has an effect by it."""
    return row.group not in ("refused", "without effect") and (
        row.contradiction is None or row.contradiction.accepted != "none"
    )


_ACCEPTED = {
    _spelling(name): name for name in (*SINK, *(PREFIX + each for each, row in JAVA.items() if _is_accepted(row)))
}
