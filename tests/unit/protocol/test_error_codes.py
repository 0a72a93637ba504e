"""Error codes, those we know and those of a newer broker."""

from __future__ import annotations

import pickle

import pytest

from kafka_eos_sink.protocol.error_codes import ErrorCode


@pytest.mark.parametrize(
    ("code", "name", "retriable"),
    [
        (-1, "UNKNOWN_SERVER_ERROR", False),
        (0, "NONE", False),
        (6, "NOT_LEADER_OR_FOLLOWER", True),
        (51, "CONCURRENT_TRANSACTIONS", True),
        (74, "FENCED_LEADER_EPOCH", True),
        (75, "UNKNOWN_LEADER_EPOCH", True),
        (90, "PRODUCER_FENCED", False),
        (120, "TRANSACTION_ABORTABLE", False),
    ],
)
def test_known_code_has_its_name_and_retriable_flag(code: int, name: str, retriable: bool) -> None:
    error = ErrorCode.of(code)
    assert error in list(ErrorCode)
    assert error == code
    assert (error.name, error.retriable) == (name, retriable)
    assert error is ErrorCode[name]


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
