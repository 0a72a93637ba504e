"""The broker APIs and settings that a write needs, for plan and `kafka-eos check`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.connection import API_VERSIONS, BrokerVersions, api_name
from kafka_eos_sink.client.coordinator_topics import GROUPS, TRANSACTIONS, CoordinatorTopic, coordinator_state
from kafka_eos_sink.commit.refusals import refused, text
from kafka_eos_sink.commit.transactions import NEVER_TIMES_OUT_MS
from kafka_eos_sink.errors import (
    AuthorizationError,
    BrokerUnavailableError,
    ConfigurationError,
    MissingApiError,
    ProtocolError,
    peer_text,
)
from kafka_eos_sink.logs import warn_once
from kafka_eos_sink.protocol import messages as m
from kafka_eos_sink.protocol.identity import bumps_epoch
from kafka_eos_sink.protocol.schema import Request
from kafka_eos_sink.runtime.write_settings import DEFAULT_TRANSACTION_TIMEOUT_MS, WriteSettings

T = TypeVar("T")
log = logging.getLogger(__name__)

NEEDED: Mapping[type[Request[Any]], str] = {
    m.MetadataRequest: "find leaders",
    m.FindCoordinatorRequest: "find coordinators",
    m.InitProducerIdRequest: "fence earlier runs",
    m.AddPartitionsToTxnRequest: "write in transactions",
    m.ProduceRequest: "write rows and decisions",
    m.AddOffsetsToTxnRequest: "commit source.offsets.group",
    m.TxnOffsetCommitRequest: "commit source.offsets.group",
    m.EndTxnRequest: "commit and abort",
    m.DescribeTransactionsRequest: "check transactions before they are committed",
    m.ListTransactionsRequest: "find what a dead run left open",
    m.DescribeProducersRequest: "check where transactions begin before they are committed, and what blocks readers",
    m.FetchRequest: "read the commit log",
    m.ListOffsetsRequest: "prove what readers see",
    m.DescribeConfigsRequest: "check settings",
}
"""The APIs of an exactly-once write with their uses, needed in one of the request's ``VERSIONS``."""
OPTIONAL: Mapping[type[Request[Any]], str] = {
    m.CreateTopicsRequest: "create the commit log",
    m.OffsetFetchRequest: "notice a lost checkpoint (source.offsets.group)",
    m.WriteTxnMarkersRequest: "discard what hangs under a forgotten id (kafka-eos recover --discard)",
}
OTHER_SERVICES = "Apache Kafka offers them from 3.6 on; another service must offer the same versions"
MAX_TIMEOUT = "transaction.max.timeout.ms"
VERIFICATION = "transaction.partition.verification.enable"
EXPIRATION = "transactional.id.expiration.ms"
REQUEST_BYTES = "socket.request.max.bytes"
DAY_MS = 86_400_000
BROKER_WITHIN_MS = 3_000
BROKERS_JOIN_MS = 15_000
"""For how long a plan waits for the brokers of a cluster that starts, if they are too few for the topic of a coordinator."""
JOIN_POLL_MS = 250
VERIFYING_ADD_PARTITIONS = 4
"""AddPartitionsToTxn version of leaders that verify at the coordinator (Kafka 3.6, KIP-890)."""
UNVERIFIED = (
    "an aborted task attempt that is still running could append rows that belong to no transaction: read_committed consumers would "
    "block, or see rows twice"
)


def missing_apis(versions: BrokerVersions, apis: Iterable[type[Request[Any]]]) -> str:
    """Describe the APIs without a common version: use, needed and offered versions."""
    missing = []
    for api in apis:
        lowest, highest = versions.api_versions.get(api.API_KEY, (0, -1))
        if highest < api.VERSIONS[0] or lowest > api.VERSIONS[-1]:
            name, use = api_name(api), NEEDED.get(api) or OPTIONAL[api]
            missing.append(
                f"{name} {api.VERSIONS[0]} to {api.VERSIONS[-1]} (offered: {versions.offered(api)}) to {use}"
            )
    return "; ".join(missing)


def require_brokers(settings: WriteSettings, admin: Admin) -> int:
    """Require broker APIs and settings; return the tasks' transaction timeout in ms."""
    deadline = admin.client.clock() + settings.producer.max_block_ms
    require_apis(admin, deadline)
    found = broker_settings(admin, deadline)
    topics = (TRANSACTIONS,) if settings.first_batch is None else (TRANSACTIONS, GROUPS)
    for topic in topics:
        require_coordinator(admin, topic, found, deadline)
    require_verified_appends(admin, found, deadline)
    timeout_ms = transaction_timeout(settings, found)
    for warning in (short_expiration(found, timeout_ms), small_requests(found, settings.producer.max_request_size)):
        if warning:
            warn_once(warning)
    return timeout_ms


def require_coordinator(admin: Admin, topic: CoordinatorTopic, found: Mapping[str, str], deadline: int) -> None:
    """Require that Kafka can create the topic of a coordinator, or has created it.

    A missing coordinator would only show at the deadline of a request. The other brokers of a cluster that starts join soon.

    Args:
        found: The brokers' settings. If they are sufficient, no request is sent.

    Raises:
        ConfigurationError: NO_COORDINATOR.
    """
    factor, in_sync = number(found, topic.factor), number(found, topic.in_sync)
    if factor is None or (factor <= broker_count(admin, deadline) and (in_sync is None or in_sync <= factor)):
        return
    now = admin.client.clock()
    # The last query also needs time: past the deadline, its error would replace the reason.
    until = now + min(BROKERS_JOIN_MS, (deadline - now) // 2)
    waits = False
    # A state that heals when brokers start again is left to the requests, which wait longer.
    while (state := coordinator_state(admin, topic, deadline)).problem and state.is_sure and not state.heals:
        if admin.client.clock() >= until:
            raise ConfigurationError("NO_COORDINATOR", state.problem, f"{state.way_out[:1].upper()}{state.way_out[1:]}")
        if not waits:
            log.warning("%s; waiting up to %d ms for brokers to join", state.problem, until - admin.client.clock())
            waits = True
        admin.client.wait(JOIN_POLL_MS, until)


def broker_count(admin: Admin, deadline: int) -> int:
    # Before the first response the metadata holds the bootstrap servers only. Their number is not the brokers'.
    if min(admin.client.metadata.brokers) < 0:
        admin.client.wait_for_metadata(deadline)
    return len(admin.client.metadata.brokers)


def require_apis(admin: Admin, deadline: int) -> None:
    """Require the APIs of a write before it writes rows.

    Raises:
        MissingApiError: MISSING_API with all of them.
    """
    versions = admin.client.versions(admin.client.any_node(deadline))
    if missing := missing_apis(versions, NEEDED):
        raise MissingApiError(
            "MISSING_API",
            f"the cluster at {admin.client.config.bootstrap_servers_text} does not offer what an exactly-once write needs: {missing}. "
            f"{OTHER_SERVICES}",
        )


def broker_settings(admin: Admin, deadline: int) -> Mapping[str, str]:
    """Return a broker's visible settings on transactions, and its limit of a request.

    Verification is on only if every broker that responds has it on: each leader decides for itself.
    """
    try:
        of_topics = (name for topic in (TRANSACTIONS, GROUPS) for name in (topic.factor, topic.in_sync))
        names = (MAX_TIMEOUT, VERIFICATION, EXPIRATION, REQUEST_BYTES, *of_topics)
        found = admin.describe_configs("broker", None, names, deadline)
        if bumps_epoch(admin.transaction_version(deadline)):
            return found

        def verification(node: int, until: int) -> str | None:
            return admin.describe_configs("broker", str(node), (VERIFICATION,), until).get(VERIFICATION)

        shown = {found.get(VERIFICATION), *_of_each_broker(admin, verification, deadline)}
    except AuthorizationError:
        return {}
    # If other brokers show the setting, a broker without it is older than the setting.
    return found if shown == {None} else found | {VERIFICATION: "true" if shown == {"true"} else "false"}


def short_expiration(found: Mapping[str, str], timeout_ms: int) -> str:
    """Describe an expiration of ids that a batch can outlast; empty if none."""
    expiration = number(found, EXPIRATION)
    # A batch lasts at most as long as its transactions. If these never time out, batches of a day are the longest that are usual.
    longest = DAY_MS if timeout_ms == NEVER_TIMES_OUT_MS else timeout_ms
    if expiration is None or expiration >= longest:
        return ""
    lower = "" if timeout_ms == NEVER_TIMES_OUT_MS else ", or lower kafka.transaction.timeout.ms"
    return text("short_expiration", expiration=expiration, longest=longest, lower=lower)


def small_requests(found: Mapping[str, str], max_request_size: int) -> str:
    """Describe a brokers' limit below the largest request; empty if none."""
    limit = number(found, REQUEST_BYTES)
    if limit is None or limit >= max_request_size:
        return ""
    return text("small_requests", limit=limit, largest=max_request_size)


def _of_each_broker(admin: Admin, query: Callable[[int, int], T], deadline: int) -> list[T]:
    """Return ``query(node id, deadline)`` of each broker that responds in time."""
    found = []
    for node in admin.client.metadata.brokers:
        with suppress(BrokerUnavailableError):
            found.append(query(node, min(deadline, admin.client.clock() + BROKER_WITHIN_MS)))
    return found


def number(settings: Mapping[str, str], name: str) -> int | None:
    """Return a numeric setting, None if the cluster does not show it.

    Raises:
        ProtocolError: The value is not a number.
    """
    if name not in settings:
        return None
    try:
        return int(settings[name])
    except ValueError:
        raise ProtocolError(f"a broker's {name} is {peer_text(settings[name])!r}, which is not a number") from None


def verifies_appends(admin: Admin, settings: Mapping[str, str], deadline: int) -> bool | None:
    """Whether leaders verify transactional appends (LATE ADD); None if unknown."""
    if VERIFICATION in settings:
        return settings[VERIFICATION] == "true"

    def highest(node: int, until: int) -> int:
        response = admin.client.call(node, API_VERSIONS, deadline_ms=until)
        return BrokerVersions.from_response(response).highest(m.AddPartitionsToTxnRequest)

    # A managed cluster may hide its settings. The versions of its brokers still show the release.
    if min(_of_each_broker(admin, highest, deadline), default=-1) >= VERIFYING_ADD_PARTITIONS:
        return True
    return False if settings else None


def require_verified_appends(admin: Admin, settings: Mapping[str, str], deadline: int) -> None:
    """Require that a leader rejects records of a transaction that has ended.

    Raises:
        ConfigurationError: TRANSACTIONS_NOT_VERIFIED.
    """
    if bumps_epoch(admin.transaction_version(deadline)):
        return
    verifies = verifies_appends(admin, settings, deadline)
    if verifies is None:
        warn_once(text("unknown_verification", follows=UNVERIFIED))
    if verifies is False:
        raise ConfigurationError(
            "TRANSACTIONS_NOT_VERIFIED",
            f"{no_sign_of_verification(settings)}, so {UNVERIFIED}; {way_to_verify(admin, settings)}",
        )


def no_sign_of_verification(settings: Mapping[str, str]) -> str:
    # A service that is not Apache Kafka may verify in its own way, which no client can see.
    if VERIFICATION in settings:
        return "the brokers do not verify transactional appends"
    return "nothing that the brokers offer shows that they verify transactional appends"


def way_to_verify(admin: Admin, settings: Mapping[str, str]) -> str:
    if VERIFICATION not in settings:
        return f"upgrade them to Kafka 3.6 or newer, which has {VERIFICATION}; another service must show that setting"
    return text("switch_verification_on", where=admin.client.config.bootstrap_servers_text)


def transaction_timeout(settings: WriteSettings, found: Mapping[str, str]) -> int:
    """Return the configured transaction.timeout.ms, else the broker's maximum.

    It is at most 15 minutes if none is configured.
    """
    configured = settings.producer.transaction_timeout_ms
    maximum = number(found, MAX_TIMEOUT)
    if configured is None and maximum is None:
        warn_once(text("unread_timeout", timeout_ms=DEFAULT_TRANSACTION_TIMEOUT_MS))
    if configured is not None:
        if maximum is not None and configured > maximum:
            raise refused("INVALID_TRANSACTION_TIMEOUT", timeout_ms=configured, limit=maximum)
        return configured
    return DEFAULT_TRANSACTION_TIMEOUT_MS if maximum is None else min(maximum, DEFAULT_TRANSACTION_TIMEOUT_MS)
