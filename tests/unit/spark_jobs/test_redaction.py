"""The redaction of a Spark Connect server's requests, by the pattern of conf/spark-defaults.conf.

Python's syntax for it is Java's; `spark/test_connect.py` tries it on a server.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

DEFAULTS = Path(__file__).parents[3] / "conf" / "spark-defaults.conf"
(PATTERN,) = re.findall(r"^spark\.redaction\.string\.regex\s+(.*)$", DEFAULTS.read_text("utf-8"), re.MULTILINE)


def test_values_of_secret_options_are_redacted() -> None:
    request = 'options {\n  key: "kafka.sasl.password"\n  value: "p\\"w"\n}\noptions {\n  key: "topic"\n  value: "t"\n}'
    assert re.sub(PATTERN, "*", request) == 'options {\n  *\n}\noptions {\n  key: "topic"\n  value: "t"\n}'


def test_long_requests_take_linear_time() -> None:
    began = time.process_time()
    for text in (
        'key: "' + "secret" * 30_000 + '"',
        'key: "secret" ' * 30_000,
        'key: "' * 60_000,
        'key: "' + "secre" * 60_000,
    ):
        assert re.sub(PATTERN, "*", text) == text
    assert time.process_time() - began < 2
