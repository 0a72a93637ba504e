"""Error codes, those we know and those of a newer broker."""

from __future__ import annotations

import pickle

import pytest

from kafka_eos_sink.protocol.error_codes import ErrorCode


@pytest.mark.parametrize(
    ("code", "name"), [(9999, "UNKNOWN_CODE_9999"), (-7, "UNKNOWN_CODE_MINUS_7"), (32767, "UNKNOWN_CODE_32767")]
)
def test_a_code_of_a_newer_broker_is_kept_and_is_not_retriable(code: int, name: str) -> None:
    error = ErrorCode.of(code)
    assert error == code
    assert error.name == name
    assert not error.retriable
    assert "newer" in error.message
    assert ErrorCode.of(code) is error
    assert error not in list(ErrorCode)


def test_codes_survive_pickling() -> None:
    for code in (0, 51, 9999):
        assert pickle.loads(pickle.dumps(ErrorCode.of(code))) is ErrorCode.of(code)


@pytest.mark.parametrize("code", [2**15, -(2**15) - 1])
def test_code_beyond_int16_is_rejected(code: int) -> None:
    with pytest.raises(ValueError, match=str(code)):
        ErrorCode.of(code)
