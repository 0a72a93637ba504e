"""Well-formed answers that carry a given error code, as a broker would build them for a request."""

from __future__ import annotations

import typing
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any

from kafka_eos_sink.protocol import messages as m
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.schema import Request

Codes = Callable[[], int]
"""The code of the next partition, key or id of the answer."""


def error_response(request: Request[Any], version: int, code: int, siblings: int | None = None) -> Any:
    """The answer to `request` with `code` wherever an answer of this API carries one.

    `siblings`: the code of all partitions, keys or ids but the first. Metadata has no answer of its own (it would name no
    brokers): see `metadata_with_code`. Raises LookupError for an API that is not known here.
    """
    given = iter([code])

    def codes() -> int:
        return next(given, code if siblings is None else siblings)

    if type(request) not in _MIRRORS:
        raise LookupError(f"no error answer for {type(request).__name__}")
    answer = _built(type(request).RESPONSE, request, _MIRRORS[type(request)], codes, {})
    if isinstance(request, m.ApiVersionsRequest) and code == ErrorCode.UNSUPPORTED_VERSION:
        # With the versions of this API that would do, the one below that was asked for (KIP-511).
        known = m.ApiVersionsResponse.ApiVersion(api_key=request.API_KEY, min_version=0, max_version=version - 1)
        return replace(answer, api_keys=(known,))
    return answer


def error_after(answer: Any, request: Request[Any], version: int, code: int, siblings: int | None = None) -> Any:
    """What to say instead of a broker's own `answer` to `request`, which it has carried out: see `error_response`.

    That the records are there already (DUPLICATE_SEQUENCE_NUMBER) no broker says of a partition whose leader has refused them:
    there its own answer stays.
    """
    told = error_response(request, version, code, siblings)
    if not (isinstance(request, m.ProduceRequest) and ErrorCode.DUPLICATE_SEQUENCE_NUMBER in (code, siblings)):
        return told
    own = {(topic.name, each.index): each for topic in answer.responses for each in topic.partition_responses}
    return replace(
        told,
        responses=tuple(
            replace(
                topic,
                partition_responses=tuple(
                    own[topic.name, each.index] if own[topic.name, each.index].error_code else each
                    for each in topic.partition_responses
                ),
            )
            for topic in told.responses
        ),
    )


def metadata_with_code(answer: m.MetadataResponse, code: int, *, of_partitions: bool = False) -> m.MetadataResponse:
    """A broker's own Metadata answer with a code at every topic, which then has no partitions, or at every partition."""
    if of_partitions:
        topics = tuple(
            replace(
                topic,
                partitions=tuple(replace(each, error_code=code, leader_id=-1) for each in topic.partitions),
            )
            for topic in answer.topics
        )
    else:
        topics = tuple(replace(topic, error_code=code, partitions=()) for topic in answer.topics)
    return replace(answer, topics=topics)


@dataclass(frozen=True, slots=True)
class _Mirror:
    """A list of a response that has an element for each element of the request's list ``of``.

    Args:
        same: A response element's field -> the request element's field with the same value; "": the element itself.
        inner: The list within each element. Elements without one carry the error code.
    """

    field: str
    of: str
    same: dict[str, str]
    inner: _Mirror | None = None


_NAME = {"name": "name"}
_INDEXES = _Mirror("partitions", "partition_indexes", {"partition_index": ""})
_MIRRORS: dict[type[Request[Any]], _Mirror | None] = {
    m.ProduceRequest: _Mirror(
        "responses", "topic_data", _NAME, _Mirror("partition_responses", "partition_data", {"index": "index"})
    ),
    m.FetchRequest: _Mirror(
        "responses",
        "topics",
        {"topic": "topic", "topic_id": "topic_id"},
        _Mirror("partitions", "partitions", {"partition_index": "partition"}),
    ),
    m.ListOffsetsRequest: _Mirror(
        "topics", "topics", _NAME, _Mirror("partitions", "partitions", {"partition_index": "partition_index"})
    ),
    m.FindCoordinatorRequest: _Mirror("coordinators", "coordinator_keys", {"key": ""}),
    m.InitProducerIdRequest: None,
    m.AddPartitionsToTxnRequest: _Mirror(
        "results_by_topic_v3_and_below",
        "v3_and_below_topics",
        _NAME,
        _Mirror("results_by_partition", "partitions", {"partition_index": ""}),
    ),
    m.AddOffsetsToTxnRequest: None,
    m.TxnOffsetCommitRequest: _Mirror(
        "topics", "topics", _NAME, _Mirror("partitions", "partitions", {"partition_index": "partition_index"})
    ),
    m.EndTxnRequest: None,
    m.CreateTopicsRequest: _Mirror("topics", "topics", _NAME),
    m.DescribeConfigsRequest: _Mirror(
        "results", "resources", {"resource_type": "resource_type", "resource_name": "resource_name"}
    ),
    m.DescribeProducersRequest: _Mirror("topics", "topics", _NAME, _INDEXES),
    m.DescribeTransactionsRequest: _Mirror("transaction_states", "transactional_ids", {"transactional_id": ""}),
    m.ListTransactionsRequest: None,
    m.WriteTxnMarkersRequest: _Mirror(
        "markers", "markers", {"producer_id": "producer_id"}, _Mirror("topics", "topics", _NAME, _INDEXES)
    ),
    m.ApiVersionsRequest: None,
    m.SaslHandshakeRequest: None,
    m.SaslAuthenticateRequest: None,
    m.OffsetFetchRequest: _Mirror("groups", "groups", {"group_id": "group_id"}),
}


def _built(cls: Any, asked: Any, mirror: _Mirror | None, codes: Codes, same: dict[str, str]) -> Any:
    """A value of a response's class, made of a part of the request; all else is empty."""
    hints = typing.get_type_hints(cls)
    values: dict[str, Any] = {}
    for each in fields(cls):
        if mirror is not None and each.name == mirror.field:
            (inner, _) = typing.get_args(hints[each.name])
            elements = getattr(asked, mirror.of)
            values[each.name] = tuple(_built(inner, of, mirror.inner, codes, mirror.same) for of in elements)
        elif each.name in same:
            values[each.name] = getattr(asked, same[each.name]) if same[each.name] else asked
        elif each.name in ("error_code", "partition_error_code"):
            values[each.name] = codes() if mirror is None else 0
        elif each.default is MISSING:
            values[each.name] = 0 if each.name == "throttle_time_ms" else _empty(hints[each.name])
    return cls(**values)


def _empty(hint: Any) -> Any:
    """-1, "", no bytes, no elements; None for what may be null."""
    parts = typing.get_args(hint)
    if type(None) in parts:
        return None
    found = typing.get_origin(hint) or hint
    return -1 if found is int else found()
