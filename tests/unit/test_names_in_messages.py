"""Names and pages in messages: a user can type the name, and has the page."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from documents import ROOT
from kafka_eos_sink.client.config import ClientConfig, with_prefix
from kafka_eos_sink.errors import ConfigurationError
from kafka_eos_sink.settings.kafka_properties import read_kafka_properties
from kafka_eos_sink.settings.options import read_options
from kafka_eos_sink.settings.table import JAVA

PACKAGE = ROOT / "kafka_eos_sink"
NAMES = re.compile(
    rf"(?<![\w.-])(?:{'|'.join(re.escape(each) for each in sorted(JAVA, key=len, reverse=True) if '.' in each)})(?![\w-]|\.\w)"
)
WITHOUT_PREFIX = {
    "client/node.py": "behind the prefix of its configuration",
    "client/tls.py": "a Node adds the prefix",
    "client/kerberos.py": "a Node adds the prefix",
    "client/sasl.py": "a Node adds the prefix",
    "client/security.py": "a program that builds its own SecurityConfig: options and files are checked before",
    "client/pump.py": "client.id is the name of Kafka's quota",
    "client/transactions_admin.py": "a field of the request InitProducerId",
    "protocol/framing.py": "a Node adds the prefix",
    "producer/config.py": "a program that builds its own ProducerConfig: options and files are checked before",
    "settings/table.py": "rows of the table; the reader adds the prefix",
    "settings/kafka_properties.py": "behind the prefix of the reader",
    "settings/sasl_properties.py": "the reader adds the prefix",
    "settings/security_properties.py": "the reader adds the prefix",
    "jobs/spark_kafka_source.py": "names of Java's client in the option's place",
    "jobs/submit_job.py": "a name in the file of --properties",
}
"""Files of the package whose texts have names of Java without ``kafka.``, and why."""


def texts(path: Path) -> Iterator[str]:
    """The texts of a module that are no docstrings and no single words."""
    tree = ast.parse(path.read_text("utf-8"))
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
        if is_text and " " in node.value.strip():
            yield node.value


def test_messages_have_the_names_of_options_that_a_user_types() -> None:
    found = {
        path.relative_to(PACKAGE).as_posix(): bare
        for path in sorted(PACKAGE.rglob("*.py"))
        if (bare := [match[0] for text in texts(path) for match in NAMES.finditer(text)])
    }
    assert {name: bare for name, bare in found.items() if name not in WITHOUT_PREFIX} == {}
    assert WITHOUT_PREFIX.keys() <= found.keys(), "a row that nothing needs any more"


def test_messages_name_no_page_that_a_wheel_lacks() -> None:
    """The wheel has docs/errors.md, which `kafka-eos explain` prints."""
    named = {
        (path.relative_to(PACKAGE).as_posix(), page)
        for path in PACKAGE.rglob("*.py")
        for text in texts(path)
        for page in re.findall(r"[\w/]+\.md\b", text)
    }
    assert {each for each in named if each[1] != "docs/errors.md"} == set()


@pytest.mark.parametrize("prefix", ["", "kafka."])
def test_names_of_a_connection_are_those_of_its_options_or_file(prefix: str) -> None:
    text = "check security.protocol, sasl.mechanism and ssl.truststore.* (or ssl.ca.location). com.ssl.x"
    assert with_prefix(prefix, text) == (
        f"check {prefix}security.protocol, {prefix}sasl.mechanism and {prefix}ssl.truststore.* (or {prefix}ssl.ca.location). com.ssl.x"
    )
    assert with_prefix(prefix, with_prefix(prefix, text)) == with_prefix(prefix, text)


def test_client_of_a_job_has_the_names_of_options() -> None:
    options = read_options({"kafka.bootstrap.servers": "a:1", "topic": "t"})
    assert options.client.prefix == "kafka."
    read = read_kafka_properties({"bootstrap.servers": "a:1"}, [])
    assert read is not None
    assert read.client.prefix == ClientConfig(bootstrap_servers=(("a", 1),)).prefix == ""


def test_two_problems_are_numbered() -> None:
    with pytest.raises(ConfigurationError) as raised:
        read_options({"kafka.bootstrap.servers": "a:1", "topic": "t", "kafka.acks": "1", "kafka.linger.ms": "x"})
    assert raised.value.message.startswith("1. kafka.acks=1 contradicts exactly-once: ")
    assert "; 2. kafka.linger.ms must be an integer" in raised.value.message
    with pytest.raises(ConfigurationError) as raised:
        read_options({"kafka.bootstrap.servers": "a:1", "topic": "t", "kafka.acks": "1"})
    assert raised.value.message.startswith("kafka.acks=1 contradicts exactly-once: ")
