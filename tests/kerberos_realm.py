"""A Kerberos realm for tests: Apache Kerby's KDC, its principals with their keytabs, and a krb5.conf.

Tests of Kerberos are skipped where `gssapi` is not installed (`make kerberos` installs it) or where no KDC can run.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Timer

import pytest

from certificates import Authority
from kafka_eos_sink.client import kerberos
from kafka_eos_sink.client.security import Secret
from kafka_eos_sink.embedded import distribution
from kafka_eos_sink.embedded.broker_security import BrokerSecurity
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.embedded.java import find_java
from kafka_eos_sink.embedded.ports import choose_free_ports
from kafka_eos_sink.errors import KafkaEosError
from kafka_testing import PATIENCE_S
from tests.downloads import pinned_jars

PROGRAM = Path(__file__).parent / "broker" / "Kdc.java"
MODULE = "com.sun.security.auth.module.Krb5LoginModule required"
SESSION_MS = 3_000
PASSWORD = "correct-horse"
KERBY = "2.1.1"
JARS = {
    "kerb-admin": "6c7c322729f8a05ef96d2510166501922cab93325c2e1ac23926c08c70b82c5a",
    "kerb-client": "933a1c1c2d816e066170744fc506a9f1829263b16188d9dbc900a9e07b4e4fbe",
    "kerb-common": "28a3c75be913dd8bd9101aa7f89563f2ae2de0bcc1dfecd4921de166a15adae9",
    "kerb-core": "694d1ed7259ccc8cf0a39283c7188ca32bf85fd4852cdba689dc431bdeaaeddc",
    "kerb-crypto": "3c1b59edf993fe4deef105727c17dd2870af03f36b988457defa57dabd301d86",
    "kerb-identity": "a6c2f36e3e652e607f4617c4902acfe22dfd65e7a5ec818bfcbf4a03d563460d",
    "kerb-server": "ce98ebd7650a4b7aba32f41381aad8166ba747c5bc31c02ee40da775fd666598",
    "kerb-simplekdc": "40cd479cc8f9dd230e0a75c01abfa1d18daadc4d6c0abd8d76962eea560fe27b",
    "kerb-util": "8afd67fcedc4021e0052f88b9127e2b43c710e6dc96b21744a4acd3d6724c50b",
    "kerby-asn1": "34ad418612f2c313cf31ed00c83c4c405f30cb45693126c6d2c07b549be1a31c",
    "kerby-config": "0572bc9edc0ddeaff34ff9c4e251ae3eeacfdb7b537c3cf228315ec3e9fb5d1b",
    "kerby-util": "4ebc18552558c437ea4fbeda8a7cdbc056ed643d25d68ff1dc4f2527e1f75092",
}
"""The jars that a KDC needs, with their SHA-256 as on Maven Central. slf4j is among Kafka's jars."""


class Realm:
    """A running KDC of one realm on the loopback interface."""

    def __init__(self, process: subprocess.Popen[str], folder: Path, name: str, port: int) -> None:
        self.name = name
        self._process, self._folder, self._port = process, folder, port

    def keytab(self, principal: str) -> Path:
        """Create a principal of this realm, such as ``alice`` or ``kafka/127.0.0.1``, and return its keytab."""
        path = self._folder / f"{principal.replace('/', '-')}.keytab"
        if path.exists():
            return path
        assert self._process.stdin is not None
        print(f"{principal}@{self.name} {path}", file=self._process.stdin, flush=True)
        _await_line(self._process, "created")
        return path

    def config(self, **libdefaults: str) -> Path:
        """Return a krb5.conf of the realm. The host of a broker stays as clients write it."""
        lines = {
            "default_realm": self.name,
            "udp_preference_limit": "1",
            "dns_lookup_kdc": "false",
            "dns_canonicalize_hostname": "false",
            **libdefaults,
        }
        text = "\n".join(f"{name} = {value}" for name, value in lines.items())
        path = self._folder / f"krb5-{'-'.join(libdefaults.values())}.conf"
        path.write_text(f"[libdefaults]\n{text}\n[realms]\n{self.name} = {{\nkdc = 127.0.0.1:{self._port}\n}}\n")
        return path


def _await_line(process: subprocess.Popen[str], expected: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == expected:
            return
    raise AssertionError(f"the KDC has ended without {expected!r}")


def _class_path() -> str:
    paths = pinned_jars({f"org.apache.kerby:{name}:{KERBY}": expected for name, expected in JARS.items()})
    return ":".join(map(str, (*paths, distribution.resolve() / "*")))


@contextmanager
def started_realm(folder: Path, name: str = "EXAMPLE.COM", **settings: int) -> Iterator[Realm]:
    """Run a KDC, with ``KdcConfigKey``s of Kerby as settings. Skips the test where Kerberos is not possible."""
    if reason := kerberos.missing_library():
        pytest.skip(f"Kerberos needs gssapi ({reason}); run make kerberos")
    try:
        class_path = _class_path()
    except KafkaEosError as error:
        pytest.skip(f"Kerberos needs a KDC: {error}")
    (port,) = choose_free_ports("127.0.0.1", 1)
    options = [word for key, value in settings.items() for word in (key, str(value))]
    program = [str(PROGRAM), str(folder), name, str(port), *options]
    command = [str(find_java().executable), "-XX:TieredStopAtLevel=1", "-cp", class_path, *program]
    with (folder / "kdc.log").open("w") as log:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
    stuck = Timer(PATIENCE_S, process.kill)
    stuck.start()
    try:
        _await_line(process, "ready")
        stuck.cancel()
        yield Realm(process, folder, name, port)
    finally:
        stuck.cancel()
        process.kill()
        process.communicate()


@dataclass(frozen=True)
class Kerberized:
    """A broker that takes tickets for kafka/127.0.0.1, and SCRAM; what its clients must trust."""

    kafka: EmbeddedKafka
    trusted: Mapping[str, str]

    @property
    def scram(self) -> dict[str, str]:
        """Client properties without the user."""
        return {"bootstrap.servers": self.kafka.bootstrap_servers, **self.trusted, "sasl.mechanism": "SCRAM-SHA-512"}

    def properties(self, module: str, **others: str) -> dict[str, str]:
        """Client properties without ``sasl.mechanism``, whose default is GSSAPI as in Java."""
        return {
            "bootstrap.servers": self.kafka.bootstrap_servers,
            **self.trusted,
            "sasl.kerberos.service.name": "kafka",
            "sasl.jaas.config": f"{MODULE} {module};",
            **others,
        }


def with_keytab(keytab: Path | str, principal: str = "alice@EXAMPLE.COM") -> str:
    """The options of Java's login module."""
    return f'useKeyTab=true storeKey=true keyTab="{keytab}" principal="{principal}"'


@contextmanager
def started_broker(realm: Realm, authority: Authority | None = None) -> Iterator[Kerberized]:
    """Run a broker with short sessions of GSSAPI; with an authority, its clients use TLS."""
    module = with_keytab(realm.keytab("kafka/127.0.0.1"), f"kafka/127.0.0.1@{realm.name}")
    listener = {
        "sasl.enabled.mechanisms": "GSSAPI,SCRAM-SHA-512",
        "sasl.kerberos.service.name": "kafka",
        "gssapi.sasl.jaas.config": f"{MODULE} {module} isInitiator=false;",
        "gssapi.connections.max.reauth.ms": str(SESSION_MS),
    }
    properties = {f"listener.name.client.{name}": value for name, value in listener.items()}
    properties["delegation.token.secret.key"] = PASSWORD
    trusted = {"security.protocol": "SASL_PLAINTEXT" if authority is None else "SASL_SSL"}
    if authority is not None:
        trusted["ssl.ca.location"] = str(authority.file)
    security = BrokerSecurity(
        protocol="SASL_PLAINTEXT" if authority is None else "SASL_SSL",
        certificate=None if authority is None else authority.issue("127.0.0.1").file,
        users=(("alice", Secret(PASSWORD)),),
        mechanisms=("SCRAM-SHA-512",),
    )
    with pytest.MonkeyPatch.context() as patch:
        # Java reads no KRB5_CONFIG.
        patch.setenv("JDK_JAVA_OPTIONS", f"-Djava.security.krb5.conf={realm.config()}")
        kafka = EmbeddedKafka(security=security, properties=properties, transaction_version=2)
        kafka.start()
    try:
        yield Kerberized(kafka, trusted)
    finally:
        kafka.stop()
