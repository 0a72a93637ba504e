"""The short text of a response's error codes: complete in number, and without anything else of the response."""

from __future__ import annotations

import pytest

from kafka_eos_sink.client.connection import describe_errors
from kafka_eos_sink.protocol.messages import Broker, MetadataResponse, SaslAuthenticateResponse


def partition(error_code: int) -> MetadataResponse.Topic.Partition:
    return MetadataResponse.Topic.Partition(
        error_code=error_code, partition_index=0, leader_id=1, replica_nodes=(), isr_nodes=(), offline_replicas=()
    )


def metadata(*codes: int, topic_code: int = 0) -> MetadataResponse:
    topic = MetadataResponse.Topic(
        error_code=topic_code, name="orders", partitions=tuple(partition(code) for code in codes)
    )
    return MetadataResponse(
        throttle_time_ms=0,
        brokers=(Broker(node_id=1, host="kafka", port=9092),),
        cluster_id="c",
        controller_id=1,
        topics=(topic,),
    )


@pytest.mark.parametrize(
    ("codes", "topic_code", "text"),
    [
        ((0, 0), 0, "no error"),
        ((), 3, "UNKNOWN_TOPIC_OR_PARTITION"),
        ((5, 0, 5, 6), 0, "LEADER_NOT_AVAILABLE x 2, NOT_LEADER_OR_FOLLOWER"),
        ((9_999,), 0, "UNKNOWN_CODE_9999"),
        (tuple(range(1, 9)), 0, "OFFSET_OUT_OF_RANGE, CORRUPT_MESSAGE, UNKNOWN_TOPIC_OR_PARTITION, INVALID_FETCH_SIZE, "
         "LEADER_NOT_AVAILABLE, ..."),
    ],
)  # fmt: skip
def test_error_codes_are_counted_in_nested_structs(codes: tuple[int, ...], topic_code: int, text: str) -> None:
    assert describe_errors(metadata(*codes, topic_code=topic_code)) == text


def test_text_holds_no_message_and_no_bytes_of_the_response() -> None:
    response = SaslAuthenticateResponse(
        error_code=58, error_message="hunter2", auth_bytes=b"hunter2", session_lifetime_ms=0
    )
    assert describe_errors(response) == "SASL_AUTHENTICATION_FAILED"
