"""Kills the driver of a streaming query at random moments, again and again, and counts what arrived.

    make torture [TORTURE="--kills 200 --transaction-version 2 --seed 1"]

A query streams numbered lines from files to an embedded Kafka, a file a batch, while files are added. Its driver and everything that it
started is killed with SIGKILL, at a random named step of the protocol or after a random time from its first plan on, and started again with
the same checkpoint. After every other kill the transactions that it left open are aborted, as if they timed out. Those that were decided
are restored from the log, and drivers are killed at the steps of that, too. In the end every line must be visible once to a read_committed
consumer, and no transaction open. A line per kill tells where it struck; exit status 1 if a line is missing or there twice.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from dead_writes import POINTS, RESTORE_POINTS, abort_open, write_settings
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_testing import assert_nothing_open, create_topic, read_committed
from tests.spark.jobs.stream_rows import LINES, add_files
from tests.spark.killable_job import KillableJob, signal_all
from tests.spark.quick_start import PYTHON_STARTUP, short_lived_jvm
from tests.spark.streams import write_id_of

REPOSITORY = Path(__file__).parents[2]
SCRIPT = REPOSITORY / "tests" / "spark" / "jobs" / "stream_rows.py"
DECIDED = ("commit.decided", "commit.between_ends", "restore.decided")
"""Steps at which some transactions are decided and open."""
LONGEST_LIFE_S = 3.0
"""A driver lives for at most so long after its first plan: some batches, each with every step of the protocol."""


def environment() -> dict[str, str]:
    return {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": short_lived_jvm(),
        "PYTHONPATH": os.pathsep.join([str(PYTHON_STARTUP), str(REPOSITORY)]),
    }


def strike(
    job: KillableJob, arguments: list[str], chance: random.Random, folder: Path, number: int, points: tuple[str, ...]
) -> str:
    """Start a driver and kill it, at one of the points or at any time; where it was hit."""
    if chance.random() < 0.5:
        point = chance.choice(points)
        job.die_at(point, arguments)
        return point
    began = folder / f"began-{number}"
    life = chance.random() * LONGEST_LIFE_S
    with job.started(arguments, f"plan.fenced=wait:{began}") as process:
        job.await_mark(began, process, "plan.fenced")
        began.unlink()
        time.sleep(life)
        signal_all(process.pid, signal.SIGKILL)
    return f"{life:.2f} s after the first plan"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--transaction-version", type=int, choices=(0, 1, 2), default=2)
    parser.add_argument("--kafka-version", default=None)
    given = parser.parse_args()
    print(f"{given.kills} kills, seed {given.seed}, transaction.version {given.transaction_version}", flush=True)
    chance = random.Random(given.seed)
    version = {} if given.kafka_version is None else {"version": given.kafka_version}
    with (
        tempfile.TemporaryDirectory(prefix="kafka-eos-torture-") as name,
        EmbeddedKafka(transaction_version=given.transaction_version, **version) as kafka,
    ):
        folder = Path(name)
        job = KillableJob(SCRIPT, environment(), folder)
        topic = create_topic(kafka.bootstrap_servers, partitions=3)
        source, checkpoint = folder / "source", folder / "checkpoint"
        arguments = [kafka.bootstrap_servers, topic, str(source), str(checkpoint)]
        files = 0
        lost = False
        started = time.monotonic()
        for number in range(given.kills):
            # More than a driver can write in its life, so that it is never killed while it has nothing to do.
            done = len(list((checkpoint / "commits").glob("[0-9]*"))) if checkpoint.exists() else 0
            add_files(source, files, done + 20 - files)
            files = max(files, done + 20)
            where = strike(job, arguments, chance, folder, number, RESTORE_POINTS if lost else POINTS)
            aborted = chance.random() < 0.5
            if aborted:
                abort_open(write_settings(kafka, topic, write_id=write_id_of(checkpoint)))
            lost = aborted and where in DECIDED
            what = " and aborted" if aborted else ""
            print(f"kill {number + 1:4} in batch {done:4}, {where}{what}", flush=True)
        if job.run(arguments) != 0:
            print(job.said()[-3_000:])
            return 1
        seen = Counter(int(record.value or b"") for record in read_committed(kafka.bootstrap_servers, topic))
        missing = sum(1 for line in range(files * LINES) if line not in seen)
        twice = sum(1 for times in seen.values() if times > 1)
        assert_nothing_open(kafka.bootstrap_servers, patience_s=60)
        print(
            f"{given.kills} kills in {(time.monotonic() - started) / 60:.0f} minutes: {files * LINES:,} lines, {missing} missing, "
            f"{twice} more than once, no transaction open"
        )
        return 1 if missing or twice else 0


if __name__ == "__main__":
    os.environ.update(environment())
    sys.exit(main())
