"""Runs a program that streams a Delta table's change feed, and changes the table step by step.

delta_feed.py PROGRAM TABLE SNAPSHOT_DONE

The first statement makes the table: the query's snapshot. When the query has written it, the job removes the file SNAPSHOT_DONE and
runs the other statements. A driver that starts again goes on with the first statement that the table does not have.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

STATEMENTS = (
    "CREATE TABLE {} USING delta TBLPROPERTIES (delta.enableChangeDataFeed = true)"
    " AS SELECT id, concat('c', id) customer FROM range(0, 1000, 1, 3)",
    "UPDATE {} SET customer = 'updated' WHERE id % 10 IN (1, 2)",
    "DELETE FROM {} WHERE id % 10 = 2",
    "MERGE INTO {} known USING (SELECT id, 'merged' customer FROM range(940, 1100)) new ON known.id = new.id"
    " WHEN MATCHED THEN UPDATE SET customer = new.customer WHEN NOT MATCHED THEN INSERT *",
    "INSERT INTO {} REPLACE WHERE id >= 900 SELECT id, 'replaced' customer FROM range(900, 1000)",
)


def main(program: str, table: str, snapshot_done: str) -> None:
    spark = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.databricks.delta.snapshotPartitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    name = f"delta.`{table}`"
    if not Path(table).exists():
        spark.sql(STATEMENTS[0].format(name))
    exec(Path(program).read_text(), {"spark": spark})
    (query,) = spark.streams.active
    query.processAllAvailable()
    Path(snapshot_done).unlink(missing_ok=True)
    (newest,) = spark.sql(f"DESCRIBE HISTORY {name} LIMIT 1").collect()
    for statement in STATEMENTS[newest["version"] + 1 :]:
        spark.sql(statement.format(name))
    query.processAllAvailable()
    query.stop()
    print("ended", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
