"""The error texts of the commit protocol, each with the command that helps."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from kafka_eos_sink.commit.commit_log import DEFAULT_TOPIC
from kafka_eos_sink.commit.prepared_transaction import (
    BatchIdentity,
    Decision,
    OffsetRange,
    PreparedTransaction,
    SettledDecision,
)
from kafka_eos_sink.commit.transactional_id import BATCH_QUERY_ID, SLOTS
from kafka_eos_sink.errors import (
    DecisionPendingError,
    FencedError,
    KafkaEosError,
    TransactionAbortedError,
    WriteRefusedError,
)
from kafka_eos_sink.protocol.identity import ProducerIdentity

_ON_THE_CLUSTER = " --bootstrap-servers ... --write-id "
TIMEOUT_WAYS_OUT = (
    "Use smaller batches, or more tasks at a time, or a larger kafka.transaction.timeout.ms (up to the broker's "
    "transaction.max.timeout.ms; 2147483647 disables the timeout if the broker allows it)"
)


def command(name: str, write_id: str, options: str = "") -> str:
    """Return an operator's command on a write id, to paste from an error message."""
    return f"kafka-eos {name}{_ON_THE_CLUSTER}{shlex.quote(write_id)}{options}"


def on_commit_log(message: str, log_topic: str) -> str:
    """Name the commit log in the commands of a message.

    A procedure knows its write id, but not its commit log. On another commit log the same command would find no decision.
    """
    if log_topic == DEFAULT_TOPIC:
        return message
    named = _ON_THE_CLUSTER.replace("--write-id", f"--commit-log-topic {shlex.quote(log_topic)} --write-id")
    return message.replace(_ON_THE_CLUSTER, named)


def describe_ranges(prepared: Iterable[PreparedTransaction]) -> str:
    """List the offsets of transactions as text: ``topic-partition [first..last]``."""
    return some([str(part) for entry in prepared for part in entry.offsets])


def some(names: Sequence[str]) -> str:
    """List the first names, and how many more there are."""
    shown = ", ".join(names[:8])
    return shown if len(names) <= 8 else f"{shown} and {len(names) - 8} more"


def version_of(version: int, write_id: str) -> str:
    return f"version {version} of write id {write_id!r}"


def resolve_command(write_id: str, query_id: str, version: int, resolution: str) -> str:
    # A batch write has one query id. A stream's prefix may have served several checkpoints.
    of_query = "" if query_id == BATCH_QUERY_ID else f" --query-id {shlex.quote(query_id)}"
    return command("resolve", write_id, f" --version {version} --as {resolution}{of_query}")


# the owner of the write id


def fenced(write_id: str, why: str) -> FencedError:
    """``why`` names what revealed the newer driver."""
    return FencedError(
        "FENCED",
        f"a newer driver of write id {write_id!r} has taken over ({why}); it finishes what is decided. Only one query or job may run "
        "under a write id at a time",
    )


def unknown_write_id(write_id: str) -> WriteRefusedError:
    return WriteRefusedError(
        "UNKNOWN_WRITE_ID",
        f"the commit log holds nothing of write id {write_id!r}, and no transaction of it is open. A batch write's id is "
        "<transactional.id.prefix>/<txnAppId>/<topic>, for instance kafka-eos/nightly-orders/orders; a stream's id is its "
        "transactional.id.prefix, or kafka-eos- and the query id; kafka-eos status lists them",
    )


def not_this_commit_log(write_id: str, opened: Sequence[ProducerIdentity]) -> WriteRefusedError:
    return WriteRefusedError(
        "NOT_THIS_COMMIT_LOG",
        f"{len(opened)} transactions of write id {write_id!r} are open (first: {opened[0].transactional_id}), but this commit log "
        "holds nothing of it. They belong to a run with another commit.log.topic, where they may be decided. Ending them could "
        "lose rows, so nothing was touched. Name that log: kafka-eos recover --bootstrap-servers ... --commit-log-topic ... "
        f"--write-id {shlex.quote(write_id)}. If that log was lost, wait for their transaction.timeout.ms, or abort them: the same "
        "command on this log with --abort-unknown",
    )


def log_created_again(write_id: str) -> WriteRefusedError:
    return WriteRefusedError(
        "NOT_THIS_COMMIT_LOG",
        f"the commit log was deleted and created again while the records of write id {write_id!r} were read. The deleted log may have "
        "decided transactions that are still open, so nothing was ended. Run it again: its error names transactions that are still open",
    )


# whether the batch may be written


def not_the_next_version(write_id: str, batch: BatchIdentity, newest: SettledDecision | None) -> WriteRefusedError:
    """The log lacks a stream's previous batch, so nothing proves if this was written."""
    if newest is None:
        what = (
            f"batch {batch.version} of query {batch.query_id} is not its first, but the commit log knows nothing of write id "
            f"{write_id!r}: the log was lost, the write got another commit.log.topic or transactional.id.prefix, or another "
            "sink began the checkpoint. Read"
        )
    else:
        what = (
            f"the commit log of write id {write_id!r} ends at version {newest.version} of query {batch.query_id}, but the "
            f"checkpoint continues at batch {batch.version}: the write was set back to a former commit.log.topic or "
            "transactional.id.prefix, or the log to an older copy; or another sink, or delivery.guarantee=at-least-once, wrote the "
            "batches between; or the checkpoint lacks batches: somebody removed them, or Spark used one to repartition a query's "
            f"state. If a commit log holds batch {batch.version - 1}, name it by commit.log.topic; else read"
        )
    answer = resolve_command(write_id, batch.query_id, batch.version - 1, "committed")
    return WriteRefusedError(
        "COMMIT_LOG_LOST",
        f"{what} the topic with isolation.level=read_committed, to see whether batch {batch.version} is there already, as after a crash "
        f"between commit and checkpoint. Then record the last batch whose rows are all there: {answer} (or --version {batch.version} if "
        "its rows are there too)",
    )


def earlier_version_unfinished(write_id: str, batch: BatchIdentity, newest: SettledDecision) -> WriteRefusedError:
    return WriteRefusedError(
        "EARLIER_VERSION_UNFINISHED",
        f"{version_of(batch.version, write_id)} cannot be written before version {newest.version}, which was decided and then "
        f"aborted by the transaction timeout: run version {newest.version} again, or give its rows up: "
        + resolve_command(write_id, batch.query_id, newest.version, "committed"),
    )


def checkpoint_rolled_back(write_id: str, batch: BatchIdentity, newest: SettledDecision) -> WriteRefusedError:
    return WriteRefusedError(
        "CHECKPOINT_ROLLED_BACK",
        f"{version_of(batch.version, write_id)} is older than version {newest.version}, which is already written: "
        "a checkpoint was rolled back, or a later run came first. Set onCheckpointRollback to skip (no version up to that "
        "one is written, whatever its rows are) or rewrite (write them again, on purpose). For a new checkpoint, whose versions begin "
        "at 0 with other rows, take another txnAppId or transactional.id.prefix",
    )


def second_write(write_id: str, batch: BatchIdentity) -> WriteRefusedError:
    return WriteRefusedError(
        "DIFFERENT_BATCH",
        f"{version_of(batch.version, write_id)} was already written by this call of the foreachBatch function, so these rows would be "
        "skipped. Give each write in the function its own txnAppId: writes with the same txnAppId and the same option topic, or "
        "without that option, are one write",
    )


def different_batch(write_id: str, batch: BatchIdentity, newest: SettledDecision) -> WriteRefusedError:
    """The version was committed with other source offsets, or another topic or schema."""
    answer = resolve_command(write_id, batch.query_id, batch.version, "committed")
    if batch.offsets_hash is not None and newest.offsets_hash is not None:
        written_to = "" if batch.topic == newest.topic else f" topic option {newest.topic!r}, not {batch.topic!r}, and"
        why = (
            f"{written_to} other source offsets: the checkpoint was changed, or two queries share transactional.id.prefix or copies of one "
            "checkpoint. Give each query its own. Otherwise restore the offsets of this batch in the checkpoint. Or, if the topic holds "
            f"every row that the batch now has: {answer}; missing rows are then never written"
        )
    else:
        why = (
            f" topic option {newest.topic!r} and schema {newest.schema!r}, not {batch.topic!r} and {batch.schema!r}. If the rows in "
            f"the topic are the right ones: {answer}; else "
            + ("run this batch with that topic and schema" if batch.streaming else "take another txnVersion")
        )
    return WriteRefusedError("DIFFERENT_BATCH", f"{version_of(batch.version, write_id)} is already committed with{why}")


# before the decision


def no_free_id(write_id: str, partition: int) -> TransactionAbortedError:
    return TransactionAbortedError(
        "NO_FREE_TRANSACTIONAL_ID",
        f"all {SLOTS} transactional ids of partition {partition} of write id {write_id!r} carry open transactions; see: "
        f"kafka-eos transactions --bootstrap-servers ... --prefix {shlex.quote(write_id)}",
    )


def too_old(what: str, elapsed_ms: int, timeout_ms: int) -> TransactionAbortedError:
    return TransactionAbortedError(
        "TRANSACTION_TOO_OLD",
        f"{what}: {elapsed_ms / 1000:.1f} s have passed and transactions end at {timeout_ms / 1000:.1f} s "
        f"(transaction.timeout.ms), so this batch can no longer be committed. {TIMEOUT_WAYS_OUT}",
    )


def not_decided(decision: Decision, what: str, code: str) -> TransactionAbortedError:
    return TransactionAbortedError(
        "NOT_DECIDED",
        f"{version_of(decision.version, decision.write_id)} could not be decided ({code} for {what}); nothing of it is visible, run "
        "it again",
    )


def text_of(failure: Exception) -> str:
    return str(failure) if isinstance(failure, KafkaEosError) else f"{type(failure).__name__}: {failure}"


def decision_unknown(decision: Decision, why: str) -> DecisionPendingError:
    return DecisionPendingError(
        "DECISION_UNKNOWN",
        f"it is not known whether {version_of(decision.version, decision.write_id)} is decided: {why}. Its rows may be visible, or "
        "become visible when Spark's abort finishes the batch. Do not write them again before the outcome is known. The next run with the "
        f"same id finds it, or: {command('recover', decision.write_id)}",
    )


# after the decision


def pending(decision: Decision, what: str) -> DecisionPendingError:
    """The batch is decided: the driver must finish it and never write it again."""
    return DecisionPendingError(
        "DECIDED_NOT_FINISHED",
        f"{version_of(decision.version, decision.write_id)} is decided but not finished: {what}. Its rows must not be "
        "written again under another id; the next run with the same id finishes it, or: "
        + command("recover", decision.write_id),
    )


def unresolved(decision: Decision, what: str) -> DecisionPendingError:
    return DecisionPendingError(
        "UNRESOLVED",
        f"{version_of(decision.version, decision.write_id)}: {what}. No proof shows whether its rows are visible, so nothing was "
        "written; read the topic, and then record the outcome: "
        + resolve_command(decision.write_id, decision.query_id, decision.version, "committed|rewrite"),
    )


def topic_gone(decision: Decision, what: str) -> DecisionPendingError:
    return DecisionPendingError(
        "TOPIC_GONE",
        f"{version_of(decision.version, decision.write_id)} is decided, but its topic does not hold all its rows: {what}. If "
        "brokers are down, bring them back, and run it again. To keep it without these rows: "
        + resolve_command(decision.write_id, decision.query_id, decision.version, "committed")
        + "; or write all of it again, with duplicates of its rows that are still visible: --as rewrite --allow-duplicates",
    )


def marker_missing(decision: Decision, what: str) -> DecisionPendingError:
    """Readers of a committed batch are blocked: a marker may be missing (KAFKA-20734)."""
    return pending(
        decision,
        f"{what}: {command('repair', decision.write_id)}. Do not use the stock kafka-transactions.sh abort: it would discard "
        "committed records",
    )


def unmarked_warning(decision: Decision, unmarked: Sequence[PreparedTransaction]) -> str:
    return (
        f"{version_of(decision.version, decision.write_id)} is committed and visible, but a broker has omitted the marker of "
        f"{some([entry.identity.transactional_id for entry in unmarked])} in the commit log (KAFKA-20734). No reader waits for it, but "
        f"compaction of that log partition stops until the marker is written: {command('repair', decision.write_id)}"
    )


def void(decision: Decision, can_be_rerun: bool) -> DecisionPendingError:
    """All transactions were aborted and cannot be copied, so no row is visible."""
    way_out = "Run the same version again" if can_be_rerun else "Run the job again"
    return DecisionPendingError(
        "LOST_PARTS",
        f"{version_of(decision.version, decision.write_id)} was decided, but all of its transactions were aborted before they could be "
        "committed (by the transaction timeout, or by hand), and their records can no longer be copied. None of its rows is visible. "
        f"{way_out}",
    )


def found_void(decision: Decision) -> TransactionAbortedError:
    """`resolve --as committed`, and no row of the version is left."""
    return TransactionAbortedError(
        "NOT_RESOLVED",
        f"{version_of(decision.version, decision.write_id)} is void now: readers see none of its rows, and recovery cannot copy them. Run "
        "its job, which writes them. To give up all of its rows, run the command again",
    )


def given_up_warning(decision: Decision, failure: DecisionPendingError, aborted: Sequence[OffsetRange]) -> str:
    """``aborted`` holds the ranges of aborted records that the log still has."""
    rows = f", with the aborted rows in {some([*map(str, aborted)])} given up" if aborted else ""
    return (
        f"{version_of(decision.version, decision.write_id)} will count as written, and its next run will skip it{rows}, in spite of this "
        f"error of recovery: {failure}"
    )


def void_warning(decision: Decision, gone: Sequence[str]) -> str:
    return (
        f"{version_of(decision.version, decision.write_id)} was decided, all of its transactions were aborted, and its rows cannot be "
        f"copied from the log: {'; '.join(gone)}. None of them is visible: the version may be written again, before any higher one"
    )


def lost_parts(
    decision: Decision, lost: Sequence[PreparedTransaction], why: Sequence[str], unseen: str
) -> DecisionPendingError:
    """Some transactions are committed, maybe in a deleted topic, the others lost."""
    nor = (
        f". Nor are all rows of the committed ones seen: {unseen}. If brokers are down, bring them back first"
        if unseen
        else ""
    )
    return DecisionPendingError(
        "LOST_PARTS",
        f"{version_of(decision.version, decision.write_id)} was decided, but {len(lost)} of its {len(decision.transactions)} transactions, "
        f"with {sum(entry.rows for entry in lost)} rows in {describe_ranges(lost)}, were aborted before they could be committed (by the "
        f"transaction timeout, or by hand). Lost rows are copied from the log all together or not at all, and some cannot be copied: "
        f"{'; '.join(why)}{nor}. Once all can be read again, the next run copies them. If they are gone for good, keep the version "
        "without the lost rows: "
        + resolve_command(decision.write_id, decision.query_id, decision.version, "committed")
        + "; or write all of it again, with duplicates of the visible rows: --as rewrite --allow-duplicates",
    )
