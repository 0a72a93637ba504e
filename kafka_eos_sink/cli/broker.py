"""``kafka-eos broker``: an embedded Kafka in the foreground, until Ctrl-C."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from kafka_eos_sink.cli import console
from kafka_eos_sink.client.admin import connected
from kafka_eos_sink.embedded.broker_security import BrokerSecurity
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.embedded.distribution import DEFAULT_KAFKA_VERSION
from kafka_eos_sink.embedded.download_progress import shown_progress
from kafka_eos_sink.protocol.identity import is_topic_name

_POLL_INTERVAL_S = 0.5
_PARTITIONS = re.compile(r"[1-9][0-9]{0,4}", re.ASCII)


def _name_and_partitions(text: str) -> tuple[str, int]:
    name, _, partitions = text.partition(":")
    if not is_topic_name(name) or _PARTITIONS.fullmatch(partitions) is None:
        raise typer.BadParameter(f"{text!r} is not NAME:PARTITIONS, as in orders:3", param_hint="--topic")
    return name, int(partitions)


_Directory = Annotated[
    Path | None,
    typer.Option("--dir", help="Keep the data in this folder for the next start. Default: a temporary folder."),
]
_Port = Annotated[
    int | None,
    typer.Option(min=1, max=65_533, help="Port of the first node; the others use the next ports. Default: free ports."),
]
_TransactionVersion = Annotated[
    int | None,
    typer.Option(min=0, max=2, help="The cluster's transaction.version. Default: as the Kafka version has it."),
]
_Security = Annotated[
    Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"],
    typer.Option(
        help="Security protocol for clients: TLS with a self-signed certificate, SASL with one user of a random password, or "
        "OAUTHBEARER with unsigned tokens.",
    ),
]
_Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic", metavar="NAME:PARTITIONS", help="Create this topic if it is missing. Can be given several times."
    ),
]


def broker(
    brokers: Annotated[Literal["1", "3"], typer.Option(help="Number of nodes: 1 or 3.", metavar="1|3")] = "1",
    directory: _Directory = None,
    port: _Port = None,
    transaction_version: _TransactionVersion = None,
    security: _Security = "plaintext",
    topics: _Topics = None,
    kafka_version: Annotated[str, typer.Option(help="The Apache Kafka version to run.")] = DEFAULT_KAFKA_VERSION,
    heap: Annotated[str, typer.Option(help="Java heap of each node.")] = "1g",
) -> None:
    """Run an embedded Kafka of 1 or 3 nodes in the foreground.

    Prints the bootstrap servers on standard output when all nodes are ready. Ctrl-C stops it and deletes its data, unless --dir
    keeps them. The first start also downloads Kafka (44 MB). With --security, the command writes a file of client properties,
    for --properties of the other commands and for Java clients.

    Example: kafka-eos broker --port 9092 --topic orders:3

    To see writes survive failures in one command: kafka-eos demo
    """
    given = [*map(_name_and_partitions, topics or [])]
    if len(wanted := dict(given)) < len(given):
        raise typer.BadParameter("a topic is named twice", param_hint="--topic")
    protocol: Any = security.upper()
    kafka = EmbeddedKafka(
        brokers=int(brokers),
        version=kafka_version,
        transaction_version=transaction_version,
        directory=directory,
        port=port,
        heap=heap,
        security=None if security == "plaintext" else BrokerSecurity(protocol=protocol),
        tuned_for="throughput",
    )
    _run_in_foreground(kafka, wanted)


def _run_in_foreground(kafka: EmbeddedKafka, topics: Mapping[str, int]) -> None:
    """Start the cluster, create topics, wait for a signal or failure, and stop it."""
    name = f"Apache Kafka {kafka.version}"
    # KeyboardInterrupt also interrupts a start: no code that handles failures catches it.
    with console.signals_interrupt():
        try:
            with shown_progress() as kafka.progress:
                typer.echo(f"Starting {name} ...", err=True)
                kafka.start()
            _create(kafka, topics)
            # Alone on standard output and only when nodes and topics are ready: scripts read this line to know both.
            typer.echo(kafka.bootstrap_servers)
            typer.echo(
                f"{name} is ready at {kafka.bootstrap_servers}; data in {kafka.folder}. Ctrl-C stops it.", err=True
            )
            if kafka.security is not None:
                typer.echo(f"Clients connect with the properties in {kafka.client_properties_file}", err=True)
            while (failure := kafka.failure()) is None:
                time.sleep(_POLL_INTERVAL_S)
            raise failure
        except KeyboardInterrupt:
            typer.echo("Stopping ...", err=True)
        finally:
            # A second Ctrl-C must not interrupt the stop and leave nodes running. After SIGKILL the process guard stops them.
            for number in console.STOP_SIGNALS:
                signal.signal(number, signal.SIG_IGN)
            kafka.stop()


def _create(kafka: EmbeddedKafka, topics: Mapping[str, int]) -> None:
    """Create the topics that are missing."""
    with connected(kafka.plaintext_servers) as admin:
        deadline = admin.client.clock() + console.TIMEOUT_MS
        for name, partitions in topics.items():
            # The cluster's default replication factor is its number of nodes.
            made = admin.create_topic(name, partitions, -1, {}, deadline)
            found = admin.topic(name, deadline) if made is None else None
            what, count = ("created", partitions) if found is None else ("kept", len(found.partitions))
            typer.echo(f"Topic {name} was {what}, with {console.counted(count, 'partition')}.", err=True)
