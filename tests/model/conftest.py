"""What was searched is told at the end."""

from __future__ import annotations

import pytest

LINES: list[str] = []
"""One line per search, for the summary."""


@pytest.fixture
def tell() -> list[str]:
    return LINES


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if LINES:
        terminalreporter.section("commit protocol: what was searched")
        for line in LINES:
            terminalreporter.write_line(line)
