"""Mutations of the protocol: small edits of the real functions, each of which the search has to notice.

A mutation replaces the code object inside the function, so that every module that imported the function runs the edited one. An edit whose
text is not found is an error: a mutation that no longer fits the protocol must be written anew, not skipped.
"""

from __future__ import annotations
import __future__

import inspect
import linecache
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any

from kafka_eos_sink.commit import (
    abort,
    admission,
    commit_batch,
    decide,
    log_records,
    outcome,
    resolve,
    restore,
    settle,
    task,
    transactional_id,
    transactions,
)
from kafka_eos_sink.commit import take_over as take_over_module
from kafka_eos_sink.commit.log_view import LogView
from kafka_eos_sink.commit.versions import Versions

from . import performer
from .exhausted import ANY_ORDER, CALLS, EXHAUSTED, GONE, HEALED, UNRESOLVABLE
from .settings import Setting, faults


@dataclass(frozen=True, slots=True)
class Edit:
    """Text of a function and what stands there instead."""

    function: Callable[..., Any]
    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """``caught``: how the violation begins. ``setting`` is the smallest world in which it shows."""

    name: str
    what: str
    edits: tuple[Edit, ...]
    setting: Setting
    caught: tuple[str, ...]
    by_walks: bool = False
    """Its shortest trace is too long for breadth-first search: found by random walks and shortened."""
    waits_for_readers: bool = False
    """A commit waits its second until readers pass, as outside the simulation (conftest.py)."""
    versions: tuple[int, ...] = (2, 0)
    """The transaction versions under which it can show."""


@contextmanager
def planted(edits: tuple[Edit, ...]) -> Iterator[None]:
    """The edits in place, taken back afterwards."""
    kept: list[tuple[FunctionType, Any]] = []
    try:
        for function in dict.fromkeys(edit.function for edit in edits):
            assert isinstance(function, FunctionType)
            code = _edited(function, [edit for edit in edits if edit.function is function])
            kept.append((function, function.__code__))
            function.__code__ = code
        yield
    finally:
        for function, code in reversed(kept):
            function.__code__ = code


def _edited(function: FunctionType, edits: list[Edit]) -> Any:
    source = textwrap.dedent(inspect.getsource(function))
    for edit in edits:
        if source.count(edit.old) != 1:
            raise AssertionError(f"{function.__qualname__} holds {source.count(edit.old)} times: {edit.old}")
        source = source.replace(edit.old, edit.new)
    namespace: dict[str, Any] = {}
    flags = __future__.annotations.compiler_flag
    # The search, and a traceback, look up the source of what runs.
    filename = f"<mutated {function.__name__}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    code = compile(source, filename, "exec", flags)
    exec(code, {**function.__globals__}, namespace)
    made = namespace[function.__name__]
    # Of a property and a class method, the function itself.
    mutated: FunctionType = getattr(made, "fget", getattr(made, "__func__", made))
    return mutated.__code__


def _small(name: str, **changes: Any) -> Setting:
    return Setting(
        **{"name": name, "eager_markers": True, "drivers": 1, "recover_from_every": 1, "attempts": 1, **changes}
    )


ONE_ROW = {"rows": lambda driver, version: ((0,),)}

GOES_ON = Edit(
    task.write_attempt,
    "    if (yield from is_overtaken(plan)):\n        return",
    "    if False:\n        return",
)
"""An attempt does not ask before its first row whether it is overtaken."""
# Otherwise the commit sees the attempt's transaction, and copies what that has aborted.
ASKS_FOR_THE_DRIVER_ALONE = Edit(settle.settle, "still_holds(driver.identity, named)", "still_holds(driver.identity)")
STAYS_OPEN = Edit(task.write_attempt, "overtaken = yield from is_overtaken(plan)", "overtaken = False")
"""Nor when it has sent everything."""

MISSING_MARKER = _small(
    "a missing marker",
    attempts=2,
    eager_markers=False,
    loud=UNRESOLVABLE,
    recover_from_every=0,
    faults=faults(skip_marker=1, speculate=1),
    **ONE_ROW,
)
ONE_MISSING = _small(
    "one missing marker",
    eager_markers=False,
    loud=HEALED,
    faults=faults(skip_marker=1, pause=1),
    **ONE_ROW,
)
TWO_RANGES = _small(
    "a transaction with two ranges",
    eager_markers=False,
    data_partitions=2,
    rows=lambda driver, version: ((0, 1),),
    loud=HEALED,
    faults=faults(skip_marker=1, pause=1),
)
HALF_ABORTED = replace(
    TWO_RANGES,
    name="an ABORT by hand on one of two ranges",
    loud=HEALED | UNRESOLVABLE,
    faults=faults(hand_marker=1, pause=1),
)
BY_HAND = _small(
    "an ABORT by hand while a commit runs",
    eager_markers=False,
    loud=UNRESOLVABLE,
    faults=faults(hand_marker=1),
    **ONE_ROW,
)
MISSING_AND_GONE = replace(
    TWO_RANGES,
    name="a missing marker, and the cleaner",
    attempts=1,
    restart="failed",
    recover_from_every=25,
    loud=HEALED | GONE,
    faults=faults(skip_marker=1, clean=1, unavailable=1, pause=1),
)
NO_FENCE = Edit(
    take_over_module.taking_over,
    "identity = yield from InitProducerId(run.write.driver_id, DRIVER_TRANSACTION_TIMEOUT_MS)",
    "from kafka_eos_sink.commit.steps import DescribeTransactions\n"
    "        driver_id = run.write.driver_id\n"
    "        known = (yield from DescribeTransactions((driver_id,)))[driver_id]\n"
    "        if known is None:\n"
    "            identity = yield from InitProducerId(run.write.driver_id, DRIVER_TRANSACTION_TIMEOUT_MS)\n"
    "        else:\n"
    "            identity = ProducerIdentity(transactional_id=driver_id, producer_id=known.producer_id, "
    "producer_epoch=known.producer_epoch, transaction_version=run.transaction_version)",
)
LOSING = _small("a losing attempt", attempts=2, faults=faults(speculate=1), same_slot=False, **ONE_ROW)


MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        name="decide after the first EndTxn",
        what="the driver commits the first task's transaction before its decision stands",
        edits=(
            Edit(
                commit_batch.commit,
                "    logged = yield from append_decision(",
                "    if prepared:\n"
                "        from kafka_eos_sink.commit.steps import End, EndTransactions\n"
                "        yield from EndTransactions((End(identity=prepared[0].identity, commit=True),))\n"
                "    logged = yield from append_decision(",
            ),
        ),
        setting=_small("first end before the decision"),
        caught=("I1",),
    ),
    Mutation(
        name="act before the decision's marker was read",
        what="EndTxn of the decision was answered, so the tasks' transactions are committed at once",
        edits=(
            Edit(
                decide.decide,
                "yield from _await_marker(run, logged, ended.error)",
                "pass",
            ),
        ),
        setting=_small("no marker", eager_markers=False),
        caught=("I1",),
    ),
    Mutation(
        name="abort without reading the log",
        what="abort ends what it finds open, though the commit that raised may have decided it",
        edits=(
            Edit(
                abort.abort,
                "    found = yield from take_over(replace(request, also_abort=own))\n",
                "    opened = yield from list_open(request.run)\n"
                "    yield from end_open((*own, *opened))\n"
                "    return plan\n",
            ),
        ),
        setting=_small("abort blindly", faults=faults(unavailable=1)),
        caught=("I3",),
    ),
    Mutation(
        name="no fence",
        what="the driver goes on under the identity that W.driver has",
        edits=(NO_FENCE,),
        setting=_small("no fence", drivers=2, **ONE_ROW),
        caught=("at most once", "I1", "I2", "I3", "I7", "recovery"),
    ),
    Mutation(
        name="copies without a fence",
        what="a driver copies what was lost while an older one may decide its own copies",
        edits=(NO_FENCE,),
        setting=_small(
            "copies without a fence",
            drivers=2,
            restart="crash",
            zombie_tasks=False,
            faults=faults(timeout=1),
            **ONE_ROW,
        ),
        caught=("at most once", "I1", "I2", "I3", "I7", "recovery"),
    ),
    Mutation(
        name="no list though the last plan was not decided",
        what="a planner process leaves out listing, without asking whether its last plan came to a decision",
        edits=(Edit(take_over_module._is_done_and_unfenced, "plan.nonce in done and ", ""),),
        setting=_small(
            "not decided",
            restart="crash",
            remembers=lambda driver: 0,
            # The commit of a batch looks at its own partitions: what is left over must lie in another.
            rows=lambda driver, version: ((0,), (1,)) if driver == 0 else ((0, 1),),
        ),
        caught=("I8",),
        versions=(2,),
    ),
    Mutation(
        name="no list though another driver fenced since",
        what="a planner process leaves out listing, without asking whether another driver ran since its last plan",
        edits=(
            Edit(
                take_over_module._is_done_and_unfenced,
                " and (yield from still_holds(plan.driver))",
                "\n    yield from ()",
            ),
        ),
        setting=_small(
            "fenced since",
            drivers=2,
            restart="crash",
            batches=2,
            zombie_tasks=False,
            recover_from_every=5,
            remembers=lambda driver: driver - 2,
            rows=lambda driver, version: ((0,), (1,)) if driver == 1 else ((0, 1),),
        ),
        caught=("I8",),
        versions=(2,),
    ),
    Mutation(
        name="read before fence",
        what="the commit log is read while an older driver can still decide",
        edits=(
            Edit(
                take_over_module.taking_over,
                "        identity = yield from InitProducerId(run.write.driver_id, DRIVER_TRANSACTION_TIMEOUT_MS)\n",
                "",
            ),
            Edit(
                take_over_module.taking_over,
                '        yield from Reached("plan.read")\n',
                "        identity = yield from InitProducerId(run.write.driver_id, DRIVER_TRANSACTION_TIMEOUT_MS)\n",
            ),
        ),
        setting=_small("read before fence", drivers=2, **ONE_ROW),
        caught=("at most once", "I2", "I3"),
    ),
    Mutation(
        name="list after fence",
        what="what a newer driver's tasks opened is taken for leftovers",
        edits=(
            Edit(
                take_over_module.look,
                "        opened = yield from list_open(run, None if is_unknown else LIST_WITHIN_MS)\n",
                "        pass\n",
            ),
            Edit(
                take_over_module.taking_over,
                '        yield from Reached("plan.read")\n',
                "        opened = yield from list_open(run)\n",
            ),
        ),
        setting=_small("list after fence", drivers=2, **ONE_ROW),
        caught=("I3", "I7"),
    ),
    Mutation(
        name="end by InitProducerId",
        what="leftovers are fenced by id instead of being ended by identity",
        edits=(
            Edit(
                transactions.end_open,
                "        yield from EndTransactions(ends)\n",
                "        from kafka_eos_sink.commit.steps import InitProducerId\n"
                "        for each in ends:\n            yield from InitProducerId(each.identity.transactional_id, 60000)\n",
            ),
        ),
        setting=replace(LOSING, name="end by InitProducerId", batches=2, sweeps=True, recover_from_every=0),
        caught=("I3",),
        versions=(2,),  # the same under version 0, in a longer search
    ),
    Mutation(
        name="an id without its slot",
        what="all attempts of a partition share one transactional id",
        edits=(
            Edit(
                transactional_id.task_transactional_id,
                'return f"{write_id}.{partition}.{slot}"',
                'return f"{write_id}.{partition}.0"',
            ),
        ),
        setting=_small("no slot", attempts=2, faults=faults(kill_task=1), recover_from_every=0, **ONE_ROW),
        caught=("I14",),
    ),
    Mutation(
        name="open slot not checked",
        what="an attempt initialises its slot though a sibling's transaction is open there",
        edits=(
            Edit(
                transactions.fresh_identity,
                "if found is None or found.is_free:",
                "if True:",
            ),
        ),
        setting=_small("slot unchecked", attempts=2, faults=faults(speculate=1), recover_from_every=0, **ONE_ROW),
        caught=("I3",),
    ),
    Mutation(
        name="overtaken attempts continue",
        what="an attempt whose batch was decided writes into a slot that a committed transaction has freed, and fails",
        edits=(GOES_ON, STAYS_OPEN, ASKS_FOR_THE_DRIVER_ALONE),
        setting=replace(
            MISSING_MARKER,
            name="an attempt without a response",
            faults=faults(skip_marker=1, speculate=1, unavailable=1),
        ),
        caught=("I7",),
        versions=(2,),  # below, every commit looks at its ranges, and copies
    ),
    Mutation(
        name="overtaken attempts end themselves unchecked",
        what="an attempt that finds itself overtaken after its last row ends what it has joined",
        edits=(GOES_ON, ASKS_FOR_THE_DRIVER_ALONE),
        setting=MISSING_MARKER,
        caught=("I7",),
        versions=(2,),
    ),
    Mutation(
        name="overtaken attempts stay open",
        what="a losing attempt that opened after the driver's look leaves its transaction to the timeout",
        edits=(STAYS_OPEN,),
        setting=LOSING,
        caught=("I8",),
    ),
    Mutation(
        name="overtaken attempts check before their part record",
        what="below version 2 the part record of a losing attempt opens the transaction again that the driver has ended",
        edits=(
            STAYS_OPEN,
            Edit(
                task.write_attempt,
                "        part = part_record(",
                "        if (yield from is_overtaken(plan)):\n"
                "            yield from give_up([identity])\n"
                "            return message(TaskOutcome.OVERTAKEN)\n"
                "        part = part_record(",
            ),
        ),
        setting=LOSING,
        caught=("I8",),
        versions=(0,),
    ),
    Mutation(
        name="losing attempts searched before the decision",
        what="a losing attempt that opens and asks between the look and the decision is not ended",
        edits=(
            Edit(
                commit_batch.commit,
                "    logged = yield from append_decision(decision, driver, plan.log_id, floor, request.group_offsets)\n"
                "    losers = yield from _losers(plan, complete, prepared)\n",
                "    losers = yield from _losers(plan, complete, prepared)\n"
                "    logged = yield from append_decision(decision, driver, plan.log_id, floor, request.group_offsets)\n",
            ),
        ),
        setting=LOSING,
        caught=("I8",),
    ),
    Mutation(
        name="done record under the decision's key",
        what="compaction would replace the decision by a record that anybody may write",
        edits=(
            Edit(
                log_records.done_record,
                'log_key("done", decision.write_id, decision.query_id)',
                'log_key("decision", decision.write_id, decision.query_id, 0)',
            ),
        ),
        setting=_small("done key", **ONE_ROW),
        caught=("I12",),
    ),
    Mutation(
        name="decisions of two query ids under one key",
        what="the decision of another query id hides ours",
        edits=(
            Edit(
                log_records.decision_records,
                'log_key("decision", decision.write_id, decision.query_id, number)',
                'log_key("decision", decision.write_id, "", number)',
            ),
            Edit(
                log_records.parse_decision,
                "(decision.write_id, decision.query_id) == (key.write_id, key.query_id)",
                "decision.write_id == key.write_id",
            ),
            Edit(
                LogView.query,
                "self._queries.get((self.write_id, query_id), {})",
                '{**self._queries.get((self.write_id, query_id), {}), **self._queries.get((self.write_id, ""), {})}',
            ),
        ),
        setting=_small(
            "one decision key",
            drivers=3,
            restart="failed",
            query_id=lambda driver: "ab"[driver % 2],
            start_version=lambda driver: 0,
            **ONE_ROW,
        ),
        caught=("at most once", "I2"),
    ),
    Mutation(
        name="second decision without the committed rest",
        what="the decision of the copies names the copies only",
        edits=(
            # What is kept of a transaction that is partly lost stays.
            Edit(
                restore._decision_of,
                "for entry in settled.kept]",
                "for entry in settled.kept if entry.identity in {each.identity for each in settled.lost}]",
            ),
        ),
        setting=_small("partial decision", faults=faults(timeout=1), recover_from_every=0),
        caught=("I2",),
    ),
    Mutation(
        name="copies committed before their decision's marker was read",
        what="the copies are committed with their decision instead of after it",
        edits=(
            Edit(
                restore._restore,
                "    try:\n        yield from decide(",
                "    from kafka_eos_sink.commit.steps import End, EndTransactions\n"
                "    yield from EndTransactions(tuple(End(identity=each.identity, commit=True) for each in copies))\n"
                "    try:\n        yield from decide(",
            ),
        ),
        setting=_small("copies committed early", faults=faults(timeout=1), recover_from_every=0, **ONE_ROW),
        caught=("I1",),
    ),
    Mutation(
        name="copy without comparing producer id and epoch",
        what="the records of others that lie in a range are copied as well",
        edits=(Edit(performer.copied_records, " and (entry.producer_id, entry.producer_epoch) == source", ""),),
        setting=_small(
            "copy of everything",
            faults=faults(timeout=1),
            rows=lambda driver, version: ((0, 1), (2,)),
        ),
        caught=("at most once", "I7", "recovery"),
    ),
    Mutation(
        name="counts of a copy not compared",
        what="a transaction whose records the cleaner has removed is copied without them",
        edits=(Edit(restore._sort_copies, "elif result.written.rows != entry.rows:", "elif False:"),),
        setting=_small(
            "copy of what is left",
            faults=faults(timeout=1, clean=1),
            loud=frozenset({"LOST_PARTS", "EARLIER_VERSION_UNFINISHED"}),
            **ONE_ROW,
        ),
        caught=("I7", "recovery: ", "exactly once"),
    ),
    Mutation(
        name="parts copied although others are given up",
        what="a decision of copies names transactions as committed whose records are gone",
        edits=(
            Edit(restore._restore, "        if not gone:\n", "        if copies:\n"),
            Edit(
                restore._decision_of,
                "(*kept, *copies)",
                "(*kept, *copies, *(replace(each, proven=True) for each in settled.lost"
                " if each.partition not in {c.partition for c in copies}))",
            ),
        ),
        setting=_small("copy of some", faults=faults(timeout=2, clean=1), loud=UNRESOLVABLE | {"LOST_PARTS"}),
        caught=("I2",),
        by_walks=True,
    ),
    Mutation(
        name="a copy under the id of the lost transaction",
        what="the coordinator forgets that the lost transaction was aborted, and its records are gone",
        edits=(Edit(restore._restore, " | {each.identity.transactional_id for each in lost}", ""),),
        setting=_small("records gone", loud=frozenset({"LOST_PARTS"}), faults=faults(timeout=1, clean=1)),
        caught=("recovery: a further driver ends with UNRESOLVED",),
        versions=(2,),
    ),
    Mutation(
        name="a leader without verification",
        what="before Kafka 3.6 an attempt writes on behind its exact abort, and its partition stays open for ever",
        edits=(),
        setting=replace(LOSING, name="a leader without verification", verifies=False),
        caught=("I8",),
        versions=(0,),
    ),
    Mutation(
        name="producer epoch reused",
        what="an attempt goes on under the producer id and epoch that it finds",
        edits=(
            Edit(
                task.write_attempt,
                "    identity = yield from fresh_identity(",
                "    from kafka_eos_sink.protocol.identity import ProducerIdentity\n"
                "    from kafka_eos_sink.commit.steps import DescribeTransactions\n"
                "    name = plan.write.task_id(task.partition, task.task_attempt_id % SLOTS)\n"
                "    known = (yield from DescribeTransactions((name,)))[name]\n"
                "    if known is not None: identity = ProducerIdentity(transactional_id=name, producer_id=known.producer_id, "
                "producer_epoch=known.producer_epoch, transaction_version=plan.driver.transaction_version)\n"
                "    else: identity = yield from fresh_identity(",
            ),
        ),
        setting=_small(
            "epoch reused",
            attempts=2,
            batches=2,
            faults=faults(speculate=1, unavailable=1),
            recover_from_every=0,
            **ONE_ROW,
        ),
        caught=("at most once", "I7", "I3"),
    ),
    Mutation(
        name="part record outside the transaction",
        what="the witness is there whether the data is committed or not",
        edits=(
            Edit(
                task.write_attempt,
                "yield from AppendPart(identity, part)",
                "yield from __import__('kafka_eos_sink.commit.steps', fromlist=['x']).Append((part,))",
            ),
        ),
        setting=_small("part outside", **ONE_ROW),
        caught=("I12",),
    ),
    Mutation(
        name="witness skipped",
        what="a refused EndTxn is taken for a commit",
        edits=(
            Edit(
                settle._end,
                "zip(named, results, strict=False) if result.error == ErrorCode.NONE",
                "zip(named, results, strict=False)",
            ),
            Edit(settle.settle, "not recovering and ", ""),
        ),
        setting=_small("no witness", faults=faults(timeout=1), **ONE_ROW),
        caught=("I7",),
        versions=(2,),
    ),
    Mutation(
        name="verdict from the error code",
        what="a refused EndTxn is taken for an abort",
        edits=(
            Edit(
                settle.settle,
                "        settled = yield from _judged(run, logged, accepted, driver, deadline)\n",
                "        kept = tuple(each for each in decision.transactions if each.proven or each.identity in accepted)\n"
                "        lost = tuple(each for each in named if each.identity not in accepted)\n"
                "        settled = Settled(logged=logged, kept=kept, lost=lost)\n",
            ),
        ),
        setting=_small("verdict by code", attempts=2, faults=faults(speculate=1), **ONE_ROW),
        caught=("at most once", "I2"),
    ),
    Mutation(
        name="EndTxn version not pinned",
        what="an end is sent in the version of the day instead of the transaction's",
        edits=(
            Edit(performer.end_version, "5 if identity.version >= 2 else 4", "9 - (5 if identity.version >= 2 else 4)"),
        ),
        setting=_small("end version", **ONE_ROW),
        caught=("I9",),
    ),
    Mutation(
        name="check before the decision skipped",
        what="what the tasks handed over is decided without a look at the coordinator",
        edits=(
            Edit(
                decide.check_prepared,
                "if found is None or not (found.is_open and found.is_of(identity)):",
                "if found is None:",
            ),
            Edit(decide.check_prepared, "        if forgotten:\n", "        if False:\n"),
            Edit(decide._check_first_offsets, "if start != first:", "if False:"),
        ),
        setting=_small("no check", faults=faults(timeout=1), recover_from_every=0, **ONE_ROW),
        caught=("check",),
    ),
    Mutation(
        name="verify skipped",
        what="commit returns when EndTxn was answered, before the markers are written",
        edits=(
            Edit(
                settle.settle,
                "        is_plain = is_plain and (yield from verify_visible(write, decision, named, deadline, briefly=True))\n",
                "",
            ),
        ),
        setting=_small("no verify", eager_markers=False, recover_from_every=0, **ONE_ROW),
        caught=("I7",),
        versions=(2,),  # below, every commit looks at its ranges
    ),
    Mutation(
        name="sweep of a decided id",
        what="everything that was open before the fence is ended, decided or not",
        edits=(
            Edit(
                transactions.end_open,
                " for identity in identities if identity not in left)",
                " for identity in identities)",
            ),
        ),
        setting=_small("sweep", drivers=2, faults=faults(unavailable=1), recover_from_every=0, **ONE_ROW),
        caught=("I3",),
    ),
    Mutation(
        name="prefix match instead of exact ids",
        what="w.v2.0.0 is taken for one of w's",
        edits=(
            Edit(
                transactions.list_open,
                "tuple(transactional_id for transactional_id in listed if run.write.parse(transactional_id) is not None)",
                "listed",
            ),
        ),
        setting=_small("prefix", foreign=True, **ONE_ROW),
        caught=("recovery: a further driver ends with NOT_THIS_COMMIT_LOG",),
    ),
    # What the search itself found, and how it was before.
    Mutation(
        name="partitions of the open transaction not compared",
        what="below version 2 an attempt that somebody aborted goes on in a new transaction under its epoch",
        edits=(
            Edit(decide.check_prepared, "        if forgotten:\n", "        if False:\n"),
            Edit(decide._check_first_offsets, "if start != first:", "if False:"),
            # Otherwise commit notices afterwards that its rows are gone.
            Edit(settle.settle, "each.identity.bumps_epoch and ", ""),
        ),
        setting=_small("aborted while it runs", faults=faults(foreign_abort=1), recover_from_every=0, **ONE_ROW),
        caught=("I7",),
        versions=(0,),
    ),
    Mutation(
        name="first offsets of the open transactions not compared",
        what="the records of an aborted attempt without its marker are committed with those of the next",
        edits=(Edit(decide._check_first_offsets, "if start != first:", "if False:"),),
        setting=Setting(
            name="a missing marker",
            drivers=2,
            restart="failed",
            attempts=2,
            faults=faults(skip_marker=1, kill_task=2),
            recover_from_every=0,
            **ONE_ROW,
        ),
        caught=("at most once",),
        by_walks=True,
    ),
    Mutation(
        name="done decisions protect what is open under their identities",
        what="below version 2 a late AddPartitionsToTxn re-opens a finished transaction, and nobody ends it",
        edits=(Edit(LogView.unfinished, " and query.state_of(newest.decision).is_open", ""),),
        setting=_small("re-opened", attempts=1, faults=faults(float=1), **ONE_ROW),
        caught=("I8",),
        versions=(0,),
    ),
    # What reviewers found, and how it was before.
    Mutation(
        name="a fenced end of the decision counted as undecided",
        what="the repeat of a lost answer meets a newer driver, and the batch is called undecided although it is decided",
        edits=(
            Edit(
                decide.decide,
                "    # Only the log proves the end",
                "    if ended.error in FENCED_BY_NEWER_OWNER:\n"
                '        raise _undecided(decision, "the decision", Answered(error=ended.error))\n'
                "    # Only the log proves the end",
            ),
        ),
        setting=_small("fenced end", drivers=2, faults=faults(lost=1), recover_from_every=0, **ONE_ROW),
        caught=("I10",),
    ),
    Mutation(
        name="sweep of a write id fenced by a newer driver",
        what="the sweep after a batch ends what the tasks of the next one have prepared",
        edits=(Edit(abort.sweep, " or not (plan.write.is_random or (yield from still_holds(driver)))", ""),),
        setting=_small(
            "late sweep",
            batches=2,
            sweeps=True,
            rows=lambda driver, version: ((0,), (1,)) if version else ((0,),),
            recover_from_every=0,
        ),
        caught=("I3",),
    ),
    Mutation(
        name="copies in an epoch whose EndTxn has no response",
        what="below version 2 a late EndTxn of the first decision commits some records of the second one alone",
        edits=(Edit(decide.require_free, "    if driver.late_end_possible:", "    if False:"),),
        setting=_small(
            "a decision in pieces", piece_bytes=400, faults=faults(timeout=1, float=1), recover_from_every=0, **ONE_ROW
        ),
        caught=("I12",),
        versions=(0,),
    ),
    Mutation(
        name="the call only in the done record",
        what="a second write of a foreachBatch call is skipped if the done record of the first one failed",
        edits=(Edit(commit_batch.commit, "**written.told", "**(written.told | {'foreach_call': None})"),),
        setting=Setting(name="two writes of a call", **{**CALLS, "foreach_call": lambda driver: "a"}),
        caught=("I15",),
    ),
    Mutation(
        name="a skip not decided again",
        what="a second write of a foreachBatch call is skipped if the first one was skipped",
        edits=(Edit(commit_batch.commit, "yield from _note_skip(request, written.foreach_call)", "pass"),),
        setting=Setting(name="a skip and a write", **{**CALLS, "foreach_call": lambda driver: "abbb"[driver]}),
        caught=("I15",),
    ),
    Mutation(
        name="an ignored gap in the versions of a stream",
        what="a stream on an older commit log, or another one, writes a batch that may have been decided elsewhere",
        edits=(
            Edit(admission._admit_to_stream, "if batch.streaming and batch.version > newest.version + 1:", "if False:"),
        ),
        setting=_small(
            "an older log",
            drivers=2,
            batches=3,
            start_version=lambda driver: 2 * driver,
            recover_from_every=0,
            **ONE_ROW,
        ),
        caught=("I16",),
    ),
    # What the judge of ranges must not do, and the discard of what hangs.
    Mutation(
        name="a held range copied",
        what="rows whose marker may still come are copied",
        edits=(
            Edit(
                outcome.judge,
                "return tuple(TABLE[each][column] for each in shown)",
                "return tuple(Do.COPY if each is Shown.HELD else TABLE[each][column] for each in shown)",
            ),
        ),
        setting=ONE_MISSING,
        caught=("I2", "at most once", "recovery"),
    ),
    Mutation(
        name="a gone range counted as seen",
        what="rows that were aborted and then removed count as written",
        edits=(
            Edit(
                outcome.judge,
                "return tuple(TABLE[each][column] for each in shown)",
                "return tuple(Do.NOTHING if each is Shown.GONE else TABLE[each][column] for each in shown)",
            ),
        ),
        setting=_small("gone", faults=faults(timeout=1, clean=1), loud=frozenset({"LOST_PARTS"}), **ONE_ROW),
        caught=("I7", "recovery", "exactly once"),
    ),
    Mutation(
        name="a visible range copied",
        what="one aborted range of a transaction has the others copied with it",
        edits=(
            Edit(
                settle._judged,
                "_divided(run.write, decision, prepared, each, VISIBLE, (Do.COPY, Do.MISS))",
                "(None, prepared) if {Do.COPY, Do.MISS} & set(each) else (prepared, None)",
            ),
        ),
        setting=HALF_ABORTED,
        caught=("I2", "at most once"),
    ),
    Mutation(
        name="visible ranges omitted from the next decision",
        what="the decision of the copies forgets the rows that readers see of the same transaction",
        edits=(
            Edit(
                restore._decision_of,
                "for entry in settled.kept]",
                "for entry in settled.kept if entry.identity not in {each.identity for each in settled.lost}]",
            ),
        ),
        setting=HALF_ABORTED,
        caught=("I2",),
    ),
    Mutation(
        name="the look skipped in recovery",
        what="a recovery whose EndTxn is accepted takes the rows for visible, although somebody has discarded them by hand",
        edits=(Edit(settle.settle, "not recovering and ", ""),),
        setting=_small(
            "an ABORT by hand",
            drivers=2,
            restart="crash",
            zombie_tasks=False,
            eager_markers=False,
            faults=faults(hand_marker=1),
            **ONE_ROW,
        ),
        caught=("I7", "exactly once", "recovery"),
        versions=(2,),
    ),
    Mutation(
        name="the look skipped after a pause between check and EndTxn",
        what="a driver that slept takes the rows for visible, although somebody has discarded them by hand",
        edits=(Edit(commit_batch.commit, "now - checked > PROMPT_MS", "False"),),
        setting=BY_HAND,
        caught=("I7",),
        versions=(2,),
    ),
    Mutation(
        name="the look skipped after a pause behind EndTxn",
        what="a driver that slept before readers passed takes the rows for visible, although somebody has discarded them by hand",
        edits=(Edit(settle.settle, "if is_plain and now - started <= PROMPT_MS:", "if is_plain:"),),
        setting=BY_HAND,
        caught=("I7",),
        versions=(2,),
    ),
    Mutation(
        name="copied before the ABORT is seen",
        what="what hangs is copied as soon as its abort was sent",
        edits=(
            Edit(
                settle._judged,
                "        if not hanging:\n",
                "        if hanging:\n            yield from discard(run, driver.identity, hanging)\n        if True:\n",
            ),
            Edit(settle._judged, "(Do.COPY, Do.MISS)", "(Do.COPY, Do.MISS, Do.DISCARD)"),
        ),
        setting=ONE_MISSING,
        caught=("I2", "at most once"),
    ),
    Mutation(
        name="discarded before it is written down",
        what="the cleaner removes what a driver has discarded, and the next driver counts it as seen",
        edits=(Edit(settle._judged, "        logged = yield from _noted(run, logged, todo, driver)\n", ""),),
        setting=MISSING_AND_GONE,
        caught=("I7", "exactly once", "recovery"),
    ),
    Mutation(
        name="a gone range counted as seen by a replaced driver",
        what="a newer driver has discarded it, and the cleaner has removed it",
        edits=(
            Edit(
                settle._judged,
                "if Do.SEEN in chain.from_iterable(todo) and not (yield from still_holds(driver.identity)):",
                "if False:",
            ),
        ),
        setting=replace(MISSING_AND_GONE, name="a replaced driver", drivers=2, restart="beside", recover_from_every=0),
        caught=("I7", "exactly once", "recovery"),
        by_walks=True,
        waits_for_readers=True,
        versions=(2,),  # below, the walks are too long
    ),
    Mutation(
        name="nothing discarded",
        what="what hangs of a decision blocks its readers for ever",
        edits=(
            Edit(
                settle.discard,
                "    if ends:\n        yield from EndTransactions(",
                "    if False:\n        yield from EndTransactions(",
            ),
        ),
        setting=ONE_MISSING,
        caught=("recovery",),
    ),
    Mutation(
        name="a commit does not ask for a newer driver",
        what="readers pass because a newer driver has discarded what hung, and the commit takes the rows for visible",
        edits=(Edit(settle.settle, " and (yield from still_holds(driver.identity, named))", ""),),
        setting=_small(
            "a newer driver discards",
            drivers=2,
            eager_markers=False,
            loud=HEALED,
            recover_from_every=0,
            faults=faults(skip_marker=1),
            **ONE_ROW,
        ),
        caught=("I7",),
        by_walks=True,
        waits_for_readers=True,
        versions=(2,),  # below, every commit looks at its ranges
    ),
    Mutation(
        name="others ended after the decisions",
        what="an attempt that has joined a decided transaction keeps the id of what hangs",
        edits=(
            Edit(
                take_over_module.taking_over,
                "        left_open = yield from end_open(dict.fromkeys((*opened, *request.also_abort)), still_to_commit(view))\n",
                "",
            ),
            Edit(
                take_over_module.taking_over,
                '        yield from Reached("plan.finished")\n',
                "        left_open = yield from end_open(dict.fromkeys((*opened, *request.also_abort)), still_to_commit(view))\n",
            ),
            GOES_ON,
            STAYS_OPEN,
        ),
        setting=_small(
            "a joined attempt stays open",
            attempts=2,
            drivers=2,
            restart="crash",
            zombie_tasks=False,
            eager_markers=False,
            loud=HEALED,
            faults=faults(skip_marker=1, speculate=1),
            **ONE_ROW,
        ),
        caught=("recovery",),
    ),
    # A version is written once, in any order.
    Mutation(
        name="the versions not carried forward",
        what="a decision knows its own version only, and an older one is written a second time",
        edits=(Edit(admission.decided_versions, "settled.decision.written_versions", "Versions()"),),
        setting=Setting(name="any order", **{**ANY_ORDER, "drivers": 3, "recover_from_every": 0}),
        caught=("at most once", "I2"),
    ),
    Mutation(
        name="a version added before it is decided",
        what="a run skips a version that nobody has written",
        edits=(
            Edit(
                admission.decided_versions,
                "before.adding(batch.version)",
                "before.adding(batch.version).adding(batch.version - 1)",
            ),
        ),
        setting=Setting(name="any order", **{**ANY_ORDER, "recover_from_every": 0}),
        caught=("I7",),
    ),
    Mutation(
        name="the floor forgotten",
        what="a version that has left the set is written a second time",
        edits=(Edit(Versions.adding, "max([self.floor, *(each.last + 1 for each in dropped)])", "self.floor"),),
        setting=replace(EXHAUSTED["versions in any order, below the floor"], recover_from_every=0),
        caught=("at most once", "I2"),
    ),
    Mutation(
        name="a void version left in the set",
        what="a version whose rows are lost is skipped once another one was decided",
        edits=(
            Edit(
                restore._decision_of,
                "versions if copies or versions is None else versions.without(decision.version)",
                "versions",
            ),
        ),
        setting=Setting(
            name="void and any order",
            **{**ANY_ORDER, "faults": faults(timeout=1, clean=1), "recover_from_every": 0},
        ),
        caught=("I7",),
    ),
    # The first plan of a write id.
    Mutation(
        name="no barrier before the first fence",
        what="a driver that dies between them leaves a write id that looks like that of a lost log",
        edits=(
            Edit(
                take_over_module.taking_over,
                "yield from Append((barrier_record(run.write.id, run.nonce, view.topic_id),))",
                "pass",
            ),
        ),
        setting=_small("first plan", drivers=2, **ONE_ROW),
        caught=("I17", "recovery"),
    ),
    Mutation(
        name="the log not read again before it counts as lost",
        what="a driver beside the first one takes the log for lost",
        edits=(
            Edit(
                take_over_module.look,
                "        yield from read_to_end(view)\n        standing =",
                "        standing =",
            ),
        ),
        setting=_small("two first plans", drivers=2, restart="beside", recover_from_every=0, **ONE_ROW),
        caught=("I17",),
    ),
    # What `kafka-eos resolve` must not leave out.
    Mutation(
        name="a version counts as written before recovery has finished it",
        what="no run copies what was aborted of a version that it skips",
        edits=(
            Edit(resolve._require_resolvable, "if failure is not None and failure.code not in GIVEN_UP:", "if False:"),
        ),
        setting=_small(
            "not recovered", faults=faults(resolve=1, timeout=1, unavailable=1), recover_from_every=0, **ONE_ROW
        ),
        caught=("resolve",),
    ),
    Mutation(
        name="rewrite of a version that recovery has finished",
        what="a version is void although its rows are visible",
        edits=(Edit(resolve._is_finished, "settled.status is DecisionStatus.FINISHED", "False"),),
        setting=_small("visible", resolution="rewrite", faults=faults(resolve=1), **ONE_ROW),
        caught=("at most once",),
    ),
    Mutation(
        name="rewrite of a version that recovery could not finish",
        what="a version is void although nobody knows how its transactions ended",
        edits=(Edit(resolve._require_resolvable, "yield from _require_aborted(query, failure, request)", "pass"),),
        setting=_small("in doubt", resolution="rewrite", faults=faults(resolve=1, unavailable=1), **ONE_ROW),
        caught=("at most once",),
    ),
)
