from __future__ import annotations

from pathlib import Path

import pytest

from kafka_eos_sink.demo import quiet_spark
from kafka_eos_sink.demo.quiet_spark import in_one_sentence, spark_folder


def test_sink_error_is_found_inside_sparks_error() -> None:
    text = (
        "An error occurred while calling o1.save.\n: org.apache.spark.SparkException: Job aborted\n"
        "Caused by: x: [KAFKA_EOS.INVALID_ROW] topic 't' has no partition 9 \n\tat org.apache..."
    )
    found = in_one_sentence(RuntimeError(text))
    assert (found.code, found.message) == ("INVALID_ROW", "topic 't' has no partition 9")


def test_other_errors_give_the_first_line_of_the_jvm() -> None:
    text = "An error occurred while calling o1.save.\n: java.lang.IllegalStateException: no disk\n\tat x\n"
    found = in_one_sentence(RuntimeError(text))
    assert (found.code, found.message) == ("SPARK_FAILED", "java.lang.IllegalStateException: no disk")
    assert in_one_sentence(RuntimeError("plain")).message == "plain"
    assert in_one_sentence(RuntimeError("")).code == "SPARK_FAILED"


def test_folder_is_kept_only_after_a_failure_with_a_log() -> None:
    shown: list[str] = []
    folders: list[Path] = []

    def use(failure: BaseException | None, *, log: bool) -> Path:
        with spark_folder("kafka-eos-test-", shown.append) as folder:
            folders.append(folder)
            if log:
                (folder / "spark.log").touch()
            if failure is not None:
                raise failure
        return folder

    assert not use(None, log=True).exists()
    with pytest.raises(KeyboardInterrupt):
        use(KeyboardInterrupt(), log=True)
    with pytest.raises(ValueError):
        use(ValueError(), log=False)
    assert not any(folder.exists() for folder in folders)
    assert shown == []
    with pytest.raises(ValueError):
        use(ValueError(), log=True)
    try:
        assert shown == [f"Spark's log: {folders[-1] / 'spark.log'}"]
    finally:
        (folders[-1] / "spark.log").unlink()
        folders[-1].rmdir()


def test_local_spark_admits_no_other_users_of_the_machine() -> None:
    """Its driver and block manager listen; without the secret, any local user could send them objects."""
    assert quiet_spark._SETTINGS["spark.authenticate"] == "true"
    assert quiet_spark._SETTINGS["spark.driver.bindAddress"] == "127.0.0.1"
