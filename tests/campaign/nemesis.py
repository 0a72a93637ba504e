"""Draws faults for a campaign, up to four at a time, and lets them happen.

Each fault is a method of `Nemesis` that returns when it is over; ``FAULTS`` has its weight. What it needs (three brokers, an older
transaction version) is checked when it is drawn.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import confluent_kafka
import kafka as kafka_python
from kafka.admin import AbortTransactionSpec, UpdateFeatureType

from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.protocol import messages as m
from tests.faults.fault_proxy import Action, Cut, Delay, DeliverLate, FaultProxy, LoseRequest, LoseResponse, Twice
from tests.spark.killable_job import descendants

from .checker import OPEN, partitions_of, transactions
from .writers import Writer

COMMIT_LOG = "__kafka_eos_commits"
LATE = "late"
OWN_ID, ID_OF_A_TASK = r"\..*", r"\.\d+\.\d+"
"""What follows a write id in the transactional ids of a write."""
_HARM: tuple[Action, ...] = (
    LoseRequest(),
    LoseRequest(close=False),
    LoseResponse(),
    LoseResponse(close=False),
    Cut("request"),
    Cut("response"),
    Delay(800),
    Delay(300, "response"),
    Delay(800, "response"),
    Delay(6_000, "response"),
    DeliverLate(LATE),
    Twice(LATE),
)
RATES: dict[Any, float] = {
    m.InitProducerIdRequest: 0.5,
    m.AddPartitionsToTxnRequest: 0.5,
    m.AddOffsetsToTxnRequest: 0.5,
    m.TxnOffsetCommitRequest: 0.5,
    m.EndTxnRequest: 0.5,
    m.ProduceRequest: 0.15,
    m.FindCoordinatorRequest: 0.2,
    m.DescribeTransactionsRequest: 0.2,
    m.FetchRequest: 0.2,
    m.ListOffsetsRequest: 0.2,
    m.MetadataRequest: 0.2,
}
"""The share of an API's requests that meet a fault while frames are harmed."""


class FrameFaults:
    """Chooses what is done to a request; counts what it chose."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.active = False
        self.done: Counter[str] = Counter()

    def choose(self, api: type, occurrence: int) -> Action | None:
        if not self.active or self._chance.random() >= RATES.get(api, 0):
            return None
        action = self._chance.choice(_HARM)
        self.done[f"{api.__name__.removesuffix('Request')} {type(action).__name__}"] += 1
        return action


@dataclass(frozen=True, slots=True)
class Fault:
    """``weight`` is relative; ``possible`` says whether the episode has what it needs.

    Of faults with the same ``thing``, one at a time happens.
    """

    name: str
    weight: float
    happen: Callable[[Nemesis], None]
    possible: Callable[[Nemesis], bool] = lambda nemesis: True
    thing: str = ""

    @property
    def slot(self) -> str:
        return self.thing or self.name


class NothingToHarm(Exception):
    """A fault was drawn and did not happen: its process does not run, or no transaction is there."""


class Nemesis:
    """The faults of one episode."""

    def __init__(
        self,
        kafka: EmbeddedKafka,
        writers: Sequence[Writer],
        topics: Sequence[str],
        proxy: FaultProxy,
        chance: random.Random,
        longest_pause_s: float,
        faults: Collection[str] = (),
    ) -> None:
        """``faults``: the names of those that may happen, empty for all."""
        self.kafka, self.proxy, self.chance = kafka, proxy, chance
        self.writers, self.topics = list(writers), list(topics)
        self.longest_pause_s = longest_pause_s
        self._faults = [fault for fault in FAULTS if not faults or fault.name in faults]
        self.done: Counter[str] = Counter()
        """How often each fault happened, 0 for the times in which frames are harmed."""
        self.foreign: Counter[bytes] = Counter()
        """The values of other programs' committed transactions."""
        self.foreign_unknown: set[bytes] = set()
        """Those whose program does not know how they ended."""
        self.frames = FrameFaults(random.Random(chance.random()))
        self._lock = threading.Lock()
        self._raised = False
        self.proxy.inject(random_faults=self.frames)

    # drawing

    def work(self, until: float) -> None:
        """Let faults happen until then, up to four at a time."""
        running: dict[str, threading.Thread] = {}
        while time.monotonic() < until:
            running = {slot: thread for slot, thread in running.items() if thread.is_alive()}
            if len(running) < self.chance.choice((1, 2, 3, 4, 4)):
                possible = [each for each in self._faults if each.slot not in running and each.possible(self)]
                for fault in self.chance.choices(possible, [each.weight for each in possible]) if possible else ():
                    running[fault.slot] = threading.Thread(target=self._one, args=(fault,), name=fault.name)
                    running[fault.slot].start()
            time.sleep(1.2 * self.chance.random())
        for thread in running.values():
            thread.join()

    def _one(self, fault: Fault) -> None:
        # A fault may meet another one: an admin's request to a broker that is down.
        with contextlib.suppress(
            NothingToHarm, kafka_python.errors.KafkaError, confluent_kafka.KafkaException, OSError
        ):
            fault.happen(self)
            with self._lock:
                # Of harmed frames, each is a fault, and the time in which it happens is none.
                self.done[fault.name] += fault.happen is not Nemesis.harm_frames

    def heal(self) -> None:
        """End everything that is still wrong."""
        self.frames.active = False
        self.proxy.open_gate(LATE)
        for pid in self.kafka.pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        for writer in self.writers:
            if (pid := writer.pid) is not None:
                for each in descendants(pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(each, signal.SIGCONT)
        for node in self.kafka.node_ids:
            self.kafka.start_node(node)
        self.proxy.disconnect()

    def _pause(self) -> float:
        """Mostly short, one of twelve beyond a transaction's timeout."""
        if self.chance.random() < 1 / 12:
            return self.chance.uniform(self.longest_pause_s / 4, self.longest_pause_s)
        return min(self.longest_pause_s, 0.5 + self.chance.expovariate(1 / 3))

    def _running_writer(self) -> Writer:
        writer = self.chance.choice(self.writers)
        if writer.pid is None:
            raise NothingToHarm(f"{writer.given.name} does not run")
        return writer

    def _process(self, role: str) -> int:
        found = self._running_writer().processes(role)
        if not found:
            raise NothingToHarm(f"no {role} runs")
        return self.chance.choice(found)

    # processes of writers

    def kill_process(self, role: str) -> None:
        os.kill(self._process(role), signal.SIGKILL)

    def kill_writer(self) -> None:
        self._running_writer().kill()

    def stop_process(self, role: str) -> None:
        self._pause_process(self._process(role))

    def _pause_process(self, pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(self._pause())
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    def stop_writer(self) -> None:
        pid = self._running_writer().pid
        found = descendants(pid) if pid is not None else []
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for each in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each, number)
            if number is signal.SIGSTOP:
                time.sleep(self._pause())

    def start_second_driver(self) -> None:
        with self.chance.choice(self.writers).second_driver():
            time.sleep(8 + 12 * self.chance.random())

    # brokers

    def kill_broker(self) -> None:
        node = self.chance.choice(self.kafka.node_ids)
        self.kafka.kill(node)
        time.sleep(self._pause())
        self.kafka.start_node(node)

    def stop_broker(self) -> None:
        self._pause_process(self.chance.choice(list(self.kafka.pids.values())))

    def move_leaders(self) -> None:
        """Leaders of data, commit log and coordinators go where the first replica is, after an order that is drawn."""
        with connected(self.kafka) as admin:
            wanted = [*self.topics, COMMIT_LOG, "__transaction_state", "__consumer_offsets"]
            known = [each for each in admin.describe_topics() if each["name"] in wanted]
            each = self.chance.choice(known)
            moves = {
                kafka_python.TopicPartition(each["name"], part["partition_index"]): self.chance.sample(
                    part["replica_nodes"], len(part["replica_nodes"])
                )
                for part in each["partitions"]
            }
            admin.alter_partition_reassignments(moves)
            admin.elect_leaders(0, {each["name"]: [part.partition for part in moves]}, raise_errors=False)

    def raise_transaction_version(self) -> None:
        with connected(self.kafka) as admin:
            admin.update_features({"transaction.version": (UpdateFeatureType.UPGRADE, 2)})
        self._raised = True

    @property
    def can_raise(self) -> bool:
        return not self._raised and self.kafka.transaction_version in (0, 1)

    # frames, transactions, logs

    def harm_frames(self) -> None:
        self.frames.active = True
        time.sleep(5 + 10 * self.chance.random())
        self.frames.active = False
        self.proxy.open_gate(LATE)
        time.sleep(0.2)
        self.proxy.close_gate(LATE)

    def time_out_transactions(self) -> None:
        """As the coordinator ends what is too old: an InitProducerId that is not the owner's bumps the epoch and aborts.

        Half of the time when a writer has just died or waits at a failpoint, perhaps after its decision.
        """
        self._take_over_ids(["Ongoing"], OWN_ID)

    def begin_attempts_late(self) -> None:
        """As attempts that a stalled worker begins after their batch: InitProducerId on ids whose transactions have ended.

        Half of the time on all ids of a writer that has just died, perhaps between the ends of its transactions.
        """
        self._take_over_ids(["Ongoing", "CompleteCommit", "CompleteAbort"], ID_OF_A_TASK)

    def _take_over_ids(self, states: list[str], ids: str) -> None:
        writers = self._await_stop() if self.chance.random() < 0.5 else self.writers
        prefixes = "|".join(re.escape(prefix) for writer in writers for prefix in writer.write_ids)
        own = re.compile(f"(?:{prefixes}){ids}")
        with connected(self.kafka) as admin:
            listed = [each for each in transactions(admin, states) if own.fullmatch(each.transactional_id)]
        if not prefixes or not listed:
            raise NothingToHarm(f"no transaction is {' or '.join(states)}")
        # After a stop all of them, as a timeout meets a whole batch.
        chosen = (
            listed
            if writers is not self.writers
            else self.chance.sample(listed, min(len(listed), self.chance.randint(1, 6)))
        )
        for each in chosen:
            producer = confluent_kafka.Producer(
                {
                    "bootstrap.servers": self.kafka.bootstrap_servers,
                    "transactional.id": each.transactional_id,
                    "log_level": 0,
                }
            )
            producer.init_transactions(20)

    def _await_stop(self) -> list[Writer]:
        """Return the writers of which one process has just died or waits; all of them, if none does in 15 s."""

        def stops() -> list[int]:
            return [writer.deaths + writer.waits for writer in self.writers]

        before, until = stops(), time.monotonic() + 15
        while time.monotonic() < until:
            if stopped := [each for each, was, now in zip(self.writers, before, stops(), strict=True) if now > was]:
                return stopped
            time.sleep(0.1)
        return self.writers

    def write_as_another_program(self) -> None:
        ident = uuid.uuid4().hex[:8]
        how = self.chance.choice(("commit", "abort", "abandon"))
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.kafka.bootstrap_servers,
                "transactional.id": self._foreign_id(ident),
                "transaction.timeout.ms": 15_000,
                "log_level": 0,
            }
        )
        producer.init_transactions(30)
        producer.begin_transaction()
        values = [f"foreign|{ident}|{number}".encode() for number in range(20)]
        for value in values:
            producer.produce(self.chance.choice(self.topics), value)
        producer.flush(30)
        time.sleep(self.chance.random())
        if how == "commit":
            try:
                producer.commit_transaction(30)
                self.foreign.update(values)
            except confluent_kafka.KafkaException:
                self.foreign_unknown.update(values)
        elif how == "abort":
            with contextlib.suppress(confluent_kafka.KafkaException):
                producer.abort_transaction(30)

    def _foreign_id(self, ident: str) -> str:
        """Sometimes one that begins as the ids of a writer do."""
        ids = self.chance.choice(self.writers).write_ids
        return f"{self.chance.choice(ids)}.v{ident}.0.0" if ids and self.chance.random() < 0.5 else f"foreign-{ident}"

    def recover(self) -> None:
        """An operator's command at any time, also while the writer works."""
        ids = self.chance.choice(self.writers).write_ids
        if not ids:
            raise NothingToHarm("the writer has no write id yet")
        recover_write(self.kafka, self.chance.choice(ids))


@contextlib.contextmanager
def connected(kafka: EmbeddedKafka) -> Iterator[kafka_python.KafkaAdminClient]:
    servers = kafka.bootstrap_servers.split(",")
    admin = kafka_python.KafkaAdminClient(bootstrap_servers=servers, request_timeout_ms=10_000)
    try:
        yield admin
    finally:
        admin.close()


def recover_write(kafka: EmbeddedKafka, write_id: str) -> subprocess.CompletedProcess[str]:
    """Recover as an operator does: where a broker omits markers, also what hangs under a forgotten id."""
    words = ["recover", "--yes", "--write-id", write_id, "--bootstrap-servers", kafka.bootstrap_servers]
    return run_command(*words, *(["--discard"] if omits_markers(kafka) else []))


def omits_markers(kafka: EmbeddedKafka) -> bool:
    """Whether its release has KAFKA-20734."""
    return tuple(map(int, kafka.version.split(".")[:2])) >= (4, 3)


def end_hanging_of_others(kafka: EmbeddedKafka, topics: Sequence[str], own: Sequence[str]) -> None:
    """Abort what leaders hold open and no coordinator does, of programs other than the writers with these write ids."""
    ours = re.compile(f"(?:{'|'.join(map(re.escape, own))}){ID_OF_A_TASK}")
    with connected(kafka) as admin:
        listed = transactions(admin, [])
        spared = {each.producer_id for each in listed if each.state in OPEN or ours.fullmatch(each.transactional_id)}
        parts = [kafka_python.TopicPartition(*part) for part in partitions_of(admin, topics)]
        for where, found in admin.describe_producers(parts).items():
            for held in found.active_producers:
                if held.current_transaction_start_offset >= 0 and held.producer_id not in spared:
                    # As ``kafka-transactions.sh abort``.
                    admin.abort_transaction(AbortTransactionSpec(where, held.producer_id, held.producer_epoch))


def run_command(*words: str) -> subprocess.CompletedProcess[str]:
    """Run an operator's command, as it stands."""
    command = [sys.executable, "-m", "kafka_eos_sink.cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)


def _three(nemesis: Nemesis) -> bool:
    return len(nemesis.kafka.node_ids) == 3


FAULTS: tuple[Fault, ...] = (
    Fault("kill a driver with all that it started", 3, Nemesis.kill_writer),
    Fault("kill the driver's Python", 1, lambda nemesis: nemesis.kill_process("driver")),
    Fault("kill a JVM", 1, lambda nemesis: nemesis.kill_process("jvm")),
    Fault("kill a Python worker", 3, lambda nemesis: nemesis.kill_process("python worker")),
    Fault("kill a planner or committer", 3, lambda nemesis: nemesis.kill_process("planner or committer")),
    Fault("stop a driver with all that it started", 2, Nemesis.stop_writer),
    Fault("stop a JVM", 1, lambda nemesis: nemesis.stop_process("jvm")),
    Fault("stop a Python worker", 2, lambda nemesis: nemesis.stop_process("python worker")),
    Fault("stop a planner or committer", 2, lambda nemesis: nemesis.stop_process("planner or committer")),
    Fault("start a second driver", 1, Nemesis.start_second_driver),
    Fault("kill a broker", 1.5, Nemesis.kill_broker, thing="broker"),
    Fault("stop a broker", 1.5, Nemesis.stop_broker, thing="broker"),
    Fault("move leaders and coordinators", 3, Nemesis.move_leaders, _three),
    Fault("raise the transaction version", 0.5, Nemesis.raise_transaction_version, lambda nemesis: nemesis.can_raise),
    Fault("harm frames", 20, Nemesis.harm_frames),
    Fault("time out transactions", 3, Nemesis.time_out_transactions),
    Fault("begin attempts late", 3, Nemesis.begin_attempts_late),
    Fault("write as another program", 2, Nemesis.write_as_another_program),
    Fault("recover", 1, Nemesis.recover),
)
