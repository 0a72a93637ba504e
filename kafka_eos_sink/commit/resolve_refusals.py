"""The errors and warnings of `resolve` that depend on what the commit log holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kafka_eos_sink.commit.log_view import LogView, QueryState
from kafka_eos_sink.commit.refusals import refused, some, text
from kafka_eos_sink.commit.transactional_id import BATCH_QUERY_ID, if_transactional_id
from kafka_eos_sink.commit.values import Decision, ResolveRequest
from kafka_eos_sink.errors import KafkaEosError


def query_id_needed(request: ResolveRequest, known: Sequence[str]) -> KafkaEosError:
    write = request.run.write
    if not known:
        return refused("QUERY_ID_NEEDED.none_yet", write=write, request=request)
    return refused(
        "QUERY_ID_NEEDED",
        write=write,
        version=request.version,
        count=len(known),
        known=", ".join(map(repr, known)),
        commands="; or ".join(request.command(each, request.version) for each in known),
    )


def nothing_to_resolve(request: ResolveRequest, query: QueryState, others: Sequence[str]) -> KafkaEosError:
    """The request's version is not the newest decided one of the query id."""
    write, decision = request.run.write, None if query.newest is None else query.newest.decision
    if decision is None:
        found = "the commit log holds no decision of it"
        found += f" (it holds some of {some([*map(repr, others)])})" if others else ""
    else:
        state = query.state_of(decision).value
        found = f"it is not the newest decided version, which is version {decision.version}, {state}"
    if query.undecided:
        found += text("unmarked", offset=query.undecided[0].offset)
    instead = text(
        f"instead_{_instead(request, query, decision)}",
        write=write,
        request=request,
        decision=decision,
        this_command=request.command(query.query_id, request.version),
    )
    return refused(
        "NOTHING_TO_RESOLVE", write=write, request=request, query_id=query.query_id, found=found, instead=instead
    )


def _instead(request: ResolveRequest, query: QueryState, newest: Decision | None) -> str:
    """Return what to do about a version that is not the newest."""
    version, is_batch = request.version, query.query_id == BATCH_QUERY_ID
    if newest is None:
        return "writes"
    if is_batch and not newest.foreach_query:
        is_unknown = version >= newest.written_versions.floor and version not in newest.written_versions
        return "above" if is_unknown else "correct"
    if version < newest.version:
        return "correct_stream"
    if is_batch or request.resolution == "rewrite":
        return "writes"
    if query.state_of(newest).is_settled:
        return "continue"
    return "run" if newest.is_unwritten else "finish"


def warnings(view: LogView, query: QueryState, request: ResolveRequest) -> Iterator[str]:
    """Name what the confirmation must cover, and what --yes must not hide."""
    newest = query.newest
    if newest is None:
        # The query id begins.
        write, lacks_write = request.run.write, view.lacks_write
        others = [repr(each.query_id) for each in view.queries("decision") if each.query_id != query.query_id]
        yield text(
            "begins",
            write=write,
            request=request,
            holds=f"NOTHING of write id {write.id!r}" if lacks_write else f"no decision of query id {query.query_id!r}",
            known=f" It holds query ids {some(others)} of this write id." if others else "",
            hint=if_transactional_id(write.id) if lacks_write else "",
        )
    elif newest.decision.version == request.version and request.resolution == "committed":
        state = query.state_of(newest.decision)
        if state.is_settled:
            yield text("is_settled", decision=newest.decision, state=state.value)
        elif newest.decision.is_unwritten:
            yield text("is_to_rewrite" if newest.decision.resolution else "is_void", decision=newest.decision)
