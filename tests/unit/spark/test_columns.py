"""Which columns become records, and what they become."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from kafka_eos_sink.errors import SchemaError
from kafka_eos_sink.spark.columns import written_columns

HEADERS = "array<struct<key:string,value:binary>>"
TEXT_HEADERS = "array<struct<key:string,value:string>>"
ACCEPTED_HEADERS = f"{HEADERS} or map<string,binary>; the values may also be strings"


def _struct(**fields: t.DataType) -> t.StructType:
    return t.StructType([t.StructField(name, data_type) for name, data_type in fields.items()])


def _twice(name: str) -> t.StructType:
    return t.StructType([t.StructField(name, t.IntegerType()), t.StructField(name, t.StringType())])


# Parsing DDL takes a running JVM; these are the types of the tests by the names that Spark shows.
TYPES = {
    data_type.simpleString(): data_type
    for data_type in (
        t.StringType(),
        t.BinaryType(),
        t.IntegerType(),
        t.LongType(),
        t.DoubleType(),
        t.DateType(),
        t.TimestampType(),
        t.TimestampNTZType(),
        t.ArrayType(t.StringType()),
        t.MapType(t.StringType(), t.BinaryType()),
        t.MapType(t.StringType(), t.StringType()),
        t.MapType(t.StringType(), t.IntegerType()),
        t.MapType(t.IntegerType(), t.StringType()),
        t.VariantType(),
        t.NullType(),
        t.ShortType(),
        t.BooleanType(),
        t.DecimalType(18, 6),
        t.YearMonthIntervalType(),
        _struct(a=t.IntegerType()),
        t.ArrayType(_struct(key=t.StringType(), value=t.BinaryType())),
        t.ArrayType(_struct(key=t.StringType(), value=t.StringType())),
        t.ArrayType(_struct(value=t.BinaryType(), key=t.StringType())),
        t.ArrayType(_struct(Key=t.StringType(), VALUE=t.BinaryType())),
    )
}


def schema(columns: str) -> t.StructType:
    pairs = [column.split(" ", 1) for column in columns.split("; ")]
    return t.StructType([t.StructField(name, TYPES[data_type]) for name, data_type in pairs])


def problems(ddl: str, topic: str | None = "orders") -> str:
    with pytest.raises(SchemaError) as caught:
        written_columns(schema(ddl), topic)
    assert str(caught.value).startswith("[KAFKA_EOS.INVALID_COLUMNS] ")
    return caught.value.message


@pytest.mark.parametrize(
    ("column", "name", "found", "accepted"),
    [
        ("value bigint", "value", "bigint", "string or binary"),
        ("value struct<a:int>", "value", "struct<a:int>", "string or binary"),
        ("key array<string>", "key", "array<string>", "string or binary"),
        ("topic binary", "topic", "binary", "string"),
        ("partition bigint", "partition", "bigint", "int"),
        ("partition string", "partition", "string", "int"),
        ("headers map<string,int>", "headers", "map<string,int>", ACCEPTED_HEADERS),
        ("headers map<int,string>", "headers", "map<int,string>", ACCEPTED_HEADERS),
        (
            "headers array<struct<value:binary,key:string>>",
            "headers",
            "array<struct<value:binary,key:string>>",
            ACCEPTED_HEADERS,
        ),
        ("timestamp bigint", "timestamp", "bigint", "timestamp"),
        ("timestamp date", "timestamp", "date", "timestamp"),
        ("timestamp timestamp_ntz", "timestamp", "timestamp_ntz", "timestamp"),
    ],
)
def test_wrong_type_names_the_column_and_accepted_types(column: str, name: str, found: str, accepted: str) -> None:
    ddl = column if name == "value" else f"value string; {column}"
    text = problems(ddl, None if name == "topic" else "orders")
    assert f"{name} attribute unsupported type {found}. {name} must be a(n) {accepted}" in text


@pytest.mark.parametrize("kind", ["bigint", "void", "struct<a:int>", "binary"])
def test_topic_column_of_any_type_is_ignored_with_the_option(kind: str) -> None:
    columns = written_columns(schema(f"topic {kind}; value string"), "orders")
    assert "topic" not in columns.places
    assert columns.schema == "value string"
    assert "topic attribute unsupported type" in problems(f"topic {kind}; value string".replace("binary", "void"), None)


@pytest.mark.parametrize(
    ("name", "data_type", "words"),
    [
        ("age", t.YearMonthIntervalType(), "column 'age' is an interval year to month, which pyarrow does not know"),
        ("s", _twice("a"), "column 's' has 2 fields called 'a'"),
        ("s", t.ArrayType(_twice("a")), "column 's.element' has 2 fields called 'a'"),
        ("s", t.MapType(_twice("a"), t.StringType()), "column 's.key' has 2 fields called 'a'"),
        ("s", t.MapType(t.StringType(), _twice("a")), "column 's.value' has 2 fields called 'a'"),
        ("s", _struct(x=_struct(y=_twice(""))), "column 's.x.y' has 2 fields called ''"),
        ("topic", _twice("a"), "column 'topic' has 2 fields called 'a'"),
    ],
)
def test_ignored_column_that_python_cannot_get_is_refused(
    name: str, data_type: t.DataType, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark.__version__", "4.2.0")
    with pytest.raises(SchemaError) as caught:
        written_columns(_struct(value=t.StringType(), **{name: data_type}), "orders")
    assert caught.value.code == "INVALID_COLUMNS"
    assert f"{words}: PySpark hands every column to Python" in caught.value.message
    assert f"Select the columns to write, or drop the others: df.drop({name!r})" in caught.value.message


def test_columns_of_one_name_are_refused_unless_spark_renames(monkeypatch: pytest.MonkeyPatch) -> None:
    joined = schema("id bigint; value string; id string; topic bigint; topic string; ID int")
    monkeypatch.setattr("pyspark.__version__", "4.2.0")
    with pytest.raises(SchemaError) as caught:
        written_columns(joined, "orders")
    assert "2 columns are called 'id'; 2 columns are called 'topic': " in caught.value.message
    assert "df.drop('id', 'topic')" in caught.value.message
    monkeypatch.setattr("pyspark.__version__", "4.1.4")
    assert written_columns(joined, "orders").ignored == ("id", "id", "ID")


def test_the_written_schema_depends_on_written_columns_only() -> None:
    one = written_columns(schema("id bigint; value string; key binary"), "orders")
    other = written_columns(schema("key binary; value string; name string"), "orders")
    assert one.schema == other.schema
    assert one.schema != written_columns(schema("key string; value string"), "orders").schema
    with_topic = schema("key binary; value string; topic string")
    assert written_columns(with_topic, "orders").schema == one.schema
    assert written_columns(with_topic, None).schema != one.schema


@pytest.mark.parametrize("text", [pa.string(), pa.large_string()])
@pytest.mark.parametrize("binary", [pa.binary(), pa.large_binary()])
def test_every_column_arrives_as_it_left_spark(text: pa.DataType, binary: pa.DataType) -> None:
    columns = written_columns(
        schema(
            f"other int; key string; value binary; topic string; partition int; headers {HEADERS}; timestamp timestamp"
        ),
        None,
    )
    header_type = pa.list_(pa.struct([("key", text), ("value", binary)]))
    batch = pa.record_batch(
        [
            pa.array([1, 2, 3, 4], pa.int32()),
            pa.array(["0", "a", None, ""], text),
            pa.array([b"0", b"\x00\xff", b"", None], binary),
            pa.array(["t", "t", "u", None], text),
            pa.array([0, 3, None, 1], pa.int32()),
            pa.array([None, [{"key": "k", "value": b"v"}, {"key": "k", "value": None}], [], None], header_type),
            pa.array([0, 1_700_000_000_123_999, None, 1_000], pa.timestamp("us", "Europe/Berlin")),
        ],
        names=["other", "key", "value", "topic", "partition", "headers", "timestamp"],
    ).slice(1)
    (rows,) = columns.to_rows([batch])
    assert rows.num_rows == 3
    assert rows.topic.to_pylist() == ["t", "u", None]
    assert rows.topic.type == pa.string()
    assert rows.partition is not None
    assert rows.partition.to_pylist() == [3, None, 1]
    assert rows.columns.key is not None
    assert rows.columns.key.to_pylist() == [b"a", None, b""]
    assert rows.columns.value.to_pylist() == [b"\x00\xff", b"", None]
    assert rows.columns.headers is not None
    assert rows.columns.headers.to_pylist() == [
        [{"key": "k", "value": b"v"}, {"key": "k", "value": None}],
        [],
        None,
    ]
    assert rows.columns.timestamp is not None
    assert rows.columns.timestamp.to_pylist() == [1_700_000_000_123, None, 1]


@pytest.mark.parametrize("text", [pa.string(), pa.large_string()])
@pytest.mark.parametrize(
    ("headers", "nested"),
    [
        (TEXT_HEADERS, lambda text: pa.list_(pa.struct([("key", text), ("value", text)]))),
        (
            "array<struct<Key:string,VALUE:binary>>",  # names of any case, as in Spark's sink
            lambda text: pa.list_(pa.struct([("Key", text), ("VALUE", pa.large_binary())])),
        ),
        ("map<string,string>", lambda text: pa.map_(text, text)),
        ("map<string,binary>", lambda text: pa.map_(text, pa.binary() if text == pa.string() else pa.large_binary())),
    ],
)
def test_headers_of_every_type_become_the_same(
    headers: str, nested: Callable[[pa.DataType], pa.DataType], text: pa.DataType
) -> None:
    columns = written_columns(schema(f"value string; headers {headers}"), "orders")
    pairs: list[list[tuple[str, str | None]] | None] = [
        [("no", "no")],
        [("k", "v"), ("ключ", None)],
        [],
        None,
        [("k", "")],
    ]
    kind = nested(text)
    given: list[Any] = list(pairs)
    if not pa.types.is_map(kind):
        key, value = (field.name for field in kind.value_type)
        given = [p and [{key: k, value: v} for k, v in p] for p in pairs]
    batch = pa.record_batch([pa.array(["v"] * 5), pa.array(given, kind)], names=["value", "headers"]).slice(1)
    (rows,) = columns.to_rows([batch])
    assert rows.columns.headers is not None
    assert rows.columns.headers.to_pylist() == [
        [{"key": "k", "value": b"v"}, {"key": "ключ", "value": None}],
        [],
        None,
        [{"key": "k", "value": b""}],
    ]
