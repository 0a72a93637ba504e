"""The columns of a DataFrame that become records: names, types, Arrow arrays.

The rules are as in Spark's Kafka sink, plus the column ``timestamp``: names are exact and case-sensitive, other columns and
nullability are ignored, and the option ``topic`` overrides the column. If Spark's sink reports the same problem, the message begins
with the same words, because users search for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    FractionalType,
    IntegerType,
    IntegralType,
    MapType,
    NullType,
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
from kafka_eos_sink.spark.python_columns import columns_not_for_python


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
        [field.name.lower() for field in fields] == ["key", "value"]  # of any case, as in Spark's sink
        and isinstance(fields[0].dataType, StringType)
        and isinstance(fields[1].dataType, StringType | BinaryType)
    )


_NESTED = StructType, ArrayType, MapType, VariantType
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
    """The written columns by name, with their indexes in Spark's batches."""

    topic_option: str | None
    places: Mapping[str, int]
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
        # The indexes belong to the checked schema. Spark delivers the columns in the same order.
        columns = {name: batch.column(index) for name, index in self.places.items()}
        partition = columns.pop("partition", None)
        return Rows(
            topic=columns.pop("topic").cast(pa.string()) if self.topic_option is None else self.topic_option,
            partition=None if partition is None else partition.cast(pa.int32()),
            columns=RecordColumns(**columns),
        )

    def _pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if batch.num_rows == 0:
            return
        written = [batch.column(self.places[name]) for name in ("value", "key", "headers") if name in self.places]
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
        SchemaError: INVALID_COLUMNS; the message lists every missing column and every wrong type.
    """
    names = schema.fieldNames()
    problems: list[str] = []
    found: dict[str, int] = {}
    for name in _COLUMNS:
        if name == "topic" and topic_option is not None:
            continue  # Not written, so it is like any other column.
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
    if hindrance := columns_not_for_python([field for field in schema.fields if field.name not in found]):
        problems.append(hindrance)
    if problems:
        raise SchemaError("INVALID_COLUMNS", problems)
    return WrittenColumns(
        topic_option=topic_option,
        places=found,
        schema=", ".join(f"{name} {schema.fields[index].dataType.simpleString()}" for name, index in found.items()),
        ignored=tuple(name for name in names if name not in _COLUMNS),
    )


def _wrong_type(name: str, data_type: DataType) -> str:
    accepted = _COLUMNS[name].accepted
    problem = f"{name} attribute unsupported type {data_type.simpleString()}. {name} must be a(n) {accepted}"
    if name in ("key", "value"):
        return f"{problem}. {_serialization(name, data_type)}"
    convert = _conversion(name, data_type)
    return (
        f"{problem}. {f'Convert it: {convert}; or' if convert else 'If it is not meant for Kafka,'} "
        f'drop it: df.drop("{name}"); or rename it: df.withColumnRenamed("{name}", "{name}_column")'
    )


def _serialization(name: str, data_type: DataType) -> str:
    """Return the line of Python that makes bytes or text of a key or value."""
    if isinstance(data_type, _NESTED):
        return (
            f'Write df.withColumn("{name}", to_json("{name}")) for JSON (from pyspark.sql.functions import to_json), or '
            f'df.withColumn("{name}", to_avro("{name}")) for Avro (from pyspark.sql.avro.functions import to_avro)'
        )
    return f"Write {_cast(name, 'string')}"


def _conversion(name: str, data_type: DataType) -> str | None:
    """Return the line of Python that converts another column, if Spark can convert it."""
    if isinstance(data_type, NullType):
        return _cast(name, {"headers": "map<string,binary>"}.get(name, _COLUMNS[name].accepted))
    if name == "headers" or isinstance(data_type, _NESTED):
        return None
    if name != "timestamp":
        return _cast(name, _COLUMNS[name].accepted)
    if isinstance(data_type, IntegralType):
        function = f'df.withColumn("{name}", timestamp_millis("{name}"))'
        return f"{function} for milliseconds since 1970 (from pyspark.sql.functions import timestamp_millis)"
    if isinstance(data_type, TimestampNTZType):
        return (
            f"{_cast(name, 'timestamp')}, in the session's time zone, because a timestamp_ntz names no moment in time"
        )
    return _cast(name, "timestamp") if isinstance(data_type, StringType | DateType | FractionalType) else None


def _cast(name: str, data_type: str) -> str:
    return f'df.withColumn("{name}", col("{name}").cast("{data_type}"))'


def _case_hint(name: str, names: list[str]) -> str:
    similar = [other for other in names if other.lower() == name]
    return f" (the column {similar[0]!r} differs in case, and names are case-sensitive)" if similar else ""


def _names_hint(names: list[str]) -> str:
    return f" (the columns are {', '.join(names) or 'none'}); select one AS value, or to_json(struct(*)) AS value"


def ignored_columns_warning(columns: WrittenColumns) -> tuple[str, ...]:
    """Return one warning that lists the ignored columns; nothing if there are none."""
    if not columns.ignored:
        return ()
    return (
        f"columns that Kafka has no place for are not written: {', '.join(columns.ignored)}; "
        f"written are {', '.join(_COLUMNS)}",
    )
