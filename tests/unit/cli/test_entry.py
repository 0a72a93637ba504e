"""The installed command without its extra."""

from __future__ import annotations

import sys

import pytest

from kafka_eos_sink.cli import entry


def test_without_the_extra_the_command_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "kafka_eos_sink.cli.main", raising=False)
    monkeypatch.setitem(sys.modules, "typer", None)
    with pytest.raises(SystemExit, match=r"kafka-eos: the command needs typer; .*\[cli\]"):
        entry.main()
