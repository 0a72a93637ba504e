"""Declarative Pipelines: the pipeline of docs/stream.md is killed, runs again, and is refreshed in full."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pyspark
import pytest

from documents import all_blocks
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_testing import assert_nothing_open, create_topic, read_committed, read_uncommitted, unique_topic
from tests.spark.killable_job import KillableJob
from tests.spark.streams import produce

pytestmark = pytest.mark.timeout(1_200)
PAGE = {block.name: block.text for block in all_blocks() if block.document == "docs/stream.md"}
SPEC, PROGRAM = (PAGE[f"docs/stream.md#declarative-pipelines{number}"] for number in ("", ":2"))


class Pipeline(KillableJob):
    """The files of the page, with this cluster, topics and folder in place of the page's; one transaction has 15 rows."""

    deadline_s = 600.0

    def __init__(self, environment: dict[str, str], cluster: EmbeddedKafka, folder: Path, jars: Sequence[Path]) -> None:
        super().__init__(Path(pyspark.__file__).parent / "bin" / "spark-pipelines", environment, folder)
        self.servers, self._jars, self.sent = cluster.bootstrap_servers, jars, 0
        self.input, self.topic = create_topic(self.servers, partitions=2), create_topic(self.servers, partitions=3)
        self.group = unique_topic("group")
        (folder / "transformations").mkdir()
        (folder / "spark-pipeline.yml").write_text(SPEC.replace("s3a://bucket", folder.as_uri()), "utf-8")
        self._program, self._checkpoints = folder / "transformations" / "orders.py", folder / "pipelines"
        self.write(PROGRAM)

    def write(self, program: str) -> None:
        for page, here in {
            "localhost:9092": self.servers,
            '"clicks"': f'"{self.input}"',
            '"topic": "orders"': f'"topic": "{self.topic}"',
            '"orders-lag"': f'"{self.group}"',
            "100_000": "15",
        }.items():
            assert page in program or page == '"orders-lag"'
            program = program.replace(page, here)
        self._program.write_text(program, "utf-8")

    def command(self, arguments: Sequence[str]) -> list[str]:
        return [str(self._script), "run", "--jars", ",".join(map(str, self._jars)), *arguments]

    def send(self, count: int) -> None:
        numbers = range(self.sent, self.sent + count)
        produce(self.servers, self.input, ((str(number), str(number)) for number in numbers), end="commit")
        self.sent += count

    def checkpoints(self) -> list[Path]:
        """Of the flow, the oldest first."""
        return sorted(self._checkpoints.glob("orders/_checkpoints/orders/new_orders/*"))

    def assert_every_row(self, times: int) -> None:
        values = Counter(int(record.value or b"") for record in read_committed(self.servers, self.topic))
        assert values == dict.fromkeys(range(self.sent), times)
        assert_nothing_open(self.servers, [self.topic])


@pytest.fixture
def pipeline(
    kafka: EmbeddedKafka, spark_environment: dict[str, str], kafka_source_jars: list[Path], tmp_path: Path
) -> Pipeline:
    return Pipeline(spark_environment, kafka, tmp_path, kafka_source_jars)


def test_killed_pipeline_writes_once_and_refuses_full_refresh(pipeline: Pipeline) -> None:
    pipeline.send(40)
    pipeline.die_at("commit.decided", [])
    assert pipeline.run([]) == 0, pipeline.said()[-3000:]
    pipeline.assert_every_row(times=1)

    written = read_uncommitted(pipeline.servers, pipeline.topic)
    pipeline.send(20)
    assert pipeline.run(["--full-refresh-all"]) != 0
    assert "[KAFKA_EOS.CHECKPOINT_LOST] " in pipeline.said()
    assert read_uncommitted(pipeline.servers, pipeline.topic) == written

    _, new = pipeline.checkpoints()
    shutil.rmtree(new)
    assert pipeline.run([]) == 0, pipeline.said()[-3000:]
    pipeline.assert_every_row(times=1)


def test_full_refresh_without_a_group_writes_all_rows_again(pipeline: Pipeline) -> None:
    """A sink's name refreshes nothing: Spark excludes its flow."""
    pipeline.write(re.sub(r'.*"source.offsets.group".*\n', "", PROGRAM))
    pipeline.send(40)
    for arguments, times in ([], 1), (["--full-refresh", "orders"], 1), (["--full-refresh-all"], 2):
        assert pipeline.run(arguments) == 0, pipeline.said()[-3000:]
        pipeline.assert_every_row(times)
