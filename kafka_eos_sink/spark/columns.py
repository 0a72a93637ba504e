"""The columns of a DataFrame that become records: names, types, Arrow arrays.

The rules are those of Spark's Kafka sink, plus the column ``timestamp``: names are exact and case-sensitive, other columns and
nullability are ignored, and the option ``topic`` overrides the column. If Spark's sink reports the same problem, the message is
identical, because users search for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from kafka_eos_sink.errors import SchemaError
from kafka_eos_sink.producer.rows import Rows
from kafka_eos_sink.protocol.binary_columns import MAX_COLUMN_BYTES
from kafka_eos_sink.protocol.record_columns import RecordColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    fits: Callable[[DataType], bool]
    accepted: str


def _is_headers(data_type: DataType) -> bool:
    if isinstance(data_type, MapType):
        return isinstance(data_type.keyType, StringType) and isinstance(data_type.valueType, StringType | BinaryType)
    if not isinstance(data_type, ArrayType) or not isinstance(data_type.elementType, StructType):
        return False
    fields = data_type.elementType.fields
    return (
        [field.name for field in fields] == ["key", "value"]
        and isinstance(fields[0].dataType, StringType)
        and isinstance(fields[1].dataType, StringType | BinaryType)
    )


_HEADERS = "array<struct<key:string,value:binary>> or map<string,binary>; the values may also be strings"
_COLUMNS = {
    "topic": _Column(fits=lambda t: isinstance(t, StringType), accepted="string"),
    "partition": _Column(fits=lambda t: isinstance(t, IntegerType), accepted="int"),
    "key": _Column(fits=lambda t: isinstance(t, StringType | BinaryType), accepted="string or binary"),
    "value": _Column(fits=lambda t: isinstance(t, StringType | BinaryType), accepted="string or binary"),
    "headers": _Column(fits=_is_headers, accepted=_HEADERS),
    "timestamp": _Column(fits=lambda t: isinstance(t, TimestampType), accepted="timestamp"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenColumns:
    """The indexes of the written columns in Spark's batches; None if missing."""

    topic_option: str | None
    value: int
    topic: int | None
    partition: int | None
    key: int | None
    headers: int | None
    timestamp: int | None
    schema: str
    """The written columns and their types; the order of the DataFrame does not matter."""
    ignored: tuple[str, ...]

    def to_rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Rows]:
        """Yield the rows in order, without Python code per row; skip empty batches."""
        for batch in batches:
            for piece in self._pieces(batch):
                yield self._converted(piece)

    def _converted(self, batch: pa.RecordBatch) -> Rows:
        """Convert one batch; each of its columns must fit into Arrow's 2 GiB of binary."""

        def column(index: int | None) -> pa.Array | None:
            return None if index is None else batch.column(index)

        # The indexes are those of the checked schema. Spark delivers the columns in the same order.
        partition = column(self.partition)
        return Rows(
            topic=self.topic_option if self.topic_option is not None else batch.column(self.topic).cast(pa.string()),
            partition=None if partition is None else partition.cast(pa.int32()),
            columns=RecordColumns(
                value=batch.column(self.value),
                key=column(self.key),
                headers=column(self.headers),
                timestamp=column(self.timestamp),
            ),
        )

    def _pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if batch.num_rows == 0:
            return
        written = [batch.column(i) for i in (self.value, self.key, self.headers) if i is not None]
        # A column of large_binary may exceed 2 GiB; halve the batch until each column fits.
        if batch.num_rows > 1 and any(column.nbytes > MAX_COLUMN_BYTES for column in written):
            half = batch.num_rows // 2
            yield from self._pieces(batch.slice(0, half))
            yield from self._pieces(batch.slice(half))
        else:
            yield batch


def written_columns(schema: StructType, topic_option: str | None) -> WrittenColumns:
    """Find the columns of ``schema`` that the sink writes.

    Raises:
        SchemaError: INVALID_COLUMNS; the message names every missing column and every wrong type.
    """
    names = schema.fieldNames()
    problems: list[str] = []
    found: dict[str, int] = {}
    for name in _COLUMNS:
        places = [index for index, other in enumerate(names) if other == name]
        if len(places) > 1:
            problems.append(f"{len(places)} columns are called {name!r}; keep one of them")
        if places:
            found[name] = places[0]
    if topic_option is None and "topic" not in found:
        problems.append(
            "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic."
            + _case_hint("topic", names)
        )
    if "value" not in found:
        problems.append("Required attribute 'value' not found" + (_case_hint("value", names) or _names_hint(names)))
    for name, index in found.items():
        data_type = schema.fields[index].dataType
        if not _COLUMNS[name].fits(data_type):
            problems.append(_wrong_type(name, data_type))
    if problems:
        raise SchemaError("INVALID_COLUMNS", "; ".join(problems))
    return WrittenColumns(
        topic_option=topic_option,
        value=found["value"],
        topic=None if topic_option is not None else found["topic"],
        partition=found.get("partition"),
        key=found.get("key"),
        headers=found.get("headers"),
        timestamp=found.get("timestamp"),
        schema=", ".join(
            f"{name} {schema.fields[index].dataType.simpleString()}"
            for name, index in found.items()
            if name != "topic" or topic_option is None
        ),
        ignored=tuple(name for name in names if name not in _COLUMNS),
    )


def _wrong_type(name: str, data_type: DataType) -> str:
    accepted = _COLUMNS[name].accepted
    problem = f"{name} attribute unsupported type {data_type.simpleString()}. {name} must be a(n) {accepted}"
    if name == "timestamp" and isinstance(data_type, TimestampNTZType):
        return f"{problem}: a timestamp_ntz names no moment in time; cast it to timestamp"
    if name in ("key", "value"):
        return f"{problem}. {_conversion_hint(name, data_type)}"
    return problem


def _conversion_hint(name: str, data_type: DataType) -> str:
    """Return the line of Python that converts the column."""
    if isinstance(data_type, StructType | ArrayType | MapType | VariantType):
        return (
            f'Write df.withColumn("{name}", to_json("{name}")) for JSON (from pyspark.sql.functions import to_json), or '
            f'df.withColumn("{name}", to_avro("{name}")) for Avro; see docs/records.md'
        )
    return f'Write df.withColumn("{name}", col("{name}").cast("string"))'


def _case_hint(name: str, names: list[str]) -> str:
    similar = [other for other in names if other.lower() == name]
    return f" (the column {similar[0]!r} differs in case, and names are case-sensitive)" if similar else ""


def _names_hint(names: list[str]) -> str:
    return f" (the columns are {', '.join(names) or 'none'}); select one AS value, or to_json(struct(*)) AS value"


def ignored_columns_warning(columns: WrittenColumns) -> tuple[str, ...]:
    """Return one warning that names the ignored columns; nothing if there are none."""
    if not columns.ignored:
        return ()
    return (
        f"columns that Kafka has no place for are not written: {', '.join(columns.ignored)}; "
        f"written are {', '.join(_COLUMNS)}",
    )
