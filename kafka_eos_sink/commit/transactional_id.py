"""Write ids and transactional ids.

A *write id* ``W`` identifies one logical writer. From it come all names that the transaction coordinators see:

    W.driver                  the driver, which decides
    W.<partition>.<slot>      one attempt of the task of one Spark partition

Two different writes never share a ``W``: ``/`` separates the parts of a batch write id, and ``/`` and ``%`` inside the parts are
percent-escaped. A streaming write id contains no ``/``.
"""

from __future__ import annotations

import re
import shlex
from typing import NamedTuple

from kafka_eos_sink.protocol.identity import LONGEST_STRING

DEFAULT_PREFIX = "kafka-eos"
"""The prefix of the write id without the option ``transactional.id.prefix``."""
BATCH_QUERY_ID = "batch"
"""The query id of batch writes outside a streaming query: a constant, since Spark gives them none."""
SLOTS = 8
"""Transactional ids per Spark partition. Few, because Kafka remembers an id for seven days. More than one, because attempts of one
partition can run at the same time (speculation, two attempts of a stage) and must not abort each other."""

_MAX_INT32 = 2**31 - 1
LONGEST_WRITE_ID = LONGEST_STRING - len(f".{_MAX_INT32}.{SLOTS - 1}")
"""Bytes of a write id in UTF-8, so that each transactional id that can come from it fits Kafka's strings."""
_RANDOM = re.compile(r"[^/]*/[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
# Canonical numbers only: Python's int() would also accept "01", "+1", "1_0" and digits of other scripts. An id that
# task_transactional_id does not make belongs to another program.
_PARTITION_AND_SLOT = re.compile(r"\.(0|[1-9][0-9]{0,9})\.([0-7])", re.ASCII)


class PartitionAndSlot(NamedTuple):
    """The parts of a task's transactional id after the write id."""

    partition: int
    slot: int


def escape(part: str) -> str:
    """Percent-escape only ``%`` and ``/``, so that `part` can stand between slashes."""
    return part.replace("%", "%25").replace("/", "%2F")


def streaming_write_id(prefix: str | None, query_id: str) -> str:
    """The write id of a streaming query: the prefix, else ``kafka-eos-<query id>``."""
    return escape(prefix) if prefix is not None else f"{DEFAULT_PREFIX}-{escape(query_id)}"


def batch_write_id(prefix: str | None, txn_app_id: str, topic: str | None) -> str:
    """The write id of a batch write: ``<prefix>/<txnAppId>/<topic option, trimmed>``.

    The topic is part of it, so that the same pair for two topics in one ``foreachBatch`` is two writes.
    """
    topic_option = (topic or "").strip()
    return f"{_batch_prefix(prefix)}/{escape(txn_app_id)}/{escape(topic_option)}"


def random_write_id(prefix: str | None, unique: str) -> str:
    """The write id of a batch write without ``txnAppId``; `unique` is a random UUID."""
    return f"{_batch_prefix(prefix)}/{escape(unique)}"


def is_random_write_id(write_id: str) -> bool:
    """Whether a batch write without ``txnAppId`` has the id, which no other run gets."""
    return _RANDOM.fullmatch(write_id) is not None


def application_of(write_id: str) -> str:
    """The write id without its topic: ``<prefix>/<txnAppId>``; a stream's write id."""
    return write_id.rpartition("/")[0] if write_id.count("/") == 2 else write_id


def _batch_prefix(prefix: str | None) -> str:
    return escape(prefix if prefix is not None else DEFAULT_PREFIX)


def driver_transactional_id(write_id: str) -> str:
    """The transactional id by which a driver fences older ones and writes decisions."""
    return f"{write_id}.driver"


def task_transactional_id(write_id: str, partition: int, slot: int) -> str:
    """The transactional id of a Spark partition's attempts in `slot` (0 to 7).

    Raises:
        ValueError: for numbers that no task can have.
    """
    if not 0 <= partition <= _MAX_INT32 or not 0 <= slot < SLOTS:
        raise ValueError(f"no task has partition {partition} and slot {slot}")
    return f"{write_id}.{partition}.{slot}"


def parse(transactional_id: str, write_id: str) -> PartitionAndSlot | None:
    """Parse a task's transactional id of `write_id`; None for any other id.

    The form is exactly ``W.<partition>.<slot>`` in canonical numbers. ``orders`` and ``orders.v2`` are two
    writers: ``orders.v2.0.0`` does not belong to ``orders``, nor does ``orders.driver``.
    """
    if not transactional_id.startswith(write_id):
        return None
    found = _PARTITION_AND_SLOT.fullmatch(transactional_id, len(write_id))
    if found is None or (partition := int(found[1])) > _MAX_INT32:
        return None
    return PartitionAndSlot(partition, int(found[2]))


def write_id_of(transactional_id: str) -> str | None:
    """The write id in a driver's or task's transactional id; None for another form."""
    write_id, *task = transactional_id.rsplit(".", 2)
    if len(task) == 2 and parse(transactional_id, write_id):
        return write_id
    return transactional_id[: -len(".driver")] if transactional_id.endswith(".driver") else None


def if_transactional_id(given: str) -> str:
    """Name the write id in a transactional id, for a message; empty without one."""
    write_id = write_id_of(given)
    if write_id is None:
        return ""
    return f"If it is a transactional id, leave out {given[len(write_id) :]}: its write id is {shlex.quote(write_id)}. "
