from __future__ import annotations

from pathlib import Path

import pytest

from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.embedded.node import write_properties


def test_properties_are_escaped_as_java_reads_them(tmp_path: Path) -> None:
    write_properties(tmp_path / "p", {"b": "C:\\x", "a": "é\nz"})
    assert (tmp_path / "p").read_text(encoding="utf-8") == "a=é\\nz\nb=C:\\\\x\n"


@pytest.mark.parametrize(
    "arguments", [{"brokers": 2}, {"transaction_version": 3}, {"port": 0}, {"port": 65_534, "brokers": 3}]
)
def test_invalid_arguments_raise_value_error(arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(arguments))):
        EmbeddedKafka(**arguments)
