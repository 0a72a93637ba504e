from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from kafka_eos_sink.errors import ConfigurationError
from kafka_eos_sink.producer.interceptors import Interceptors
from kafka_eos_sink.producer.rows import Rows
from kafka_eos_sink.protocol.record_columns import HEADERS_TYPE, RecordColumns


@pytest.fixture
def chain(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Interceptors]:
    module = types.ModuleType("user_interceptors")
    monkeypatch.setitem(sys.modules, "user_interceptors", module)

    def make(*classes: type[Any], options: dict[str, str] | None = None) -> Interceptors:
        for number, cls in enumerate(classes):
            setattr(module, f"C{number}", cls)
        return Interceptors([f"user_interceptors:C{n}" for n in range(len(classes))], options or {})

    return make


def rows() -> Rows:
    return Rows(
        topic="t",
        partition=pa.array([None, 1], pa.int32()),
        columns=RecordColumns(
            value=pa.array([b"a", None], pa.binary()),
            key=pa.array([b"k", None], pa.binary()),
            headers=pa.array([[{"key": "h", "value": b"1"}], []], HEADERS_TYPE),
            timestamp=pa.array([1, None], pa.int64()),
        ),
    )


class Upper:
    seen: dict[str, str]

    def configure(self, options: dict[str, str]) -> None:
        Upper.seen = options

    def on_send(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        values = pa.array([v and v.upper() for v in batch.column("value").to_pylist()], pa.binary())
        return batch.set_column(batch.schema.get_field_index("value"), "value", values)


class Raises:
    def on_send(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        raise RuntimeError("mine")

    def on_acknowledgement(self, *arguments: Any) -> None:
        raise RuntimeError("mine")

    def close(self) -> None:
        raise RuntimeError("mine")


class Drops:
    def on_send(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.slice(1)


class Keeps:
    told: tuple[Any, ...] = ()

    def on_acknowledgement(self, *arguments: Any) -> None:
        Keeps.told = arguments


def test_rows_go_through_arrow_and_back(chain: Any) -> None:
    changed = chain(Upper, options={"a": "b"}).on_send(rows())
    assert changed.columns.value.to_pylist() == [b"A", None]
    assert changed.topic == "t"
    assert changed.partition.to_pylist() == [None, 1]
    for name in ("key", "headers", "timestamp"):
        assert getattr(changed.columns, name).equals(getattr(rows().columns, name))
    assert Upper.seen == {"a": "b"}


@pytest.mark.parametrize("broken", [Raises, Drops])
def test_interceptor_that_raises_or_drops_rows_is_skipped(
    chain: Any, broken: type[Any], caplog: pytest.LogCaptureFixture
) -> None:
    changed = chain(broken, Upper).on_send(rows())
    assert changed.columns.value.to_pylist() == [b"A", None]
    assert "user_interceptors:C0 failed in on_send" in caplog.text


def test_interceptors_are_acknowledged_despite_a_failing_one(chain: Any) -> None:
    interceptors = chain(Raises, Keeps)
    interceptors.on_acknowledgement("t", 0, 5, 10, None)
    interceptors.close()
    assert Keeps.told == ("t", 0, 5, 10, None)


class KeepsTheTime:
    told: tuple[Any, ...] = ()

    def on_acknowledgement(self, *arguments: Any, log_append_time_ms: int) -> None:
        KeepsTheTime.told = (*arguments, log_append_time_ms)


def test_log_append_time_goes_only_to_interceptors_accepting_it(chain: Any) -> None:
    chain(Keeps, KeepsTheTime).on_acknowledgement("t", 0, 5, 10, None, log_append_time_ms=1_700_000_000_000)
    assert Keeps.told == ("t", 0, 5, 10, None)
    assert KeepsTheTime.told == ("t", 0, 5, 10, None, 1_700_000_000_000)


def test_unloadable_interceptor_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"NOT_LOADABLE\].*'nowhere:X'.*No module named"):
        Interceptors(["nowhere:X"], {})
