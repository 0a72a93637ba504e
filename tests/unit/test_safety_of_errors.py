"""What an error says about its rows: in the message for each kind of job, and on the page for each code."""

from __future__ import annotations

import pickle

import pytest

from documents import ROOT, explained_errors
from kafka_eos_sink.cli.explain import entries
from kafka_eos_sink.errors import (
    PAGE,
    SAFETY,
    UNDECIDED,
    FencedError,
    Job,
    KafkaEosError,
    RunAgain,
    Visible,
    safety_sentence,
)


def said(code: str, job: Job) -> str:
    error = KafkaEosError(code, "what happened", "what to do")
    error.concern(job)
    return str(error)


def test_page_advises_for_each_code_as_its_message_does() -> None:
    page = {each.code: (each.rows_visible, each.run_again) for each in entries((ROOT / PAGE).read_text("utf-8"))}
    assert [*page] == explained_errors()
    assert page.keys() >= SAFETY.keys()
    for code, (visible, again) in page.items():
        answers = SAFETY.get(code, UNDECIDED)
        assert (visible, again) == (answers.visible, answers.run_again), code
        again = again.removesuffix(" or checkpoint")  # which no batch job has
        assert f". Rows visible: {visible}. Safe to run again: {again}" in said(code, Job.BATCH), code


def test_message_states_what_happened_then_safety_then_action() -> None:
    text = said("DECIDED_NOT_FINISHED", Job.BATCH)
    assert text == (
        "[KAFKA_EOS.DECIDED_NOT_FINISHED] what happened. Rows visible: maybe. Safe to run again: only with the same txnAppId and "
        "txnVersion. what to do (kafka-eos explain DECIDED_NOT_FINISHED)"
    )


@pytest.mark.parametrize("code", sorted(SAFETY))
def test_job_without_an_id_is_never_advised_to_reuse_it(code: str) -> None:
    text = said(code, Job.RANDOM)
    assert "same txnAppId" not in text
    is_free = SAFETY[code].run_again is RunAgain.YES or code in ("FENCED", "PRODUCER_FENCED")
    assert ("Do not run the job again" in text) is not is_free


@pytest.mark.parametrize("job", [Job.BATCH, Job.STREAM])
def test_error_before_the_plan_does_not_speak_for_earlier_runs(job: Job) -> None:
    """An earlier run may have written the version, and this one has not looked."""
    for code in ("TOPIC_AUTHORIZATION_FAILED", "INVALID_OPTIONS", "CHECKPOINT_NOT_READABLE"):
        sentence = safety_sentence(code, job, has_plan=False)
        assert sentence.startswith("This run wrote nothing of the batch. Safe to run again: ")
        assert "Rows visible" not in sentence
    assert safety_sentence("UNRESOLVED", job, has_plan=False).startswith("Rows visible: maybe.")
    assert safety_sentence("INVALID_OPTIONS", Job.RANDOM, has_plan=False).startswith("Rows visible: no.")


@pytest.mark.parametrize("code", sorted(SAFETY))
def test_stream_is_advised_to_keep_its_checkpoint(code: str) -> None:
    text = said(code, Job.STREAM)
    assert "txnAppId" not in text
    assert ("from the same checkpoint" in text) is (SAFETY[code].run_again is RunAgain.SAME_ID)


@pytest.mark.parametrize("code", ["RECORD_TOO_LARGE", "DELIVERY_TIMEOUT", "TOPIC_GONE"])
def test_no_error_of_an_at_least_once_task_is_safe(code: str) -> None:
    text = said(code, Job.AT_LEAST_ONCE)
    assert (
        "Rows visible: maybe. Safe to run again: no. This write has delivery.guarantee=at-least-once: another run writes all rows again."
        in text
    )


def test_error_that_concerns_no_write_states_nothing() -> None:
    assert (
        str(KafkaEosError("JAVA_NOT_FOUND", "no Java"))
        == "[KAFKA_EOS.JAVA_NOT_FOUND] no Java (kafka-eos explain JAVA_NOT_FOUND)"
    )


def test_first_job_that_an_error_concerns_stands() -> None:
    error = KafkaEosError("UNKNOWN_TOPIC", "no topic t")
    error.concern(Job.AT_LEAST_ONCE)
    error.concern(Job.BATCH)
    assert str(error).count("Rows visible") == 1
    assert error.safety == safety_sentence("UNKNOWN_TOPIC", Job.AT_LEAST_ONCE)


def test_safety_survives_the_way_between_processes() -> None:
    error = FencedError("FENCED", "another run has replaced this run", "stop one")
    error.concern(Job.STREAM)
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error)
    assert copy.way_out == "stop one"


def test_code_without_a_row_counts_as_undecided() -> None:
    assert (Visible.NO, RunAgain.YES) == UNDECIDED
    assert "Rows visible: no. Safe to run again: yes." in said("BROKER_UNREACHABLE", Job.RANDOM)
