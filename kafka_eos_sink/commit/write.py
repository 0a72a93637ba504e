"""One write from plan to abort, for whoever drives it: the sink, or a command.

Every process that takes part (planner, tasks, driver) calls in with settings of its own, rebuilt from the options, and shares
nothing but the pickled `Plan` and the `TaskMessage` of each task.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from ..client.admin import Admin
from ..client.config import ClientConfig
from ..client.network_client import NetworkClient
from ..errors import AuthorizationError, BrokerRefusedError, ConfigurationError, InvalidRowError
from ..producer.config import ProducerConfig
from ..producer.partitioner import murmur2_bytes
from ..producer.producer import Producer
from ..producer.rows import Rows
from . import two_phase_commit
from .commit_log import LOG_PARTITIONS, TOPIC_CONFIGURATION
from .executor import Executor
from .prepared_transaction import Decision, Plan, TaskIdentity, TaskMessage
from .recovery import SettleLimits
from .take_over import TakeOver, fence_only, take_over
from .task import BatchIdentity, write_attempt
from .task_executor import TaskExecutor

__all__ = [
    "Plan",
    "RowsWritten",
    "TaskIdentity",
    "TaskMessage",
    "WriteSettings",
    "abort",
    "commit",
    "plan",
    "write_task",
    "write_task_at_least_once",
]

log = logging.getLogger("kafka_eos_sink")

DEFAULT_TRANSACTION_TIMEOUT_MS = 900_000
"""At most this unless configured: a prepared transaction must outlive a driver restart, and brokers' usual maximum is this."""
MAX_REPLICATION_FACTOR = 3
TOPIC_POLL_MS = 100
TOPIC_ANSWER_MS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteSettings:
    """What is written, by whom, and how to reach the cluster. Never pickled: it can hold resolved secrets.

    ``random_write_id``: a batch job without ``txnAppId``, whose id nobody will ever come back for.
    """

    write_id: str
    query_id: str
    version: int
    random_write_id: bool
    topic: str | None
    schema: str
    offsets_hash: str | None
    on_checkpoint_rollback: Literal["fail", "skip", "rewrite"]
    commit_log_topic: str
    client: ClientConfig
    producer: ProducerConfig

    @property
    def batch(self) -> BatchIdentity:
        return BatchIdentity(
            query_id=self.query_id,
            version=self.version,
            topic=self.topic,
            schema=self.schema,
            offsets_hash=self.offsets_hash,
            on_checkpoint_rollback=self.on_checkpoint_rollback,
            can_be_rerun=not self.random_write_id,
        )

    @property
    def log_partition(self) -> int:
        return log_partition_of(self.write_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsWritten:
    """What an at-least-once task has to say."""

    rows: int


def log_partition_of(write_id: str) -> int:
    """The partition of the commit log that holds all records of a write id."""
    return (murmur2_bytes(write_id.encode()) & 0x7FFFFFFF) % LOG_PARTITIONS


@contextmanager
def _admin(settings: WriteSettings) -> Iterator[Admin]:
    with NetworkClient(settings.client) as client:
        yield Admin(client)


def _executor(settings: WriteSettings, admin: Admin) -> Executor:
    return Executor(
        admin.client,
        admin,
        log_topic=settings.commit_log_topic,
        log_partition=settings.log_partition,
        timeout_ms=settings.producer.delivery_timeout_ms,
    )


def _take_over_request(settings: WriteSettings, transaction_timeout_ms: int) -> TakeOver:
    return TakeOver(
        write_id=settings.write_id,
        nonce=uuid.uuid4().hex,
        transaction_timeout_ms=transaction_timeout_ms,
        limits=SettleLimits(deadline_ms=settings.producer.delivery_timeout_ms),
    )


def plan(settings: WriteSettings) -> Plan:
    """Fence, recover and end whatever ran under this write id before; the plan that its tasks need.

    Raises what makes the write impossible: unreachable brokers, missing rights, a decision that cannot be settled.
    """
    with _admin(settings) as admin:
        deadline = admin.client.clock() + settings.producer.max_block_ms
        version = admin.transaction_version(deadline)
        if settings.topic is not None and settings.producer.dead_letter_topic is None:
            _require_topic(admin, settings.topic, deadline, settings.producer.max_block_ms)
        ensure_commit_log(admin, settings.commit_log_topic, settings.topic, deadline)
        request = _take_over_request(settings, _transaction_timeout(settings, admin, deadline))
        executor = _executor(settings, admin)
        if settings.random_write_id:
            # This plan reads nothing, but the commit will: a missing right must show before anything is decided.
            executor.require_readable_log()
            return executor.run(fence_only(request))
        return executor.run(take_over(request, version))


def write_task(settings: WriteSettings, plan: Plan, task: TaskIdentity, batches: Iterator[Rows]) -> TaskMessage:
    """One task attempt: all its rows in one prepared transaction."""
    with _admin(settings) as admin:
        executor = TaskExecutor(
            admin.client,
            admin,
            log_topic=settings.commit_log_topic,
            log_partition=settings.log_partition,
            timeout_ms=settings.producer.delivery_timeout_ms,
            config=settings.producer,
            plan=plan,
            query_id=settings.query_id,
            version=settings.version,
            batches=batches,
        )
        try:
            return executor.run(write_attempt(plan, settings.batch, task))
        finally:
            executor.close()


def write_task_at_least_once(settings: WriteSettings, task: TaskIdentity, batches: Iterator[Rows]) -> RowsWritten:
    """One task attempt with the idempotent producer and no transaction: a task that Spark repeats writes its rows again."""
    rows = 0
    with NetworkClient(settings.client) as client:
        producer = Producer(client, settings.producer, transactional_id=None, transaction_version=None)
        try:
            for batch in batches:
                if rows == 0 and batch.num_rows:
                    producer.init_producer_id(client.clock() + settings.producer.max_block_ms)
                    producer.begin()
                if batch.num_rows:
                    producer.write(batch)
                    rows += batch.num_rows
            if rows:
                producer.flush()
        finally:
            producer.close()
    return RowsWritten(rows=rows)


def commit(settings: WriteSettings, plan: Plan, messages: Sequence[TaskMessage | None]) -> Decision | None:
    """Decide the batch and finish it; None where it was committed before."""
    request = two_phase_commit.CommitRequest(
        plan=plan,
        batch=settings.batch,
        random_write_id=settings.random_write_id,
        nonce=uuid.uuid4().hex,
        limits=SettleLimits(deadline_ms=settings.producer.delivery_timeout_ms),
    )
    with _admin(settings) as admin:
        decision = _executor(settings, admin).run(two_phase_commit.commit(request, messages))
        if decision is None:
            log.warning(
                "version %d of write id %r was written before: nothing was written now",
                settings.version,
                settings.write_id,
            )
        return decision


def abort(settings: WriteSettings, plan: Plan, messages: Sequence[TaskMessage | None]) -> None:
    """End what the failed batch left open, or finish it where it was decided after all."""
    with _admin(settings) as admin:
        request = _take_over_request(settings, plan.transaction_timeout_ms)
        _executor(settings, admin).run(two_phase_commit.abort(request, plan, messages))


def _transaction_timeout(settings: WriteSettings, admin: Admin, deadline: int) -> int:
    """The tasks' transaction.timeout.ms: as asked for, else as long as the broker allows up to 15 minutes."""
    configured = settings.producer.transaction_timeout_ms
    maximum: int | None = None
    try:
        found = admin.describe_configs("broker", None, ("transaction.max.timeout.ms",), deadline)
        maximum = int(found["transaction.max.timeout.ms"])
    except (AuthorizationError, KeyError):
        maximum = None
    if configured is not None:
        if maximum is not None and configured > maximum:
            raise ConfigurationError(
                "INVALID_TRANSACTION_TIMEOUT",
                f"kafka.transaction.timeout.ms is {configured}, but the brokers allow at most {maximum} "
                "(transaction.max.timeout.ms); lower the one or raise the other",
            )
        # Nobody comes back for a random id: its open transaction must not hold up readers for longer.
        return min(configured, DEFAULT_TRANSACTION_TIMEOUT_MS) if settings.random_write_id else configured
    return DEFAULT_TRANSACTION_TIMEOUT_MS if maximum is None else min(maximum, DEFAULT_TRANSACTION_TIMEOUT_MS)


def _require_topic(admin: Admin, topic: str, deadline: int, max_block_ms: int) -> None:
    """Fail before a task is started where the topic of all rows is missing; one just created may take a moment to show."""
    while admin.topic(topic, deadline) is None:
        # A question takes time of its own: none is asked that could only end at the deadline.
        if admin.client.clock() + TOPIC_POLL_MS >= deadline - min(TOPIC_ANSWER_MS, max_block_ms // 2):
            raise InvalidRowError(
                "UNKNOWN_TOPIC",
                f"topic {topic!r} did not appear in the cluster in {max_block_ms} ms (kafka.max.block.ms); create it, or correct "
                "the option topic, or grant Describe on it",
            )
        admin.client.wait(TOPIC_POLL_MS, deadline)


def ensure_commit_log(admin: Admin, topic: str, data_topic: str | None, deadline: int) -> None:
    """Create the commit log where it is missing; refuse one that could lose a decision or that holds data.

    Raises `ConfigurationError` ``COMMIT_LOG_TOPIC`` with the command that mends it.
    """
    if topic == data_topic:
        raise ConfigurationError(
            "COMMIT_LOG_TOPIC",
            f"topic and commit.log.topic are both {topic!r}; the commit log needs a topic of its own",
        )
    by_hand = (
        f"kafka-topics.sh --bootstrap-server ... --create --topic {topic} --partitions {LOG_PARTITIONS} "
        + " ".join(f"--config {name}={value}" for name, value in TOPIC_CONFIGURATION.items())
    )
    found = admin.topic(topic, deadline)
    if found is None:
        # Until the first answer the metadata knows nothing but the bootstrap servers, which may be fewer or more than the brokers.
        admin.client.wait_for_metadata(deadline)
        replication = min(MAX_REPLICATION_FACTOR, len(admin.client.metadata.brokers))
        configuration = dict(TOPIC_CONFIGURATION)
        if replication > 1:
            configuration["min.insync.replicas"] = "2"
        try:
            created = admin.create_topic(topic, LOG_PARTITIONS, replication, configuration, deadline)
        except (AuthorizationError, BrokerRefusedError) as refused:
            raise ConfigurationError(
                "COMMIT_LOG_TOPIC",
                f"the commit log topic {topic!r} does not exist and cannot be created ({refused.message}); create it: {by_hand}",
            ) from None
        if created:
            return
        found = admin.topic(topic, deadline)
    partitions = 0 if found is None else len(found.partitions)
    if partitions < LOG_PARTITIONS:
        raise ConfigurationError(
            "COMMIT_LOG_TOPIC",
            f"the commit log topic {topic!r} has {partitions} partitions and needs {LOG_PARTITIONS}; take another "
            f"commit.log.topic or create it anew: {by_hand}",
        )
    if (
        found is not None
        and len(found.partitions[0].replicas) == 1
        and len(admin.client.metadata.brokers) >= MAX_REPLICATION_FACTOR
    ):
        log.warning(
            "the commit log topic %r has a single replica: the loss of one disk loses its decisions, and with them the guarantee; "
            "raise its replication to 3 and min.insync.replicas to 2",
            topic,
        )
    try:
        policy = admin.describe_configs("topic", topic, ("cleanup.policy",), deadline).get("cleanup.policy")
    except AuthorizationError:
        return
    if policy != "compact":
        raise ConfigurationError(
            "COMMIT_LOG_TOPIC",
            f"the commit log topic {topic!r} has cleanup.policy={policy}; anything but compact can lose decisions: "
            f"kafka-configs.sh --bootstrap-server ... --entity-type topics --entity-name {topic} --alter "
            "--add-config cleanup.policy=compact",
        )
