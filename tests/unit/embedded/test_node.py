from __future__ import annotations

from pathlib import Path

import pytest

from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.embedded.node import NodeAddress, server_properties, write_properties

NODES = tuple(
    NodeAddress(node_id=each, port=9_000 + each, broker_port=9_000 + each, controller_port=9_100 + each)
    for each in (1, 2, 3)
)


def test_replication_follows_the_number_of_nodes() -> None:
    single = server_properties(NODES[0], NODES[:1], Path("/d"), {})
    three = server_properties(NODES[1], NODES, Path("/d"), {})
    for name in ("transaction.state.log", "offsets.topic"):
        assert (single[f"{name}.replication.factor"], three[f"{name}.replication.factor"]) == ("1", "3")
    assert (single["transaction.state.log.min.isr"], three["transaction.state.log.min.isr"]) == ("1", "2")
    assert three["node.id"] == "2"
    assert three["controller.quorum.voters"] == "1@127.0.0.1:9101,2@127.0.0.1:9102,3@127.0.0.1:9103"
    assert three["listeners"] == "BROKER://127.0.0.1:9002,CONTROLLER://127.0.0.1:9102"


def test_secured_clients_have_a_listener_of_their_own() -> None:
    address = NodeAddress(node_id=1, port=9_001, controller_port=9_101, broker_port=9_201)
    properties = server_properties(address, [address], Path("/d"), {}, "SASL_SSL")
    assert address.server == "127.0.0.1:9001"
    assert address.has_client_listener
    assert sorted(address.ports) == [9_001, 9_101, 9_201]
    assert properties["inter.broker.listener.name"] == "BROKER"
    assert properties["advertised.listeners"] == "BROKER://127.0.0.1:9201,CLIENT://127.0.0.1:9001"
    assert properties["listener.security.protocol.map"] == "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT,CLIENT:SASL_SSL"


def test_properties_are_escaped_as_java_reads_them(tmp_path: Path) -> None:
    write_properties(tmp_path / "p", {"b": "C:\\x", "a": "é\nz"})
    assert (tmp_path / "p").read_text(encoding="utf-8") == "a=é\\nz\nb=C:\\\\x\n"


@pytest.mark.parametrize(
    "arguments", [{"brokers": 2}, {"transaction_version": 3}, {"port": 0}, {"port": 65_534, "brokers": 3}]
)
def test_invalid_arguments_raise_value_error(arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(arguments))):
        EmbeddedKafka(**arguments)
