"""What producers were told to do and what they said came of it, held against the log and against what they sent.

claims          committed, aborted, or unknown, as the call said that ended a transaction
the log         what coordinator and leaders made of it: which rows lie where, and whether their transaction was committed
the wire        every request: a repeat must be identical, and nothing goes out under an identity that was left behind
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from faults.fault_proxy import Answer, AnswerAfter, Seen

from kafka_eos_sink.protocol import messages as m
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.record_batch import read_record_batches

SEQUENCES = 2**31


class Claim(Enum):
    """What was said about a transaction."""

    NOTHING = "nothing yet"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Row:
    """A row in a log: `committed` is None while nobody can know, `offset` None where the reader does not say."""

    number: int
    committed: bool | None
    offset: int | None = None
    identity: tuple[int, int] | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class Attempt:
    """One transaction of one producer, or all that a producer without transactions writes."""

    number: int
    client_id: str
    transactional: bool
    identity: tuple[int, int]
    rows: dict[int, list[int]] = field(default_factory=dict)
    """Partition to what was given to the producer for it, in order."""
    acknowledged: set[int] = field(default_factory=set)
    """What it said to be written."""
    commit_asked: bool = False
    """Whether anybody asked for a commit: until then there must be none."""
    claim: Claim = Claim.NOTHING
    rewritten: bool = False
    """A producer without transactions wrote batches anew under another identity: some may be there twice."""

    def give(self, partition: int, row: int) -> None:
        self.rows.setdefault(partition, []).append(row)

    def acknowledge_all(self) -> None:
        self.acknowledged.update(row for rows in self.rows.values() for row in rows)

    @property
    def empty(self) -> bool:
        return not self.rows

    def __str__(self) -> str:
        return f"attempt {self.number} of {self.client_id} as {self.identity} ({self.claim.value})"


class Ledger:
    """All attempts of a run, and what was seen on the wire."""

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []
        self.split: set[str] = set()
        """Clients some of whose batches were refused as too large: their sequences are cut anew."""
        self._pieces: dict[tuple[Any, ...], tuple[int, Any]] = {}
        self._next_sequence: dict[tuple[Any, ...], int] = {}
        self._newest: dict[str, tuple[int, int]] = {}

    # the log

    def check_log(self, logs: Mapping[int, Sequence[Row]], *, final: bool) -> None:
        """`final`: nothing is under way any more, and each row is committed or is not."""
        for attempt in self.attempts:
            outcomes = set()
            for partition, log in logs.items():
                outcomes |= self._check_partition(attempt, partition, log)
            if attempt.transactional:
                self._check_outcome(attempt, outcomes, final=final)
        known = {row for attempt in self.attempts for rows in attempt.rows.values() for row in rows}
        for partition, log in logs.items():
            strange = [row.number for row in log if row.number not in known]
            assert not strange, f"nobody gave {strange} to partition {partition}"

    def _check_partition(self, attempt: Attempt, partition: int, log: Sequence[Row]) -> set[bool | None]:
        given = attempt.rows.get(partition, [])
        belongs = set(given)
        found = [row for row in log if row.number in belongs]
        numbers = [row.number for row in found]
        if attempt.rewritten:
            numbers = list(dict.fromkeys(numbers))
            assert set(numbers) >= attempt.acknowledged & belongs, f"{attempt}: acknowledged and not written"
        else:
            assert numbers == given[: len(numbers)], f"{attempt}: {given} were given, {numbers} written"
            unwritten = sorted(attempt.acknowledged.intersection(given[len(numbers) :]))
            assert not unwritten, f"{attempt}: {unwritten} were acknowledged and are not written"
        if attempt.transactional:
            for row in found:
                assert row.identity in (None, attempt.identity), f"{attempt}: {row} was written as another producer"
        return {row.committed for row in found}

    def check_acknowledged(self, attempt: Attempt, partition: int, told: Any, log: Sequence[Row]) -> None:
        """`told`: first and last offset and number of records that the producer names as acknowledged in a partition."""
        given = set(attempt.rows.get(partition, []))
        lies_at = [row.offset for row in log if row.number in given]
        assert told.record_count <= len(lies_at), f"{attempt}: {told} of {lies_at}"
        assert told.first_offset in (-1, lies_at[0]), f"{attempt}: {told} of {lies_at}"
        assert told.last_offset in (-1, *lies_at[: told.record_count]), f"{attempt}: {told} of {lies_at}"

    def _check_outcome(self, attempt: Attempt, outcomes: set[bool | None], *, final: bool) -> None:
        assert not {True, False} <= outcomes, f"{attempt}: one part is committed and another is not"
        if attempt.claim is Claim.COMMITTED:
            assert False not in outcomes, f"{attempt}: rows are aborted"
        if attempt.claim is Claim.ABORTED or not attempt.commit_asked:
            assert True not in outcomes, f"{attempt}: rows are committed"
        if final:
            assert None not in outcomes, f"{attempt}: its transaction is open"

    # the wire

    def check_wire(self, requests: Iterable[Seen], attempts: Mapping[str, Attempt], *, in_order: bool) -> None:
        """`attempts`: by client id, the one that a request of now belongs to.

        `in_order`: the requests stand in the order in which they were sent, which is not so behind a proxy that delays.
        """
        for seen in requests:
            attempt = attempts.get(seen.client_id)
            if isinstance(seen.fault, Answer | AnswerAfter) and seen.fault.code == ErrorCode.MESSAGE_TOO_LARGE:
                self.split.add(seen.client_id)
            match seen.request:
                case m.ProduceRequest() as request:
                    for topic in request.topic_data:
                        for data in topic.partition_data:
                            self._check_batch(seen, attempt, data.index, bytes(data.records or b""), in_order)
                case m.EndTxnRequest() as request:
                    key = (request.transactional_id, request.producer_id, request.producer_epoch)
                    if in_order and attempt is not None:
                        # A driver may end an earlier attempt after a later one, so its identities may go back.
                        assert key[1:] == attempt.identity, f"{attempt}: EndTxn goes out as {key}"
                        self._same_as_before(("end", attempt.number, *key), seen, seen.digest)
                case m.AddPartitionsToTxnRequest() as request if in_order:
                    identity = (request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
                    self._check_identity(seen.client_id, identity)

    def _same_as_before(self, key: tuple[Any, ...], seen: Seen, content: Any) -> None:
        """What was sent under this key before must have been the same, API version included."""
        version, before = self._pieces.setdefault(key, (seen.version, content))
        same = (version, before) == (seen.version, content)
        assert same, f"{seen.client_id} repeats {key} otherwise: v{version}, now v{seen.version}"

    def _check_identity(self, client_id: str, identity: tuple[int, int]) -> None:
        newest = self._newest.setdefault(client_id, identity)
        same_id = identity[0] == newest[0]
        assert identity[1] >= newest[1] or not same_id, f"{client_id} goes back from {newest} to {identity}"
        self._newest[client_id] = identity

    def _check_batch(self, seen: Seen, attempt: Attempt | None, partition: int, octets: bytes, in_order: bool) -> None:
        (batch,) = read_record_batches(octets)
        identity = (batch.producer_id, batch.producer_epoch)
        if in_order:
            self._check_identity(seen.client_id, identity)
        if attempt is not None and attempt.transactional and in_order:
            assert identity == attempt.identity, f"{attempt}: a batch goes out as {identity}"
            given = attempt.rows.get(partition, [])
            rows = [int(record.value or b"") for record in batch.records]
            assert set(rows) <= set(given), f"{attempt}: {rows} go to partition {partition}, which was given {given}"
        if seen.client_id in self.split:
            return
        where = (seen.client_id, identity, partition)
        key = ("batch", *where, batch.base_sequence)
        if key in self._pieces:
            self._same_as_before(key, seen, octets)
            return
        self._pieces[key] = (seen.version, octets)
        if in_order:
            expected = self._next_sequence.get(where, 0)
            assert batch.base_sequence == expected, f"{where}: sequence {batch.base_sequence} instead of {expected}"
        self._next_sequence[where] = (batch.base_sequence + len(batch.records)) % SEQUENCES

    def continue_at(self, client_id: str, identity: tuple[int, int], partition: int, sequence: int) -> None:
        """The next batch shall begin with this number; those after the largest come around again."""
        where = (client_id, identity, partition)
        self._next_sequence[where] = sequence
        for key in [key for key in self._pieces if key[1:-1] == where]:
            del self._pieces[key]
