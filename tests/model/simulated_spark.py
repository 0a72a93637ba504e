"""Spark around the protocol: drivers that plan, run tasks, commit, abort, record and restart; all of it as values.

A `World` holds a setting and everything that was met so far (clusters, procedures, requests); a state is a tuple of small numbers into
it. `World.successors` gives all that can happen next. What is local to a process (its clock, warnings, named points, whether a
task has rows) happens together with the request before it: nobody else can see when. A process that dies is one that is never
scheduled again; therefore there is no action for the death of a driver beside the start of the next one, which is allowed at any time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from kafka_eos_sink.commit import abort as aborting
from kafka_eos_sink.commit import commit_batch, log_standing, steps
from kafka_eos_sink.commit import take_over as take_over_module
from kafka_eos_sink.commit import task as task_module
from kafka_eos_sink.commit.resolve import resolve
from kafka_eos_sink.commit.take_over import TakeOver
from kafka_eos_sink.commit.values import (
    DEFAULT_TOPIC,
    BatchIdentity,
    Plan,
    ResolveRequest,
    Run,
    TaskIdentity,
    TaskMessage,
    Write,
)
from kafka_eos_sink.errors import DecisionPendingError, KafkaEosError

from . import invariants, performer
from . import simulated_cluster as kafka
from .procedures import Node, Procedures, Throw
from .settings import FAULTS, JUMP_MS, START_MS, Setting
from .simulated_cluster import BLOCKED, LOG, Cluster, Identity

PENDING = -1
"""A request of an unordered step that was not processed yet."""
NO_ANSWER = -2
NONCES = {"commit": "c", "abort": "a"}
"""How the nonces of a procedure's runs begin."""

Name = tuple[int, str, int, int, int]
"""(driver, procedure, batch version, Spark partition, attempt)."""


class Driver(NamedTuple):
    phase: str
    version: int
    plan: int = -1
    launched: tuple[int, ...] = ()
    winners: tuple[int, ...] = ()
    """Per Spark partition the ended node of the attempt whose message the driver holds, or -1."""
    code: str = ""


class State(NamedTuple):
    cluster: int
    processes: tuple[tuple[Name, int, tuple[int, ...]], ...]
    drivers: tuple[Driver, ...]
    recorded: int
    floating: tuple[int, ...]
    budgets: tuple[int, ...]
    clock: int


class Violation(Exception):
    """An invariant does not hold."""


Label = tuple[Any, ...]


class World:
    """All that a setting's states refer to, and what can happen in each."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.procedures = Procedures(invariants.remember)
        self.clusters: list[Cluster] = []
        self._cluster_numbers: dict[Cluster, int] = {}
        self.values: list[Any] = []
        self._value_numbers: dict[Any, int] = {}
        self._processed: dict[tuple[int, int, bool], tuple[int, int, str | None]] = {}
        self._requests: dict[tuple[int, Any], tuple[int, ...]] = {}
        self._answered: dict[tuple[int, Any, tuple[int, ...], int], Node] = {}
        self._environment: dict[tuple[int, str | None], list[tuple[Label, int]]] = {}
        self._cluster_faults = tuple(
            name
            for name in (
                "compact",
                "clean",
                "retain",
                "skip_marker",
                "timeout",
                "foreign_abort",
                "foreign_init",
                "expire",
            )
            if setting.fault(name)
        )
        self._ended_well: dict[tuple[int, int, int], str | None] = {}
        self._recovered: dict[tuple[int, int, int, int], str | None] = {}
        self.doing: Label = ()
        """What was about to happen when a violation was found."""
        self.told: list[Label] = []
        """What the last recovery did."""

    # interning

    def cluster_number(self, cluster: Cluster) -> int:
        found = self._cluster_numbers.get(cluster)
        if found is None:
            found = self._cluster_numbers[cluster] = len(self.clusters)
            self.clusters.append(cluster)
            wrong = invariants.check_cluster(cluster, self.setting.rollback == "rewrite", self.setting.streaming)
            if wrong is not None:
                raise Violation(wrong)
        return found

    def value_number(self, value: Any) -> int:
        found = self._value_numbers.get(value)
        if found is None:
            found = self._value_numbers[value] = len(self.values)
            self.values.append(value)
        return found

    # beginning

    def initial(self) -> State:
        setting = self.setting
        cluster = kafka.empty_cluster(setting.version, setting.data_partitions, setting.verifies)
        if setting.foreign:
            cluster = with_foreign_writer(cluster, f"{setting.write_id(0)}.v2")
        state = State(
            self.cluster_number(cluster),
            (),
            (),
            setting.first_batch - 1,
            (),
            tuple(setting.fault(name) for name in FAULTS),
            0,
        )
        return self._start_driver(state)

    def _start_driver(self, state: State) -> State:
        setting, number = self.setting, len(state.drivers)
        version = state.recorded + 1
        if setting.start_version is not None:
            version = setting.start_version(number)
        if version >= setting.first_batch + setting.batches:
            version = setting.first_batch + setting.batches - 1  # the job is started once more although it was done
        remembered = setting.remembers(number)
        plan = state.drivers[remembered].plan if 0 <= remembered < number else -1
        state = state._replace(drivers=(*state.drivers, Driver("plan", version, plan)))
        return self._start_plan(state, number)

    def _start_plan(self, state: State, number: int) -> State:
        """The planner process remembers its plan before this one, unless the driver is new."""
        version, predecessor = state.drivers[number].version, state.drivers[number].plan
        state = self._set_driver(state, number, Driver("plan", version))
        return self._spawn(state, (number, "plan", version, 0, 0), (predecessor,))

    def _batch(self, number: int, version: int) -> BatchIdentity:
        setting = self.setting
        return BatchIdentity(
            query_id=setting.query_id(number),
            version=version,
            topic=setting.topic(number),
            schema="schema",
            offsets_hash=setting.offsets_hash(number, version),
            on_checkpoint_rollback=setting.rollback,  # type: ignore[arg-type]
            streaming=setting.streaming,
            foreach_call=setting.foreach_call(number),
            foreach_query="" if setting.foreach_call(number) is None else setting.foreach_query(number),
        )

    def _factory(self, name: Name, inputs: tuple[int, ...]) -> Any:
        """How to make a procedure; ``inputs`` are numbers of the ended nodes whose results it works on."""
        setting = self.setting
        number, kind, version, partition, attempt = name
        run = Run(
            write=Write(setting.write_id(number), DEFAULT_TOPIC),
            nonce=f"r{attempt}" if kind == "resolve" else f"{NONCES.get(kind, '')}{number}.{version}",
            transaction_timeout_ms=setting.timeout_ms,
            transaction_version=setting.version,
        )
        if kind == "resolve":
            asked = ResolveRequest(
                run=run, query_id=setting.query_id(number), version=version, resolution=setting.resolution
            )
            return lambda: resolve(asked)
        batch = self._batch(number, version)
        results = [None if node < 0 else self.procedures.nodes[node].result for node in inputs]
        if kind == "plan":
            if setting.random_write_id:
                return lambda: take_over_module.fence_only(run)
            request = TakeOver(run=run, predecessor=results[0])
            return lambda: take_over_module.take_over(request)
        plan: Plan = results[0]
        if kind == "task":
            stride = 8 if setting.same_slot else 1
            task = TaskIdentity(
                partition=partition, attempt_number=attempt, task_attempt_id=attempt * stride + partition
            )
            return lambda: task_module.write_attempt(plan, batch, task)
        if kind == "commit":
            commit = commit_batch.CommitRequest(run=run, plan=plan, batch=batch)
            messages: list[TaskMessage] = results[1:]
            return lambda: commit_batch.commit(commit, messages)
        if kind == "sweep":
            return lambda: aborting.sweep(run, plan, results[1])
        handed_over: list[TaskMessage | None] = results[1:]
        # The commit process of a stream knows the plan from the messages alone.
        known = plan if any(handed_over) or not setting.streaming else None
        return lambda: aborting.abort(TakeOver(run=run), known, handed_over)

    def _spawn(self, state: State, name: Name, inputs: tuple[int, ...]) -> State:
        node = self.procedures.start(name[1], (name, inputs), self._factory(name, inputs))
        node = self._run_local(node, name, state.clock)
        return self._arrive(state, name, node)

    def _rows(self, name: Name) -> tuple[tuple[Any, int], ...]:
        if name[1] != "task":
            return ()
        setting = self.setting
        rows = setting.rows(name[0], name[2])
        own = rows[name[3]] if name[3] < len(rows) else ()
        return tuple(
            (("row", setting.query_id(name[0]), name[2], row), 1 + row % setting.data_partitions) for row in own
        )

    def _run_local(self, node: Node, name: Name, clock: int) -> Node:
        while True:
            step = node.step
            if isinstance(step, (steps.Now, steps.WallClock)):
                node = self.procedures.advance(node, ("now", clock), START_MS + clock * JUMP_MS)
            elif isinstance(step, steps.HasRows):
                has = bool(self._rows(name))
                node = self.procedures.advance(node, has, has)
            elif isinstance(step, log_standing.ReadHistory):
                node = self.procedures.advance(node, None, ())  # no history topic
            elif isinstance(step, (steps.Wait, steps.Warn, steps.Reached)):
                node = self.procedures.advance(node, None, None)
            else:
                return node

    # what a process does next

    def requests_of(self, node: Node, name: Name) -> tuple[int, ...]:
        key = (node.number, name if name[1] == "task" else None)
        found = self._requests.get(key)
        if found is None:
            made = performer.requests_of(node.step, self._rows(name))
            found = self._requests[key] = tuple(self.value_number(request) for request in made)
        return found

    def process(self, cluster: int, request: int, by: str = "resolve") -> tuple[int, int]:
        """(cluster, answer) after a request; answer -1 where the broker asks for a repetition.

        ``by``: the procedure that sends it. A late copy may be anybody's.
        """
        voids = by == "resolve" and bool(self.setting.fault("resolve")) and self.setting.resolution == "rewrite"
        found = self._processed.get((cluster, request, voids))
        if found is None:
            before, asked = self.clusters[cluster], self.values[request]
            after, answer = performer.process(before, asked)
            wrong = invariants.check_request(before, asked, after, self.setting.write_ids, voids=voids)
            if wrong is not None:
                raise Violation(wrong)
            number = cluster if after is before else self.cluster_number(after)
            answered = -1 if answer is BLOCKED else self.value_number(answer)
            found = self._processed[cluster, request, voids] = (number, answered, None)
        return found[0], found[1]

    def _answer(self, node: Node, name: Name, requests: tuple[int, ...], answers: tuple[int, ...], clock: int) -> Node:
        key = (node.number, name if name[1] == "task" else None, answers, clock)
        found = self._answered.get(key)
        if found is None:
            values = tuple(None if answer == NO_ANSWER else self.values[answer] for answer in answers)
            asked = tuple(self.values[request] for request in requests)
            answer = performer.answer_of(node.step, asked, values, self.setting.version)
            found = self._run_local(self.procedures.advance(node, answers, answer), name, clock)
            self._answered[key] = found
        return found

    def _throw(self, node: Node, name: Name, clock: int) -> Node:
        answer = performer.unavailable(node.step)
        return self._run_local(self.procedures.advance(node, "unavailable", answer), name, clock)

    # successors

    def successors(self, state: State) -> Iterator[tuple[Label, State]]:
        if not self.setting.eager_markers:
            yield from self._all_successors(state)
            return
        for label, after in self._all_successors(state):
            yield label, self._settle_cluster(after)

    def _all_successors(self, state: State) -> Iterator[tuple[Label, State]]:
        yield from self._of_processes(state)
        yield from self._of_spark(state)
        yield from self._of_cluster(state)
        yield from self._of_operator(state)

    def _of_processes(self, state: State) -> Iterator[tuple[Label, State]]:
        lost, unavailable, floats = state.budgets[_LOST], state.budgets[_UNAVAILABLE], state.budgets[_FLOAT]
        for index, (name, number, progress) in enumerate(state.processes):
            node = self.procedures.nodes[number]
            requests = self.requests_of(node, name)
            unordered = isinstance(node.step, steps.EndTransactions)
            if unordered:
                open_positions = [
                    position for position in range(len(requests)) if not progress or progress[position] == PENDING
                ]
            else:
                open_positions = [len(progress)]
            for position in open_positions:
                request = requests[position]
                self.doing = (name, "do", request, -1)
                cluster, answer = self.process(state.cluster, request, name[1])
                value = self.values[request]
                if value[0] in ("init", "produce"):
                    self._check_actor(state.cluster, cluster, node, name, value)
                if answer >= 0:
                    if unordered and request in state.floating:
                        # The client knows that a try had no response, since only then does a copy stay in the network.
                        answer = self.value_number((*self.values[answer], performer.UNANSWERED))
                    done = self._progressed(node, name, requests, progress, position, answer, state.clock)
                    after = state if cluster == state.cluster else state._replace(cluster=cluster)
                    yield (name, "do", request, answer), self._moved(after, index, name, done)
                    if lost and cluster != state.cluster:
                        yield (name, "lost", request), self._spend(state._replace(cluster=cluster), _LOST)
                elif cluster != state.cluster:
                    yield (name, "do", request, answer), state._replace(cluster=cluster)
                if unavailable and unordered:
                    done = self._progressed(node, name, requests, progress, position, NO_ANSWER, state.clock)
                    yield (name, "no answer", request), self._moved(self._spend(state, _UNAVAILABLE), index, name, done)
                if floats and performer.changes_something(value) and request not in state.floating:
                    floated = tuple(sorted((*state.floating, request)))
                    yield (name, "float", request), self._spend(state._replace(floating=floated), _FLOAT)
            if unavailable and not unordered:
                thrown = self._throw(node, name, state.clock)
                yield (
                    (name, "unavailable", requests[open_positions[0]]),
                    self._moved(self._spend(state, _UNAVAILABLE), index, name, (thrown, ())),
                )
        for request in state.floating:
            self.doing = ("network", "late", request, -1)
            cluster, answer = self.process(state.cluster, request)
            if answer >= 0 or cluster != state.cluster:
                left = list(state.floating)
                if answer >= 0:
                    left.remove(request)
                yield ("network", "late", request, answer), state._replace(cluster=cluster, floating=tuple(left))

    def _check_actor(self, before: int, after: int, node: Node, name: Name, request: performer.Request) -> None:
        """What a request says only together with what its sender had seen before."""
        wrong = None
        if request[0] == "init" and after != before:
            wrong = invariants.initialises_named(self.clusters[before], request)
            if wrong is not None and node.memory is not None and request[1] not in node.memory:
                wrong = None  # paused between the description and the request: section 4 finds it
        elif request[0] == "produce" and name[1] in invariants.DECIDING and request[1] is not None:
            wrong = invariants.decides_unchecked(self.clusters[before], request[4], node.memory)
        if wrong is not None:
            raise Violation(wrong)

    def _progressed(
        self,
        node: Node,
        name: Name,
        requests: tuple[int, ...],
        progress: tuple[int, ...],
        position: int,
        answer: int,
        clock: int,
    ) -> tuple[Node, tuple[int, ...]]:
        if isinstance(node.step, steps.EndTransactions):
            answers = list(progress or (PENDING,) * len(requests))
            answers[position] = answer
            complete = PENDING not in answers
        else:
            answers = [*progress, answer]
            complete = len(answers) == len(requests) or performer.refused(
                node.step, self.values[requests[position]], self.values[answer]
            )
        if complete:
            return self._answer(node, name, requests, tuple(answers), clock), ()
        return node, tuple(answers)

    def _moved(self, state: State, index: int, name: Name, done: tuple[Node, tuple[int, ...]]) -> State:
        node, progress = done
        processes = state.processes
        if node.ended:
            state = state._replace(processes=processes[:index] + processes[index + 1 :])
            return self._arrive(state, name, node)
        moved = (*processes[:index], (name, node.number, progress), *processes[index + 1 :])
        return State(state.cluster, moved, state.drivers, state.recorded, state.floating, state.budgets, state.clock)

    def _spend(self, state: State, fault: int) -> State:
        budgets = list(state.budgets)
        budgets[fault] -= 1
        return state._replace(budgets=tuple(budgets))

    def _set_driver(self, state: State, number: int, driver: Driver) -> State:
        drivers = list(state.drivers)
        drivers[number] = driver
        return state._replace(drivers=tuple(drivers))

    # Spark's reactions

    def _arrive(self, state: State, name: Name, node: Node) -> State:
        """A procedure stands at a request, or has ended: Spark reacts to the latter at once."""
        if not node.ended:
            return state._replace(processes=tuple(sorted((*state.processes, (name, node.number, ())))))
        failure = node.failure
        if failure is not None and not isinstance(failure, KafkaEosError):
            raise Violation(f"{name[1]} raised {type(failure).__name__}: {failure}")
        code = getattr(failure, "code", "")
        number, kind, version, _partition, _attempt = name
        if kind == "resolve":
            if failure is None:
                self._check_resolved(state, version)
            return state
        driver = state.drivers[number]
        if driver.phase in ("dead", "failed") or driver.version != version:
            return state
        match kind:
            case "plan":
                if code == "COMMIT_LOG_LOST":
                    raise Violation(f"I17: the plan of driver {number} takes the commit log for lost")
                if failure is not None:
                    return self._set_driver(state, number, driver._replace(phase="failed", code=code))
                partitions = len(self.setting.rows(number, version))
                driver = Driver("tasks", version, node.number, (1,) * partitions, (-1,) * partitions)
                state = self._set_driver(state, number, driver)
                for each in range(partitions):
                    state = self._spawn(state, (number, "task", version, each, 0), (driver.plan,))
                return state
            case "task":
                return self._task_ended(state, name, node, code)
            case "commit":
                if failure is not None:
                    if not isinstance(failure, DecisionPendingError):
                        self._check_undecided(state, number, version, code)
                    driver = driver._replace(phase="abort", code=code)
                    state = self._set_driver(state, number, driver)
                    return self._spawn(state, (number, "abort", version, 0, 0), (driver.plan, *driver.winners))
                self._check_committed(state, number, version, node)
                self._check_second_write(state, number, node)
                state = self._set_driver(state, number, driver._replace(phase="committed"))
                if self.setting.sweeps:
                    state = self._spawn(state, (number, "sweep", version, 0, 0), (driver.plan, node.number))
                return state
            case "abort":
                state = self._set_driver(state, number, driver._replace(phase="failed"))
                if node.result is not None:
                    state = self._spawn(state, (number, "sweep", version, 0, 0), (node.number, -1))
                return state
            case "sweep":
                return state
        raise AssertionError(name)

    def _task_ended(self, state: State, name: Name, node: Node, code: str) -> State:
        number, _, version, partition, _ = name
        driver = state.drivers[number]
        if driver.phase != "tasks" or driver.winners[partition] >= 0:
            return state
        if node.failure is None:
            winners = (*driver.winners[:partition], node.number, *driver.winners[partition + 1 :])
            state = self._set_driver(state, number, driver._replace(winners=winners))
            if -1 in winners:
                return state
            state = self._set_driver(state, number, driver._replace(phase="commit", winners=winners))
            return self._spawn(state, (number, "commit", version, 0, 0), (driver.plan, *winners))
        return self._attempt_failed(state, number, partition, code)

    def _attempt_failed(self, state: State, number: int, partition: int, code: str) -> State:
        driver = state.drivers[number]
        version, launched = driver.version, driver.launched[partition]
        if any(name[:4] == (number, "task", version, partition) for name, _, _ in state.processes):
            return state
        if launched < self.setting.attempts:
            return self._launch(state, number, partition)
        driver = driver._replace(phase="abort", code=code)
        state = self._set_driver(state, number, driver)
        return self._spawn(state, (number, "abort", version, 0, 0), (driver.plan, *driver.winners))

    def _launch(self, state: State, number: int, partition: int) -> State:
        driver = state.drivers[number]
        attempt = driver.launched[partition]
        launched = (*driver.launched[:partition], attempt + 1, *driver.launched[partition + 1 :])
        state = self._set_driver(state, number, driver._replace(launched=launched))
        return self._spawn(state, (number, "task", driver.version, partition, attempt), (driver.plan,))

    def _check_committed(self, state: State, number: int, version: int, node: Node) -> None:
        """I7: commit returned, so every row of the batch is visible (but for others who hold up its readers)."""
        key = (state.cluster, number, version)
        if key not in self._ended_well:
            wrong = None
            if not self._skips(state, number, version):
                cluster = self.clusters[state.cluster]
                if (lost := self._lost_rows(cluster, number, version)) and not self._gives_up(cluster, number, version):
                    wrong = (
                        f"I7: commit of batch {version} by driver {number} returned, but rows {lost} are not visible"
                    )
            self._ended_well[key] = wrong
        if (wrong := self._ended_well[key]) is not None:
            raise Violation(wrong)

    def _check_resolved(self, state: State, version: int) -> None:
        """What counts as written has every row, unless one that was lost is gone: then none is copied."""
        if self.setting.resolution != "committed":
            return  # a further driver writes it: at most once, and exactly once in the end
        cluster = self.clusters[state.cluster]
        lost = self._lost_rows(cluster, 0, version)
        if lost and lost <= invariants.held_rows(cluster):
            raise Violation(f"resolve: batch {version} counts as written, but rows {lost} are not visible")

    def _gives_up(self, cluster: Cluster, number: int, version: int) -> bool:
        """Whether a version counts as written, and the cleaner has removed one of its lost rows."""
        counts = invariants.counts_as_written(
            cluster, self.setting.write_id(number), self.setting.query_id(number), version
        )
        return counts and not self._lost_rows(cluster, number, version) <= invariants.held_rows(cluster)

    def _lost_rows(self, cluster: Cluster, number: int, version: int) -> set[Any]:
        rows = [row for part in self.setting.rows(number, version) for row in part]
        named = {("row", self.setting.query_id(number), version, row) for row in rows}
        return named - invariants.committed_rows(cluster)

    def _check_undecided(self, state: State, number: int, version: int, code: str) -> None:
        """What says that it failed before the decision was not decided: its caller may write the rows again."""
        nonce = self.procedures.nodes[state.drivers[number].plan].result.nonce
        for decided in invariants.decisions(self.clusters[state.cluster]):
            if (decided.version, decided.fields["nonce"]) == (version, nonce):
                raise Violation(
                    f"I10: commit of batch {version} by driver {number} ended with {code}, but it is decided"
                )

    def _check_second_write(self, state: State, number: int, node: Node) -> None:
        """I15: the rows of a second write in one `foreachBatch` call may be other ones, so they are not skipped."""
        calls = [self.setting.foreach_call(each) for each, driver in enumerate(state.drivers) if driver.phase == "done"]
        call = self.setting.foreach_call(number)
        if node.result is None and call is not None and call in calls:
            raise Violation(f"I15: driver {number} skips a second write of call {call}")

    def _skips(self, state: State, number: int, version: int) -> bool:
        """onCheckpointRollback=skip leaves a batch out on purpose."""
        if self.setting.rollback != "skip":
            return False
        plan: Plan = self.procedures.nodes[state.drivers[number].plan].result
        newest = plan.newest_decision(self.setting.query_id(number))
        return newest is not None and newest.decision.version > version

    def ends_badly(self, state: State, found: list[tuple[Label, State]]) -> str | None:
        """I14: somebody waits, and nothing but a fault or the deadline will ever end it. I8: see `_left_open`."""
        setting = self.setting
        if not state.processes:
            return self._left_open(state)
        if any(setting.fault(name) for name in WAITS_FOR_A_DEADLINE):
            return None
        if setting.fault("timeout") and setting.fault("compact"):
            return (
                None  # W.driver timed out before its EndTxn, and the cleaner took the decision before its driver looked
            )
        for label, after in found:
            if after != state and (label[1] in ("do", "marker", "late", "record") or label == ("spark", "restart")):
                return None
        for name, number, _ in state.processes:
            driver = state.drivers[name[0]]
            is_waited_for = driver.phase not in ("failed", "dead", "done") and driver.version == name[2]
            if is_waited_for or name[1] == "resolve":
                step = self.procedures.nodes[number].step
                return f"I14: {name[1]} of driver {name[0]} waits for ever at {type(step).__name__}"
        return None

    def _left_open(self, state: State) -> str | None:
        """I8: everybody has come to an end by themselves, and a transaction is open until its timeout or a further driver."""
        asked_for = {name for name, count in self.setting.faults.items() if count}
        if not asked_for <= KILLS_NOBODY or any(driver.phase == "dead" for driver in state.drivers):
            return None
        cluster = self.clusters[state.cluster]
        still = [
            name
            for name in invariants.open_ids(cluster, self.setting.write_ids)
            if (found := cluster.transaction(name)) is not None and found.state == kafka.ONGOING
        ]
        if still:
            return f"I8: everything has ended, and {still} are open"
        hanging = invariants.hanging_ids(cluster, self.setting.write_ids)
        return f"I8: everything has ended, and partitions hold {hanging} open" if hanging else None

    def _of_spark(self, state: State) -> Iterator[tuple[Label, State]]:
        setting = self.setting
        self.doing = ("spark", "acts")
        for number, driver in enumerate(state.drivers):
            if driver.phase == "committed":
                yield ("spark", "record", number), self._record(state, number)
            elif driver.phase == "tasks":
                yield from self._of_tasks(state, number, driver)
        if len(state.drivers) < setting.drivers:
            last = state.drivers[-1]
            if last.phase in ("failed", "dead", "done"):
                yield ("spark", "restart"), self._start_driver(state)
            elif setting.restart == "beside":
                yield ("spark", "restart beside"), self._start_driver(state)
            elif setting.restart == "crash":
                yield ("spark", "crash and restart"), self._start_driver(self._crash(state))

    def _crash(self, state: State) -> State:
        number = len(state.drivers) - 1
        gone = {"plan", "commit", "abort", "sweep"} | (set() if self.setting.zombie_tasks else {"task"})
        processes = tuple(entry for entry in state.processes if entry[0][0] != number or entry[0][1] not in gone)
        driver = Driver("dead", state.drivers[number].version, state.drivers[number].plan)
        return self._set_driver(state._replace(processes=processes), number, driver)

    def _record(self, state: State, number: int) -> State:
        driver = state.drivers[number]
        state = state._replace(recorded=max(state.recorded, driver.version))
        if driver.version + 1 < self.setting.first_batch + self.setting.batches:
            state = self._set_driver(state, number, Driver("plan", driver.version + 1, driver.plan))
            return self._start_plan(state, number)
        return self._set_driver(state, number, Driver("done", driver.version))

    def _of_tasks(self, state: State, number: int, driver: Driver) -> Iterator[tuple[Label, State]]:
        setting = self.setting
        for partition, launched in enumerate(driver.launched):
            live = [
                index
                for index, (name, _, _) in enumerate(state.processes)
                if name[:4] == (number, "task", driver.version, partition)
            ]
            if launched < setting.attempts:
                if state.budgets[_SPECULATE] and (live or driver.winners[partition] >= 0):
                    spent = self._spend(state, _SPECULATE)
                    yield ("spark", "speculate", number, partition), self._launch(spent, number, partition)
                if state.budgets[_DROP_MESSAGE] and driver.winners[partition] >= 0:
                    winners = (*driver.winners[:partition], -1, *driver.winners[partition + 1 :])
                    spent = self._set_driver(
                        self._spend(state, _DROP_MESSAGE), number, driver._replace(winners=winners)
                    )
                    yield (
                        ("spark", "drop message", number, partition),
                        self._attempt_failed(spent, number, partition, "KILLED"),
                    )
            if state.budgets[_KILL_TASK] and driver.winners[partition] < 0:
                for index in live:
                    name = state.processes[index][0]
                    left = state.processes[:index] + state.processes[index + 1 :]
                    killed = self._spend(state._replace(processes=left), _KILL_TASK)
                    yield (name, "kill"), self._attempt_failed(killed, number, partition, "KILLED")

    def _of_operator(self, state: State) -> Iterator[tuple[Label, State]]:
        if not state.budgets[_RESOLVE]:
            return
        self.doing = ("operator", "resolves")
        decided = invariants.decisions(self.clusters[state.cluster])
        if decided:
            name = (0, "resolve", decided[-1].version, 0, self.setting.fault("resolve") - state.budgets[_RESOLVE])
            yield ("operator", "resolves", decided[-1].version), self._spawn(self._spend(state, _RESOLVE), name, ())

    # the cluster's own actions

    def _of_cluster(self, state: State) -> Iterator[tuple[Label, State]]:
        self.doing = ("cluster", "acts")
        for fault in (None, *self._cluster_faults):
            if fault is not None and not state.budgets[_INDEX[fault]]:
                continue
            found = self._environment.get((state.cluster, fault))
            if found is None:
                found = self._environment[state.cluster, fault] = [
                    (label, self.cluster_number(after))
                    for label, after in self._environment_of(self.clusters[state.cluster], fault)
                ]
            for label, cluster in found:
                after = state._replace(cluster=cluster)
                yield label, after if fault is None else self._spend(after, _INDEX[fault])
        if state.budgets[_HAND_MARKER]:
            yield from self._marked_by_hand(state)
        if state.budgets[_PAUSE]:
            yield ("cluster", "pause"), self._spend(state._replace(clock=state.clock + 1), _PAUSE)

    def _marked_by_hand(self, state: State) -> Iterator[tuple[Label, State]]:
        """An ABORT marker written by hand for one of our open transactions. While a commit runs, that takes as long as a pause."""
        cluster = self.clusters[state.cluster]
        takes = any(name[1] == "commit" for name, _, _ in state.processes)
        for name, entry in cluster.transactions:
            if invariants.owner_of(name, self.setting.write_ids) != "task":
                continue
            for partition in range(len(cluster.logs)):
                if entry.producer_id in kafka.open_transactions(cluster, partition):
                    marked = kafka.write_marker_by_hand(cluster, partition, entry.producer_id, False)
                    after = state._replace(cluster=self.cluster_number(marked), clock=state.clock + takes)
                    yield ("somebody", "marks", name, partition), self._spend(after, _HAND_MARKER)

    def _environment_of(self, cluster: Cluster, fault: str | None) -> Iterator[tuple[Label, Cluster]]:
        """What the cluster does by itself (None), or what a fault makes of it."""
        setting = self.setting
        if fault == "compact":
            for markers in ("record", "batch", "no"):
                compacted = kafka.compact(cluster, markers)
                if compacted != cluster:
                    yield ("cluster", "compact", markers), compacted
            return
        if fault == "clean":
            cleaned = kafka.clean(cluster)
            if cleaned != cluster:
                yield ("cluster", "clean"), cleaned
            return
        if fault == "retain":
            for partition in range(1, len(cluster.logs)):
                logs = list(cluster.logs)
                end = kafka.last_stable_offset(cluster, partition)
                logs[partition] = tuple(
                    e._replace(gone=True) if isinstance(e, kafka.Data) and o < end else e
                    for o, e in enumerate(logs[partition])
                )
                changed = cluster._replace(logs=tuple(logs))
                if changed != cluster:
                    yield ("cluster", "retain", partition), changed
            return
        for name, entry in cluster.transactions:
            ours = invariants.owner_of(name, setting.write_ids)
            ongoing = ours is not None and entry.state == kafka.ONGOING
            match fault:
                case None:
                    for partition in entry.missing:
                        yield ("cluster", "marker", name, partition), kafka.write_marker(cluster, name, partition)
                case "skip_marker" if ours:
                    for partition in entry.missing:
                        skipped = kafka.write_marker(cluster, name, partition, skipped=True)
                        yield ("cluster", "skip marker", name, partition), skipped
                case "timeout" if ongoing and (ours == "driver" or setting.may_time_out):
                    yield ("cluster", "timeout", name), kafka.fence(cluster, name)
                case "foreign_abort" if ongoing:
                    identity = Identity(name, entry.producer_id, entry.producer_epoch, cluster.version)
                    aborted, _ = kafka.end_txn(cluster, identity, False, 5 if cluster.version >= 2 else 4)
                    yield ("somebody", "aborts", name), aborted
                case "foreign_init" if ongoing and ours == "task":
                    yield ("somebody", "initialises", name), kafka.fence(cluster, name)
                case "expire" if ours and entry.state in (kafka.EMPTY, kafka.COMPLETE_COMMIT, kafka.COMPLETE_ABORT):
                    yield ("cluster", "expire", name), kafka.expire(cluster, name)

    # recovery from anywhere

    def check_recovery(self, state: State) -> None:
        """Everything stops here and one more driver runs without any fault: all rows once, nothing open - or a loud error."""
        key = (state.cluster, state.recorded, len(state.drivers), self._remembered_plan(state))
        if self._recovered.get(key, "") is None:
            return
        self.told = []
        try:
            wrong = self._recover(state)
        except Violation as violation:
            wrong = str(violation)
        self.doing = ("recovery",)
        self._recovered[key] = wrong
        if wrong is not None:
            raise Violation(wrong)

    def _remembered_plan(self, state: State) -> int:
        """The plan that the planner process of the further driver remembers."""
        remembered = self.setting.remembers(self.setting.drivers)
        return state.drivers[remembered].plan if 0 <= remembered < len(state.drivers) else -1

    def _recover(self, state: State) -> str | None:
        setting = self.setting
        budgets = (0,) * len(FAULTS)
        fresh = State(state.cluster, (), state.drivers, state.recorded, (), budgets, state.clock)
        fresh = self._settle_cluster(fresh)
        number = setting.drivers  # one more than the setting has, so that its procedures are the same from every state
        fillers = tuple(Driver("dead", 0, self._remembered_plan(state)) for _ in range(number))
        fresh = self._start_driver(fresh._replace(drivers=fillers))
        met: set[State] = set()
        for _ in range(2_000):
            fresh = self._settle_cluster(fresh)
            met.add(fresh)
            moved = None
            for label, after in self._of_processes(fresh):
                if after not in met:
                    moved = (label, after)
                    break
            if moved is None:
                if fresh.processes:
                    # Only the clock can help whoever still waits.
                    if fresh.clock - state.clock > 8:
                        return f"recovery: {fresh.processes[0][0]} waits for ever at {self.procedures.nodes[fresh.processes[0][1]].step}"
                    fresh = fresh._replace(clock=fresh.clock + 1)
                    self.told.append(("cluster", "pause"))
                    continue
                if fresh.drivers[-1].phase == "committed":
                    moved = (("spark", "record"), self._record(fresh, number))
                else:
                    break
            fresh = moved[1]
            self.told.append(moved[0])
        driver = fresh.drivers[-1]
        cluster = self.clusters[fresh.cluster]
        if driver.phase != "done":
            if driver.code not in setting.loud:
                return f"recovery: a further driver ends with {driver.code or driver.phase} at version {driver.version}, not with success"
            return None
        still = invariants.open_ids(cluster, setting.write_ids)
        if setting.random_write_id:
            still = ()
        if still:
            return f"I8: after a further driver ended well, {still} are still open"
        hanging = () if setting.fault("skip_marker") else invariants.hanging_ids(cluster, setting.write_ids)
        if hanging:
            return f"I8: after a further driver ended well, partitions hold {hanging} open"
        visible = invariants.visible_rows(cluster, self._foreign_producers(cluster))
        if setting.fault("skip_marker"):
            visible = dict.fromkeys(invariants.committed_rows(cluster), 1)  # a missing marker stops all readers
        if setting.start_version is None and not setting.random_write_id:
            for version in range(setting.first_batch, setting.first_batch + setting.batches):
                for rows in setting.rows(number, version):
                    for row in rows:
                        times = visible.get(("row", setting.query_id(number), version, row), 0)
                        if times != 1 and not (times == 0 and self._gives_up(cluster, number, version)):
                            return f"exactly once: row {row} of batch {version} is visible {times} times in the end"
        return None

    def _foreign_producers(self, cluster: Cluster) -> frozenset[int]:
        return frozenset(
            entry.producer_id
            for name, entry in cluster.transactions
            if invariants.owner_of(name, self.setting.write_ids) is None
        )

    def _settle_cluster(self, state: State) -> State:
        while True:
            cluster = self.clusters[state.cluster]
            found = next(((name, entry.missing[0]) for name, entry in cluster.transactions if entry.missing), None)
            if found is None:
                return state
            if not self.setting.eager_markers:
                self.told.append(("cluster", "marker", *found))
            state = state._replace(cluster=self.cluster_number(kafka.write_marker(cluster, *found)))


KILLS_NOBODY = {"speculate", "drop_message", "lost", "pause", "compact", "clean"}
"""Faults after which every procedure comes to its own end and can end what it has opened: without answers it may not."""
WAITS_FOR_A_DEADLINE = ("skip_marker", "hand_marker", "unavailable")
"""Faults after which a procedure rightly waits until its deadline: what it waits for may never come."""

_INDEX = {name: index for index, name in enumerate(FAULTS)}
_KILL_TASK, _SPECULATE, _DROP_MESSAGE = _INDEX["kill_task"], _INDEX["speculate"], _INDEX["drop_message"]
_HAND_MARKER, _RESOLVE = _INDEX["hand_marker"], _INDEX["resolve"]
_LOST, _UNAVAILABLE, _FLOAT, _PAUSE = _INDEX["lost"], _INDEX["unavailable"], _INDEX["float"], _INDEX["pause"]


def with_foreign_writer(cluster: Cluster, write_id: str) -> Cluster:
    """Another query of which ours is a prefix, with an open transaction in our data partition and in our part of the commit log."""
    name = f"{write_id}.0.0"
    cluster, (producer_id, epoch) = kafka.init_producer_id(cluster, name, 900_000)
    identity = Identity(name, producer_id, epoch, cluster.version)
    for partition in (LOG, 1):
        if cluster.version < 2:
            cluster, _ = kafka.add_partition(cluster, identity, partition)
        key = ("row", "foreign", 0, 0) if partition else _foreign_part(write_id)
        value = None if partition else b'{"format":1,"version":0,"attempt":0}'
        cluster, _ = kafka.produce(cluster, identity, partition, 0, ((key, value),))
    return cluster


def _foreign_part(write_id: str) -> bytes:
    from kafka_eos_sink.commit.log_records import log_key

    return log_key("part", write_id, "foreign", 0)


__all__ = ["Label", "State", "Throw", "Violation", "World"]
