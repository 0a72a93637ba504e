"""Our error codes are those of Kafka's Java client."""

from __future__ import annotations

import subprocess
from pathlib import Path

from kafka_eos_sink.protocol.error_codes import ErrorCode

OF_OTHER_REQUESTS = {
    "ELECTION_NOT_NEEDED",
    "ELIGIBLE_LEADERS_NOT_AVAILABLE",
    "FETCH_SESSION_ID_NOT_FOUND",
    "FETCH_SESSION_TOPIC_ID_ERROR",
    "INVALID_FETCH_SESSION_EPOCH",
    "INVALID_SHARE_SESSION_EPOCH",
    "PREFERRED_LEADER_NOT_AVAILABLE",
    "SHARE_SESSION_LIMIT_REACHED",
    "SHARE_SESSION_NOT_FOUND",
}
"""Retriable codes of fetch sessions, elections and share groups, none of which this client requests."""


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
    ours = {code.value: (code.name, code.retriable) for code in ErrorCode}
    assert ours == {code: theirs[code] for code in ours}, "correct kafka_eos_sink/protocol/error_codes.py"
    # A code without a row in the table is resent only if it is retriable, so no other code of the requests that we send may be.
    unknown = {name for code, (name, retriable) in theirs.items() if retriable and code not in ours}
    new = sorted(unknown - OF_OTHER_REQUESTS)
    assert not new, f"add {new} to protocol/error_codes.py if our requests can get them, else to OF_OTHER_REQUESTS"
    assert unknown == OF_OTHER_REQUESTS, (
        "remove from OF_OTHER_REQUESTS what is no retriable code without a member any more"
    )
