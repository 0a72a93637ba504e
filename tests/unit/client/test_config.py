"""Bootstrap servers are read as the Java client reads them."""

from __future__ import annotations

import pytest

from kafka_eos_sink.client.config import parse_bootstrap_servers
from kafka_eos_sink.errors import ConfigurationError
from kafka_eos_sink.settings.options import read_options


@pytest.mark.parametrize(
    ("text", "servers"),
    [
        ("localhost:9092", (("localhost", 9092),)),
        (" a:1 , b.example.com:65535,", (("a", 1), ("b.example.com", 65535))),
        ("PLAINTEXT://a-b_c:9092", (("a-b_c", 9092),)),
        ("[::1]:9092,[fe80::1%eth0]:9093", (("::1", 9092), ("fe80::1%eth0", 9093))),
    ],
)
def test_a_list_of_servers_is_read(text: str, servers: tuple[tuple[str, int], ...]) -> None:
    assert parse_bootstrap_servers(text) == servers


@pytest.mark.parametrize(
    "text", ["", " , ", "localhost", "localhost:", ":9092", "a:0", "a:65536", "a:9092;b:9092", "a b:1"]
)
def test_invalid_server_is_rejected_by_name(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"kafka\.bootstrap\.servers") as refused:
        parse_bootstrap_servers(text)
    assert refused.value.code == "BOOTSTRAP_SERVERS"


@pytest.mark.parametrize("text", ["::1:9092", "a:1,2001:db8::1:9092", "fe80::1%eth0:9092", "::1", "[::1]", "[::1:9092"])
def test_ipv6_address_without_brackets_gets_a_hint(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"with IPv6 addresses in brackets, such as \[::1\]:9092"):
        parse_bootstrap_servers(text)
    with pytest.raises(ConfigurationError, match=r"must be .*, with IPv6 addresses in brackets, such as \[::1\]:9092"):
        read_options({"kafka.bootstrap.servers": text})
