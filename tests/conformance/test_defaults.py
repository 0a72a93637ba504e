"""Defaults of options against those of the Java producer."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from kafka_eos_sink.settings.table import JAVA
from tools.configuration_reference import OTHER_DEFAULTS


def as_text(value: Any) -> str:
    if value in (None, ()):
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def test_defaults_are_javas_or_named_as_different(kafka_jars: Path) -> None:
    source = Path(__file__).with_name("Defaults.java")
    printed = subprocess.run(
        ["java", "-cp", f"{kafka_jars}/*", str(source)], capture_output=True, text=True, timeout=120, check=False
    )
    assert printed.returncode == 0, printed.stderr
    of_java = dict(line.split("\t") for line in printed.stdout.splitlines())
    ours = {
        name: as_text(row.default if row.default is not None else row.default_value)
        for name, row in JAVA.items()
        if row.group not in ("refused", "without effect") and name in of_java
    }
    assert len(ours) > 40
    different = {name: default for name, default in of_java.items() if name in ours and default != ours[name]}
    assert different == {name: default for name, (default, _) in OTHER_DEFAULTS.items()}
