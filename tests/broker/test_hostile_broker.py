"""A broker that lies, floods, drips or answers something else: the client ends with an error, soon and without much memory."""

from __future__ import annotations

import socket
import struct
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.config import ClientConfig, parse_bootstrap_servers
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.errors import KafkaEosError
from kafka_eos_sink.protocol import messages as m
from kafka_eos_sink.protocol.messages.cluster import Broker
from tests.faults.broker_frames import SIZE, ReadRequest, answer_frame, read_request
from tests.fuzz.hostile_log import reset_peak, resident

REQUEST_TIMEOUT_MS = 1_000
DEADLINE_MS = 3_000
SLACK_S = 10.0
"""For a loaded machine; a client that waited for the peer would wait for ever."""
MOST_MEMORY = 64 << 20
TOPIC = "orders"
TOPIC_ID = uuid.UUID(int=7)
Answer = Callable[[socket.socket, ReadRequest], None]


class HostileBroker:
    """Listens on a free port; answers ApiVersions and Metadata, and does harm at one API."""

    def __init__(self, api: type, harm: Answer) -> None:
        self._api, self._harm = api, harm
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.harmed = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                peer, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        with suppress(OSError, struct.error), peer:
            while True:
                size = self._exactly(peer, SIZE.size)
                asked = read_request(size + self._exactly(peer, *SIZE.unpack(size)))
                if asked.api is self._api:
                    self.harmed.set()
                    self._harm(peer, asked)
                else:
                    peer.sendall(framed(asked, self._usual(asked)))

    @staticmethod
    def _exactly(peer: socket.socket, count: int) -> bytes:
        found = b""
        while len(found) < count:
            if not (more := peer.recv(count - len(found))):
                raise OSError("closed")
            found += more
        return found

    def _usual(self, asked: ReadRequest) -> Any:
        if asked.api is m.ApiVersionsRequest:
            kinds = m.ApiVersionsResponse.ApiVersion
            known = tuple(
                kinds(api_key=each.API_KEY, min_version=min(each.VERSIONS), max_version=max(each.VERSIONS))
                for each in m.REQUESTS
            )
            return m.ApiVersionsResponse(error_code=0, api_keys=known, throttle_time_ms=0)
        if asked.api is m.MetadataRequest:
            answer = m.MetadataResponse
            part = answer.Topic.Partition(
                error_code=0,
                partition_index=0,
                leader_id=1,
                leader_epoch=0,
                replica_nodes=(1,),
                isr_nodes=(1,),
                offline_replicas=(),
            )
            topic = answer.Topic(error_code=0, name=TOPIC, topic_id=TOPIC_ID, is_internal=False, partitions=(part,))
            broker = Broker(node_id=1, host="127.0.0.1", port=self.port, rack=None)
            return answer(throttle_time_ms=0, brokers=(broker,), cluster_id="c", controller_id=1, topics=(topic,))
        if asked.api is m.ListOffsetsRequest:
            parts = m.ListOffsetsResponse.Topic.Partition(
                partition_index=0, error_code=0, timestamp=-1, offset=9, leader_epoch=0
            )
            return m.ListOffsetsResponse(
                throttle_time_ms=0, topics=(m.ListOffsetsResponse.Topic(name=TOPIC, partitions=(parts,)),)
            )
        if asked.api is m.SaslHandshakeRequest:
            return m.SaslHandshakeResponse(error_code=0, mechanisms=("SCRAM-SHA-256",))
        raise OSError(f"no answer to {asked.api}")


def framed(asked: ReadRequest, answer: Any) -> bytes:
    return answer_frame(asked.api, asked.version, asked.header.correlation_id, answer)


# what it does


def lying_length(length: int) -> Answer:
    def harm(peer: socket.socket, asked: ReadRequest) -> None:
        peer.sendall(struct.pack(">i", length) + bytes(40))
        peer.recv(1)  # until the client has enough

    return harm


def endless_frame(peer: socket.socket, asked: ReadRequest) -> None:
    peer.sendall(struct.pack(">i", 2**31 - 1))
    while True:
        peer.sendall(bytes(1 << 16))


def endless_frames(peer: socket.socket, asked: ReadRequest) -> None:
    frame = struct.pack(">ii", 4, asked.header.correlation_id + 1)
    while True:
        peer.sendall(frame * 1_000)


def dripping(peer: socket.socket, asked: ReadRequest) -> None:
    peer.sendall(struct.pack(">i", 60_000))
    while True:
        peer.sendall(b"\0")
        time.sleep(0.05)


def silent(peer: socket.socket, asked: ReadRequest) -> None:
    peer.recv(1)


APIS = (m.ApiVersionsRequest, m.MetadataRequest, m.ListOffsetsRequest)
HARMS: dict[str, Answer] = {
    "largest length": lying_length(2**31 - 1),
    "length -1": lying_length(-1),
    "endless frame": endless_frame,
    "endless frames": endless_frames,
    "a byte now and then": dripping,
    "silence": silent,
}


@contextmanager
def hostile(api: type, harm: Answer, **more: Any) -> Iterator[Admin]:
    broker = HostileBroker(api, harm)
    servers = parse_bootstrap_servers(f"127.0.0.1:{broker.port}")
    try:
        with NetworkClient(
            ClientConfig(bootstrap_servers=servers, request_timeout_ms=REQUEST_TIMEOUT_MS, **more)
        ) as client:
            yield Admin(client)
        assert broker.harmed.is_set()
    finally:
        broker.close()


@contextmanager
def soon_and_small() -> Iterator[None]:
    reset_peak()
    before, began = resident("VmRSS"), time.monotonic()
    yield
    assert time.monotonic() - began < DEADLINE_MS / 1_000 + SLACK_S
    assert resident("VmHWM") - before < MOST_MEMORY


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.__name__)
@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
def test_hostile_response_fails_soon_and_in_little_memory(api: type, harm: Answer) -> None:
    with hostile(api, harm) as admin, soon_and_small(), pytest.raises(KafkaEosError):
        admin.list_offsets([(TOPIC, 0)], admin.client.clock() + DEADLINE_MS, isolation="read_committed")
