"""conf/grafana-dashboard.json and conf/alert-rules.yml use metrics that are exported; docs/metrics.md and docs/alerts.md explain them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
import yaml
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from cluster_views import NOW, batch, blocked, documented_metrics, transaction, write
from documents import read
from kafka_eos_sink.cli.main import _COMMANDS
from kafka_eos_sink.operations.cluster_view import ClusterView, write_lines
from kafka_eos_sink.operations.write_metrics import WriteMetrics
from kafka_eos_sink.runtime.stopwatch import PHASES

ROOT = Path(__file__).parents[2]
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((ROOT / "conf" / "alert-rules.yml").read_text("utf-8"))["groups"]
    for rule in group["rules"]
]
DASHBOARD: dict[str, Any] = json.loads((ROOT / "conf" / "grafana-dashboard.json").read_text("utf-8"))
ALL_PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
PANELS = [panel for panel in ALL_PANELS if panel["type"] != "row"]


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]["Source"]
"""The base of every `runbook_url`, which users replace as docs/alerts.md says."""
ALERTS = read(ROOT / "docs" / "alerts.md")
WORDS = {"and", "or", "unless", "by", "without"}
OF_PROMETHEUS = {"instance", "job"}
"""Labels that Prometheus adds to every series."""


@pytest.fixture(scope="module")
def families() -> list[Metric]:
    """What a scrape parses of a view with everything in it."""
    figures = {f"{phase}_ms": 5 for phase in PHASES} | {"written_bytes": 7, "headroom_ms": 9}
    metrics = WriteMetrics()
    metrics.viewed(
        ClusterView(
            now_ms=NOW,
            writes=write_lines([write(), write(version=4, state="decided", finished_ms=None)], [batch(**figures)]),  # type: ignore[arg-type]
            transactions=(transaction(),),
            blocked=(blocked("w.0.3"),),
        ),
        0.5,
    )
    return list(text_string_to_metric_families(prometheus_client.generate_latest(metrics.registry).decode()))


@pytest.fixture(scope="module")
def exported(families: list[Metric]) -> dict[str, set[str]]:
    """The labels of each series."""
    found: dict[str, set[str]] = {}
    for family in families:
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def queries() -> Iterator[str]:
    yield from (rule["expr"] for rule in RULES)
    yield from (target["expr"] for panel in PANELS for target in panel["targets"])


def metrics_of(query: str) -> set[str]:
    """Every name in a query that is no function, word, label or text."""
    bare = re.sub(r'"[^"]*"|\{.*?\}|\[.*?\]|\b(by|without|on)\s*\([^)]*\)', " ", query)
    return set(re.findall(r"[a-zA-Z_]\w*\b(?!\s*\()", bare)) - WORDS


def labels_of(query: str) -> set[str]:
    grouped = ",".join(re.findall(r"\b(?:by|without|on)\s*\(([^)]*)\)", query))
    matched = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", query)
    return {*matched, *re.findall(r"\w+", grouped)}


def test_rules_and_dashboard_use_metrics_that_are_exported(exported: dict[str, set[str]]) -> None:
    for query in queries():
        names = metrics_of(query)
        assert names, query
        assert names <= exported.keys(), query
        assert labels_of(query) <= OF_PROMETHEUS.union(*(exported[name] for name in names)), query


def test_every_metric_is_documented_with_type_and_labels(families: list[Metric]) -> None:
    found = {}
    for family in families:
        labels = {label for sample in family.samples for label in sample.labels}
        found[family.name + "_total" * (family.type == "counter")] = family.type, labels - {"le"}
    ours = {name: shown for name, shown in found.items() if not name.startswith("process_")}
    assert ours == documented_metrics()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_alert_names_severity_command_and_section(rule: dict[str, Any], exported: dict[str, set[str]]) -> None:
    name, notes = rule["alert"], rule["annotations"]
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert set(notes) == {"summary", "description", "runbook_url"}
    assert notes["summary"]
    (command,) = re.findall(r": kafka-eos ([a-z]+) [^.]*$", notes["description"])
    assert command in _COMMANDS
    known = OF_PROMETHEUS.union(*(exported[each] for each in metrics_of(rule["expr"])))
    assert set(re.findall(r"\$labels\.(\w+)", json.dumps(notes))) <= known
    assert notes["runbook_url"] == f"{PROJECT}/docs/alerts.md#{name.lower()}"
    section = (ROOT / "docs" / "alerts.md").read_text("utf-8").partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    assert "\n1. " in section
    assert f"kafka-eos {command}" in section


def test_section_of_every_alert_has_its_rule() -> None:
    sections = [line.removeprefix("## ") for _, line in ALERTS.text if line.startswith("#")]
    assert sections[1:] == [rule["alert"] for rule in RULES]


def test_command_of_the_page_replaces_the_base_of_every_link(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    rules = shutil.copy(ROOT / "conf" / "alert-rules.yml", tmp_path / "conf")
    command, *_ = (block for block in ALERTS.blocks if block.text.startswith("sed "))
    subprocess.run(command.text, shell=True, check=True, cwd=tmp_path)
    links = re.findall(r"runbook_url: (\S+)", Path(rules).read_text("utf-8"))
    assert len(links) == len(RULES)
    assert [link for link in links if not link.startswith("https://git.example.org/kafka-eos/blob/main/docs/")] == []
