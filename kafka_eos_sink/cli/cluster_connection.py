"""How a command reaches its cluster: ``--bootstrap-servers``, ``--properties``, and the client that they come to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kafka_eos_sink.client.config import ClientConfig, parse_bootstrap_servers

__all__ = ["BootstrapServers", "PropertiesFile", "client_config"]

BootstrapServers = Annotated[
    str | None, typer.Option("--bootstrap-servers", metavar="S", help="Brokers as host:port, comma-separated.")
]
PropertiesFile = Annotated[
    Path | None,
    typer.Option("--properties", metavar="FILE", help="A Java-style client properties file.", show_default=False),
]


def client_config(bootstrap_servers: str | None, properties: Path | None) -> ClientConfig:
    """The client's settings: the file's, with ``--bootstrap-servers`` before the file's own.

    Raises ConfigurationError for what is wrong in either; typer.BadParameter (wrong usage) where none names a broker.
    """
    if properties is not None:
        from kafka_eos_sink.settings.kafka_properties import kafka_properties_from_file

        overrides = {} if bootstrap_servers is None else {"bootstrap.servers": bootstrap_servers}
        found = kafka_properties_from_file(properties, overrides)
        for warning in found.warnings:
            typer.echo(f"kafka-eos: {warning}", err=True)
        return found.client
    if bootstrap_servers is None:
        raise typer.BadParameter("name the brokers with --bootstrap-servers, or in a file with --properties")
    return ClientConfig(bootstrap_servers=parse_bootstrap_servers(bootstrap_servers), client_id="kafka-eos-cli")
