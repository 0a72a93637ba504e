"""Our error codes are those of Kafka's Java client."""

from __future__ import annotations

import subprocess
from pathlib import Path

from kafka_eos_sink.protocol.error_codes import ErrorCode


def test_error_codes_and_retriable_flags_match_the_java_client(kafka_jars: Path) -> None:
    source = Path(__file__).with_name("ErrorCodes.java")
    run = subprocess.run(
        ["java", "-cp", f"{kafka_jars}/*", str(source)], capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr
    theirs = {}
    for line in run.stdout.splitlines():
        code, name, retriable = line.split()
        theirs[int(code)] = (name, retriable == "true")
    assert len(theirs) > 120
    ours = {code: (ErrorCode.of(code).name, ErrorCode.of(code).retriable) for code in theirs}
    assert ours == theirs
