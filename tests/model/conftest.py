"""What was searched is told at the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kafka_eos_sink.commit import evidence

LINES: list[str] = []
"""One line per search, for the summary."""


@pytest.fixture(autouse=True)
def no_time_passes_in_a_wait(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Commit asks who blocks readers after a second; in the simulation that second never passes by itself."""
    monkeypatch.setattr(evidence, "BLOCKERS_AFTER_MS", 0)
    return


@pytest.fixture
def tell() -> list[str]:
    return LINES


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if LINES:
        terminalreporter.section("commit protocol: what was searched")
        for line in LINES:
            terminalreporter.write_line(line)
