"""A task's memory does not grow with its partition: two gigabytes through one task, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_testing import assert_nothing_open, create_topic

ROWS_PER_BATCH, VALUE_BYTES, BATCHES = 10_000, 1_000, 210
BUFFER_MEMORY = 33_554_432
ARROW_BATCH_BYTES = ROWS_PER_BATCH * VALUE_BYTES

PROGRAM = textwrap.dedent("""
    import json, resource, sys, uuid
    import numpy as np
    import pyarrow as pa
    from kafka_eos_sink.client.config import ClientConfig, parse_bootstrap_servers
    from kafka_eos_sink.commit.values import BatchIdentity, Write
    from kafka_eos_sink.runtime import session
    from kafka_eos_sink.producer.config import ProducerConfig
    from kafka_eos_sink.producer.rows import Rows
    from kafka_eos_sink.protocol.record_columns import RecordColumns

    servers, topic, rows, size, batches, memory = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
    settings = session.WriteSettings(
        batch=BatchIdentity(query_id="batch", version=0, topic=topic, schema="value binary", offsets_hash=None),
        write=Write(f"kafka-eos/{uuid.uuid4()}", "__kafka_eos_commits"),
        client=ClientConfig(bootstrap_servers=parse_bootstrap_servers(servers)),
        producer=ProducerConfig(buffer_memory=memory, compression="lz4"),
    )
    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def batch(number):
        # Fresh memory for every batch, as Spark delivers it; half of it noise, so that what is sent has some size too.
        text = np.full((rows, size), number % 251, np.uint8)
        text[:, ::8] = np.random.default_rng(number).integers(0, 255, (rows, (size + 7) // 8), np.uint8)
        offsets = pa.py_buffer(np.arange(0, rows * size + 1, size, dtype=np.int32))
        value = pa.Array.from_buffers(pa.binary(), rows, [None, offsets, pa.py_buffer(text)])
        return Rows(topic=topic, partition=None, columns=RecordColumns(value=value))

    def delivered():
        for number in range(batches):
            if number == 3:
                early.append(peak())
            yield batch(number)

    early = []
    plan = session.plan(settings)
    message = session.write_task(settings, plan, session.TaskIdentity(partition=0, attempt_number=0, task_attempt_id=0), delivered())
    late = peak()
    session.commit(settings, plan, [message])
    print(json.dumps({"rows": message.prepared.rows, "early": early[0], "late": late}))
""")


def test_two_gigabytes_in_one_task_fit_buffer_memory(kafka: EmbeddedKafka) -> None:
    topic = create_topic(kafka.bootstrap_servers, partitions=4)
    arguments = [kafka.bootstrap_servers, topic, ROWS_PER_BATCH, VALUE_BYTES, BATCHES, BUFFER_MEMORY]
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=500, check=False
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    found = json.loads(finished.stdout.splitlines()[-1])
    assert found["rows"] == ROWS_PER_BATCH * BATCHES
    grown = found["late"] - found["early"]
    print(f"two gigabytes grew the task by {grown / 2**20:.0f} MiB after its third batch")
    assert grown <= BUFFER_MEMORY + 4 * ARROW_BATCH_BYTES
    assert_nothing_open(kafka.bootstrap_servers)
