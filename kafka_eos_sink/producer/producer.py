"""The producer of one task attempt: rows in, acknowledged batches out, one transaction.

    producer = Producer(client, config, transactional_id="W.0.0", transaction_version=2)
    producer.init(producer_id, producer_epoch)
    producer.begin()
    for rows in batches:
        producer.write(rows)
    producer.append_record(commit_log, partition, key, value)
    identity = producer.prepare()

The producer has no thread of its own: bytes move inside ``write`` and inside the calls that wait. It gathers rows into
slabs of some megabytes, and partitions, sorts, cuts, encodes and compresses a slab as columns. It serves the sockets
between two batches, so the brokers work while it makes the next batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import numpy as np

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.config import ExponentialBackoff
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.client.requests import Outcome
from kafka_eos_sink.errors import BrokerUnavailableError, KafkaEosError
from kafka_eos_sink.producer.batcher import Batcher
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.producer.interceptors import Interceptors
from kafka_eos_sink.producer.partitioner import TopicPartitions
from kafka_eos_sink.producer.record_accumulator import RecordAccumulator
from kafka_eos_sink.producer.row_checks import BadRows, TopicRows, checked_rows, dead_letters
from kafka_eos_sink.producer.rows import Rows, concat_rows
from kafka_eos_sink.producer.sender import WAIT_MS, Acknowledged, Sender
from kafka_eos_sink.producer.topic_directory import TopicDirectory
from kafka_eos_sink.producer.transaction_manager import TransactionManager
from kafka_eos_sink.producer.transaction_states import IllegalTransition, State
from kafka_eos_sink.protocol.compression import Codec
from kafka_eos_sink.protocol.identity import ProducerIdentity, TopicPartition
from kafka_eos_sink.protocol.messages import EndTxnResponse
from kafka_eos_sink.protocol.record_columns import record_sizes

SLAB_BYTES: Final = 8 * 1024 * 1024
"""Rows are encoded this many bytes at a time: enough to fill batches of several partitions, and little enough to give
the brokers work early. Measured: 4 MiB and 16 MiB both cost about a third more processor time per row."""


class Producer:
    """Writes rows to Kafka: exactly once if its transaction commits, at least once without a transactional id.

    A task attempt calls ``init``, ``begin``, ``write``, ``append_record``, ``flush`` and then ``prepare`` or ``abort``.
    The at-least-once writer calls ``init_producer_id``, ``begin``, ``write`` and ``flush``.
    ``end(committed=True)`` is for the model check and the fault tests. In the sink the driver commits through ``runtime``.

    After the first failure every call raises that failure again, except ``abort`` and ``close``.
    The caller owns the client, which stays open after ``close``.

    Args:
        transaction_version: the cluster's finalized ``transaction.version``; None lets ``init_producer_id`` look it up.
        wall_clock: the time in ms since the epoch, for records without a timestamp of their own.
    """

    def __init__(
        self,
        client: NetworkClient,
        config: ProducerConfig,
        *,
        transactional_id: str | None,
        transaction_version: int | None = None,
        wall_clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        backoff = ExponentialBackoff(client.config.retry_backoff_ms, client.config.retry_backoff_max_ms)
        self._client = client
        self._config = config
        self._version_is_known = transaction_version is not None
        self._interceptors = Interceptors(config.interceptors, dict(config.interceptor_options))
        self._accumulator = RecordAccumulator(
            batch_size=config.batch_size,
            linger_ms=config.linger_ms,
            codec=Codec.of(config.compression),
            compression_level=config.compression_level,
        )
        self._transactions = TransactionManager(
            transactional_id,
            transaction_version=transaction_version or 0,
            transaction_timeout_ms=config.transaction_timeout_ms or 60_000,
            backoff=backoff,
        )
        self._sender = Sender(client, config, self._accumulator, self._transactions, self._interceptors, backoff)
        self._topics = TopicDirectory(client, self._sender, config.max_block_ms)
        self._batcher = Batcher(client, config, self._accumulator, self._sender, wall_clock)
        self._slab: list[Rows] = []
        self._slab_bytes = 0
        self._slab_since = 0
        self._slab_limit = max(1, min(SLAB_BYTES, config.buffer_memory // 4))
        self._rows_seen = 0
        self._closed = False

    # identity and transaction

    @property
    def state(self) -> State:
        return self._transactions.state

    @property
    def producer_id(self) -> int:
        return self._transactions.producer_id

    @property
    def producer_epoch(self) -> int:
        return self._transactions.producer_epoch

    @property
    def transaction_version(self) -> int:
        return self._transactions.transaction_version

    @property
    def tainted(self) -> bool:
        """True if the producer abandoned a request in flight: the attempt must not be handed over."""
        return self._sender.tainted

    @property
    def acknowledged(self) -> dict[TopicPartition, Acknowledged]:
        """What each partition's leader acknowledged: first offset, last offset, number of records."""
        return dict(self._sender.acknowledged)

    def init(self, producer_id: int, producer_epoch: int) -> None:
        """Use the identity that an InitProducerId made elsewhere returned."""
        self._transactions.initialized(producer_id, producer_epoch)

    def init_producer_id(self, deadline_ms: int) -> tuple[int, int]:
        """Request a fresh producer id and epoch, which fences the former owner of the transactional id.

        Waits until the coordinator has ended the transaction that the former owner left open.

        Args:
            deadline_ms: absolute clock ms.

        Raises:
            BrokerUnavailableError: ``REQUEST_DEADLINE``, with the transaction that blocks the transactional id.
            KafkaEosError: the coordinator rejected the request.
        """
        self._settle_transaction_version(deadline_ms)
        self._transactions.initialize()
        self._pump_while(lambda: self._transactions.state is State.INITIALIZING, deadline_ms, "InitProducerId")
        return self._transactions.identity

    def begin(self) -> None:
        """Start a transaction; sends nothing, and does nothing without a transactional id.

        Raises:
            KafkaEosError: ``TAINTED``, if requests of the last transaction may still arrive under this identity.
        """
        if self._transactions.transactional:
            self._transactions.begin()
            self._sender.begin()

    def prepare(self) -> ProducerIdentity:
        """Flush, and hand the transaction over: from now on only the driver may end it.

        This producer then rejects every further write and abort. A late abort of a transaction that the driver is
        committing would lose its rows.

        Raises:
            KafkaEosError: ``TAINTED``, if an abandoned request may still be written.
        """
        self.flush()
        if self.tainted:
            raise KafkaEosError(
                "TAINTED",
                "this attempt abandoned a request without a response, so it cannot be handed over; run the task again",
            )
        self._transactions.prepare()
        assert self._transactions.transactional_id is not None
        return ProducerIdentity(
            transactional_id=self._transactions.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            transaction_version=self.transaction_version,
        )

    def end(self, committed: bool, deadline_ms: int) -> Outcome[EndTxnResponse]:
        """End this producer's own transaction; a commit flushes first, and every retry is identical.

        Args:
            deadline_ms: absolute clock ms.

        Returns:
            The last response. A code other than 0 does not distinguish committed from aborted. None means that no
            response came by the deadline, or that this identity may not end anything any more.
        """
        if committed:
            self.flush()
            self._transactions.commit()
        else:
            self._drop(deadline_ms)
            if self._transactions.state is State.FATAL_ERROR:
                # A response that arrived during the drop was fatal (fenced): EndTxn would be rejected as well.
                return Outcome()
            self._transactions.abort()
        while self._transactions.awaits_end and self._client.clock() < deadline_ms:
            self._sender.run_once(min(WAIT_MS, max(0, deadline_ms - self._client.clock())))
        result = self._transactions.end_result
        if result is None:
            self._sender.tainted = True
            return Outcome()
        if self._transactions.state is State.READY:
            self._sender.failure = None
        return result

    def abort(self, deadline_ms: int) -> Outcome[EndTxnResponse] | None:
        """Drop unsent rows and abort this attempt's own undecided transaction, by its exact identity.

        Returns:
            None if nothing may be aborted: no transaction began, it was fenced, or it has no transactional id.

        Raises:
            IllegalTransition: the transaction is prepared, so only the driver may end it.
        """
        if self._transactions.state is State.PREPARED:
            raise IllegalTransition(
                "abort in state PREPARED: only the driver may end a transaction that was handed over"
            )
        self._drop(deadline_ms)
        if self._transactions.state not in (State.IN_TRANSACTION, State.ABORTABLE_ERROR):
            return None
        return self.end(False, deadline_ms)

    # rows

    def write(self, rows: Rows) -> None:
        """Take rows in and send full batches; ``flush`` sends the rest.

        Raises:
            InvalidRowError: Kafka cannot store a row. If the client can know it, nothing of the row's slab is sent.
            KafkaEosError: ``BUFFER_EXHAUSTED``, if no memory became free for max.block.ms, or an earlier failure.
        """
        self._check_writable()
        if not rows.num_rows:
            return
        with self._all_or_failed():
            rows = self._interceptors.on_send(rows) if self._interceptors else rows
            # Spark may deliver far more than a slab at once; pieces keep the memory bounded.
            step = max(1, rows.num_rows // max(1, -(-rows.columns.nbytes // (2 * self._slab_limit))))
            for start in range(0, rows.num_rows, step):
                piece = rows.slice(start, min(step, rows.num_rows - start)) if step < rows.num_rows else rows
                if not self._slab:
                    self._slab_since = self._client.clock()
                self._slab.append(piece)
                self._slab_bytes += piece.columns.nbytes
                if self._slab_bytes >= self._slab_limit:
                    self._send_slab()
            if self._slab and self._client.clock() - self._slab_since >= self._config.linger_ms:
                self._send_slab()
            self._batcher.close_lingered()
            self._write_refused()

    def append_record(self, topic: str, partition: int, key: bytes | None, value: bytes | None) -> None:
        """Append one uncompressed record to the named partition, in the same transaction.

        ``acknowledged`` holds its offset after ``flush``.
        """
        self._check_writable()
        with self._all_or_failed():
            self._client.want_topics([topic])
            self._batcher.add_record(topic, partition, key, value)

    def flush(self) -> None:
        """Send everything and wait until the brokers have acknowledged all of it; raise the first failure."""
        self._check_writable()
        with self._all_or_failed():
            self._send_slab()
            while self._accumulator.open_bytes or self._sender.refused or not self._accumulator.idle:
                self._batcher.close_all()
                while not self._accumulator.idle:
                    self._sender.pump(WAIT_MS)
                # Waiting can create new rows: a record that its topic rejects as too large becomes a dead letter.
                self._write_refused()
            self._sender.raise_failure()

    def close(self) -> None:
        """Close this producer without waiting; an open transaction stays open."""
        if not self._closed:
            self._closed = True
            self._sender.abandon()
            self._interceptors.close()

    # from rows to batches

    def _send_slab(self) -> None:
        if not self._slab:
            return
        rows = concat_rows(self._slab)
        self._slab.clear()
        self._slab_bytes = 0
        row_numbers = np.arange(self._rows_seen, self._rows_seen + rows.num_rows)
        self._rows_seen += rows.num_rows
        good, bad = checked_rows(rows, row_numbers, self._topics, self._config)
        for group in good:
            self._batcher.add(group)
        if bad:
            self._dead_letter(bad)
        self._batcher.limit_open_rows()

    def _dead_letter(self, bad: Sequence[BadRows]) -> None:
        name = self._config.dead_letter_topic
        assert name is not None
        topic = self._topics.resolve([name])[name]
        if not isinstance(topic, TopicPartitions):
            raise topic.error(name)
        letters = dead_letters(name, bad)
        numbers = np.full(letters.num_rows, -1)
        self._batcher.add(
            TopicRows(topic=topic, rows=letters, sizes=record_sizes(letters.columns), row_numbers=numbers)
        )

    def _write_refused(self) -> None:
        while self._sender.refused:
            batch, error = self._sender.refused.pop(0)
            assert batch.rows is not None
            rows = Rows(topic=batch.topic, partition=None, columns=batch.rows.columns)
            numbers = batch.rows.row_numbers
            self._dead_letter([BadRows(error.code, error.message, batch.topic, rows, numbers, batch.partition)])

    def _pump_while(self, waiting: Callable[[], bool], deadline_ms: int, what: str) -> None:
        while waiting():
            left = deadline_ms - self._client.clock()
            if left <= 0:
                raise BrokerUnavailableError(
                    "REQUEST_DEADLINE", f"{what} had no success before its deadline; last: {self._last_obstacle()}"
                )
            self._sender.pump(min(left, WAIT_MS))

    def _last_obstacle(self) -> str:
        """The last error of the coordinator, with the transaction that blocks the transactional id if there is one."""
        transactions = self._transactions
        if transactions.transactional_id is None or not transactions.busy:
            return transactions.last_problem
        return f"{transactions.last_problem}; {Admin(self._client).holder(transactions.transactional_id)}"

    @contextmanager
    def _all_or_failed(self) -> Iterator[None]:
        """Make a failure final: a commit after it would lack the rows that the failed call rejected."""
        try:
            yield
        except KafkaEosError as error:
            self._sender.fail(error)
            raise

    def _check_writable(self) -> None:
        self._sender.raise_failure()
        if self._closed or not self._transactions.may_produce:
            # An idempotent producer whose epochs are exhausted requests a new producer id; rows wait for it meanwhile.
            if not self._closed and self._transactions.state is State.INITIALIZING:
                return
            raise IllegalTransition(f"write in state {'closed' if self._closed else self.state.name}")

    def _drop(self, deadline_ms: int) -> None:
        """Drop unsent rows, and wait until the deadline for the responses to requests in flight."""
        self._slab.clear()
        self._slab_bytes = 0
        self._sender.give_up(KafkaEosError("ABORTED", "the transaction is being aborted"))
        self._sender.drop_unsent()
        while self._sender.produces_in_flight and self._client.clock() < deadline_ms:
            self._sender.run_once(min(WAIT_MS, max(0, deadline_ms - self._client.clock())))
            self._sender.drop_unsent()
        self._sender.abandon()

    def _settle_transaction_version(self, deadline_ms: int) -> None:
        if self._version_is_known or not self._transactions.transactional:
            return
        node = self._client.any_node(deadline_ms)
        version = self._client.finalized_features(node).get("transaction.version", 0)
        self._transactions.transaction_version = version
        self._version_is_known = True
