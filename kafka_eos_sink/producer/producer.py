"""The producer of one task attempt, with one transaction.

    producer = Producer(admin, config, transactional_id="W.0.0", transaction_version=2)
    producer.init(producer_id, producer_epoch)
    producer.begin()
    for rows in batches:
        producer.write(rows)
    producer.append_record(commit_log, partition, key, value)
    identity = producer.prepare()

The producer has no thread. ``write`` and the calls that wait send and receive bytes. ``write`` gathers rows into slabs of
two megabytes, then partitions, sorts, cuts and encodes each slab as columns, and compresses full batches. The producer serves the sockets
between two batches, so the brokers work while it encodes the next batch.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import numpy as np

from kafka_eos_sink.client.config import ExponentialBackoff
from kafka_eos_sink.client.requests import KeyResult
from kafka_eos_sink.client.transactions_admin import TransactionsAdmin
from kafka_eos_sink.errors import BrokerUnavailableError, KafkaEosError
from kafka_eos_sink.producer.batcher import Batcher
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.producer.dead_letters import dead_letters, reduced_letters
from kafka_eos_sink.producer.interceptors import Interceptors
from kafka_eos_sink.producer.partitioner import TopicPartitions
from kafka_eos_sink.producer.record_accumulator import RecordAccumulator
from kafka_eos_sink.producer.row_checks import TopicRows, checked_rows
from kafka_eos_sink.producer.rows import BadRows, NumberedRows, Rows, concat_rows
from kafka_eos_sink.producer.sender import WAIT_MS, Acknowledged, Sender
from kafka_eos_sink.producer.topic_directory import TopicDirectory
from kafka_eos_sink.producer.transaction_manager import IllegalTransition, State, TransactionManager
from kafka_eos_sink.protocol.identity import ProducerIdAndEpoch, ProducerIdentity, TopicPartition
from kafka_eos_sink.protocol.messages import EndTxnResponse
from kafka_eos_sink.protocol.record_batch import RecordsBlock, encode_rows
from kafka_eos_sink.protocol.record_columns import record_sizes

SLAB_BYTES: Final = 2 * 1024 * 1024
"""Bytes of rows per slab. A smaller slab costs more calls per row; a larger one exceeds the processor's cache."""


class Producer:
    """Write rows in a transaction, or at least once without a transactional id.

    A task attempt calls ``init``, ``begin``, ``write``, ``append_record``, ``flush`` and then ``prepare`` or ``abort``.
    The at-least-once writer calls ``init_producer_id``, ``write`` and ``flush``. Only the driver commits.

    After a failure every call that writes or flushes raises that failure again; ``abort`` and ``close`` work.
    The caller owns the admin and its client: ``close`` leaves them open.

    Args:
        transaction_version: The cluster's finalized ``transaction.version``.
    """

    def __init__(
        self,
        admin: TransactionsAdmin,
        config: ProducerConfig,
        *,
        transactional_id: str | None,
        transaction_version: int = 0,
    ) -> None:
        client = admin.client
        backoff = ExponentialBackoff(client.config.retry_backoff_ms, client.config.retry_backoff_max_ms)
        self._client = client
        self._config = config
        self._interceptors = Interceptors(config.interceptors, dict(config.interceptor_options))
        self._accumulator = RecordAccumulator(config)
        self._transactions = TransactionManager(admin, transactional_id, transaction_version=transaction_version)
        self._sender = Sender(client, config, self._accumulator, self._transactions, self._interceptors, backoff)
        self._topics = TopicDirectory(client, self._sender, config)
        self._batcher = Batcher(client, config, self._accumulator, self._sender)
        self._slab: list[Rows] = []
        self._slab_bytes = 0
        self._slab_since = 0
        self._slab_limit = max(1, min(SLAB_BYTES, config.buffer_memory // 4))
        self._rows_seen = 0
        self.dead_letters: Counter[tuple[str, str]] = Counter()
        """How many rows became dead letters, by dead letter topic and code."""
        self._closed = False

    # identity and transaction

    @property
    def state(self) -> State:
        return self._transactions.state

    @property
    def identity(self) -> ProducerIdAndEpoch:
        """(producer id, producer epoch)."""
        return self._transactions.identity

    @property
    def tainted(self) -> bool:
        """True if the producer abandoned a request in flight, which forbids ``prepare``."""
        return self._sender.tainted

    @property
    def acknowledged(self) -> dict[TopicPartition, Acknowledged]:
        """First offset, last offset and number of acknowledged records per partition."""
        return dict(self._sender.acknowledged)

    @property
    def acknowledged_bytes(self) -> int:
        """Bytes on the wire of all batches that were acknowledged."""
        return self._accumulator.acknowledged_bytes

    def init(self, producer_id: int, producer_epoch: int) -> None:
        """Use a producer id and epoch that the caller got from InitProducerId."""
        self._transactions.initialized(producer_id, producer_epoch)

    def init_producer_id(self, deadline_ms: int) -> None:
        """Request the identity of a producer without transactional id, from any broker.

        Args:
            deadline_ms: Absolute clock ms.

        Raises:
            BrokerUnavailableError: ``REQUEST_DEADLINE``.
            KafkaEosError: The broker rejected the request.
        """
        began = self._client.clock()
        try:
            self._transactions.request_identity(deadline_ms)
        except BrokerUnavailableError as error:
            raise BrokerUnavailableError(
                "REQUEST_DEADLINE",
                f"the producer could not be initialised in time (kafka.max.block.ms is {self._config.max_block_ms}); "
                f"last error: {self._client.prevailing_quota(began) or error.message}",
            ) from error

    def begin(self) -> None:
        """Start the transaction locally; does nothing without a transactional id."""
        if self._transactions.transactional:
            self._transactions.begin()

    def prepare(self) -> ProducerIdentity:
        """Flush, and prepare the transaction: from now on only the driver may end it.

        The producer then rejects every write and abort. An abort while the driver commits would lose rows.

        Raises:
            KafkaEosError: ``TAINTED`` if a leader may still append an abandoned request.
        """
        self.flush()
        if self.tainted:
            raise KafkaEosError(
                "TAINTED",
                "this attempt abandoned a request without a response, so the driver cannot commit it. Run the task again",
            )
        return self._transactions.prepare()

    def abort(self, deadline_ms: int) -> KeyResult[EndTxnResponse] | None:
        """Drop unsent rows, and abort the transaction under its own epoch.

        Args:
            deadline_ms: Absolute clock ms.

        Returns:
            The last response to EndTxn; every retry is identical. Its code is None if none came by the deadline, or an error prevents it.
            None if there is nothing to abort: no transaction began, the producer was fenced, or has no transactional id.

        Raises:
            IllegalTransition: The transaction is prepared, so only the driver may end it.
        """
        if self._transactions.state is State.PREPARED:
            raise IllegalTransition("abort in state PREPARED: only the driver may end a prepared transaction")
        self._drop(deadline_ms)
        if self._transactions.state not in (State.IN_TRANSACTION, State.ABORTABLE_ERROR):
            return None
        return self._transactions.abort(deadline_ms)

    # rows

    def write(self, rows: Rows) -> None:
        """Accept rows and send full batches; ``flush`` sends the rest.

        Raises:
            InvalidRowError: Kafka cannot store a row. If the client detects it, the producer sends no row of the slab.
            KafkaEosError: ``BUFFER_EXHAUSTED`` if no memory became free within max.block.ms, or an earlier failure.
        """
        self._check_writable()
        if not rows.num_rows:
            return
        with self._all_or_failed():
            rows = self._interceptors.on_send(rows) if self._interceptors else rows
            # Spark may deliver far more rows than a slab at once, so cut them into pieces to bound the memory.
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
            self._dead_letter_rejected()

    def append_record(self, topic: str, partition: int, key: bytes | None, value: bytes | None) -> None:
        """Append one uncompressed record to the given partition, in the same transaction.

        After ``flush``, ``acknowledged`` has its offset.
        """
        block = encode_rows([(key, value, ())], time.time_ns() // 1_000_000)
        self.append_block(topic, partition, block, own_timestamps=False)

    def append_block(self, topic: str, partition: int, block: RecordsBlock, *, own_timestamps: bool = True) -> None:
        """Append encoded records to the given partition as one batch, without a wait.

        Args:
            own_timestamps: False if their timestamps are from this host's clock.
        """
        self._check_writable()
        with self._all_or_failed():
            self._client.want_topics([topic])
            self._batcher.add_block(topic, partition, block, own_timestamps=own_timestamps)

    @property
    def unacknowledged_bytes(self) -> int:
        """Size of the batches that no response has acknowledged yet."""
        return self._accumulator.used_bytes

    def advance(self, timeout_ms: int) -> bool:
        """Send what was appended, process responses, wait for one at most ``timeout_ms``.

        Several producers of one client take turns with it. Returns True once everything is acknowledged.
        """
        self._check_writable()
        with self._all_or_failed():
            if not self._accumulator.idle:
                self._sender.pump(timeout_ms)
        return self._accumulator.idle

    def flush(self) -> None:
        """Send all rows and wait for their acknowledgement; raise the first failure."""
        self._check_writable()
        with self._all_or_failed():
            self._send_slab()
            while self._accumulator.open_bytes or self._sender.rejected or not self._accumulator.idle:
                self._batcher.close_all()
                while not self._accumulator.idle:
                    self._sender.pump(WAIT_MS)
                # A response can create new rows: a record that the broker rejects becomes a dead letter.
                self._dead_letter_rejected()
            self._sender.raise_failure()

    def close(self) -> None:
        """Close the producer without waiting; an open transaction stays open."""
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
        numbered = NumberedRows(
            topic=rows.topic,
            partition=rows.partition,
            columns=rows.columns,
            row_numbers=np.arange(self._rows_seen, self._rows_seen + rows.num_rows),
        )
        self._rows_seen += rows.num_rows
        good, bad = checked_rows(numbered, self._topics, self._config)
        for group in good:
            self._batcher.add(group)
        if bad:
            self._dead_letter(bad)
        self._batcher.limit_open_rows()

    def _dead_letter(self, bad: Sequence[BadRows]) -> None:
        for group in bad:
            self.dead_letters[str(self._config.dead_letter_topic), group.code] += group.rows.num_rows
        for letters in dead_letters(bad, self._config):
            self._add_letters(letters)

    def _add_letters(self, letters: NumberedRows) -> None:
        topic = self._topics.resolve([letters.topic])[letters.topic]
        if not isinstance(topic, TopicPartitions):
            raise topic.error(letters.topic)
        self._batcher.add(TopicRows(topic=topic, rows=letters, sizes=record_sizes(letters.columns)))

    def _dead_letter_rejected(self) -> None:
        while self._sender.rejected:
            found = self._sender.rejected.pop(0)
            is_letter = found.rows.row_numbers < 0
            if is_letter.any():
                self._add_letters(reduced_letters(found.take(np.flatnonzero(is_letter))))
            if not is_letter.all():
                self._dead_letter([found.take(np.flatnonzero(~is_letter))])

    @contextmanager
    def _all_or_failed(self) -> Iterator[None]:
        """Make a failure final: a later commit would lack the failed call's rows."""
        try:
            yield
        except KafkaEosError as error:
            self._sender.fail(error)
            raise

    def _check_writable(self) -> None:
        self._sender.raise_failure()
        if self._closed or not self._transactions.may_produce:
            raise IllegalTransition(f"write in state {'closed' if self._closed else self.state.name}")

    def _drop(self, deadline_ms: int) -> None:
        """Drop unsent rows, and wait until the deadline for the responses in flight."""
        self._slab.clear()
        self._slab_bytes = 0
        self._sender.give_up(KafkaEosError("ABORTED", "the transaction is being aborted"))
        self._sender.drop_unsent()
        while self._sender.produces_in_flight and self._client.clock() < deadline_ms:
            self._sender.run_once(min(WAIT_MS, max(0, deadline_ms - self._client.clock())))
            self._sender.drop_unsent()
        self._sender.abandon()
