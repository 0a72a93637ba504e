"""Registration of the format where Spark knows it already."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import AnalysisException

from kafka_eos_sink.jobs.submit_job import register_sink


class Refused(AnalysisException):
    def __init__(self, condition: str) -> None:
        super().__init__("refused")
        self.condition = condition

    def getCondition(self) -> str:  # noqa: N802
        return self.condition


def session(condition: str) -> Any:
    def register(source: object) -> None:
        raise Refused(condition)

    return SimpleNamespace(dataSource=SimpleNamespace(register=register))


def test_an_installed_package_on_spark_4_0_is_no_failure() -> None:
    register_sink(session("DATA_SOURCE_ALREADY_EXISTS"))


def test_another_failure_of_the_registration_is_one() -> None:
    with pytest.raises(Refused):
        register_sink(session("DATA_SOURCE_NOT_FOUND"))
