"""Checkpoints in object stores: an S3 server of this machine, and what is said where a store lets nobody in."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer

from kafka_eos_sink.errors import ConfigurationError
from kafka_eos_sink.settings.options import read_options
from kafka_eos_sink.spark import checkpoint_filesystem, stream_writer
from kafka_eos_sink.spark.checkpoint import Checkpoint
from kafka_eos_sink.spark.checkpoint_filesystem import open_location

OFFSETS = b'v1\n{"batchWatermarkMs":0}\n{"orders":{"0":17}}'


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint at ``bucket/a b%20c/checkpoint``, as Spark's S3A connector lays it down: objects with slashes in their names."""
    for name, value in {
        "AWS_ENDPOINT_URL": s3_endpoint,
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    open_location.cache_clear()
    client = boto3.client("s3")
    client.create_bucket(Bucket="bucket")
    for name, content in {
        "metadata": b'{"id":"3d7b7b58-db54-4ae4-b9ec-ebccb0b829b8"}',
        "offsets/9": b"v1\n{}\n-",
        "offsets/10": OFFSETS,
        "commits/9": b"v1\n{}",
    }.items():
        client.put_object(Bucket="bucket", Key=f"a b%20c/checkpoint/{name}", Body=content)


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
@pytest.mark.usefixtures("s3")
def test_s3_checkpoint_is_read_by_its_spark_url(scheme: str) -> None:
    found = Checkpoint(f"{scheme}://bucket/a b%20c/checkpoint")
    assert found.query_id() == "3d7b7b58-db54-4ae4-b9ec-ebccb0b829b8"
    assert found.newest_batch() == 10
    assert [found.is_committed(batch) for batch in (9, 10)] == [True, False]
    offsets = found.offsets(10)
    assert offsets.sha256 == hashlib.sha256(OFFSETS).hexdigest()
    assert offsets.of_kafka() == (("orders", 0, 17),)


class StoreOfSpark:
    """What the classes of Spark's driver read, whatever the location."""

    def __init__(self, location: str) -> None:
        self.location = location

    def read(self, name: str) -> bytes:
        return b'{"id":"read with the credentials of Spark"}'


@pytest.mark.usefixtures("s3")
def test_store_that_rejects_pythons_credentials_is_read_by_sparks_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_filesystem, "HadoopFiles", StoreOfSpark)
    assert Checkpoint("s3a://bucket/a b%20c/checkpoint").query_id() == "3d7b7b58-db54-4ae4-b9ec-ebccb0b829b8"
    assert Checkpoint("s3a://another-bucket/checkpoint").query_id() == "read with the credentials of Spark"


@pytest.mark.parametrize("default_fs", [True, False])
def test_path_without_scheme_is_hadoops_if_a_default_may_be_set(
    default_fs: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Driver:
        def mentions_default_fs(self) -> bool:
            return default_fs

    (tmp_path / "metadata").write_text('{"id":"local"}')
    monkeypatch.setattr(checkpoint_filesystem, "HadoopFiles", StoreOfSpark)
    monkeypatch.setattr(checkpoint_filesystem, "find_driver_jvm", Driver)
    expected = "read with the credentials of Spark" if default_fs else "local"
    assert Checkpoint(str(tmp_path)).query_id() == expected
    assert Checkpoint(f"file:{tmp_path}").query_id() == "local"


def test_azure_is_tried_without_modules_of_the_working_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "pyarrow.py").write_text("import sys\nsys.exit(open('was_here', 'w').write('code of another user'))")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OSError, match="cannot log in to Azure"):
        # Not by Checkpoint: if this fails, Arrow would end the process of the tests.
        checkpoint_filesystem._require_azure("abfss://container@planted.dfs.core.windows.net/checkpoint")
    assert not (tmp_path / "was_here").exists()


def test_inaccessible_store_is_not_retried_for_every_batch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    options = {
        "kafka.bootstrap.servers": "localhost:9092",
        "checkpointLocation": "abfss://container@another.dfs.core.windows.net/checkpoint",
        "transactional.id.prefix": "orders",
    }
    assert stream_writer._newest_offsets(read_options(options, streaming=True)) is None
    monkeypatch.setattr(checkpoint_filesystem.subprocess, "run", None)
    assert stream_writer._newest_offsets(read_options(options, streaming=True)) is None
    (said,) = [record.getMessage() for record in caplog.records]
    assert "the source offsets in the checkpoint abfss://container@another" in said
    assert "cannot log in to Azure" in said
    monkeypatch.setattr(checkpoint_filesystem, "NOT_READABLE", OSError)
    monkeypatch.setattr(stream_writer, "NOT_READABLE", OSError)
    needed = read_options(options | {"source.offsets.group": "g"}, streaming=True)
    with pytest.raises(TypeError):  # who needs the offsets asks again each time
        stream_writer._newest_offsets(needed)


def test_location_resolved_elsewhere_is_no_continuous_query(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Spark resolves a path without scheme against fs.defaultFS, for instance HDFS, so the local folder does not exist."""
    options = {"kafka.bootstrap.servers": "localhost:9092", "checkpointLocation": str(tmp_path / "orders")}
    given = read_options(options | {"transactional.id.prefix": "orders"}, streaming=True)
    assert stream_writer._newest_offsets(given) is None
    (said,) = [record.getMessage() for record in caplog.records]
    assert f"the source offsets in the checkpoint {tmp_path}/orders cannot be read" in said
    with pytest.raises(ConfigurationError, match=r"CHECKPOINT_NOT_READABLE.*fs\.defaultFS.*kafka-eos-<query id>"):
        stream_writer._write_id(read_options(options, streaming=True))
    (tmp_path / "metadata").write_text('{"id":"q"}')
    with pytest.raises(ConfigurationError, match="CONTINUOUS_TRIGGER"):
        stream_writer._newest_offsets(read_options(options | {"checkpointLocation": str(tmp_path)}, streaming=True))
