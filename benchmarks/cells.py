"""What a benchmark writes: rows of one shape, as a cell of the grid."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafka_eos_sink.demo.flights import write_flights

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["BASE", "FLIGHTS", "Cell", "full_grid", "small_grid"]

FLIGHTS = -1
"""As ``value_bytes``: JSON objects of real flights, of about 250 bytes."""
KEY_BYTES = 16
_FLIGHT_ROWS = 336_776
_FLIGHT_BYTES = 250
_CUSTOMERS = 100_000
_CORPUS_BYTES = 60_000
_LETTERS = "etaoinshrdlucmfwypvbgk"
KINDS = "orders", "text"
"""Of values: JSON objects that compress very well and cost Spark much, and cuts of a text (lz4: to less than half) that cost it little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One combination of the axes; ``megabytes`` of keys and values per write."""

    codec: str = "lz4"
    keyed: bool = True
    kind: str = "orders"
    value_bytes: int = 100
    partitions: int = 4
    tasks: int = 4
    megabytes: int = 116

    @property
    def rows(self) -> int:
        if self.value_bytes == FLIGHTS:
            return min(_FLIGHT_ROWS, self.megabytes * 1_000_000 // _FLIGHT_BYTES)
        return max(1_000, self.megabytes * 1_000_000 // (self.value_bytes + KEY_BYTES))

    @property
    def name(self) -> str:
        value = "flights as JSON" if self.value_bytes == FLIGHTS else f"{self.value_bytes:,} B"
        value += " of text" if self.kind == "text" else ""
        keys = "keys" if self.keyed else "no keys"
        return f"{value}, {keys}, {self.codec}, {self.tasks} tasks, {self.partitions} partitions"

    def records(self, spark: SparkSession, folder: Path) -> DataFrame:
        """Return rows computed during the write: cached ones would flatter JVM sinks."""
        from pyspark.sql import functions as f

        if self.value_bytes == FLIGHTS:
            file = folder / f"flights-{self.rows}.parquet"
            if not file.exists():
                write_flights(file, self.rows)
            flights = spark.read.parquet(str(file)).repartition(self.tasks).persist()
            customer = f.concat(f.col("carrier"), f.col("flight").cast("string"))
            value = f.to_json(f.struct(*(f.col(name) for name in flights.columns)))
            found = flights.select(customer.cast("binary").alias("key"), value.cast("binary").alias("value"))
        else:
            customer = f.lpad(f.pmod(f.hash("id"), f.lit(_CUSTOMERS)).cast("string"), 7, "0")
            # A hash of the row's number, so that neighbours do not compress unrealistically well.
            order = f.concat(
                f.lit('{"order":"'),
                f.hash("id").cast("string"),
                f.lit('","amount":'),
                f.pmod(f.hash("id", f.lit(1)), f.lit(100_000)).cast("string"),
                f.lit(',"currency":"EUR","status":"shipped","customer":"'),
                customer,
                f.lit('"}'),
            )
            value = f.rpad(f.repeat(order, 1 + self.value_bytes // 60), self.value_bytes, " ")
            if self.kind == "text":
                start = f.pmod(f.hash("id"), f.lit(_CORPUS_BYTES - self.value_bytes)) + 1
                value = f.substring(f.lit(_corpus()), start, f.lit(self.value_bytes))
            found = spark.range(0, self.rows, 1, self.tasks).select(
                f.concat(f.lit("customer-"), customer).cast("binary").alias("key"), value.cast("binary").alias("value")
            )
        return found.select("key", "value") if self.keyed else found.select("value")


@cache
def _corpus() -> bytes:
    """Return a text of random words, some of them frequent, as in a language.

    As bytes, because Spark looks for the start of a substring of a string from its beginning.
    """
    chance = random.Random(5)
    words = [
        "".join(chance.choices(_LETTERS, range(len(_LETTERS), 0, -1), k=chance.randint(2, 9))) for _ in range(3_000)
    ]
    weights = [1 / (rank + 3) for rank in range(len(words))]
    return " ".join(chance.choices(words, weights, k=_CORPUS_BYTES // 3))[:_CORPUS_BYTES].encode()


BASE = Cell()


def small_grid(codecs: list[str], megabytes: int, partitions: int, kinds: Sequence[str] = KINDS) -> list[Cell]:
    """Return keyed and keyless rows of 100 bytes of each kind with each codec."""
    base = replace(BASE, megabytes=megabytes, partitions=partitions, tasks=partitions)
    return [
        replace(base, kind=kind, codec=codec, keyed=keyed)
        for kind in kinds
        for keyed in (True, False)
        for codec in codecs
    ]


def full_grid(megabytes: int) -> list[Cell]:
    """Return the small grid, and variants of its first cell, one axis at a time."""
    base = replace(BASE, megabytes=megabytes)
    changes: list[dict[str, Any]] = [
        *({"value_bytes": size} for size in (16, 1_000, 10_000, FLIGHTS)),
        {"codec": "zstd"},
        *({"partitions": count} for count in (1, 8, 64)),
        {"tasks": 64},
    ]
    return [*small_grid(["lz4", "none"], megabytes, BASE.partitions), *(replace(base, **change) for change in changes)]
