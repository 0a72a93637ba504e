"""Prints key and decoded value of each committed record as a line of JSON, in the order of the partitions.

avro_consumer.py BOOTSTRAP TOPIC SCHEMA_ID SCHEMA
"""

from __future__ import annotations

import io
import json
import struct
import sys

import fastavro

from kafka_testing import read_committed


def main(bootstrap: str, topic: str, schema_id: str, schema: str) -> None:
    parsed = fastavro.parse_schema(json.loads(schema))
    for record in read_committed(bootstrap, topic):
        decoded = None
        if record.value is not None:
            assert struct.unpack(">bI", record.value[:5]) == (0, int(schema_id))
            body = io.BytesIO(record.value[5:])
            decoded = fastavro.schemaless_reader(body, parsed)
            assert not body.read()
        print(json.dumps([record.key.decode(), decoded]))


if __name__ == "__main__":
    main(*sys.argv[1:])
