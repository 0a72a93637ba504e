"""Epochs that run out: a producer id has none after 32766, and gives way to another one."""

from __future__ import annotations

import socket
import struct
import threading
from collections import Counter

import pytest

from dead_writes import ROWS, die_at, tasks, varied, write_all, write_settings
from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.config import ClientConfig, parse_bootstrap_servers
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.commit.transactional_id import driver_transactional_id, task_transactional_id
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.protocol.framing import RequestHeader, request_header_version
from kafka_eos_sink.protocol.messages import InitProducerIdRequest
from kafka_eos_sink.protocol.schema import write_message
from kafka_eos_sink.protocol.wire_types import Output
from kafka_eos_sink.runtime import session
from kafka_testing import READERS, assert_nothing_open, create_topic, read_committed

LAST_EPOCH = 32_766
"""The coordinator keeps 32767 for fencing and for the marker of the last transaction."""
INIT_PRODUCER_ID_VERSION = 4
_SIZE = struct.Struct(">i")


def client_of(kafka: EmbeddedKafka) -> NetworkClient:
    return NetworkClient(ClientConfig(bootstrap_servers=parse_bootstrap_servers(kafka.bootstrap_servers)))


def deadline(client: NetworkClient) -> int:
    return client.clock() + 60_000


def use_up(kafka: EmbeddedKafka, *transactional_ids: str) -> None:
    """The next InitProducerId of these ids gets the last epoch of their producer id."""
    with client_of(kafka) as client:
        admin = Admin(client)
        for transactional_id in transactional_ids:
            _, epoch = admin.init_producer_id(transactional_id, 60_000, deadline(client))
            _ask_many_times(kafka, transactional_id, LAST_EPOCH - 1 - epoch)
        found = admin.describe_transactions(transactional_ids, deadline(client))
        assert {state and state.producer_epoch for state in found.values()} == {LAST_EPOCH - 1}


def _ask_many_times(kafka: EmbeddedKafka, transactional_id: str, times: int) -> None:
    """InitProducerId, pipelined: the broker works off the requests of one connection one after the other."""
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
    header = RequestHeader(
        request_api_key=request.API_KEY,
        request_api_version=INIT_PRODUCER_ID_VERSION,
        correlation_id=1,
        client_id="uses-up",
    )
    out = Output()
    write_message(out, header, request_header_version(InitProducerIdRequest, INIT_PRODUCER_ID_VERSION))
    write_message(out, request, INIT_PRODUCER_ID_VERSION)
    body = b"".join(out.parts())
    host, port = kafka.bootstrap_servers.split(":")
    with socket.create_connection((host, int(port))) as connection, connection.makefile("rb") as answers:
        asking = threading.Thread(target=connection.sendall, args=((_SIZE.pack(len(body)) + body) * times,))
        asking.start()
        for _ in range(times):
            answers.read(*_SIZE.unpack(answers.read(_SIZE.size)))
        asking.join()


def assert_every_row(kafka: EmbeddedKafka, topic: str, times: int) -> None:
    for reader in READERS:
        records = read_committed(kafka.bootstrap_servers, topic, reader=reader)
        assert Counter(int(record.value or b"") for record in records) == Counter(dict.fromkeys(range(2 * ROWS), times))
    assert_nothing_open(kafka.bootstrap_servers)


@pytest.mark.parametrize("point", ["commit.decided", "commit.between_ends", "commit.finished"])
def test_write_at_last_epoch_recovers_and_next_gets_new_ids(
    any_kafka: EmbeddedKafka, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = create_topic(any_kafka.bootstrap_servers, partitions=1)
    given = write_settings(any_kafka, topic)
    ids = (
        driver_transactional_id(given.write.id),
        *(task_transactional_id(given.write.id, task, task) for task in range(2)),
    )
    # The first plan of a write id appends a barrier, without which the used ids would reveal a lost commit log.
    session.plan(given)
    use_up(any_kafka, *ids)
    plan = session.plan(given)
    messages = tasks(given, plan)
    last = [plan.driver, *(message.prepared.identity for message in messages if message.prepared is not None)]
    assert [identity.transactional_id for identity in last] == list(ids)
    assert {identity.producer_epoch for identity in last} == {LAST_EPOCH}
    die_at(point, given, plan, messages, monkeypatch)

    write_all(given)
    assert_every_row(any_kafka, topic, 1)
    following = varied(given, version=given.batch.version + 1)
    plan = session.plan(following)
    messages = tasks(following, plan)
    new = [plan.driver, *(message.prepared.identity for message in messages if message.prepared is not None)]
    assert not {identity.producer_id for identity in new} & {identity.producer_id for identity in last}
    assert max(identity.producer_epoch for identity in new) < 10
    session.commit(following, plan, messages)
    assert_every_row(any_kafka, topic, 2)
