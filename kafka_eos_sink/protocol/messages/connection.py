"""The first requests of a connection: API versions and SASL (KIP-35, KIP-511, KIP-43, KIP-152)."""

from __future__ import annotations

from typing import ClassVar

from kafka_eos_sink.protocol.schema import NEVER_FLEXIBLE, Request, request, struct, tagged, versions
from kafka_eos_sink.protocol.wire_types import Boolean, Bytes, Int16, Int32, Int64, String


@struct
class ApiVersionsResponse:
    """The APIs and features of a broker.

    A broker that does not support the version of the request responds in version 0. The error code is then
    UNSUPPORTED_VERSION, and `api_keys` lists the versions that the broker does support (KIP-511).
    """

    @struct
    class ApiVersion:
        api_key: Int16
        min_version: Int16
        max_version: Int16  # inclusive

    @struct
    class SupportedFeature:
        name: String
        min_version: Int16
        max_version: Int16

    @struct
    class FinalizedFeature:
        """The level of a feature, such as ``transaction.version`` (KIP-584, KIP-890)."""

        name: String
        max_version_level: Int16
        min_version_level: Int16

    FIRST_FLEXIBLE: ClassVar[int] = 3

    error_code: Int16
    api_keys: tuple[ApiVersion, ...]
    throttle_time_ms: Int32 = versions(1, default=0, ignorable=True)
    supported_features: tuple[SupportedFeature, ...] = tagged(0, 3, default=(), ignorable=True)
    finalized_features_epoch: Int64 = tagged(1, 3, default=-1, ignorable=True)
    finalized_features: tuple[FinalizedFeature, ...] = tagged(2, 3, default=(), ignorable=True)
    zk_migration_ready: Boolean = tagged(3, 3, default=False, ignorable=True)


@request(key=18, versions=range(3, 5))
class ApiVersionsRequest(Request[ApiVersionsResponse]):
    """List the APIs of the broker; the first request on every connection."""

    FIRST_FLEXIBLE: ClassVar[int] = 3

    client_software_name: String
    client_software_version: String


@struct
class SaslHandshakeResponse:
    FIRST_FLEXIBLE: ClassVar[int] = NEVER_FLEXIBLE

    error_code: Int16
    mechanisms: tuple[String, ...]


@request(key=17, versions=range(1, 2))
class SaslHandshakeRequest(Request[SaslHandshakeResponse]):
    """Select the SASL mechanism; after version 1, tokens travel in SaslAuthenticate requests (KIP-152)."""

    FIRST_FLEXIBLE: ClassVar[int] = NEVER_FLEXIBLE

    mechanism: String


@struct
class SaslAuthenticateResponse:
    """The server's token."""

    error_code: Int16
    error_message: String | None
    auth_bytes: Bytes
    session_lifetime_ms: Int64 = 0  # 0: the session does not expire (KIP-368)


@request(key=36, versions=range(2, 3))
class SaslAuthenticateRequest(Request[SaslAuthenticateResponse]):
    """Send a token of the mechanism that the handshake selected."""

    auth_bytes: Bytes
