"""The error texts of the commit protocol, each with the command that helps.

Every text has the layout of `errors.KafkaEosError`: what happened, the sentence on the rows, what to do, details. A command ends a text or
is followed by ``;``, so that a shell takes what was pasted.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from kafka_eos_sink.commit.log_records import LARGEST_BATCH_BYTES
from kafka_eos_sink.commit.procedure import Answered
from kafka_eos_sink.commit.transactional_id import BATCH_QUERY_ID, SLOTS, if_transactional_id, is_random_write_id
from kafka_eos_sink.commit.values import BatchIdentity, Decision, Hanging, PreparedTransaction, Write
from kafka_eos_sink.commit.versions import MOST_RANGES
from kafka_eos_sink.errors import (
    AuthorizationError,
    DecisionPendingError,
    FencedError,
    Job,
    TransactionAbortedError,
    WriteRefusedError,
)
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import ProducerIdentity, TopicPartition
from kafka_eos_sink.protocol.reactions import EXPIRED_ID, TOO_LARGE

VISIBLE = "every row is visible, unless retention or a deleted topic has removed it"
"""What holds for a finished version."""
READ_TOPIC = "If kafka-eos history lists it, do not run the job again. Otherwise read the topic first"
FINISHED_OR_NOT_BEGUN = (
    "A batch without txnAppId leaves no record here if it has finished: then all its rows are visible"
)
"""What an empty commit log says of a random write id: its driver removes its records (`log_writing.forget`)."""
TIMEOUT_WAYS_OUT = (
    "Run it with smaller batches, with more tasks at a time, or with a larger kafka.transaction.timeout.ms (up to the brokers' "
    "transaction.max.timeout.ms)"
)


def job_of(write_id: str) -> Job:
    """Return the kind of job that has a write id: only a batch write's has a slash."""
    if is_random_write_id(write_id):
        return Job.RANDOM
    return Job.BATCH if "/" in write_id else Job.STREAM


def run_again(write_id: str) -> str:
    """Tell how the run of a write id that has not finished starts again."""
    return {
        Job.BATCH: "run the same version again",
        Job.STREAM: "restart the query from its checkpoint",
        Job.RANDOM: "run the job again",
    }[job_of(write_id)]


def describe_ranges(prepared: Iterable[PreparedTransaction]) -> str:
    return some([str(part) for entry in prepared for part in entry.offsets])


def some(names: Sequence[str]) -> str:
    """List the first names, and how many more there are."""
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def version_of(version: int, write_id: str) -> str:
    # A batch write without txnAppId has one version, whose number its user has never seen.
    what = "the batch" if is_random_write_id(write_id) else f"version {version}"
    return f"{what} of write id {write_id!r}"


def resolve_command(write: Write, query_id: str, version: int | str, resolution: str) -> str:
    # A batch write has one query id. A stream's prefix may have served several checkpoints.
    of_query = "" if query_id == BATCH_QUERY_ID else f" --query-id {shlex.quote(query_id)}"
    return write.command("resolve", f"--version {version} --as {resolution}{of_query}")


def _resolve(write: Write, decision: Decision, resolution: str) -> str:
    return resolve_command(write, decision.query_id, decision.version, resolution)


def write_all_again(write: Write, decision: Decision) -> str:
    return f"then {run_again(write.id)}: {_resolve(write, decision, 'rewrite')}"


def keep_or_rewrite(write: Write, decision: Decision) -> str:
    """Return the commands for a version whose missing rows cannot come back."""
    return (
        f"To leave the missing rows out for ever: {_resolve(write, decision, 'committed')}; to write the whole batch again, with its "
        f"visible rows twice, run this, {write_all_again(write, decision)} --allow-duplicates"
    )


# the owner of the write id


def fenced(write_id: str, why: str, hint: str = "") -> FencedError:
    """``why`` says what revealed the newer driver."""
    job = job_of(write_id)
    what = "an operator's command has ended" if job is Job.RANDOM else "another run has replaced"
    do = {
        Job.RANDOM: "Run the job again, unless somebody ended it on purpose",
        Job.BATCH: (
            "Stop one of the two runs. Then run this version again with the same txnAppId: it writes the rows only if they are not there. "
            "Another job needs a txnAppId of its own"
        ),
        Job.STREAM: (
            "Stop one of the two queries, and restart the other from its checkpoint: it writes a batch only if it is not there. Another "
            "query needs its own checkpoint and transactional.id.prefix"
        ),
    }[job]
    do += f". {hint}" if hint else ""
    return FencedError("FENCED", f"{what} this run of write id {write_id!r} ({why})", do)


def unknown_write_id(write: Write, otherwise: str = "") -> WriteRefusedError:
    """``otherwise``: what to do if the id is right."""
    found, do = f"the commit log {write.log_topic!r} holds nothing of write id {write.id!r}. Nothing was changed", ""
    if write.is_random:
        found += f". {FINISHED_OR_NOT_BEGUN}"
        do, otherwise = f"{READ_TOPIC}. ", ""
    else:
        found += (
            ". A batch write's id is <transactional.id.prefix>/<txnAppId>/<topic>, for instance kafka-eos/nightly-orders/orders; a "
            "stream's id is its transactional.id.prefix, or kafka-eos- and the query id"
        )
    return WriteRefusedError(
        "UNKNOWN_WRITE_ID",
        found,
        f"{if_transactional_id(write.id)}{do}If the write has another commit.log.topic, name it with --commit-log-topic. To list the write "
        "ids of this commit log: "
        f"{write.status_of_all}" + (f"; {otherwise}" if otherwise else ""),
    )


def not_this_commit_log(write: Write, opened: Sequence[ProducerIdentity]) -> WriteRefusedError:
    return WriteRefusedError(
        "NOT_THIS_COMMIT_LOG",
        f"write id {write.id!r} has open transactions (first: {opened[0].transactional_id}), but this commit log holds nothing of it. They "
        "belong to a run with another commit log, which may have decided them. Nothing was touched",
        f"Set {'' if write.is_random else 'commit.log.topic of the job, or '}--commit-log-topic of the command to the log of that run, and "
        "start it again before its transactions time out (kafka.transaction.timeout.ms). Only if that log is lost for good: the rows of "
        "the open transactions are lost with it. To end them now: "
        f"{write.command('recover', '--abort-unknown')}",
    )


def log_created_again(write_id: str) -> WriteRefusedError:
    again = (
        "read the topic, and run the job again only if no transaction of this write id is open and none of its rows is there"
        if is_random_write_id(write_id)
        else f"{run_again(write_id)}: the next error names transactions that are still open"
    )
    return WriteRefusedError(
        "NOT_THIS_COMMIT_LOG",
        f"the commit log was deleted and created again while the records of write id {write_id!r} were read. The deleted log may have "
        "decided transactions that are still open, so nothing was ended",
        f"Find out what deletes the topic. Then {again}",
    )


# whether the batch may be written


def why_unwritten(decision: Decision) -> str:
    """Say why the next run writes a version (`Decision.is_unwritten`)."""
    if decision.resolution:
        return "which is resolved as rewrite, and not written since"
    return "which is void: none of its rows is in the topic"


def earlier_version_unfinished(write: Write, batch: BatchIdentity, newest: Decision) -> WriteRefusedError:
    committed, again = _resolve(write, newest, "committed"), "un it again from the checkpoint that holds it"
    return WriteRefusedError(
        "EARLIER_VERSION_UNFINISHED",
        f"{version_of(batch.version, write.id)} cannot be written before version {newest.version}, {why_unwritten(newest)}",
        f"If the topic holds its rows: {committed}; if it holds none of them, r{again}"
        if newest.resolution
        else f"R{again}. To give its rows up: {committed}",
    )


def checkpoint_rolled_back(write: Write, batch: BatchIdentity, newest: Decision) -> WriteRefusedError:
    name = "transactional.id.prefix" if batch.streaming else "txnAppId"
    return WriteRefusedError(
        "CHECKPOINT_ROLLED_BACK",
        f"this run wrote nothing: the checkpoint continues at batch {batch.version}, but batch {newest.last_version} of {write.id!r} "
        "is already written",
        f"Restore the checkpoint that holds batch {newest.last_version}, and restart the query. Without it, choose: "
        f"onCheckpointRollback=skip writes nothing below batch {newest.last_version}, and rows of these batches that are not in the topic "
        "are lost; onCheckpointRollback=rewrite writes these batches again, and rows that are in the topic are there twice. A query "
        f"that begins with other rows needs another {name}",
    )


def version_too_old(write: Write, batch: BatchIdentity, floor: int) -> WriteRefusedError:
    return WriteRefusedError(
        "VERSION_TOO_OLD",
        f"this run wrote nothing: the commit log no longer shows whether {version_of(batch.version, write.id)} was written. It remembers "
        f"the newest {MOST_RANGES:,} ranges of consecutive versions, from {floor} on",
        f"If its rows are not in the topic, write them with a txnVersion from {floor} on that this txnAppId has not used, or under another "
        f"txnAppId. To see which application wrote what: {write.history_command}",
    )


def different_query(write: Write, batch: BatchIdentity, newest: Decision) -> WriteRefusedError:
    queries = (newest.foreach_query, batch.foreach_query)
    before, this = (f"streaming query {each}" if each else "a batch job" for each in queries)
    # An unwritten version must not count as written.
    go_on = _resolve(write, newest, "rewrite" if newest.is_unwritten else "committed")
    return WriteRefusedError(
        "DIFFERENT_QUERY",
        f"this run wrote nothing: {before} has decided version {newest.version} of write id {write.id!r}, and "
        f"this is {this}. Its versions count other rows, so they would be skipped",
        "If the checkpoint of the query was lost or replaced, restore it. If this is the same query, over Spark Connect or in another "
        f"thread, let the next run go on, whichever it is: {go_on}; otherwise give each "
        "query and each job a txnAppId of its own. Under a new one, every row that this run reads is written, so begin behind the rows "
        "that are in the topic",
    )


def second_write(write_id: str, batch: BatchIdentity) -> WriteRefusedError:
    return WriteRefusedError(
        "DIFFERENT_BATCH",
        f"{version_of(batch.version, write_id)} was already written by this call of the foreachBatch function, so these rows would be "
        "skipped",
        "Leave the first write in the function its txnAppId, and give each other write its own: writes with the same txnAppId and the same "
        "option topic, or without that option, are one write",
    )


def different_batch(write: Write, batch: BatchIdentity, newest: Decision) -> WriteRefusedError:
    """The version was committed with other source offsets, or another topic or schema."""
    keep = resolve_command(write, batch.query_id, batch.version, "committed")
    names = (("topic option", newest.topic, batch.topic), ("schema", newest.schema, batch.schema))
    differs = [f"{name} {before!r}, and this run has {now!r}" for name, before, now in names if before != now]
    if batch.offsets_hash is not None and newest.offsets_hash is not None:
        differs = [each for each in differs if each.startswith("topic")] + ["other source offsets"]
        do = (
            "If two queries share transactional.id.prefix or copies of one checkpoint, give each its own. If the checkpoint was changed, "
            f"restore the file offsets/{batch.version} in it"
        )
    elif batch.streaming or batch.foreach_query:
        do = "Run this batch with that topic and schema"
    else:
        do = "For other rows, set a txnVersion that this txnAppId has not used; for the same rows, run nothing: they are written"
    return WriteRefusedError(
        "DIFFERENT_BATCH",
        f"this run wrote nothing: {version_of(batch.version, write.id)} is already committed with {'; '.join(differs)}",
        f"{do}. Only if the topic holds every row of this run, record that; rows that are not there are then never written: {keep}",
    )


# before the decision


def may_not_read(topics: Sequence[str]) -> AuthorizationError:
    return AuthorizationError(
        "TOPIC_AUTHORIZATION_FAILED",
        f"the principal may not Read {some(topics)}. An exactly-once write needs Read on every topic that it writes to, to prove that "
        "consumers see its rows, and to copy rows whose transaction Kafka aborts. Nothing was committed",
        f"Grant the principal Read on {some(topics)}",
    )


def no_free_id(write: Write, partition: int) -> TransactionAbortedError:
    return TransactionAbortedError(
        "NO_FREE_TRANSACTIONAL_ID",
        f"all {SLOTS} transactional ids of partition {partition} of write id {write.id!r} carry open transactions",
        f"See what holds them: {write.command('status')}",
    )


def too_old(what: str, elapsed_ms: int, timeout_ms: int) -> TransactionAbortedError:
    return TransactionAbortedError(
        "TRANSACTION_TOO_OLD",
        f"the batch took too long: {elapsed_ms / 1000:.1f} s have passed, and its transactions end at {timeout_ms / 1000:.1f} s "
        f"(kafka.transaction.timeout.ms; {what})",
        TIMEOUT_WAYS_OUT,
    )


_TOO_LARGE = (
    "a decision grows with the tasks of the batch and the partitions that they write to. Raise max.message.bytes of the commit log topic "
    f"to {LARGEST_BATCH_BYTES}, or write the batch with fewer tasks"
)


def not_decided(decision: Decision, what: str, failed: Answered) -> TransactionAbortedError:
    known = {**dict.fromkeys(TOO_LARGE, _TOO_LARGE), ErrorCode.INVALID_PRODUCER_ID_MAPPING: EXPIRED_ID}
    cause = next((f": {text}" for each, text in known.items() if each == failed.error), "")
    return TransactionAbortedError(
        "NOT_DECIDED",
        f"{version_of(decision.version, decision.write_id)} could not be committed ({failed.code} for {what}){cause}",
        f"{'Then ' if cause else ''}{run_again(decision.write_id)}".capitalize(),
    )


def begins_elsewhere(write: Write, name: str, where: TopicPartition, first: int, start: int) -> TransactionAbortedError:
    """The transaction begins at ``start``, its task's records at ``first`` (-1: none)."""
    place, again = "{}-{}".format(*where), run_again(write.id).capitalize()
    if start < 0:
        what = (
            f"{place} holds no open transaction of {name}, although its task wrote there from offset {first} on: the topic was deleted and "
            "created again while the batch ran, or the transaction was ended by hand"
        )
    else:
        begin = f"not at {first} where the task's records begin" if first >= 0 else "and the task has no record there"
        what = f"on {place} the open transaction of {name} begins at offset {start}, {begin}: "
        if start > first >= 0:
            what += "the topic was deleted and created again while the batch ran, or a marker was written by hand"
        else:
            what += "an older one was never ended, because its marker is missing. The abort of this attempt ends both"
    return TransactionAbortedError("TRANSACTION_NOT_OPEN", f"{what}. Nothing was committed", again)


def decision_unknown(write: Write, decision: Decision, why: str) -> DecisionPendingError:
    recover = write.command("recover")
    if job_of(write.id) is Job.RANDOM:
        do = f"Find out soon, and finish the batch if it is committed: {recover}; only if that shows it as aborted, run the job again"
    else:
        do = f"{run_again(write.id).capitalize()}: that run finds out, and writes nothing twice. If it does not run soon: {recover}"
    return DecisionPendingError(
        "DECISION_UNKNOWN",
        f"it is not known whether {version_of(decision.version, write.id)} is committed: {why}",
        do,
    )


# after the decision


def _finish(write: Write, when: str) -> str:
    """Tell how a decided version is finished, and ``when`` at the latest."""
    recover = write.command("recover")
    if job_of(write.id) is Job.RANDOM:
        return f"Finish the batch {when}: {recover}"
    return f"{run_again(write.id).capitalize()}: that run finishes it, and writes nothing twice. If it does not run {when}: {recover}"


def pending(write: Write, decision: Decision, what: str, do: str = "") -> DecisionPendingError:
    return DecisionPendingError(
        "DECIDED_NOT_FINISHED",
        f"{version_of(decision.version, write.id)} is committed, but not every row is proven visible: {what}",
        do or _finish(write, "soon, and before its transactions time out (kafka.transaction.timeout.ms)"),
    )


def unresolved(
    write: Write, decision: Decision, asked: Sequence[PreparedTransaction], lost: Sequence[PreparedTransaction]
) -> DecisionPendingError:
    """Records are gone, and nothing proves if readers saw them; ``lost`` are aborted."""
    return _unresolved(
        write,
        decision,
        f"{len(asked)} of {len(decision.transactions)} transactions left no proof of their end (first: "
        f"{asked[0].identity.transactional_id}): records in {describe_ranges(asked)} are gone, and no coordinator reports how they ended"
        + (f"; aborted and not copied: {describe_ranges(lost)}" if lost else ""),
    )


def without_rows(write: Write, decision: Decision, lost: PreparedTransaction) -> DecisionPendingError:
    """Only some ranges are aborted, and the decision lacks their numbers of rows."""
    return _unresolved(
        write,
        decision,
        f"{describe_ranges([lost])} of {lost.identity.transactional_id} is aborted, and other rows of it are visible. An earlier version "
        "of kafka-eos-sink wrote the decision, without the number of rows in each range, so a copy could not be checked",
    )


def _unresolved(write: Write, decision: Decision, what: str) -> DecisionPendingError:
    is_random = job_of(write.id) is Job.RANDOM
    return DecisionPendingError(
        "UNRESOLVED",
        f"nothing proves whether all rows of {version_of(decision.version, write.id)} are visible: {what}. Nothing was copied",
        "Read the topic with isolation.level=read_committed, and compare all rows of the batch, by their offsets. If all are there, record "
        f"that{' and do not run the job again' * is_random}: {_resolve(write, decision, 'committed')}; if none is there, record that, "
        f"{write_all_again(write, decision)}; if some are there, record that, then {run_again(write.id)}, which writes those a second "
        f"time: {_resolve(write, decision, 'rewrite')} --allow-duplicates",
    )


def hangs(write: Write, decision: Decision, left: Sequence[Hanging]) -> DecisionPendingError:
    return pending(
        write,
        decision,
        f"{_held(left)} is still open, although its coordinator has ended it: its marker is missing (KAFKA-20734), and no transaction of "
        "its id could end it, because the coordinator has forgotten its producer id",
        f"Discard what hangs{', and do what this command then prints' * write.is_random}: {write.command('recover', '--discard')}"
        + ("" if write.is_random else f"; then {run_again(write.id)}, which copies its rows from the log"),
    )


def discarded_warning(decision: Decision, hanging: Sequence[Hanging]) -> str:
    return (
        f"{version_of(decision.version, decision.write_id)}: a broker has omitted markers (KAFKA-20734), so readers waited for "
        f"{_held(hanging)}. It is aborted now, and its rows are copied from the log"
    )


def _held(hanging: Sequence[Hanging]) -> str:
    return some(
        [f"{each.transactional_id} on {topic}-{partition}" for each in hanging for topic, partition in each.partitions]
    )


def topic_gone(write: Write, decision: Decision, what: str) -> DecisionPendingError:
    return DecisionPendingError(
        "TOPIC_GONE",
        f"{version_of(decision.version, write.id)} is committed, but its topic does not hold all its rows: {what}",
        f"If brokers are down, bring them back. {_finish(write, 'soon')}; if the topic was deleted, do not create it before "
        f"you have chosen. {keep_or_rewrite(write, decision)}",
    )


def void(decision: Decision) -> DecisionPendingError:
    """All transactions were aborted and cannot be copied, so no row is visible."""
    return DecisionPendingError(
        "ALL_PARTS_LOST",
        f"Kafka aborted all transactions of {version_of(decision.version, decision.write_id)} before they could be committed (at their "
        "timeout, or by hand), and their records can no longer be copied",
        run_again(decision.write_id).capitalize() + ", which writes all rows",
    )


def void_warning(decision: Decision, gone: Sequence[str]) -> str:
    return (
        f"{version_of(decision.version, decision.write_id)} was decided, all of its transactions were aborted, and its rows cannot be "
        f"copied from the log: {'; '.join(gone)}. None of them is visible: {run_again(decision.write_id)}"
    )


def lost_parts(
    write: Write, decision: Decision, lost: Sequence[PreparedTransaction], why: Sequence[str], unseen: str
) -> DecisionPendingError:
    """Some transactions are committed, maybe in a deleted topic, the others lost."""
    others = f"; rows of the committed ones are not seen either: {unseen}" if unseen else ""
    return DecisionPendingError(
        "LOST_PARTS",
        f"{sum(entry.rows for entry in lost)} rows of {version_of(decision.version, write.id)} are missing from the topic: "
        f"{len(lost)} of its {len(decision.transactions)} transactions {'was' if len(lost) == 1 else 'were'} aborted before the commit "
        f"reached it (at the timeout, or by hand), in {describe_ranges(lost)}, and not all of these rows can be copied from the log: "
        f"{'; '.join(why)}{others}",
        "The missing rows are copied together, once all can be read: first bring brokers back that are down. "
        f"{_finish(write, 'soon')}; if the rows are gone for good, choose. {keep_or_rewrite(write, decision)}",
    )
