"""Client quotas of a real Kafka (AlterClientQuotas), declared here because the sink itself has no use for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, ClassVar, Literal

from kafka_eos_sink.client.config import ClientConfig, parse_bootstrap_servers
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.protocol.schema import Request, struct
from kafka_eos_sink.protocol.wire_types import Boolean, Int16, Int32, String, fixed
from kafka_testing import PATIENCE_S

Float64 = Annotated[float, fixed("float64", "d")]


@struct
class QuotaEntity:
    entity_type: String
    entity_name: String | None


@struct
class QuotaOp:
    key: String
    value: Float64
    remove: Boolean


@struct
class QuotaEntry:
    entity: tuple[QuotaEntity, ...]
    ops: tuple[QuotaOp, ...]


@struct
class QuotaResult:
    error_code: Int16
    error_message: String | None
    entity: tuple[QuotaEntity, ...]


@struct
class AlterClientQuotasResponse:
    throttle_time_ms: Int32
    entries: tuple[QuotaResult, ...]


@struct
class AlterClientQuotasRequest(Request[AlterClientQuotasResponse]):
    API_KEY: ClassVar[int] = 49
    VERSIONS: ClassVar[range] = range(1, 2)
    RESPONSE: ClassVar[type[AlterClientQuotasResponse]] = AlterClientQuotasResponse

    entries: tuple[QuotaEntry, ...]
    validate_only: Boolean = False


Quota = Literal["producer_byte_rate", "request_percentage", "controller_mutation_rate"]


@contextmanager
def client_quota(bootstrap_servers: str, key: Quota, value: float, *client_ids: str) -> Iterator[None]:
    """Limit these client ids, each for itself: bytes per second and broker, or percent of the broker's threads."""
    config = ClientConfig(bootstrap_servers=parse_bootstrap_servers(bootstrap_servers), client_id="quotas")

    def alter(remove: bool) -> None:
        op = QuotaOp(key=key, value=value, remove=remove)
        entities = [(QuotaEntity(entity_type="client-id", entity_name=each),) for each in client_ids]
        request = AlterClientQuotasRequest(entries=tuple(QuotaEntry(entity=each, ops=(op,)) for each in entities))
        with NetworkClient(config) as client:
            until = client.clock() + int(PATIENCE_S * 1_000)
            assert client.wait_for_metadata(until)
            answer = client.call(client.any_node(until), request, deadline_ms=until)
        assert [entry.error_code for entry in answer.entries] == [0] * len(client_ids)

    alter(remove=False)
    try:
        yield
    finally:
        alter(remove=True)
