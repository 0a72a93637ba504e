"""What a planner process remembers of its plans."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest

from kafka_eos_sink.client.config import ClientConfig, parse_bootstrap_servers
from kafka_eos_sink.commit import admission
from kafka_eos_sink.commit.values import BatchIdentity, TaskOutcome
from kafka_eos_sink.errors import WriteRefusedError
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.runtime import history, planning
from kafka_eos_sink.runtime.source_offsets import FirstBatch
from kafka_eos_sink.runtime.write_settings import WriteSettings
from tests.runs import WRITE

SETTINGS = WriteSettings(
    batch=BatchIdentity(query_id="q", version=0, streaming=True, topic="t", schema="value binary", offsets_hash=None),
    write=WRITE,
    client=ClientConfig(bootstrap_servers=parse_bootstrap_servers("b:9092")),
    producer=ProducerConfig(),
)


class Planner:
    """A planner process whose cluster is always in order; it notes the write ids that it checked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.checked: list[str] = []
        self.read_from: list[int] = []
        self.admitted: Iterator[Any] = iter(())
        self.reported: list[int] = []
        """How many times the log was read when recovered batches were reported."""
        client = SimpleNamespace(clock=lambda: 1_000)
        self.log_id: UUID | None = uuid4()
        """None once the commit log is deleted."""
        admin = SimpleNamespace(client=client, transaction_version=lambda _deadline: 2, topic=self.topic)
        self.executor: Any = SimpleNamespace(admin=admin, run=self.run)
        monkeypatch.setattr(planning, "_remembered", {})
        monkeypatch.setattr(planning, "require_brokers", self.require_brokers)
        monkeypatch.setattr(planning, "require_topics", lambda *_: None)
        monkeypatch.setattr(history, "report_recovered", lambda *_: self.reported.append(len(self.read_from)))
        monkeypatch.setattr(admission, "admit", self.admit)
        monkeypatch.setattr(planning, "admit", self.admit)

    def require_brokers(self, settings: WriteSettings, _: Any) -> int:
        self.checked.append(settings.write.id)
        return 900_000

    def run(self, procedure: Any) -> Any:
        of = procedure.gi_frame.f_locals
        procedure.close()
        self.read_from.append(of["request"].view.next_offset)
        view = of["request"].view
        self.log_id = self.log_id or uuid4()  # the check creates it
        view.next_offset, view.topic_id = 7, self.log_id
        return object()

    def topic(self, name: str, _deadline: int) -> Any:
        assert name in (WRITE.log_topic, "another")
        return None if self.log_id is None else SimpleNamespace(topic_id=self.log_id)

    def admit(self, *_: Any) -> tuple[Any, None]:
        outcome = next(self.admitted)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome, None

    def plan(self, write_id: str, *, streaming: bool = True) -> None:
        batch = replace(SETTINGS.batch, streaming=streaming)
        planning.plan(replace(SETTINGS, batch=batch, write=replace(WRITE, id=write_id)), self.executor)


@pytest.mark.parametrize("known", [False, True], ids=["unknown query", "query with a decision"])
def test_group_is_read_only_if_the_log_lacks_the_query(monkeypatch: pytest.MonkeyPatch, known: bool) -> None:
    planner, compared = Planner(monkeypatch), []
    found = SimpleNamespace(newest_decision=lambda query_id: query_id if known else None)
    monkeypatch.setattr(planner.executor, "run", lambda procedure: procedure.close() or found)
    monkeypatch.setattr(planning, "require_checkpoint", lambda _admin, *given: compared.append(given))
    first = FirstBatch(query_id="q", checkpoint="/c", group_id="g", sources=())
    assert planning.plan(replace(SETTINGS, first_batch=first), planner.executor) is found
    assert compared == ([] if known else [(WRITE, first, "fail", 1_000 + SETTINGS.producer.delivery_timeout_ms)])


def test_planner_remembers_the_last_256_write_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    planner = Planner(monkeypatch)
    names = [f"w{number}" for number in range(257)]
    for name in names:
        planner.plan(name)
    assert len(planning._remembered) == 256
    planner.checked.clear()
    for name in names[1:]:
        planner.plan(name)
    assert planner.checked == []
    planner.plan(names[0])
    assert planner.checked == [names[0]]


OTHER_SETTINGS = {
    "topic": replace(SETTINGS, batch=replace(SETTINGS.batch, topic="u")),
    "commit log": replace(SETTINGS, write=replace(WRITE, log_topic="another")),
    "cluster": replace(SETTINGS, client=replace(SETTINGS.client, bootstrap_servers=parse_bootstrap_servers("c:9092"))),
    "dead letter topic": replace(SETTINGS, producer=ProducerConfig(dead_letter_topic="letters")),
    "timeout": replace(SETTINGS, producer=ProducerConfig(transaction_timeout_ms=60_000)),
}


@pytest.mark.parametrize("settings", OTHER_SETTINGS.values(), ids=OTHER_SETTINGS)
def test_plan_with_other_settings_checks_again(monkeypatch: pytest.MonkeyPatch, settings: WriteSettings) -> None:
    planner = Planner(monkeypatch)
    for given in (SETTINGS, settings, settings, SETTINGS):
        planning.plan(given, planner.executor)
    assert planner.checked == [WRITE.id, WRITE.id]
    assert planner.read_from == [0, 0, 7, 7]


@pytest.mark.parametrize("after", [None, uuid4()], ids=["deleted", "created again"])
@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "batch"])
def test_plan_after_a_deleted_commit_log_checks_again(
    monkeypatch: pytest.MonkeyPatch, streaming: bool, after: UUID | None
) -> None:
    planner = Planner(monkeypatch)
    planner.plan("w")
    planner.log_id = after
    planner.admitted = iter([None])
    planner.plan("w", streaming=streaming)
    assert (planner.checked, planner.read_from) == (["w", "w"], [0, 0])
    planner.plan("w")
    assert planner.read_from == [0, 0, 7]


@pytest.mark.parametrize("stale", [TaskOutcome.ALREADY_COMMITTED, WriteRefusedError("DIFFERENT_BATCH", "w")], ids=repr)
@pytest.mark.parametrize("forgotten", [True, False])
def test_batch_is_skipped_only_after_the_whole_log_was_read(
    monkeypatch: pytest.MonkeyPatch, stale: Any, forgotten: bool
) -> None:
    """`kafka-eos forget` may have removed the decision, and the cleaner the tombstones behind which the view reads on."""
    planner = Planner(monkeypatch)
    planner.admitted = iter([None, stale, None if forgotten else stale])
    planner.plan("w", streaming=False)
    if not forgotten and isinstance(stale, Exception):
        with pytest.raises(WriteRefusedError):
            planner.plan("w", streaming=False)
    else:
        planner.plan("w", streaming=False)
    assert planner.read_from == [0, 7, 0]
    assert planner.reported == [1, 3], "one history record, although the plan is made twice"
    assert next(planner.admitted, "all asked") == "all asked"
