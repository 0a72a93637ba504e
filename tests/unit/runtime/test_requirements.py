"""The table of APIs is complete, and docs/compatibility.md shows it."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kafka_eos_sink.client.connection import BrokerVersions, api_name
from kafka_eos_sink.protocol import messages as m
from kafka_eos_sink.runtime.requirements import (
    NEEDED,
    OPTIONAL,
    VERIFICATION,
    broker_settings,
    missing_apis,
    verifies_appends,
)

HANDSHAKE = {m.ApiVersionsRequest, m.SaslHandshakeRequest, m.SaslAuthenticateRequest}
PAGE = Path(__file__).parents[3] / "docs" / "compatibility.md"


def test_every_request_of_the_client_is_in_the_table_once() -> None:
    assert NEEDED.keys() & OPTIONAL.keys() == set()
    assert NEEDED.keys() | OPTIONAL.keys() | HANDSHAKE == set(m.REQUESTS)


def test_page_shows_the_apis_their_lowest_versions_and_uses() -> None:
    rows = re.findall(r"^\| (\w+) \| (\d+) \| (.*) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    shown = [(name, int(lowest), use.replace("`", "")) for name, lowest, use in rows]
    assert shown == [(api_name(api), api.VERSIONS[0], use) for api, use in {**NEEDED, **OPTIONAL}.items()]


@pytest.mark.parametrize(("offered", "missing"), [((0, 8), True), ((0, 9), False), ((12, 13), False), ((13, 14), True)])
def test_api_is_missing_if_no_version_is_common(offered: tuple[int, int], missing: bool) -> None:
    versions = BrokerVersions(api_versions={m.ProduceRequest.API_KEY: offered})
    assert ("Produce 9 to 12 (offered" in missing_apis(versions, [m.ProduceRequest])) == missing


@pytest.mark.parametrize(
    ("settings", "highest", "verifies"),
    [
        ({VERIFICATION: "true"}, 3, True),
        ({VERIFICATION: "false"}, 5, False),
        ({"transaction.max.timeout.ms": "900000"}, 3, False),  # Kafka 3.5 and older
        ({"transaction.max.timeout.ms": "900000"}, 4, True),
        ({}, 4, True),
        ({}, 3, None),
        ({}, -1, None),
    ],
)
def test_verification_is_known_by_setting_or_release(
    settings: dict[str, str], highest: int, verifies: bool | None
) -> None:
    versions = BrokerVersions(api_versions={m.AddPartitionsToTxnRequest.API_KEY: (0, highest)})
    assert verifies_appends(settings, versions) is verifies


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        ([{VERIFICATION: "true"}, {VERIFICATION: "true"}], "true"),
        ([{VERIFICATION: "true"}, {VERIFICATION: "false"}], "false"),
        ([{VERIFICATION: "true"}, {}], "false"),  # a broker before 3.6, in an upgrade
        ([{}, {VERIFICATION: "true"}], None),  # the first one's versions decide
        ([{}, {}], None),  # hidden, as on managed clusters
    ],
)
def test_verification_holds_only_if_no_broker_lacks_it(shown: list[dict[str, str]], expected: str | None) -> None:
    client = SimpleNamespace(metadata=SimpleNamespace(brokers=dict.fromkeys(range(len(shown)))), clock=lambda: 0)
    admin: Any = SimpleNamespace(
        client=client,
        transaction_version=lambda _deadline: 0,
        describe_configs=lambda _kind, name, _keys, _deadline: dict(shown[int(name or 0)]),
    )
    assert broker_settings(admin, 1_000).get(VERIFICATION) == expected
