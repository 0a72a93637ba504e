"""What a producer's caller does, what goes wrong meanwhile, and what must hold all the time: a Hypothesis state machine.

The machine plays up to two producers of one transactional id (the younger fences the elder), the driver that ends a prepared
transaction for them, and the faults that their requests meet. It runs in a world: simulated brokers under a simulated network
(`simulated_world.py`), or a real broker behind the fault proxy (`faults/proxied_world.py`). What must hold is said in
`producer_ledger.py`, and here:

- an error or an unknown outcome has a cause: what a producer has to survive (a lost request or answer, a delay, a connection
  that ends, a code that says "later") does not become one;
- nothing succeeds after a call that failed, but the abort;
- whoever was told committed or aborted finds the coordinator of that opinion;
- no call takes longer than its timeouts, and at the end, without faults, the transactional id works as new.
"""

from __future__ import annotations

import sys
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.producer.producer import Producer
from kafka_eos_sink.producer.rows import Rows
from kafka_eos_sink.producer.transaction_manager import State
from kafka_eos_sink.protocol import messages as m
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.record_columns import RecordColumns
from kafka_testing import end_as_driver

from .producer_actors import DRIVER, Actor, Phase, ProducerActors
from .producer_faults import Fault, faults_of
from .producer_ledger import Claim
from .worlds import PARTITIONS

NO_SUCH_PARTITION = 1_000
PATIENT = 1_000_000
LARGEST_SEQUENCE = 2**31 - 1

COORDINATION = (m.FindCoordinatorRequest, m.InitProducerIdRequest)
WRITING = (m.ProduceRequest, m.AddPartitionsToTxnRequest, m.FindCoordinatorRequest, m.MetadataRequest)
ENDING = (m.EndTxnRequest, m.EndTxnRequest, m.FindCoordinatorRequest, m.ProduceRequest)


class ProducerMachine(ProducerActors):
    """See the module's text."""

    # the producers' lives

    @initialize(
        max_in_flight=st.sampled_from([5, 5, 2, 1]),
        max_request_size=st.sampled_from([1_000_000, 400]),
        buffer_memory=st.sampled_from([1_000_000, 1_000_000, 700]),
    )
    def configure(
        self, max_in_flight: int = 5, max_request_size: int = 1_000_000, buffer_memory: int = 1_000_000
    ) -> None:
        self.world.plug_in()
        self.config = self.world.producer_config(
            max_in_flight=max_in_flight, max_request_size=max_request_size, buffer_memory=buffer_memory
        )

    @precondition(lambda self: len(self.actors) < 2)
    @rule(begins=st.booleans(), faults=faults_of(*COORDINATION))
    def start(self, begins: bool = False, faults: tuple[Fault, ...] = ()) -> None:
        """Another producer; with a transactional id it fences the one before."""
        self._plan(faults)
        self._clients += 1
        client_id = f"producer-{self._clients}"
        client = self.world.client(client_id)
        wanted = self.world.transactional_id
        admin = Admin(client)
        producer = Producer(admin, self.config, transactional_id=wanted, transaction_version=self.world.version)
        actor = Actor(client_id=client_id, client=client, producer=producer)
        self._mark(actor)
        self.actors.append(actor)
        if wanted is None:
            self._call(actor, lambda: producer.init_producer_id(self._deadline(client)))
        else:
            self._call(
                actor,
                lambda: producer.init(*admin.init_producer_id(wanted, 60_000, self._deadline(client))),
            )
        actor.takeovers_before = self.world.taken_over
        if actor.failed:
            self._close(actor)
        elif self.world.transactional_id is None:
            self._open(actor)
        elif begins:
            self.begin()

    @precondition(lambda self: self._in(Phase.READY))
    @rule(who=st.integers(0, 1))
    def begin(self, who: int = -1) -> None:
        actor = self._actor(who, Phase.READY)
        self._mark(actor)
        actor.producer.begin()
        self._open(actor)

    @precondition(lambda self: self._in(Phase.OPEN))
    @rule(
        who=st.integers(0, 1),
        partitions=st.lists(st.integers(0, PARTITIONS - 1), min_size=1, max_size=14),
        refused=st.sampled_from([False] * 9 + [True]),
        faults=faults_of(*WRITING),
    )
    def write(
        self, partitions: list[int], refused: bool = False, who: int = -1, faults: tuple[Fault, ...] = ()
    ) -> None:
        """One row for each number, to the partition that it names; `refused`: and one that no topic takes."""
        actor = self._actor(who, Phase.OPEN)
        if refused:
            partitions = [*partitions, NO_SUCH_PARTITION]
        self._plan(faults)
        rows = []
        for partition in partitions:
            rows.append(self._rows)
            self._give(actor, partition)
        done = self._call(
            actor,
            lambda: actor.producer.write(
                Rows(
                    topic=self.world.topic,
                    partition=pa.array(partitions, pa.int32()),
                    columns=RecordColumns(value=pa.array([b"%d" % row for row in rows])),
                )
            ),
            has_a_cause=refused,
        )
        assert not (refused and done), "a row for a partition that does not exist was taken"

    @precondition(lambda self: self._in(Phase.OPEN))
    @rule(who=st.integers(0, 1), partition=st.integers(0, PARTITIONS - 1), faults=faults_of(*WRITING))
    def append_record(self, partition: int, who: int = -1, faults: tuple[Fault, ...] = ()) -> None:
        """A record that the caller makes itself, as the part record of a task."""
        actor = self._actor(who, Phase.OPEN)
        self._plan(faults)
        row = self._give(actor, partition)
        self._call(actor, lambda: actor.producer.append_record(self.world.topic, partition, None, b"%d" % row))

    @precondition(lambda self: self._in(Phase.OPEN))
    @rule(who=st.integers(0, 1), faults=faults_of(*WRITING))
    def flush(self, who: int = -1, faults: tuple[Fault, ...] = ()) -> None:
        actor = self._actor(who, Phase.OPEN)
        self._plan(faults)
        if self._call(actor, actor.producer.flush):
            actor.attempt.acknowledge_all()

    @precondition(lambda self: self._in(Phase.OPEN))
    @rule(who=st.integers(0, 1), ms=st.sampled_from([0, 1, 3, 20, 120]))
    def pump(self, ms: int, who: int = -1) -> None:
        """Time for bytes to move: a task that works on its rows."""
        actor = self._actor(who, Phase.OPEN)
        with self.world.at_most_as_long_as_a_call():
            actor.producer._sender.run_once(ms)
        if actor.producer._sender.failure is not None:
            self._failed(actor, actor.producer._sender.failure)

    @precondition(lambda self: self._in(Phase.OPEN) and self.world.transactional_id)
    @rule(who=st.integers(0, 1), faults=faults_of(*ENDING, *WRITING))
    def commit(self, who: int = -1, faults: tuple[Fault, ...] = ()) -> None:
        """The task hands its transaction over, and the driver commits it at once."""
        actor = self._actor(who, Phase.OPEN)
        self._plan(faults)
        if self._prepare(actor):
            self._decide(actor, committed=True)

    @precondition(lambda self: self._in(Phase.OPEN) and self.world.transactional_id)
    @rule(
        who=st.integers(0, 1),
        patience_ms=st.sampled_from([PATIENT] * 5 + [0, 5, 700]),
        faults=faults_of(*ENDING, m.AddPartitionsToTxnRequest),
    )
    def abort(self, who: int = -1, patience_ms: int = PATIENT, faults: tuple[Fault, ...] = ()) -> None:
        actor = self._actor(who, Phase.OPEN)
        self._plan(faults)
        deadline = actor.client.clock() + min(patience_ms, self.world.deadline_ms)
        result: list[Any] = []
        busy = self.world.markers_missing
        assert self._call(actor, lambda: result.append(actor.producer.abort(deadline)))
        if result[0] is None:
            assert actor.producer.state is State.FATAL_ERROR, f"nothing to abort in {actor.producer.state}"
            self._over(actor, Claim.UNKNOWN)
        elif result[0].error_code is None and patience_ms < PATIENT:
            self._over(actor, Claim.UNKNOWN)
        elif busy and result[0].error_code == ErrorCode.PRODUCER_FENCED:
            # While the markers of the last transaction are written, an abort of the next one is answered so (version 2).
            self._over(actor, Claim.UNKNOWN)
        else:
            self._aborted(actor, result[0].error_code)

    @precondition(lambda self: self._in(Phase.OPEN) and self.world.transactional_id)
    @rule(who=st.integers(0, 1), faults=faults_of(*WRITING))
    def prepare(self, who: int = -1, faults: tuple[Fault, ...] = ()) -> None:
        """The task hands its transaction over."""
        actor = self._actor(who, Phase.OPEN)
        self._plan(faults)
        self._prepare(actor)

    def _prepare(self, actor: Actor) -> bool:
        """Whether the transaction was handed over."""
        had_failed = actor.failed
        handed_over: list[Any] = []
        if not self._call(actor, lambda: handed_over.append(actor.producer.prepare())):
            return False
        assert not had_failed, "an attempt was handed over after a call that failed"
        identity = handed_over[0]
        assert (identity.producer_id, identity.producer_epoch) == actor.attempt.identity
        assert identity.transaction_version == self.world.version
        actor.attempt.acknowledge_all()
        actor.handed_over = identity
        actor.phase = Phase.PREPARED
        return True

    @precondition(lambda self: self._in(Phase.PREPARED))
    @rule(who=st.integers(0, 1), committed=st.booleans(), faults=faults_of(*ENDING))
    def decide(self, committed: bool = True, who: int = -1, faults: tuple[Fault, ...] = ()) -> None:
        """The driver ends what was handed over; where it does not know the outcome, it may do the same again later."""
        actor = self._actor(who, Phase.PREPARED)
        self._plan(faults)
        self._decide(actor, committed)

    def _decide(self, actor: Actor, committed: bool) -> None:
        attempt = actor.attempt
        if attempt.empty:
            self._over(actor, Claim.NOTHING)  # a driver is not handed a transaction without rows
            return
        actor.decision = committed if actor.decision is None else actor.decision
        attempt.commit_asked |= actor.decision
        client = self.world.client(DRIVER)
        try:
            with self.world.at_most_as_long_as_a_call():
                code = end_as_driver(client, actor.handed_over, actor.decision, self._deadline(client))
            self._read_wire(driver_for=actor)
        finally:
            self.world.calm()
            client.close()
        if code == 0:
            self._claim(actor, Claim.COMMITTED if actor.decision else Claim.ABORTED)
            self._over(actor, attempt.claim)
        else:
            self._has_a_cause(actor, f"EndTxn was answered {code}")
            attempt.claim = Claim.UNKNOWN

    @rule(
        partitions=st.lists(st.integers(0, PARTITIONS - 1), min_size=1, max_size=14),
        commits=st.booleans(),
        near_the_largest=st.booleans(),
        faults=faults_of(*WRITING, *ENDING),
    )
    def transact(
        self,
        partitions: list[int],
        commits: bool,
        near_the_largest: bool = False,
        faults: tuple[Fault, ...] = (),
    ) -> None:
        """What most callers do, in one go; by a producer that is there, or by a new one."""
        if not self._in(Phase.OPEN) and self._in(Phase.READY):
            self.begin()
        if not self._in(Phase.OPEN) and len(self.actors) < 2:
            self.start(begins=True)
        if not self._in(Phase.OPEN):
            return
        if near_the_largest and self.world.simulated:
            self.write(partitions=partitions)
            self.flush()
            self.come_near_the_largest_sequence(partition=partitions[0], left=len(partitions) % 4)
        self.write(partitions=partitions, faults=faults)
        if self.world.transactional_id is None:
            self.flush()
            return
        if commits:
            self.commit()
        else:
            self.abort()

    @precondition(lambda self: self.actors)
    @rule(who=st.integers(0, 1))
    def close(self, who: int = -1) -> None:
        """The process ends, whatever its producer has begun."""
        self._close(self.actors[who % len(self.actors)])

    # what happens around them

    @rule(data=st.data())
    def happen(self, data: Any) -> None:
        self.world.happen(data.draw(st.sampled_from(self.world.events)))

    @precondition(lambda self: self._in(Phase.OPEN) and self.world.simulated)
    @rule(who=st.integers(0, 1), partition=st.integers(0, PARTITIONS - 1), left=st.integers(0, 6))
    def come_near_the_largest_sequence(self, partition: int, left: int, who: int = -1) -> None:
        """As if so much had been written that only `left` numbers are left before they start at 0 again.

        What connections have swallowed arrives meanwhile: a request does not lie about for two thousand million records, and would be
        taken for a new one when its numbers come round.
        """
        self.world.deliver_late()
        actor = self._actor(who, Phase.OPEN)
        identity = actor.producer.identity
        queue = actor.producer._accumulator.queue(self.world.topic, partition)
        if not queue.idle or queue.identity != identity or not queue.anything_acknowledged:
            return
        sequence = LARGEST_SEQUENCE + 1 - left
        if self.world.already_wrote(identity, partition, sequence - 1):
            queue.next_sequence = sequence % (LARGEST_SEQUENCE + 1)
            self.ledger.continue_at(actor.client_id, identity, partition, queue.next_sequence)

    @rule()
    def arrive_late(self) -> None:
        """What connections have swallowed reaches the broker after all."""
        self.world.deliver_late()

    # what must hold

    @invariant()
    def what_was_said_is_so(self) -> None:
        self._read_wire()
        self._check_now()

    def teardown(self) -> None:
        try:
            if sys.exc_info()[0] is None and self.config is not None and self.world.plugged_in:
                self._finish()
        finally:
            for actor in list(self.actors):
                self._close(actor)
            self.world.close()

    def _finish(self) -> None:
        """Without faults the id has a new owner at once, who ends what was left open, and everything is decided."""
        self._read_wire()
        for actor in list(self.actors):
            self._close(actor)
        self.world.heal()
        self.start()
        if self.world.transactional_id is not None:
            self.begin()
        self.write(partitions=list(range(PARTITIONS)) * 2)
        self.flush()
        if self.world.transactional_id is not None:
            self.commit()
            assert self.ledger.attempts[-1].claim is Claim.COMMITTED
        self._check_the_end()
