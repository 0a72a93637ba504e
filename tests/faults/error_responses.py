"""Well-formed answers that carry a given error code, as a broker would build them for a request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
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

    build = _BUILDERS.get(type(request))
    if build is None:
        raise LookupError(f"no error answer for {type(request).__name__}")
    return build(request, version, codes)


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


def _produce(request: m.ProduceRequest, _version: int, codes: Codes) -> m.ProduceResponse:
    return m.ProduceResponse(
        responses=tuple(
            m.ProduceResponse.Topic(
                name=topic.name,
                partition_responses=tuple(
                    m.ProduceResponse.Topic.Partition(index=data.index, error_code=codes(), base_offset=-1)
                    for data in topic.partition_data
                ),
            )
            for topic in request.topic_data
        )
    )


def _fetch(request: m.FetchRequest, version: int, codes: Codes) -> m.FetchResponse:
    return m.FetchResponse(
        throttle_time_ms=0,
        error_code=0,
        responses=tuple(
            m.FetchResponse.Topic(
                topic=topic.topic if version < 13 else "",
                topic_id=topic.topic_id,
                partitions=tuple(
                    m.FetchResponse.Topic.Partition(
                        partition_index=each.partition,
                        error_code=codes(),
                        high_watermark=-1,
                        aborted_transactions=None,
                        records=b"",
                    )
                    for each in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )


def _list_offsets(request: m.ListOffsetsRequest, _version: int, codes: Codes) -> m.ListOffsetsResponse:
    return m.ListOffsetsResponse(
        throttle_time_ms=0,
        topics=tuple(
            m.ListOffsetsResponse.Topic(
                name=topic.name,
                partitions=tuple(
                    m.ListOffsetsResponse.Topic.Partition(partition_index=each.partition_index, error_code=codes())
                    for each in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )


def _find_coordinator(request: m.FindCoordinatorRequest, _version: int, codes: Codes) -> m.FindCoordinatorResponse:
    return m.FindCoordinatorResponse(
        throttle_time_ms=0,
        coordinators=tuple(
            m.FindCoordinatorResponse.Coordinator(
                key=key, node_id=-1, host="", port=-1, error_code=codes(), error_message=None
            )
            for key in request.coordinator_keys
        ),
    )


def _init_producer_id(_request: m.InitProducerIdRequest, _version: int, codes: Codes) -> m.InitProducerIdResponse:
    return m.InitProducerIdResponse(throttle_time_ms=0, error_code=codes(), producer_id=-1, producer_epoch=-1)


def _add_partitions(request: m.AddPartitionsToTxnRequest, _version: int, codes: Codes) -> m.AddPartitionsToTxnResponse:
    return m.AddPartitionsToTxnResponse(
        throttle_time_ms=0,
        results_by_topic_v3_and_below=tuple(
            m.AddPartitionsToTxnResponse.Topic(
                name=topic.name,
                results_by_partition=tuple(
                    m.AddPartitionsToTxnResponse.Topic.Partition(
                        partition_index=partition, partition_error_code=codes()
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in request.v3_and_below_topics
        ),
    )


def _add_offsets(_request: m.AddOffsetsToTxnRequest, _version: int, codes: Codes) -> m.AddOffsetsToTxnResponse:
    return m.AddOffsetsToTxnResponse(throttle_time_ms=0, error_code=codes())


def _txn_offset_commit(request: m.TxnOffsetCommitRequest, _version: int, codes: Codes) -> m.TxnOffsetCommitResponse:
    return m.TxnOffsetCommitResponse(
        throttle_time_ms=0,
        topics=tuple(
            m.TopicErrors(
                name=topic.name,
                partitions=tuple(
                    m.TopicErrors.Partition(partition_index=each.partition_index, error_code=codes())
                    for each in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )


def _end_txn(_request: m.EndTxnRequest, _version: int, codes: Codes) -> m.EndTxnResponse:
    return m.EndTxnResponse(throttle_time_ms=0, error_code=codes())


def _create_topics(request: m.CreateTopicsRequest, _version: int, codes: Codes) -> m.CreateTopicsResponse:
    return m.CreateTopicsResponse(
        throttle_time_ms=0,
        topics=tuple(
            m.CreateTopicsResponse.Topic(name=topic.name, error_code=codes(), error_message=None, configs=())
            for topic in request.topics
        ),
    )


def _describe_configs(request: m.DescribeConfigsRequest, _version: int, codes: Codes) -> m.DescribeConfigsResponse:
    return m.DescribeConfigsResponse(
        throttle_time_ms=0,
        results=tuple(
            m.DescribeConfigsResponse.Result(
                error_code=codes(),
                error_message=None,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=(),
            )
            for resource in request.resources
        ),
    )


def _describe_producers(
    request: m.DescribeProducersRequest, _version: int, codes: Codes
) -> m.DescribeProducersResponse:
    return m.DescribeProducersResponse(
        throttle_time_ms=0,
        topics=tuple(
            m.DescribeProducersResponse.Topic(
                name=topic.name,
                partitions=tuple(
                    m.DescribeProducersResponse.Topic.Partition(
                        partition_index=each, error_code=codes(), active_producers=()
                    )
                    for each in topic.partition_indexes
                ),
            )
            for topic in request.topics
        ),
    )


def _describe_transactions(
    request: m.DescribeTransactionsRequest, _version: int, codes: Codes
) -> m.DescribeTransactionsResponse:
    return m.DescribeTransactionsResponse(
        throttle_time_ms=0,
        transaction_states=tuple(
            m.TransactionState(
                error_code=codes(),
                transactional_id=transactional_id,
                transaction_state="",
                transaction_timeout_ms=0,
                transaction_start_time_ms=-1,
                producer_id=-1,
                producer_epoch=-1,
                topics=(),
            )
            for transactional_id in request.transactional_ids
        ),
    )


def _list_transactions(_request: m.ListTransactionsRequest, _version: int, codes: Codes) -> m.ListTransactionsResponse:
    return m.ListTransactionsResponse(
        throttle_time_ms=0, error_code=codes(), unknown_state_filters=(), transaction_states=()
    )


def _write_txn_markers(request: m.WriteTxnMarkersRequest, _version: int, codes: Codes) -> m.WriteTxnMarkersResponse:
    return m.WriteTxnMarkersResponse(
        markers=tuple(
            m.WriteTxnMarkersResponse.Marker(
                producer_id=marker.producer_id,
                topics=tuple(
                    m.TopicErrors(
                        name=topic.name,
                        partitions=tuple(
                            m.TopicErrors.Partition(partition_index=index, error_code=codes())
                            for index in topic.partition_indexes
                        ),
                    )
                    for topic in marker.topics
                ),
            )
            for marker in request.markers
        )
    )


def _api_versions(_request: m.ApiVersionsRequest, version: int, codes: Codes) -> m.ApiVersionsResponse:
    """With UNSUPPORTED_VERSION the versions of this API that would do, the one below that was asked for (KIP-511)."""
    code = codes()
    known = m.ApiVersionsResponse.ApiVersion(
        api_key=m.ApiVersionsRequest.API_KEY, min_version=0, max_version=version - 1
    )
    return m.ApiVersionsResponse(error_code=code, api_keys=(known,) if code == ErrorCode.UNSUPPORTED_VERSION else ())


def _sasl_handshake(_request: m.SaslHandshakeRequest, _version: int, codes: Codes) -> m.SaslHandshakeResponse:
    return m.SaslHandshakeResponse(error_code=codes(), mechanisms=())


def _sasl_authenticate(_request: m.SaslAuthenticateRequest, _version: int, codes: Codes) -> m.SaslAuthenticateResponse:
    return m.SaslAuthenticateResponse(error_code=codes(), error_message=None, auth_bytes=b"")


def _offset_fetch(request: m.OffsetFetchRequest, _version: int, codes: Codes) -> m.OffsetFetchResponse:
    """A group's code stands for all its partitions."""
    return m.OffsetFetchResponse(
        throttle_time_ms=0,
        groups=tuple(
            m.OffsetFetchResponse.Group(group_id=group.group_id, topics=(), error_code=codes())
            for group in request.groups
        ),
    )


_BUILDERS: dict[type[Request[Any]], Callable[[Any, int, Codes], Any]] = {
    m.ProduceRequest: _produce,
    m.FetchRequest: _fetch,
    m.ListOffsetsRequest: _list_offsets,
    m.FindCoordinatorRequest: _find_coordinator,
    m.InitProducerIdRequest: _init_producer_id,
    m.AddPartitionsToTxnRequest: _add_partitions,
    m.AddOffsetsToTxnRequest: _add_offsets,
    m.TxnOffsetCommitRequest: _txn_offset_commit,
    m.EndTxnRequest: _end_txn,
    m.CreateTopicsRequest: _create_topics,
    m.DescribeConfigsRequest: _describe_configs,
    m.DescribeProducersRequest: _describe_producers,
    m.DescribeTransactionsRequest: _describe_transactions,
    m.ListTransactionsRequest: _list_transactions,
    m.WriteTxnMarkersRequest: _write_txn_markers,
    m.ApiVersionsRequest: _api_versions,
    m.SaslHandshakeRequest: _sasl_handshake,
    m.SaslAuthenticateRequest: _sasl_authenticate,
    m.OffsetFetchRequest: _offset_fetch,
}
