"""Commands in messages run on the write and the commit log that they are about; and how often a warning comes."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from kafka_eos_sink.client.config import ClientConfig
from kafka_eos_sink.client.security import SecurityConfig
from kafka_eos_sink.commit.refusals import resolve_command
from kafka_eos_sink.commit.values import (
    Write,
)

AT = "--bootstrap-servers b1:9092"
LEDGER = Write("w", "ledger", AT)


TLS = SecurityConfig(protocol="SSL")


@pytest.mark.parametrize(
    ("config", "options"),
    [
        (ClientConfig(bootstrap_servers=(("b1", 9092), ("::1", 9093))), "--bootstrap-servers b1:9092,[::1]:9093"),
        (
            ClientConfig(bootstrap_servers=(("b1", 9092),), properties_file="/etc/my kafka.properties"),
            f"{AT} --properties '/etc/my kafka.properties'",
        ),
        (ClientConfig(bootstrap_servers=(("b1", 9092),), security=TLS), f"{AT} --properties FILE"),
        (
            ClientConfig(bootstrap_servers=(("b1", 9092),), security=TLS, properties_file="f"),
            f"{AT} --properties f",
        ),
    ],
    ids=["plaintext", "file", "credentials in options", "credentials in file"],
)
def test_a_command_reaches_the_cluster_of_its_client(config: ClientConfig, options: str) -> None:
    assert config.command_options == options


def test_a_shell_reads_the_ids_of_a_command_as_they_are() -> None:
    write_id, query_id = "nightly 'orders' $(id)/t;o", 'a "b" \\c'
    words = shlex.split(resolve_command(replace(LEDGER, id=write_id), query_id, 3, "committed"))
    assert words[words.index("--write-id") + 1] == write_id
    assert words[words.index("--query-id") + 1] == query_id
    assert words[-1] == query_id
