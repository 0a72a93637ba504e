"""What opens a connection: which versions the broker speaks, and who we are (KIP-35, KIP-511, KIP-43, KIP-152)."""

from __future__ import annotations

from typing import ClassVar

from kafka_eos_sink.protocol.schema import NEVER_FLEXIBLE, Request, request, struct, tagged, versions
from kafka_eos_sink.protocol.wire_types import Boolean, Bytes, Int16, Int32, Int64, String


@struct
class ApiVersionsResponse:
    """The APIs and features of a broker.

    Version 0 is here because a broker answers with it, whatever was asked, when it does not know the version of the
    request; its error code then is UNSUPPORTED_VERSION and `api_keys` tells what it does know (KIP-511).
    """

    @struct
    class ApiVersion:
        """The versions of one API that the broker speaks, both ends included."""

        api_key: Int16
        min_version: Int16
        max_version: Int16

    @struct
    class SupportedFeature:
        """The levels of a feature that this broker could run."""

        name: String
        min_version: Int16
        max_version: Int16

    @struct
    class FinalizedFeature:
        """The level of a feature that the cluster runs at, such as ``transaction.version`` (KIP-584, KIP-890)."""

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
    """Asks what the broker speaks; the first request on every connection."""

    FIRST_FLEXIBLE: ClassVar[int] = 3

    client_software_name: String
    client_software_version: String


@struct
class SaslHandshakeResponse:
    """Whether the mechanism is accepted, and the mechanisms that are."""

    FIRST_FLEXIBLE: ClassVar[int] = NEVER_FLEXIBLE

    error_code: Int16
    mechanisms: tuple[String, ...]


@request(key=17, versions=range(1, 2))
class SaslHandshakeRequest(Request[SaslHandshakeResponse]):
    """Names the SASL mechanism; in version 1 the tokens follow as SaslAuthenticate requests (KIP-152)."""

    FIRST_FLEXIBLE: ClassVar[int] = NEVER_FLEXIBLE

    mechanism: String


@struct
class SaslAuthenticateResponse:
    """The server's token; `session_lifetime_ms` 0 means that the session does not expire (KIP-368)."""

    error_code: Int16
    error_message: String | None
    auth_bytes: Bytes
    session_lifetime_ms: Int64 = 0


@request(key=36, versions=range(2, 3))
class SaslAuthenticateRequest(Request[SaslAuthenticateResponse]):
    """A token of the mechanism that the handshake named."""

    auth_bytes: Bytes
