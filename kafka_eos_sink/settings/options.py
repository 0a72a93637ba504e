"""Read the options of one write, and report all problems at once.

Names are case-insensitive, because Spark passes them in lower case.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from kafka_eos_sink.commit.transactional_id import (
    LONGEST_WRITE_ID,
    batch_write_id,
    random_write_id,
    streaming_write_id,
)
from kafka_eos_sink.commit.values import DEFAULT_TOPIC
from kafka_eos_sink.errors import ConfigurationError
from kafka_eos_sink.plugins import load_callable
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.runtime.batch_record import DEFAULT_HISTORY_TOPIC
from kafka_eos_sink.settings.kafka_properties import client_part, read_kafka_properties
from kafka_eos_sink.settings.reading import read_values, shown
from kafka_eos_sink.settings.secrets import VARIABLE, resolve, switched_off
from kafka_eos_sink.settings.table import PREFIX, PROPERTIES_FILE, SINK, STREAMING, SinkOptions, fields_of
from kafka_eos_sink.settings.unknown_names import ASYNC_PROGRESS, about_unknown, written_name

_SOME_UUID = str(uuid.UUID(int=0))
"""As long as the id of a streaming query, and as the random id of a batch write without ``txnAppId``."""


def resolve_own_options(options: Mapping[str, str]) -> dict[str, str]:
    """Resolve the references in the sink's own options; make all names lower-case.

    The write id derives from the sink's own options and must be the same in every process. So the driver resolves them
    once, and ``read_options`` takes the result with `resolved`. Options ``kafka.*`` stay as the user wrote them, because
    secrets must not travel: each process resolves its own.
    """
    return {
        name.lower(): value if name.lower().startswith(PREFIX) else resolve(value) for name, value in options.items()
    }


def read_options(
    options: Mapping[str, str], *, check_imports: bool = False, streaming: bool = False, resolved: bool = False
) -> SinkOptions:
    """Read the options of a batch write or of a streaming query.

    Args:
        options: Values by name in any case, as the user wrote them, or as ``resolve_own_options`` returned them.
        check_imports: Also import the partitioner and the interceptors, as the tasks will do.
        streaming: Whether Spark passed the options of a streaming query.
        resolved: Whether the sink's own options come from ``resolve_own_options``; they are not resolved again.

    Raises:
        ConfigurationError: INVALID_OPTIONS, naming all problems at once.
    """
    problems: list[str] = []
    kafka, warnings = kafka_part(options, problems)
    properties = read_kafka_properties(kafka, problems, prefix=PREFIX)
    known = {**SINK, **STREAMING} if streaming else SINK
    own = {written_name(name): value for name, value in options.items() if written_name(name) in known}
    values = read_values(own, known, "", problems, [], resolved=resolved)
    problems += _unknown(options, streaming)
    # Use the default for a value that failed to parse. The reader has already reported it.
    settings: dict[str, Any] = {name: values.get(name, row.default_value) for name, row in known.items()}
    problems += _problems_together(settings, own, kafka, streaming)
    if check_imports:
        problems += _import_problems(values)
    if problems or properties is None:
        raise ConfigurationError("INVALID_OPTIONS", problems)
    return SinkOptions(
        **fields_of(values, SinkOptions, known),
        client=dataclasses.replace(properties.client, properties_file=_properties_file(options)),
        producer=dataclasses.replace(
            properties.producer,
            **fields_of(values, ProducerConfig, known),
            # Also the default topics: other writes may use them, and would take such a row for a record of the sink.
            own_topics=frozenset(
                {settings["commit.log.topic"], DEFAULT_TOPIC, settings["history.topic"], DEFAULT_HISTORY_TOPIC} - {""}
            ),
            interceptor_options=_for_interceptors(options if resolved else resolve_own_options(options)),
        ),
        warnings=(*properties.warnings, *warnings),
    )


def kafka_part(options: Mapping[str, str], problems: list[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the ``kafka.*`` options over the properties file, and its warnings."""
    kafka = {
        name.lower().removeprefix(PREFIX): value for name, value in options.items() if name.lower().startswith(PREFIX)
    }
    path = kafka.pop(PROPERTIES_FILE.removeprefix(PREFIX), None)
    if path is None:
        return kafka, ()
    if switched_off():
        problems.append(
            f"{PROPERTIES_FILE} is rejected: {VARIABLE} switches it off in this process; give kafka.* options"
        )
        return kafka, ()
    try:
        # Each process reads the file itself, so its content, secrets included, never travels.
        ours, warnings = client_part(resolve(path))
    except ConfigurationError as error:
        problems.append(f"{PROPERTIES_FILE}: {error.message}")
        return kafka, ()
    return ours | kafka, warnings


def _properties_file(options: Mapping[str, str]) -> str | None:
    return next((resolve(value) for name, value in options.items() if name.lower() == PROPERTIES_FILE), None)


def readable(options: Mapping[str, str]) -> str:
    """Return the options for a repr: possible secrets are hidden, references stay."""
    return ", ".join(f"{written_name(name)}={shown(name.lower(), value)!r}" for name, value in sorted(options.items()))


def _for_interceptors(options: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the options for ``configure`` of interceptors, without literal secrets."""
    return tuple(sorted((written_name(name), shown(name, value)) for name, value in options.items()))


def _unknown(options: Mapping[str, str], streaming: bool) -> list[str]:
    found = []
    for name in sorted(options):
        lowered = name.lower()
        # Spark passes the argument of save() and start() as the option path.
        if lowered == "path":
            call = "start" if streaming else "save"
            found.append(f"{call}(path) has no meaning for Kafka: use {call}() and the option topic")
        elif streaming and (written_name(name) in STREAMING or lowered.startswith(ASYNC_PROGRESS)):
            continue
        elif not lowered.startswith(PREFIX) and written_name(name) not in SINK:
            found.append(about_unknown(name))
    return found


def _problems_together(
    settings: Mapping[str, Any], own: Mapping[str, str], kafka: Mapping[str, str], streaming: bool
) -> list[str]:
    """Check the rules that concern more than one option.

    Args:
        settings: Parsed values of the sink's options, with defaults.
        own: The sink's options that were given, as texts. An option that could not be parsed counts as given too.
        kafka: The ``kafka.*`` options that were given, without ``kafka.``.
        streaming: Whether these are the options of a streaming query.
    """
    found = [*_problems_of_topics(settings), *_write_id_problems(settings, own, streaming)]
    if ("txnAppId" in own) != ("txnVersion" in own):
        given, missing = ("txnAppId", "txnVersion") if "txnAppId" in own else ("txnVersion", "txnAppId")
        found.append(f"{given} is given without {missing}: only both together identify a write; add {missing}")
    if "foreachBatchCall" in own and "txnAppId" not in own:
        found.append("foreachBatchCall is given without txnAppId: for_each_batch sets both; remove it")
    if settings["delivery.guarantee"] == "at-least-once":
        found += [
            f"{name} needs delivery.guarantee=exactly-once: without transactions the sink cannot recognise a write that runs again"
            for name in ("txnAppId", "txnVersion", "source.offsets.group")
            if name in own
        ]
        if "transaction.timeout.ms" in kafka:
            found.append("kafka.transaction.timeout.ms needs delivery.guarantee=exactly-once")
    if not streaming:
        if "source.offsets.group" in own:
            found.append(
                "source.offsets.group is for streaming queries: a batch write has no checkpoint with source offsets"
            )
        return found
    found += [
        f"{name} is for batch writes, foreachBatch included; the checkpoint identifies a streaming query"
        for name in ("txnAppId", "txnVersion", "foreachBatchCall")
        if name in own
    ]
    if (settings["asyncProgressTrackingEnabled"] or "").lower() == "true":
        # With it, Spark starts batches before it logs their offsets, so a batch that runs again looks like a new one.
        found.append(
            "asyncProgressTrackingEnabled cannot be exactly once: batches begin before Spark logs their offsets, so the sink "
            "cannot recognise a batch that runs again; remove it and use a micro-batch trigger (processingTime, availableNow)"
        )
    return found


def _write_id_problems(settings: Mapping[str, Any], own: Mapping[str, str], streaming: bool) -> Iterator[str]:
    """Check that the transactional ids fit Kafka's strings."""
    # A broker closes the connection on a longer one, without a reason.
    prefix, app_id = settings["transactional.id.prefix"], settings["txnAppId"]
    if settings["delivery.guarantee"] == "at-least-once":
        return
    if streaming:
        write_id = streaming_write_id(prefix, _SOME_UUID)
    elif app_id is not None:
        write_id = batch_write_id(prefix, app_id, settings["topic"])
    else:
        write_id = random_write_id(prefix, _SOME_UUID)
    if (size := len(write_id.encode())) > LONGEST_WRITE_ID:
        names = [name for name in ("transactional.id.prefix", "txnAppId", "topic") if name in own]
        yield (
            f"{', '.join(names)}: the write id of them has {size} bytes in UTF-8, where each / and % counts 3, and Kafka's transactional "
            f"ids leave it {LONGEST_WRITE_ID}; shorten {' or '.join(name for name in names if name != 'topic')}"
        )


def _problems_of_topics(settings: Mapping[str, Any]) -> list[str]:
    """Check that rows, dead letters, commit log and history have different topics."""
    found = []
    logs = (settings["commit.log.topic"], DEFAULT_TOPIC)
    if settings["topic"] in logs:
        found.append(
            f"topic {settings['topic']!r} is the commit log, which holds only the sink's own records; choose another topic"
        )
    if settings["dead.letter.topic"] is not None and settings["dead.letter.topic"] == settings["topic"]:
        found.append("dead.letter.topic is the option topic: dead letters would look like rows; choose another topic")
    if settings["dead.letter.topic"] in logs:
        found.append("dead.letter.topic is the commit log; choose another topic")
    histories = (settings["history.topic"], DEFAULT_HISTORY_TOPIC)
    found += [
        f"{name} {settings[name]!r} is the history topic, which holds only the sink's own records; choose another topic"
        for name in ("topic", "dead.letter.topic")
        if settings[name] in histories
    ]
    if settings["history.topic"] in logs or settings["commit.log.topic"] == DEFAULT_HISTORY_TOPIC:
        found.append(
            "history.topic and commit.log.topic are the same topic, or one is the other's default; choose another topic"
        )
    return found


def _import_problems(values: Mapping[str, Any]) -> list[str]:
    """Import the user's partitioner and interceptors."""
    objects = [("partitioner", values.get("partitioner", ""))]
    objects += [("interceptors", name) for name in values.get("interceptors", ())]
    found = []
    for option, value in objects:
        if ":" not in value:
            continue  # default or round-robin
        try:
            load_callable(value, option)
        except ConfigurationError as error:
            found.append(error.message)
    return found
