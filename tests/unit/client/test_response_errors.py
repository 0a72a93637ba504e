"""The short text of a response's error codes: complete in number, and without anything else of the response."""

from __future__ import annotations

from kafka_eos_sink.client.connection import describe_errors
from kafka_eos_sink.protocol.messages import SaslAuthenticateResponse


def test_text_holds_no_message_and_no_bytes_of_the_response() -> None:
    response = SaslAuthenticateResponse(
        error_code=58, error_message="hunter2", auth_bytes=b"hunter2", session_lifetime_ms=0
    )
    assert describe_errors(response) == "SASL_AUTHENTICATION_FAILED"
