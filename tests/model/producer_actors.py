"""The producers that the machine plays: their lives so far, the calls on them, and what a failed one must have for a cause."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from hypothesis.stateful import RuleBasedStateMachine

from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.errors import KafkaEosError
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.producer.producer import Producer
from kafka_eos_sink.producer.transaction_manager import State
from kafka_eos_sink.protocol.identity import ProducerIdentity

from .producer_faults import Fault, is_survived
from .producer_ledger import Attempt, Claim, Ledger
from .worlds import World

SURVIVED_AT_ONCE = 6
"""So many faults of the kind that passes fit into the timeouts of one call."""
DRIVER = "driver"


class Phase(Enum):
    READY = auto()
    OPEN = auto()
    PREPARED = auto()
    OVER = auto()


@dataclass(slots=True, kw_only=True, eq=False)
class Actor:
    """A producer and its process."""

    client_id: str
    client: NetworkClient
    producer: Producer
    phase: Phase = Phase.READY
    attempt: Attempt | None = None
    failed: bool = False
    """A call failed: only the abort is left."""
    faults_before: int = 0
    since_ms: int = 0
    takeovers_before: int | None = None
    """None while it asks for its identity, which nobody can take from it yet."""
    handed_over: ProducerIdentity | None = None
    decision: bool | None = None
    """What was decided of its prepared transaction."""


class ProducerActors(RuleBasedStateMachine):
    """What the rules of `producer_machine.py` are made with. A world is made for each run."""

    def __init__(self, make_world: Callable[[], World]) -> None:
        super().__init__()
        self.world = make_world()
        self.ledger = Ledger()
        self.actors: list[Actor] = []
        self.config = ProducerConfig()
        self._clients = 0
        self._rows = 0
        self._wire_read = 0

    def _in(self, phase: Phase) -> bool:
        return any(actor.phase is phase for actor in self.actors)

    def _actor(self, who: int, phase: Phase) -> Actor:
        found = [actor for actor in self.actors if actor.phase is phase]
        return found[who % len(found)]

    def _give(self, actor: Actor, partition: int) -> int:
        row, self._rows = self._rows, self._rows + 1
        actor.attempt.give(partition, row)
        return row

    def _plan(self, faults: tuple[Fault, ...]) -> None:
        for fault in faults:
            self.world.plan(fault)

    def _deadline(self, client: NetworkClient) -> int:
        return client.clock() + self.world.deadline_ms

    def _mark(self, actor: Actor) -> None:
        """From here on the actor has met nothing."""
        actor.faults_before = len(self.world.fired)
        actor.since_ms = actor.client.clock()

    def _open(self, actor: Actor) -> None:
        actor.attempt = Attempt(
            number=len(self.ledger.attempts),
            client_id=actor.client_id,
            transactional=self.world.transactional_id is not None,
            identity=actor.producer.identity,
        )
        self.ledger.attempts.append(actor.attempt)
        actor.phase = Phase.OPEN

    def _call(self, actor: Actor, call: Callable[[], Any], *, has_a_cause: bool = False) -> bool:
        """Whether the call came back without an error."""
        try:
            with self.world.at_most_as_long_as_a_call():
                call()
        except KafkaEosError as error:
            actor.failed |= has_a_cause
            self._failed(actor, error)
            return False
        finally:
            self.world.calm()
            self._read_wire()
        return True

    def _failed(self, actor: Actor, error: KafkaEosError) -> None:
        if not actor.failed:
            self._has_a_cause(actor, str(error))
        actor.failed = True

    def _has_a_cause(self, actor: Actor, what: str) -> None:
        if actor.takeovers_before not in (None, self.world.taken_over):
            return
        if self.world.may_fail_by_itself(actor.client.clock() - actor.since_ms):
            return
        met = self.world.fired[actor.faults_before :]
        fatal = [fault for fault in met if not is_survived(*fault)]
        assert fatal or len(met) > SURVIVED_AT_ONCE, f"{actor.client_id} met {met}, and says: {what}"

    def _aborted(self, actor: Actor, code: int | None) -> None:
        """The producer's own EndTxn was answered with a code; None: it was not."""
        if code != 0:
            if not actor.failed:
                self._has_a_cause(actor, f"EndTxn was answered {code}")
            self._over(actor, Claim.UNKNOWN)
            return
        self._claim(actor, Claim.ABORTED)
        assert actor.producer.state is State.ABORTED
        self._over(actor, Claim.ABORTED)

    def _claim(self, actor: Actor, claim: Claim) -> None:
        attempt = actor.attempt
        attempt.claim = claim
        if not attempt.empty:
            self.world.agrees(attempt.identity, claim is Claim.COMMITTED, bool(attempt.acknowledged))

    def _over(self, actor: Actor, claim: Claim) -> None:
        actor.attempt.claim = claim
        actor.phase = Phase.OVER
        self._close(actor)

    def _close(self, actor: Actor) -> None:
        actor.producer.close()
        actor.client.close()
        self.actors.remove(actor)

    def _read_wire(self, driver_for: Actor | None = None) -> None:
        seen = self.world.seen
        new, self._wire_read = seen[self._wire_read :], len(seen)
        attempts = {actor.client_id: actor.attempt for actor in self.actors if actor.attempt is not None}
        if driver_for is not None:
            attempts[DRIVER] = driver_for.attempt
        for actor in self.actors:
            if actor.attempt is not None and not actor.attempt.transactional:
                now = actor.producer.identity
                actor.attempt.rewritten |= now != actor.attempt.identity
        self.ledger.check_wire(new, attempts, in_order=self.world.simulated)

    def _check_now(self) -> None:
        """What is in the logs, where that can be looked at while a run lasts."""
        logs = self.world.logs_now()
        if logs is None:
            return
        self.ledger.check_log(logs, final=False)
        for actor in self.actors:
            # Where a batch was refused, those behind it may be acknowledged: nobody is handed these offsets.
            refused = actor.failed or actor.producer._sender.failure is not None
            if actor.phase in (Phase.OPEN, Phase.PREPARED) and actor.attempt.transactional and not refused:
                for (_, partition), told in actor.producer.acknowledged.items():
                    self.ledger.check_acknowledged(actor.attempt, partition, told, logs[partition])

    def _check_the_end(self) -> None:
        """What is in the logs when nothing is under way any more."""
        self.world.settle()
        logs = self.world.logs_at_the_end()
        self.ledger.check_log(logs, final=True)
