"""The options of the sink: what each is called, what it may hold, and what all of them together come to.

Everything that is wrong is reported at once. Names are case-insensitive, as Spark hands them over in lower case.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Literal

from kafka_eos_sink.client.config import ClientConfig
from kafka_eos_sink.commit.commit_log import DEFAULT_TOPIC
from kafka_eos_sink.errors import ConfigurationError
from kafka_eos_sink.plugins import load_object
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.settings.kafka_properties import nearest, read_kafka_properties, shown
from kafka_eos_sink.settings.property_tables import KNOWN
from kafka_eos_sink.settings.secrets import resolve

PREFIX = "kafka."

NAMES = {
    name.lower(): name
    for name in (
        "topic",
        "transactional.id.prefix",
        "txnAppId",
        "txnVersion",
        "delivery.guarantee",
        "commit.log.topic",
        "source.offsets.group",
        "dead.letter.topic",
        "partitioner",
        "interceptors",
        "onCheckpointRollback",
    )
}
"""The sink's own options: as Spark hands them over, and as they are written."""

FROM_SPARK = {name.lower(): name for name in ("checkpointLocation", "queryName")}
"""Options of a streaming query that Spark hands to its sink as well."""
ASYNC_PROGRESS = "asyncprogresstracking"

DeliveryGuarantee = Literal["exactly-once", "at-least-once"]
OnCheckpointRollback = Literal["fail", "skip", "rewrite"]

_TOPIC = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}", re.ASCII)
_OBJECT = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_VERSION_MAX = 2**63 - 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The options of one write, checked; equal options give equal values in every process."""

    topic: str | None
    transactional_id_prefix: str | None
    txn_app_id: str | None
    txn_version: int | None
    delivery_guarantee: DeliveryGuarantee
    commit_log_topic: str
    on_checkpoint_rollback: OnCheckpointRollback
    checkpoint_location: str | None
    source_offsets_group: str | None
    client: ClientConfig
    producer: ProducerConfig
    kafka_names: frozenset[str]
    """The ``kafka.*`` names that were given, without ``kafka.``."""
    warnings: tuple[str, ...]


def sink_part(options: Mapping[str, str]) -> dict[str, str]:
    """The sink's own options with their references resolved; ``kafka.*`` as it was written.

    The write id comes from these. It must be the same in every process, so they are resolved once, on the driver,
    where the secrets in ``kafka.*`` are resolved wherever they are used and never travel.
    """
    resolved = {}
    for name, value in options.items():
        name = name.lower()
        resolved[name] = value if name.startswith(PREFIX) else resolve(value)
    return resolved


def read_options(options: Mapping[str, str], *, check_imports: bool = False, streaming: bool = False) -> SinkOptions:
    """The options of a batch write, or of a streaming query.

    With `check_imports` the partitioner and the interceptors are looked up as well, as the tasks will do.

    Raises:
        ConfigurationError: INVALID_OPTIONS, naming all problems at once.
    """
    problems: list[str] = []
    lowered: dict[str, str] = {}
    for name, value in options.items():
        try:
            lowered.update(sink_part({name: value}))
        except ConfigurationError as error:
            problems.append(f"{NAMES.get(name.lower(), name)}: {error.message}")
    reader = _OptionReader(lowered, problems)
    kafka = {name.removeprefix(PREFIX): value for name, value in lowered.items() if name.startswith(PREFIX)}
    properties = read_kafka_properties(kafka, problems, prefix=PREFIX)
    reader.refuse_unknown(options, streaming)
    topic = reader.topic("topic")
    commit_log_topic = reader.topic("commit.log.topic") or DEFAULT_TOPIC
    if topic == commit_log_topic:
        problems.append(f"topic {topic!r} is the commit log, which must hold nothing but the sink's own records")
    txn_app_id, txn_version = reader.transaction()
    guarantee = reader.choice("delivery.guarantee", "exactly-once", "at-least-once")
    if guarantee == "at-least-once":
        reader.refuse_with_at_least_once(kafka)
    rollback = reader.choice("onCheckpointRollback", "fail", "skip", "rewrite")
    group = reader.text("source.offsets.group")
    if streaming:
        reader.refuse_in_a_stream()
    elif group is not None:
        problems.append(
            "source.offsets.group is for streaming queries: a batch write has no checkpoint with source offsets"
        )
    prefix = reader.text("transactional.id.prefix")
    if prefix is not None and not prefix.strip():
        problems.append("transactional.id.prefix is empty: writes of unrelated programs would be taken for one another")
    if group is not None and not group.strip():
        problems.append("source.offsets.group is empty; give the id of a consumer group")
    producer_fields = {
        "partitioner": reader.partitioner(check_imports),
        "interceptors": reader.interceptors(check_imports),
        "dead_letter_topic": reader.topic("dead.letter.topic"),
    }
    if producer_fields["dead_letter_topic"] == commit_log_topic:
        problems.append("dead.letter.topic is the commit log; choose another topic")
    if problems or properties is None:
        raise ConfigurationError("INVALID_OPTIONS", "; ".join(problems))
    return SinkOptions(
        topic=topic,
        transactional_id_prefix=prefix,
        txn_app_id=txn_app_id,
        txn_version=txn_version,
        delivery_guarantee=guarantee,  # type: ignore[arg-type]
        commit_log_topic=commit_log_topic,
        on_checkpoint_rollback=rollback,  # type: ignore[arg-type]
        checkpoint_location=reader.text("checkpointLocation"),
        source_offsets_group=group,
        client=properties.client,
        producer=dataclasses.replace(
            properties.producer,
            interceptor_options=tuple(sorted(_for_interceptors(lowered).items())),
            **producer_fields,  # type: ignore[arg-type]
        ),
        kafka_names=properties.given,
        warnings=properties.warnings,
    )


def readable(options: Mapping[str, str]) -> str:
    """The options for a repr: literal secrets and whatever might be one hidden, references as they were written."""
    return ", ".join(
        f"{NAMES.get(name.lower(), name)}={_shown(name.lower(), value)!r}" for name, value in sorted(options.items())
    )


def _shown(name: str, value: str) -> str:
    return value if name in NAMES else shown(name.removeprefix(PREFIX), value)


def _for_interceptors(options: Mapping[str, str]) -> dict[str, str]:
    """What ``configure`` of an interceptor is given: all options as written, with no secret that stands in them."""
    return {NAMES.get(name, name): _shown(name, value) for name, value in options.items()}


class _OptionReader:
    """Takes the sink's own options (lower-case names) one by one; collects problems."""

    def __init__(self, options: Mapping[str, str], problems: list[str]) -> None:
        self._options = options
        self._problems = problems

    def refuse_unknown(self, written: Mapping[str, str], streaming: bool) -> None:
        """`written` has the names as the user wrote them, where Spark left them so."""
        for name in sorted(written):
            lowered = name.lower()
            if lowered == "path":
                call = "start" if streaming else "save"
                self._problems.append(f"{call}(path) has no meaning for Kafka: use {call}() and the option topic")
            elif streaming and (lowered in FROM_SPARK or lowered.startswith(ASYNC_PROGRESS)):
                continue
            elif not lowered.startswith(PREFIX) and lowered not in NAMES:
                known = nearest(lowered, {*NAMES, *(PREFIX + known for known in KNOWN)})
                self._problems.append(f"{name} is not known; the nearest known name is {NAMES.get(known, known)}")

    def text(self, name: str) -> str | None:
        return self._options.get(name.lower())

    def choice(self, name: str, *choices: str) -> str:
        """One of `choices` in any case; the first is the default."""
        value = self.text(name)
        if value is None:
            return choices[0]
        if value.strip().lower() not in choices:
            self._problems.append(f"{name} must be one of {', '.join(choices)}, not {value!r}")
            return choices[0]
        return value.strip().lower()

    def topic(self, name: str) -> str | None:
        """A topic name, trimmed as Spark's Kafka sink does, in Kafka's legal characters."""
        value = self.text(name)
        if value is None:
            return None
        trimmed = value.strip()
        if _TOPIC.fullmatch(trimmed) is None:
            self._problems.append(
                f"{name}: {trimmed!r} is no name of a topic, which has 1 to 249 letters, digits, '.', '_' and '-'"
            )
            return None
        return trimmed

    def transaction(self) -> tuple[str | None, int | None]:
        """``txnAppId`` and ``txnVersion``: both or none."""
        app_id, version = self.text("txnAppId"), self.text("txnVersion")
        if app_id is None and version is None:
            return None, None
        if app_id is None or version is None:
            given, missing = ("txnAppId", "txnVersion") if version is None else ("txnVersion", "txnAppId")
            self._problems.append(
                f"{given} is given without {missing}: a write is recognised by both together, "
                "who writes and which of its writes this is"
            )
        if app_id is not None and not app_id.strip():
            self._problems.append("txnAppId is empty: writes of unrelated programs would be taken for one another")
        number = None
        if version is not None:
            if re.fullmatch(r"\+?[0-9]{1,19}", version.strip(), re.ASCII):
                number = int(version)
            if number is None or number > _VERSION_MAX:
                self._problems.append(f"txnVersion must be an integer from 0 to {_VERSION_MAX}, not {version!r}")
        return app_id, number

    def refuse_in_a_stream(self) -> None:
        """What belongs to batch writes, and the ways of Spark to run a query that leave no batch to commit exactly once."""
        for name in ("txnAppId", "txnVersion"):
            if self.text(name) is not None:
                self._problems.append(
                    f"{name} is for batch writes (foreachBatch among them); a streaming query is known by its checkpoint"
                )
        if (self.text(f"{ASYNC_PROGRESS}Enabled") or "").strip().lower() == "true":
            self._problems.append(
                "asyncProgressTrackingEnabled cannot be exactly once: batches begin before their offsets are written down, so nobody could "
                "tell a repeated batch from a new one; leave it out and use a micro-batch trigger (processingTime, availableNow)"
            )

    def refuse_with_at_least_once(self, kafka: Mapping[str, str]) -> None:
        """What only transactions can do must not be asked for and silently left out."""
        for name in ("txnAppId", "txnVersion", "source.offsets.group"):
            if self.text(name) is not None:
                self._problems.append(
                    f"{name} needs delivery.guarantee=exactly-once: without transactions a repeat cannot be skipped"
                )
        if "transaction.timeout.ms" in kafka:
            self._problems.append(f"{PREFIX}transaction.timeout.ms needs delivery.guarantee=exactly-once")

    def partitioner(self, check_imports: bool) -> str:
        value = (self.text("partitioner") or "default").strip()
        if value.lower() in ("default", "round-robin"):
            return value.lower()
        if _OBJECT.fullmatch(value) is None:
            self._problems.append(f"partitioner must be default, round-robin or package.module:callable, not {value!r}")
            return "default"
        if check_imports:
            self._import("partitioner", value)
        return value

    def interceptors(self, check_imports: bool) -> tuple[str, ...]:
        classes = tuple(filter(None, (part.strip() for part in (self.text("interceptors") or "").split(","))))
        for value in classes:
            if _OBJECT.fullmatch(value) is None:
                self._problems.append(f"interceptors must be package.module:Class, comma-separated, not {value!r}")
            elif check_imports:
                self._import("interceptors", value)
        return classes

    def _import(self, option: str, value: str) -> None:
        try:
            found = load_object(value, option)
        except ConfigurationError as error:
            self._problems.append(error.message)
            return
        except Exception as error:  # the user's module, run by importing it
            self._problems.append(f"{option}: importing {value!r} raised {type(error).__name__}: {error}")
            return
        if not callable(found):
            self._problems.append(f"{option}: {value!r} is not callable")
