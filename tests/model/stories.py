"""A trace as a story that a person can read: who did what, to which transaction or record, and what the answer was."""

from __future__ import annotations

import json
from typing import Any

from kafka_eos_sink.commit import steps
from kafka_eos_sink.protocol.error_codes import ErrorCode

from .performer import Request
from .simulated_cluster import LOG, Identity
from .simulated_spark import Label, State, World


def tell(world: World, trace: tuple[Label, ...], violation: str | None = None) -> str:
    """One numbered line per action, from the beginning; the last line is what is wrong."""
    lines = [f"setting {world.setting.name} (transaction version {world.setting.version})"]
    state = world.initial()
    for number, label in enumerate(trace, 1):
        after = (
            next((after for found, after in world.successors(state) if found == label), None) if _safe(label) else None
        )
        lines.append(f"{number:3}. {sentence(world, label)}{_consequence(world, state, after)}")
        if label == ("recovery",):
            lines += [f"     {sentence(world, told)}" for told in world.told]
        if after is None:
            break
        state = after
    if violation is not None:
        lines.append(f"  => {violation}")
    return "\n".join(lines)


def _safe(label: Label) -> bool:
    return not (len(label) == 4 and label[1] == "do" and label[3] == -1) and label not in (
        ("spark", "acts"),
        ("cluster", "acts"),
        ("operator", "resolves"),
        ("recovery",),
        ("nobody moves",),
    )


def _consequence(world: World, before: State, after: State | None) -> str:
    if after is None:
        return ""
    told = []
    for number, driver in enumerate(after.drivers):
        earlier = before.drivers[number] if number < len(before.drivers) else None
        if earlier is not None and (driver.phase, driver.code) != (earlier.phase, earlier.code):
            told.append(f"driver {number}: {driver.phase}{' after ' + driver.code if driver.code else ''}")
    gone = {name: node for name, node, _ in before.processes}
    for name, _, _ in after.processes:
        gone.pop(name, None)
    told += [f"{who(name)} is over" for name in gone if name[1] == "task"]
    return f"   [{'; '.join(told)}]" if told else ""


def who(name: Any) -> str:
    driver, kind, version, partition, attempt = name
    if kind == "resolve":
        return f"the operator's resolve of batch {version}"
    if kind == "task":
        return f"driver {driver}'s task {partition} (attempt {attempt}, batch {version})"
    return f"driver {driver}'s {kind} of batch {version}"


def sentence(world: World, label: Label) -> str:
    actor, verb = label[0], label[1] if len(label) > 1 else ""
    if isinstance(actor, tuple):
        if verb == "kill":
            return f"{who(actor)} is killed"
        asked = request_text(world.values[label[2]])
        match verb:
            case "do":
                answer = "repeat: CONCURRENT_TRANSACTIONS" if label[3] < 0 else answer_text(world.values[label[3]])
                return f"{who(actor)}: {asked} -> {answer}"
            case "lost":
                return f"{who(actor)}: {asked} is processed, its answer is lost"
            case "float":
                return f"{who(actor)}: a copy of {asked} stays in the network"
            case "no answer" | "unavailable":
                return f"{who(actor)}: {asked} gets no answer before the deadline"
    match label:
        case ("recovery",):
            return "everything else stops; a further driver runs without any fault"
        case ("network", "late", request, answer):
            told = "refused for now" if answer < 0 else answer_text(world.values[answer])
            return f"a delayed copy of {request_text(world.values[request])} arrives -> {told}"
        case ("cluster", "marker", name, partition):
            return f"the marker of {name} is written to {partition_text(partition)}"
        case ("cluster", "skip marker", name, partition):
            return f"the marker of {name} is omitted on {partition_text(partition)} (KAFKA-20734)"
    return " ".join(str(part) for part in label)


def partition_text(partition: int) -> str:
    return "the commit log" if partition == LOG else f"data partition {partition - 1}"


def identity_text(identity: Identity | None) -> str:
    if identity is None:
        return "no transaction"
    return f"{identity.transactional_id} (producer id {identity.producer_id}, epoch {identity.producer_epoch})"


def request_text(request: Request) -> str:
    match request:
        case ("init", name, _):
            return f"InitProducerId {name}"
        case ("end", identity, commit, version):
            return f"EndTxn v{version} {'COMMIT' if commit else 'ABORT'} {identity_text(identity)}"
        case ("add", identity, partition):
            return f"AddPartitionsToTxn {identity_text(identity)} {partition_text(partition)}"
        case ("produce", identity, partition, sequence, records):
            told = ", ".join(record_text(key, value) for key, value in records)
            return f"Produce to {partition_text(partition)} in {identity_text(identity)} sequence {sequence}: {told}"
        case ("describe", names):
            return f"DescribeTransactions of {len(names)} ids ({names[0]}...)"
        case ("list", name):
            return f"ListTransactions {name}"
        case ("read", offset):
            return f"read the commit log from {offset}"
    return str(request)


def record_text(key: Any, value: Any) -> str:
    if isinstance(key, tuple):
        return f"row {key[3]} of batch {key[2]} ({key[1]})"
    fields = {} if value is None else json.loads(value)
    if "body" in fields:
        if fields["count"] > 1:
            return f"DECISION {json.loads(key)[1:3]} nonce {fields['nonce']}, piece {fields['number'] + 1} of {fields['count']}"
        body = json.loads(fields["body"])
        names = [
            (entry["identity"]["transactional_id"], entry["identity"]["producer_epoch"])
            for entry in body["transactions"]
        ]
        return f"DECISION {json.loads(key)[1:3]} version {body['version']} nonce {body['nonce']} naming {names}"
    return f"{key.decode()} = {'tombstone' if value is None else value.decode()}"


def answer_text(answer: Any) -> str:
    match answer:
        case steps.LogChunk():
            told = []
            for entry in answer.entries:
                if isinstance(entry, steps.Marker):
                    told.append(f"{entry.offset}:{entry.type.value}({entry.producer_id}/{entry.producer_epoch})")
                else:
                    told.append(f"{entry.offset}:{json.loads(entry.key)[0]}")
            return f"[{' '.join(told)}] up to {answer.next_offset}"
        case (int(error), *_) if error in (47, 48, 49, 90, 45):
            return ErrorCode.of(error).name
        case int(error) if error in (47, 48, 49, 90, 45):
            return ErrorCode.of(error).name
        case tuple() if answer and isinstance(answer[0], tuple) and isinstance(answer[0][0], str):
            return str([entry for entry in answer if entry[1] is not None])
    return str(answer)
