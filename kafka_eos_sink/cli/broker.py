"""``kafka-eos broker``: an embedded Kafka in the foreground, until Ctrl-C."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from threading import Event
from types import FrameType
from typing import Annotated, Any, Literal

import typer

from kafka_eos_sink.client.security import Secret
from kafka_eos_sink.embedded.broker_security import BrokerSecurity
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.embedded.distribution import DEFAULT_KAFKA_VERSION
from kafka_eos_sink.embedded.download_progress import shown_progress
from kafka_eos_sink.settings.java_properties import read_properties

__all__ = ["register"]

_LOOK_INTERVAL_S = 0.5


class _AskedToStop(BaseException):
    """Raised by the signal handler where the program happens to be, so that a start can be interrupted too."""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("broker", short_help="Run an embedded Kafka of 1 or 3 nodes.")(broker)


def _one_or_three(brokers: int) -> int:
    if brokers not in (1, 3):
        raise typer.BadParameter("an embedded Kafka has 1 or 3 nodes")
    return brokers


def broker(
    brokers: Annotated[int, typer.Option(help="Number of nodes: 1 or 3.", callback=_one_or_three, metavar="1|3")] = 1,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="Keep the data here and go on with it next time. Without it: a temporary folder."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65_533, help="Port of the first node; the others follow. Without it: free ports."),
    ] = None,
    transaction_version: Annotated[
        int | None,
        typer.Option(min=0, max=2, help="The cluster's transaction.version. Without it: that of the Kafka version."),
    ] = None,
    security: Annotated[
        Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"],
        typer.Option(
            help="Security protocol for clients. SASL takes PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, and OAUTHBEARER with "
            "tokens that nobody has signed.",
        ),
    ] = "plaintext",
    certificate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="PEM file with the broker's private key (PKCS#8) and certificate chain. Without it: a self-signed one "
            "for localhost.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    client_authorities: Annotated[
        Path | None,
        typer.Option(
            "--client-ca",
            metavar="FILE",
            help="PEM file: clients must show a certificate signed by one of these.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    users: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Users as name=password, one a line. Without it: one with a random password.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    kafka_version: Annotated[str, typer.Option(help="The Apache Kafka to run.")] = DEFAULT_KAFKA_VERSION,
    heap: Annotated[str, typer.Option(help="Heap of each node.")] = "1g",
) -> None:
    """Run an embedded Kafka of 1 or 3 nodes in the foreground; Ctrl-C stops it.

    Prints the bootstrap servers on standard output when all nodes are ready. The first start downloads Kafka (44 MB).
    With --security it writes a file of client properties, for --properties of the other commands and for Java clients.
    """
    listener = _listener(security, certificate, client_authorities, users)
    handlers = {number: signal.signal(number, _ask_to_stop) for number in (signal.SIGINT, signal.SIGTERM)}
    kafka: EmbeddedKafka | None = None
    try:
        with shown_progress() as progress:
            kafka = EmbeddedKafka(
                brokers=brokers,
                version=kafka_version,
                transaction_version=transaction_version,
                directory=directory,
                port=port,
                heap=heap,
                security=listener,
                tuned_for="throughput",
                progress=progress,
            )
            _say(f"Starting Apache Kafka {kafka_version} ...")
            kafka.start()
        print(kafka.bootstrap_servers, flush=True)
        _say(
            f"Apache Kafka {kafka_version} is ready at {kafka.bootstrap_servers}; "
            f"data in {kafka.folder}. Ctrl-C stops it."
        )
        if listener is not None:
            _say(f"Clients get in with the properties in {kafka.client_properties_file}")
        _run_until_it_ends(kafka)
    except _AskedToStop:
        _say("Stopping ...")
    finally:
        # A second Ctrl-C must not leave half-stopped nodes; SIGKILL does not either, by the process guard.
        for number in handlers:
            signal.signal(number, signal.SIG_IGN)
        if kafka is not None:
            kafka.stop()
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _listener(
    protocol: str, certificate: Path | None, client_authorities: Path | None, users: Path | None
) -> BrokerSecurity | None:
    if protocol == "plaintext":
        if certificate or client_authorities or users:
            raise typer.BadParameter("--certificate, --client-ca and --users need --security")
        return None
    known: Any = protocol.upper()
    try:
        named = {} if users is None else read_properties(users)
        return BrokerSecurity(
            protocol=known,
            certificate=certificate,
            client_authorities=client_authorities,
            users=tuple((name, Secret(password)) for name, password in named.items()),
        )
    except (ValueError, OSError) as error:
        raise typer.BadParameter(str(error)) from None


def _run_until_it_ends(kafka: EmbeddedKafka) -> None:
    never = Event()
    while not never.wait(_LOOK_INTERVAL_S):
        failure = kafka.failure()
        if failure is not None:
            raise failure


def _ask_to_stop(_number: int, _frame: FrameType | None) -> None:
    raise _AskedToStop


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
