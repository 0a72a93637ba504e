"""Columns that PySpark cannot hand to Python (docs/internals/spark-behaviour.md).

Spark ships every column of a DataFrame to a Python writer as Arrow, also those that the sink ignores. A column that Arrow or PySpark cannot
pass fails every task, without code of the sink. The schema is known before, so the plan names such columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import pyspark
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    StructField,
    StructType,
    UserDefinedType,
    YearMonthIntervalType,
)


def columns_not_for_python(fields: Sequence[StructField]) -> str | None:
    """Name the ignored columns that PySpark cannot hand to Python; None without any."""
    problems: dict[str, str] = {}
    for name, count in Counter(field.name for field in fields).items():
        if count > 1 and _duplicates_fail():
            problems[name] = f"{count} columns are called {name!r}"
    for field in fields:
        if problem := _problem(field.name, _stored(field.dataType)):
            problems.setdefault(field.name, problem)
    if not problems:
        return None
    return (
        f"{'; '.join(problems.values())}: PySpark hands every column to Python, and cannot hand over "
        f"{'these' if len(problems) > 1 else 'this one'}. Select the columns to write, or drop the others: "
        f"df.drop({', '.join(map(repr, problems))})"
    )


def _problem(name: str, data_type: DataType) -> str | None:
    if isinstance(data_type, YearMonthIntervalType):
        # pyarrow has no such type, and fails with KeyError: 21. PySpark asks for the types of columns, not for those nested in them.
        return f"column {name!r} is an {data_type.simpleString()}, which pyarrow does not know"
    return next(_duplicates(data_type, name), None) if _duplicates_fail() else None


def _duplicates_fail() -> bool:
    """Return False for Spark 4.0 and 4.1, which rename equal names (SPARK-41971)."""
    return tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 2)


def _stored(data_type: DataType) -> DataType:
    return data_type.sqlType() if isinstance(data_type, UserDefinedType) else data_type


def _duplicates(data_type: DataType, place: str) -> Iterator[str]:
    data_type = _stored(data_type)
    if isinstance(data_type, StructType):
        for name, count in Counter(data_type.fieldNames()).items():
            if count > 1:
                yield f"column {place!r} has {count} fields called {name!r}"
        for field in data_type.fields:
            yield from _duplicates(field.dataType, f"{place}.{field.name}")
    elif isinstance(data_type, ArrayType):
        yield from _duplicates(data_type.elementType, f"{place}.element")
    elif isinstance(data_type, MapType):
        yield from _duplicates(data_type.keyType, f"{place}.key")
        yield from _duplicates(data_type.valueType, f"{place}.value")
