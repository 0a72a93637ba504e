"""Mutations of pure code, each caught by the unit tests of its package. The model has its own (`model/mutations.py`).

    python -m tests.unit_mutations [--matrix] [NAME...]

runs for each mutation the tests that it names. With ``--matrix`` it runs all unit tests of the package, for the mutations of both lists,
and prints which test files catch each: the kill matrix. Exit status 1 if one survives.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kafka_eos_sink.client.connection import Connection
from kafka_eos_sink.client.requests import Requests
from kafka_eos_sink.client.transactions_admin import TransactionsAdmin
from kafka_eos_sink.commit import (
    commit_batch,
    decide,
    evidence,
    log_standing,
    log_view,
    outcome,
    resolve,
    restore,
    settle,
    take_over,
)
from kafka_eos_sink.commit.log_view import LogView, QueryState
from kafka_eos_sink.commit.steps import TransactionDescription
from kafka_eos_sink.commit.versions import Versions
from kafka_eos_sink.operations import operator, write_status
from kafka_eos_sink.producer.partition_queue import PartitionQueue
from kafka_eos_sink.producer.sender import Sender
from kafka_eos_sink.producer.transaction_manager import TransactionManager
from kafka_eos_sink.protocol import framing, record_batch, schema
from kafka_eos_sink.runtime import source_offsets
from kafka_eos_sink.runtime.record_copier import RecordCopier
from kafka_eos_sink.settings import kafka_properties, options, secrets
from tests.model.mutations import MUTATIONS, Edit, Mutation, planted

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class UnitMutation:
    """``killer`` names the tests that catch it: paths below ``tests/unit``, or a function of one."""

    name: str
    function: Any
    old: str
    new: str
    killer: str

    @property
    def edits(self) -> tuple[Edit, ...]:
        return (Edit(self.function, self.old, self.new),)


def of(function: Any, killer: str, *mutations: tuple[str, str, str]) -> tuple[UnitMutation, ...]:
    """The mutations of one function: name, old text, new text."""
    return tuple(UnitMutation(name, function, old, new, killer) for name, old, new in mutations)


_OUTCOME = "commit/test_outcome.py"
_LOG = "commit/test_commit_log.py"
_SENDER = "producer/test_sender.py"
_MANAGER = "producer/test_transaction_manager.py"
_CONNECTION = "client/test_connection.py"
_SECRETS = "settings/test_secrets.py"
_OPTIONS = "settings/test_options.py"
_BATCH = "protocol/test_record_batch.py"
_COPIER = "runtime/test_record_copier.py"

UNIT_MUTATIONS: tuple[UnitMutation, ...] = (
    # the judge
    *of(
        outcome.judge,
        _OUTCOME,
        ("a held range does not show that partitions differ", "{Shown.DISCARDED, Shown.HELD} &", "{Shown.DISCARDED} &"),
        ("a reported abort counts beside a visible range", ", End.ABORTED: Shown.VISIBLE}", "}"),
        ("a reported commit counts beside a discarded range", "{End.COMMITTED: Shown.DISCARDED, ", "{"),
        ("a visible range does not prove the commit", "        end = End.COMMITTED\n", "        pass\n"),
    ),
    *of(
        outcome.outcome_of,
        f"{_OUTCOME}::test_marker_counts_only_with_an_epoch_that_this_end_can_have",
        (
            "a COMMIT of the own epoch counts from version 2 on",
            "bumped if bumps_epoch(transaction_version) else own",
            "own or (bumped and bumps_epoch(transaction_version))",
        ),
        (
            "a COMMIT of the next epoch counts below version 2",
            "bumped if bumps_epoch(transaction_version) else own",
            "bumped or (own and not bumps_epoch(transaction_version))",
        ),
        ("an empty marker counts", "if not fits or marker.type is MarkerType.EMPTY:", "if not fits:"),
        (
            "an ABORT by hand does not void a decision",
            "if transaction_version is None or marker.type is MarkerType.ABORT:",
            "if transaction_version is None:",
        ),
    ),
    *of(
        outcome.end_of,
        f"{_OUTCOME}::test_coordinator_speaks_for_exactly_this_transaction",
        ("a reported abort counts below version 2", "if identity.bumps_epoch else {}", "if True else {}"),
        (
            "the end of another epoch counts",
            "later=int(identity.bumps_epoch)",
            "later=described.producer_epoch - identity.producer_epoch",
        ),
    ),
    *of(
        outcome.is_held_by,
        f"{_OUTCOME}::test_next_epoch_of_the_driver_is_its_own_end_or_a_fence",
        ("a fence below version 2 looks like the driver's end", "driver.bumps_epoch and ", ""),
    ),
    *of(
        TransactionDescription.is_free.fget,
        "commit/test_coordinator_states.py",
        ("an id in an unknown state is taken", "in FREE_STATES", '!= "Ongoing" and not self.is_ending'),
    ),
    *of(
        TransactionDescription.is_open.fget,
        "commit/test_coordinator_states.py",
        ("a transaction in an unknown state is open", '== "Ongoing"', "not in FREE_STATES"),
    ),
    # what leaders show
    *of(
        evidence.judged_now,
        "commit/test_notes.py",
        ("what a discard noted is ignored", "end = NOTED.get(prepared.ended, end)", "pass"),
    ),
    *of(
        evidence.judged_now,
        "commit/test_evidence.py",
        (
            "an accepted commit counts against a report",
            "if end is End.SILENT and prepared.identity",
            "if prepared.identity",
        ),
    ),
    *of(
        evidence._shown,
        "commit/test_evidence.py",
        ("the abort of a later transaction counts", " and first_offset <= part.last_offset", ""),
    ),
    *of(
        evidence.look_at,
        "commit/test_evidence.py",
        ("what leaders hold open is not asked", "if holds_open(held, *each)}", "if False}"),
    ),
    *of(
        evidence._blocked_by_others,
        "commit/test_evidence.py",
        (
            "the own transaction is called another's",
            "if blocking and blocking.isdisjoint(identity.producer_id for identity, _ in writers[where]):",
            "if blocking:",
        ),
    ),
    *of(
        evidence._is_before,
        "commit/test_evidence.py",
        ("readers pass one record too early", "stable <= last", "stable < last"),
        (
            "a deleted topic keeps a commit waiting",
            "stable is not None and stable <= last",
            "stable is None or stable <= last",
        ),
    ),
    # the log
    *of(
        LogView.feed,
        _LOG,
        ("records of a chunk that begins earlier count twice", "if entry.offset < self.next_offset:", "if False:"),
        ("a view goes back", "max(self.next_offset, next_offset)", "next_offset"),
    ),
    *of(
        LogView._add,
        _LOG,
        (
            "a decision outside a transaction counts",
            ' or (key.kind in ("decision", "part") and not entry.transactional)',
            "",
        ),
    ),
    *of(
        LogView.lacks_write.fget,
        "commit/test_abort.py commit/test_restore.py",
        ("a barrier of another log makes it the write's own", "log in own or", "True or"),
    ),
    *of(
        QueryState.newest.fget,
        _LOG,
        (
            "a tombstone is passed by",
            "            return None\n        # Another",
            "            continue\n        # Another",
        ),
    ),
    *of(
        QueryState.undecided.fget,
        _LOG,
        ("decisions below the newest one are undecided", "if record.offset > floor and", "if"),
    ),
    *of(
        QueryState.has_done_record,
        "commit/test_version_state.py",
        ("the done record of another decision counts", ' and str(self.done.get("nonce")) == decision.nonce', ""),
    ),
    *of(
        QueryState._pieces,
        _LOG,
        ("a piece counts before its COMMIT", " and record.outcome is Outcome.COMMITTED", ""),
    ),
    *of(
        log_view._not_superseded,
        "commit/test_hostile_records.py::test_forged_decision_is_not_what_a_planner_keeps",
        ("the newest decision is forgotten", "record.offset >= newest.offset", "record.offset > newest.offset"),
    ),
    # versions
    *of(
        Versions.adding,
        "commit/test_versions.py",
        ("neighbours do not share a range", "each.last < first - 1", "each.last < first"),
        ("the floor stays", "max([self.floor, *(each.last + 1 for each in dropped)])", "self.floor"),
    ),
    *of(
        Versions.without,
        "commit/test_versions.py",
        ("a void version stays written", "max(each.first, version + 1)", "max(each.first, version)"),
    ),
    *of(
        Versions.up_to.__func__,
        "commit/test_versions.py",
        (
            "a decision without a set counts for its version alone",
            "VersionRange(0, version)",
            "VersionRange(version, version)",
        ),
    ),
    # a lost log
    *of(
        take_over.look,
        "commit/test_lost_log.py",
        ("the history is not asked", "history = yield from ReadHistory(run.write.id)", "history = ()"),
    ),
    *of(
        log_standing.commit_log_lost,
        "commit/test_lost_log.py",
        ("a part of the history proposes its highest version", "< MOST_SHOWN", "<= MOST_SHOWN"),
    ),
    *of(
        log_standing.standing_of,
        "commit/test_log_standing.py",
        ("an operator's typo begins a write", "if unknown_id is UnknownId.REFUSE:", "if False:"),
        ("what is open does not show another log", "if is_first_look and has_open:", "if False:"),
    ),
    # copies
    *of(
        settle._divided,
        "commit/test_settle.py commit/test_notes.py",
        ("kept ranges count the copied rows", "rows=prepared.rows - _rows(later)", "rows=prepared.rows"),
    ),
    *of(
        restore._sort_copies,
        "commit/test_restore.py",
        ("a copy loses its dead letters", "dead_letters=entry.dead_letters", "dead_letters=()"),
    ),
    *of(
        restore._restore,
        "commit/test_restore.py",
        (
            "a copy under the slot of the lost transaction",
            " | {each.identity.transactional_id for each in lost}",
            "",
        ),
    ),
    *of(
        restore._begin_copy,
        "commit/test_notes.py",
        ("two copies under one id", " if run.write.task_id(entry.partition, slot) not in used", ""),
    ),
    *of(
        take_over.still_to_commit,
        "commit/test_notes.py",
        ("what was opened under a noted identity is spared", " - noted", ""),
    ),
    *of(
        restore.finish_decisions,
        "commit/test_versions.py",
        (
            "a copied decision without a set looks void",
            "versions=decision.written_versions",
            "versions=decision.versions",
        ),
    ),
    *of(
        take_over.taking_over,
        "commit/test_resolve.py",
        ("only the last list counts", "before |= dict.fromkeys(opened)", "before = dict.fromkeys(opened)"),
    ),
    *of(
        commit_batch.commit,
        "commit/test_decide.py",
        ("a decision below its plan's barrier", "[plan.log_offset, *(", "[-1, *("),
        ("a decision below its part records", "*(entry.part_offset for entry in prepared)", ""),
    ),
    *of(
        decide.append_decision,
        "commit/test_restore.py",
        ("a decision in a log that was created again", "if appended.offset < floor:", "if False:"),
    ),
    *of(
        resolve._require_resolvable,
        "commit/test_resolve.py",
        (
            "a version that was written since the first look is rewritten",
            "if not (was_settled and request.allow_duplicates):",
            "if not was_settled:",
        ),
    ),
    # the sender
    *of(Sender._lost, _SENDER, ("a lost batch is not in doubt", "batch.in_doubt = True", "pass")),
    *of(
        Sender._react,
        _SENDER,
        (
            "a duplicate of a first attempt counts as acknowledged",
            "case Reaction.SUCCESS if batch.attempts > 1:",
            "case Reaction.SUCCESS if True:",
        ),
        ("the oldest batch out of order is sent again", "if queue.unacknowledged[0] is not batch:", "if True:"),
        ("an ambiguous error leaves no doubt", "batch.in_doubt |= code in MAY_HAVE_BEEN_APPENDED", "pass"),
    ),
    *of(
        Sender._acknowledge,
        _SENDER,
        ("lost records are not noticed", "and count and 0 <= base_offset <= first:", "and False:"),
    ),
    *of(
        Sender._rejected,
        _SENDER,
        ("batches in doubt get other sequences", "any(each.in_doubt for each in renumbered)", "False"),
    ),
    *of(
        Sender._rejected,
        "producer/test_random_faults.py",
        ("batches in flight get other sequences", "elif any(each.in_flight for each in renumbered):", "elif False:"),
    ),
    *of(
        Sender._restart_sequences,
        _SENDER,
        ("each partition bumps the epoch", "if queue.identity == self._transactions.identity:", "if True:"),
    ),
    *of(
        Sender._fail_undelivered, _SENDER, ("a batch in doubt does not taint", "self.tainted |= batch.in_doubt", "pass")
    ),
    *of(
        Sender._send_all,
        _SENDER,
        (
            "partitions are added after a failure",
            "if transactions.pending and self.failure is None:",
            "if transactions.pending:",
        ),
    ),
    *of(
        Sender._send_batches,
        _SENDER,
        (
            "Produce before AddPartitionsToTxn",
            "if not transactions.add_partition(partition):",
            "if not transactions.add_partition(partition) and False:",
        ),
    ),
    *of(
        Sender._produced,
        _SENDER,
        ("a partition without a result is not in doubt", "            batch.in_doubt = True\n", ""),
    ),
    *of(
        PartitionQueue.next_to_send,
        _SENDER,
        ("the first batch does not go alone", "if not self.anything_acknowledged or ", "if "),
        (
            "batches get new sequences while old ones are in flight",
            "if any(batch.in_flight for batch in self.unacknowledged):",
            "if False:",
        ),
        (
            "a new batch overtakes a resend",
            "if any(not batch.in_flight for batch in self.unacknowledged):",
            "if False:",
        ),
    ),
    *of(PartitionQueue.sent, _SENDER, ("sequences do not wrap", ") % SEQUENCES", ")")),
    # the transaction manager
    *of(
        TransactionManager.abort,
        _MANAGER,
        ("an abort leaves a doubt unsettled", "if self.in_doubt:\n", "if False:\n"),
        ("an abort overtakes what is in doubt", "return KeyResult()\n", "pass\n"),
        ("a transaction in doubt is not ended", "if self.partitions or self.in_doubt:", "if self.partitions:"),
        ("an error ends the transaction", "if ended.error_code == ErrorCode.NONE:", "if True:"),
    ),
    *of(
        TransactionManager.add_pending,
        _MANAGER,
        ("a fenced producer may abort", "self.fail(fatal=", "self.fail(fatal=False and "),
    ),
    *of(
        TransactionManager._add,
        _MANAGER,
        ("an interrupted AddPartitionsToTxn leaves no doubt", "self.in_doubt |= unasked", "pass"),
        ("a failed AddPartitionsToTxn leaves no doubt", "elif not may_be_added:", "else:"),
        ("a rejected retry settles an older doubt", "self.in_doubt -= unasked", "self.in_doubt -= partitions"),
    ),
    *of(
        Requests._round,
        "client/test_requests.py",
        ("an interrupted request counts as not sent", "operation.outcomes |= {", "_ = {"),
    ),
    *of(
        TransactionsAdmin.add_partitions,
        _MANAGER,
        ("a rejected retry leaves no doubt", "may_be_added |= reaction(type(request), code) in RETRIES", "pass"),
        ("a response for other partitions counts", "if codes.keys() == set(partitions):", "if True:"),
        ("a lost AddPartitionsToTxn leaves no doubt", "may_be_added or outcome.has_lost_response", "may_be_added"),
        ("a partition that was not attempted is the reason", "(reasons or refused)", "refused"),
    ),
    *of(
        TransactionManager.prepare,
        _MANAGER,
        ("prepared while a request is pending", "if self.pending or self.in_doubt:", "if False:"),
    ),
    *of(
        TransactionManager.produced_to,
        _MANAGER,
        ("a lost Produce leaves no partition to end", "self.partitions.add(partition)", "pass"),
    ),
    *of(
        TransactionManager.bump_epoch,
        _SENDER,
        (
            "the epoch leaves its range",
            "self.producer_epoch < MAX_PRODUCER_EPOCH",
            "self.producer_epoch <= MAX_PRODUCER_EPOCH",
        ),
    ),
    *of(
        Sender._send_all,
        _SENDER,
        ("batches under no producer id", "if transactions.producer_id < 0:", "if False:"),
    ),
    *of(
        Sender._deadline,
        _SENDER,
        (
            "a request to the coordinator outlasts its batch",
            "+ self._config.delivery_timeout_ms",
            "+ 2 * self._config.delivery_timeout_ms",
        ),
        ("a batch in flight ends a request to the coordinator", " and not batch.in_flight", ""),
    ),
    *of(Sender.give_up, _SENDER, ("a later error replaces the first", "if self.failure is not None:", "if False:")),
    # the connection
    *of(
        Connection.next_event,
        _CONNECTION,
        (
            "an unreadable response takes its request with it",
            "response = self._decode(self._in_flight[0], frame)\n        pending = self._in_flight.popleft()",
            "pending = self._in_flight.popleft()\n        response = self._decode(pending, frame)",
        ),
        (
            "a response without a request is skipped",
            "            raise ProtocolError(UNSOLICITED)",
            "            continue",
        ),
    ),
    *of(
        Connection._become_ready,
        _CONNECTION,
        ("bytes after the handshake are accepted", "if self._frames.buffered:", "if False:"),
    ),
    *of(
        Connection._next_frame,
        _CONNECTION,
        (
            "every response may be large",
            "MAX_LARGE_FRAME_BYTES if is_large else MAX_FRAME_BYTES",
            "MAX_LARGE_FRAME_BYTES",
        ),
    ),
    *of(
        Connection.abandon,
        _CONNECTION,
        ("requests of the handshake are reported as lost", "return lost if self.is_established else ()", "return lost"),
    ),
    *of(
        Connection.postpone_timeouts,
        _CONNECTION,
        (
            "a quota postpones the deadline",
            "min(pending.expires_at + ms, pending.deadline_ms)",
            "pending.expires_at + ms",
        ),
    ),
    *of(
        Connection._plan_reauthentication,
        _CONNECTION,
        (
            "the session counts from the response",
            "self._now if self._dialogue_request is None else self._dialogue_request.sent_at",
            "self._now",
        ),
    ),
    *of(
        Connection._send,
        _CONNECTION,
        ("correlation ids do not wrap", "(correlation_id + 1) & 0x7FFFFFFF", "correlation_id + 1"),
    ),
    *of(
        Connection._receive_api_versions,
        _CONNECTION,
        ("ApiVersions is sent again without end", "if version >= pending.version:", "if False:"),
    ),
    # settings
    *of(
        secrets._resolved,
        _SECRETS,
        ("a process that switches references off resolves them", "if switched_off():", "if False:"),
    ),
    *of(
        secrets.switched_off,
        _SECRETS,
        ("a misspelt switch leaves references on", 'not in ("", "all")', '== "none"'),
    ),
    *of(
        secrets.resolve,
        _SECRETS,
        (
            "what a reference stands for is resolved",
            "_REFERENCE.sub(_resolved, value[:end])",
            "resolve(resolve(value))",
        ),
    ),
    *of(
        options._problems_of_topics,
        _OPTIONS,
        ("rows may go to the commit log", 'if settings["topic"] in logs:', "if False:"),
        ("dead letters may go to the topic of the rows", 'settings["dead.letter.topic"] == settings["topic"]', "False"),
    ),
    *of(
        options._problems_together,
        _OPTIONS,
        ("txnAppId counts without txnVersion", '("txnAppId" in own) != ("txnVersion" in own)', "False"),
    ),
    *of(options.kafka_part, _OPTIONS, ("the properties file wins over an option", "ours | kafka", "kafka | ours")),
    *of(
        options._write_id_problems,
        _OPTIONS,
        ("a transactional id may be too long", "> LONGEST_WRITE_ID", "> LONGEST_WRITE_ID + 1"),
    ),
    *of(
        kafka_properties._check_delivery_timeout,
        "settings/test_kafka_properties.py",
        (
            "a delivery timeout holds no request",
            "linger_ms + request_timeout_ms, INT32_MAX",
            "request_timeout_ms, INT32_MAX",
        ),
    ),
    # the wire
    *of(
        record_batch._read_header,
        _BATCH,
        ("a damaged batch is read", "if header.checksum != actual:", "if False:"),
        ("a batch of negative numbers is read", "header.base_offset < 0 or header.last_offset_delta < 0 or ", ""),
    ),
    *of(
        framing.decode_response,
        "protocol/test_framing.py",
        ("a response to another request is decoded", "if header.correlation_id != correlation_id:", "if False:"),
        ("an old broker's ApiVersions is misread", "version = 0\n", "pass\n"),
    ),
    *of(
        schema.read_message,
        "protocol/test_schema.py",
        ("the messages of a connection share their room", "room.left = MAX_VALUES", "pass"),
    ),
    # copies of lost rows, and first batches
    *of(
        RecordCopier._append,
        _COPIER,
        ("markers are copied", " or header.control", ""),
        ("a batch that the cleaner changed is copied", " and header.record_count == header.last_offset_delta + 1", ""),
        ("records before the range are copied", "max(offset, part.first_offset) <= header.base_offset and ", ""),
        ("records behind the range are copied", " and header.last_offset <= part.last_offset", ""),
    ),
    *of(
        RecordCopier.are_committed,
        _COPIER,
        ("a marker before the range shows its end", "if one[1].last_offset < header.base_offset", "if True"),
        ("an emptied marker shows an end", "if ended and header.record_count:", "if ended:"),
        ("a marker of another producer shows an end", "if one[0] == header.producer_id", "if True"),
    ),
    *of(
        source_offsets.require_checkpoint,
        "runtime/test_source_offsets.py",
        ("a lost checkpoint is not noticed", "max(begins[where], 0) < found.committed_offset", "False"),
        ("a partition that was created later is refused", "max(begins[where], 0)", "begins[where]"),
    ),
    # operators
    *of(
        operator._OperatorExecutor._copy_own,
        "operations/test_recovered.py",
        ("rows of another program are copied", " or state.producer_id != copy.source.producer_id", ""),
    ),
    *of(
        write_status._reason,
        "operations/test_old_writes.py",
        ("an open write is forgotten", "if is_open:", "if False:"),
        ("a write that needs a run is forgotten", " or write.needs_run", ""),
        ("a write that ended just now is forgotten", "newest >= before_ms", "newest > before_ms"),
    ),
)

OF_MODEL = tuple(
    each for each in MUTATIONS if each.edits and each.edits[0].function.__module__.startswith("kafka_eos_sink.")
)
"""The mutations of the model that edit the product first; some only change the setting."""


class Matrix:
    """A pytest plugin that runs the collected tests once per mutation, in a fork that planted it.

    ``wanted`` are the mutations. ``whole`` runs all tests of their packages: each file until its first failure. Otherwise the tests that a
    mutation names run until one fails.
    """

    def __init__(self, wanted: Sequence[UnitMutation | Mutation], *, whole: bool) -> None:
        self._wanted = wanted
        self._whole = whole
        self._failed = False
        self.caught: dict[str, list[str]] = {}
        """Mutation -> the test files that fail under it."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for mutation in self._wanted:
            places = places_of(mutation, whole=self._whole)
            items = [item for item in session.items if item.nodeid.startswith(places)]
            self.caught[mutation.name] = files = self._files_that_fail(mutation, items)
            print(f"{package_of(mutation):10} {len(files):3}  {mutation.name}  {' '.join(files)}", flush=True)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed |= report.failed

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str]:
        return report.outcome, "", ""

    def _files_that_fail(self, mutation: UnitMutation | Mutation, items: Sequence[pytest.Item]) -> list[str]:
        def run(say: Callable[[str], None]) -> None:
            with planted(mutation.edits):
                for file, tests in itertools.groupby(items, key=lambda item: item.nodeid.partition("::")[0]):
                    say(file.removeprefix("tests/unit/"))
                    if not self._fails(list(tests)):
                        say("passed")
                    elif not self._whole:
                        break

        # A test that hangs ends the fork by its timeout: its file did not pass.
        said = [*_in_a_fork(run), ""]
        return [line for line, following in itertools.pairwise(said) if "passed" not in (line, following)]

    def _fails(self, tests: Sequence[pytest.Item]) -> bool:
        self._failed = False
        for test, following in zip(tests, [*tests[1:], None], strict=True):
            if following is None or not self._failed:  # the last test also ends its module
                test.config.hook.pytest_runtest_protocol(item=test, nextitem=following)
        return self._failed


def _in_a_fork(run: Callable[[Callable[[str], None]], None]) -> list[str]:
    """Return the lines that ``run`` says in a process of its own, which it may leave in any state."""
    reader, writer = os.pipe()
    if child := os.fork():
        os.close(writer)
        with os.fdopen(reader) as stream:
            lines = stream.read().splitlines()
        os.waitpid(child, 0)
        return lines
    try:
        run(lambda line: os.write(writer, f"{line}\n".encode()) and None)
    finally:
        os._exit(0)


def package_of(mutation: UnitMutation | Mutation) -> str:
    """The package of the product that a mutation edits."""
    return str(mutation.edits[0].function.__module__).split(".")[1]


def places_of(mutation: UnitMutation | Mutation, *, whole: bool) -> tuple[str, ...]:
    """The tests that run under a mutation: prefixes of their ids."""
    killers = mutation.killer.split() if isinstance(mutation, UnitMutation) else []
    if whole:
        killers = [
            f"{each}/" for each in dict.fromkeys([package_of(mutation), *(each.split("/")[0] for each in killers)])
        ]
    return tuple(f"tests/unit/{each}" for each in killers)


def matrix(names: Sequence[str], *, whole: bool) -> dict[str, list[str]]:
    """Run the tests under each mutation: of both lists if all tests of a package run, else of this one."""
    both = (*UNIT_MUTATIONS, *OF_MODEL) if whole else UNIT_MUTATIONS
    wanted = [each for each in both if not names or each.name in names]
    plugin = Matrix(wanted, whole=whole)
    paths = dict.fromkeys(place.partition("::")[0] for each in wanted for place in places_of(each, whole=whole))
    given = ["-q", "-p", "no:cacheprovider", "--tier", "test", "--timeout", "600", "--rootdir", str(ROOT)]
    pytest.main([*given, *(str(ROOT / each) for each in paths)], plugins=[plugin])
    return plugin.caught


def main(arguments: Sequence[str]) -> int:
    caught = matrix([each for each in arguments if each != "--matrix"], whole="--matrix" in arguments)
    packages = {each.name: package_of(each) for each in (*UNIT_MUTATIONS, *OF_MODEL) if each.name in caught}
    print("| package | mutations | caught | test files that catch one |\n|---|---|---|---|")
    for package in dict.fromkeys(packages.values()):
        found = [caught[name] for name, of_package in packages.items() if of_package == package]
        files = {file for each in found for file in each}
        print(f"| {package} | {len(found)} | {sum(map(bool, found))} | {len(files)} |")
    # The model catches those of its list that no unit test does.
    survived = [each.name for each in UNIT_MUTATIONS if caught.get(each.name) == []]
    print(f"survived: {survived}")
    return 1 if survived or not caught else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
