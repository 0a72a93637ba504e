"""The list of open transactions from brokers of which one hangs: on sockets, because only real ones are silent."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from faults.broker_frames import SIZE, answer_frame, read_request

from kafka_eos_sink.client.admin import connected
from kafka_eos_sink.client.config import ClientConfig
from kafka_eos_sink.protocol import messages as m

Answer = Callable[[Any], Any]


@contextmanager
def listening(answers: dict[type[Any], Answer]) -> Iterator[int]:
    """A broker that answers these requests on one connection after the other, and accepts no other connection; return its port."""
    with ExitStack() as opened, socket.create_server(("127.0.0.1", 0)) as server:

        def serve(connection: socket.socket) -> None:
            stream = connection.makefile("rwb")
            while size := stream.read(SIZE.size):
                asked = read_request(size + stream.read(*SIZE.unpack(size)))
                response = answers[asked.api](asked.request)
                stream.write(answer_frame(asked.api, asked.version, asked.header.correlation_id, response))
                stream.flush()

        def accept() -> None:
            while answers:
                try:
                    connection = opened.enter_context(server.accept()[0])
                except OSError:
                    return
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("newest", [1, 2], ids=["brokers_do_not_filter", "brokers_filter"])
def test_a_hanging_broker_hides_no_transactions_of_others(newest: int) -> None:
    offered = {m.MetadataRequest: 12, m.ApiVersionsRequest: 3, m.ListTransactionsRequest: newest}
    versions = m.ApiVersionsResponse(
        error_code=0,
        api_keys=tuple(
            m.ApiVersionsResponse.ApiVersion(api_key=api.API_KEY, min_version=0, max_version=last)
            for api, last in offered.items()
        ),
        throttle_time_ms=0,
    )
    listed = m.ListTransactionsResponse.Transaction(
        transactional_id="w.0.0", producer_id=7, transaction_state="Ongoing"
    )
    response = m.ListTransactionsResponse(
        throttle_time_ms=0, error_code=0, unknown_state_filters=(), transaction_states=(listed,)
    )
    brokers: list[Any] = []
    answers: dict[type[Any], Answer] = {
        m.ApiVersionsRequest: lambda _: versions,
        m.MetadataRequest: lambda _: m.MetadataResponse(
            throttle_time_ms=0, brokers=tuple(brokers), cluster_id="c", controller_id=1, topics=()
        ),
        m.ListTransactionsRequest: lambda _: response,
    }
    with listening(answers) as port, listening({}) as silent:
        brokers += [
            m.Broker(node_id=1, host="127.0.0.1", port=port),
            m.Broker(node_id=2, host="127.0.0.1", port=silent),
        ]
        with connected(ClientConfig(bootstrap_servers=(("127.0.0.1", port),))) as admin:
            deadline = admin.client.clock() + 1_000
            assert admin.list_transactions(id_pattern=r"w\..*", deadline_ms=deadline, partial=True) == (listed,)
            assert "did not succeed before its deadline" in admin.unlisted
