# ruff: noqa: F401
# mypy: implicit-reexport
"""The requests and responses that this client speaks, one class each for all its versions.

Names are those of Kafka's definitions (``common/message/*.json`` in kafka-clients) in Python's spelling. A struct of
one message only is nested in it, such as `MetadataResponse.Topic`. The version ranges begin with Kafka 3.0 and end
before a change that is of no use to a writer, such as topic ids in Produce.
"""

from __future__ import annotations

from kafka_eos_sink.protocol.messages.cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from kafka_eos_sink.protocol.messages.connection import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from kafka_eos_sink.protocol.messages.records import (
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ProduceRequest,
    ProduceResponse,
)
from kafka_eos_sink.protocol.messages.topics import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from kafka_eos_sink.protocol.messages.transaction_admin import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    ProducerState,
    TransactionState,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kafka_eos_sink.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from kafka_eos_sink.protocol.schema import registered

REQUESTS = tuple(sorted(registered, key=lambda request: request.API_KEY))
"""All requests, in the order of their API keys."""
