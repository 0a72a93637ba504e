"""Where the conformance tests find Kafka itself."""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

KAFKA_VERSIONS = ("4.2.2", "4.4.0")
"""The release that the embedded Kafka runs, and the newest one."""


@pytest.fixture(scope="session", params=KAFKA_VERSIONS)
def kafka_jars(request: pytest.FixtureRequest) -> Path:
    """The folder with the jars of a Kafka distribution: KAFKA_EOS_JARS, or those of each release."""
    if folder := os.environ.get("KAFKA_EOS_JARS"):
        return Path(folder)
    from kafka_eos_sink.embedded.distribution import resolve

    return Path(resolve(request.param))


@pytest.fixture(scope="session")
def kafka_clients_jar(kafka_jars: Path) -> Path:
    """The jar of Kafka's Java client."""
    (jar,) = kafka_jars.glob("kafka-clients-*.jar")
    return jar


@pytest.fixture(scope="session")
def message_definition(kafka_clients_jar: Path) -> Callable[[str], dict[str, Any]]:
    """Kafka's own definition of a message, by its name."""

    def read(name: str) -> dict[str, Any]:
        with zipfile.ZipFile(kafka_clients_jar) as jar:
            text = jar.read(f"common/message/{name}.json").decode()
        definition: dict[str, Any] = json.loads(re.sub(r"(?m)^\s*//.*$", "", text))
        return definition

    return read
