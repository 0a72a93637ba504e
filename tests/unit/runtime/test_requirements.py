"""The table of APIs is complete, and docs/compatibility.md shows it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kafka_eos_sink.client.connection import BrokerVersions, api_name
from kafka_eos_sink.errors import ConfigurationError
from kafka_eos_sink.protocol import messages as m
from kafka_eos_sink.runtime.requirements import (
    MAX_TIMEOUT,
    NEEDED,
    OPTIONAL,
    VERIFICATION,
    broker_settings,
    missing_apis,
    require_verified_appends,
    transaction_timeout,
    verifies_appends,
)
from tests.runs import RANDOM, WRITE

HANDSHAKE = {m.ApiVersionsRequest, m.SaslHandshakeRequest, m.SaslAuthenticateRequest}
PAGE = Path(__file__).parents[3] / "docs" / "compatibility.md"


def test_every_request_of_the_client_is_in_the_table_once() -> None:
    assert NEEDED.keys() & OPTIONAL.keys() == set()
    missing = [api.__name__ for api in m.REQUESTS if api not in {*NEEDED, *OPTIONAL, *HANDSHAKE}]
    assert not missing, f"add {missing} to NEEDED or OPTIONAL in runtime/requirements.py"


def test_page_shows_the_apis_their_lowest_versions_and_uses() -> None:
    rows = re.findall(r"^\| (\w+) \| (\d+) \| (.*) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    shown = [(name, int(lowest), use.replace("`", "")) for name, lowest, use in rows]
    rows = [(api_name(api), api.VERSIONS[0], use) for api, use in {**NEEDED, **OPTIONAL}.items()]
    assert shown == rows, (
        "give the tables of APIs in docs/compatibility.md the rows of runtime/requirements.py, in its order"
    )


@pytest.mark.parametrize(("offered", "missing"), [((0, 8), True), ((0, 9), False), ((12, 13), False), ((13, 14), True)])
def test_api_is_missing_if_no_version_is_common(offered: tuple[int, int], missing: bool) -> None:
    versions = BrokerVersions(api_versions={m.ProduceRequest.API_KEY: offered})
    assert ("Produce 9 to 12 (offered" in missing_apis(versions, [m.ProduceRequest])) == missing


def cluster(shown: list[dict[str, str]], highest: Sequence[int] = (), *, first: int = 0) -> Any:
    """Below transaction version 2. ``shown`` and ``highest`` (of AddPartitionsToTxn) are per broker; ``first`` is chosen for "any"."""

    def call(node: int, _request: Any, *, deadline_ms: int) -> m.ApiVersionsResponse:
        key = m.ApiVersionsResponse.ApiVersion(
            api_key=m.AddPartitionsToTxnRequest.API_KEY, min_version=0, max_version=highest[node]
        )
        return m.ApiVersionsResponse(error_code=0, api_keys=(key,))

    client = SimpleNamespace(
        metadata=SimpleNamespace(brokers=dict.fromkeys(range(len(shown)))),
        clock=lambda: 0,
        call=call,
        config=SimpleNamespace(bootstrap_servers_text="b"),
    )
    return SimpleNamespace(
        client=client,
        transaction_version=lambda _deadline: 0,
        describe_configs=lambda _kind, name, _keys, _deadline: dict(shown[first if name is None else int(name)]),
    )


@pytest.mark.parametrize(
    ("settings", "highest", "verifies"),
    [
        ({VERIFICATION: "true"}, [3], True),
        ({VERIFICATION: "false"}, [5], False),
        ({MAX_TIMEOUT: "900000"}, [3], False),  # Kafka 3.5 and older
        ({MAX_TIMEOUT: "900000"}, [4], True),
        ({}, [4, 5], True),
        ({}, [4, 3], None),
        ({}, [-1], None),
    ],
)
def test_verification_is_known_by_setting_or_release(
    settings: dict[str, str], highest: list[int], verifies: bool | None
) -> None:
    assert verifies_appends(cluster([settings] * len(highest), highest), settings, 1_000) is verifies


@pytest.mark.parametrize(
    ("settings", "way_out"),
    [({VERIFICATION: "false"}, f"--add-config {VERIFICATION}=true"), ({MAX_TIMEOUT: "900000"}, "Kafka 3.6 or newer")],
    ids=["switched off", "an older Kafka"],
)
def test_brokers_that_verify_no_appends_are_rejected_with_the_way_out(settings: dict[str, str], way_out: str) -> None:
    with pytest.raises(ConfigurationError) as rejected:
        require_verified_appends(cluster([settings], [3]), settings, 1_000)
    assert rejected.value.code == "TRANSACTIONS_NOT_VERIFIED"
    assert way_out in rejected.value.message


@pytest.mark.parametrize("first", [0, 1], ids=lambda first: f"broker {first} first")
@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        ([{VERIFICATION: "true"}, {VERIFICATION: "true"}], "true"),
        ([{VERIFICATION: "true"}, {VERIFICATION: "false"}], "false"),
        ([{VERIFICATION: "true"}, {}], "false"),  # a broker before 3.6, in an upgrade
        ([{}, {}], None),  # hidden, as on managed clusters: the versions decide
    ],
)
def test_verification_holds_only_if_no_broker_lacks_it(
    shown: list[dict[str, str]], expected: str | None, first: int
) -> None:
    assert broker_settings(cluster(shown, first=first), 1_000).get(VERIFICATION) == expected


@pytest.mark.parametrize("write_id", ["w", RANDOM])
def test_configured_timeout_is_used_else_at_most_15_minutes(write_id: str) -> None:
    """Error messages advise to raise it, and that must help a job without txnAppId, too."""

    def timeout(configured: int | None, maximum: str) -> int:
        producer = SimpleNamespace(transaction_timeout_ms=configured)
        settings: Any = SimpleNamespace(producer=producer, write=replace(WRITE, id=write_id))
        return transaction_timeout(settings, {MAX_TIMEOUT: maximum})

    assert timeout(7_200_000, "7200000") == 7_200_000
    assert timeout(None, "7200000") == 900_000
    assert timeout(None, "60000") == 60_000
