"""The imports of every module, read from its source: they point downward, and the heavy ones stay where they belong."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "kafka_eos_sink"
# What each package may import of the others. client/ with producer/, and commit/, are two towers on protocol/ that meet in runtime/.
TOWERS = {"protocol", "client", "producer", "commit", "runtime"}
MAY_IMPORT: dict[str, set[str]] = {
    "protocol": set(),
    "client": {"protocol"},
    "producer": {"protocol", "client"},
    "commit": {"protocol"},
    "runtime": TOWERS,
    # Never the other way: what operators do beside a write is no part of its way.
    "operations": TOWERS,
    "settings": TOWERS,
    "spark": {*TOWERS, "settings"},
    "jobs": {*TOWERS, "settings"},
    "embedded": {"protocol", "client", "settings"},
    "demo": {*TOWERS, "operations", "settings", "jobs", "embedded"},
    "cli": {*TOWERS, "operations", "settings", "jobs", "embedded", "demo"},
}
BELOW_ALL = {"error_table", "errors", "extras", "pickling", "plugins", "logs"}
IMPORT_PYSPARK = {"spark", "jobs", "demo"}
SOURCES = sorted(PACKAGE.rglob("*.py"))

SOCKET_MODULES = {"socket", "ssl", "selectors", "select", "asyncio"}
SOCKET_OWNERS = {"client/transport.py", "client/tls.py", "client/oauth.py", "embedded/ports.py", "spark/quick_acks.py"}


def imported(source: Path) -> Iterator[str]:
    """Every module that `source` imports anywhere in it, with the names taken from it, as dotted names."""
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # "from ..errors import X" counts from the package that holds the module.
            start = source.relative_to(ROOT).parts[: -node.level] if node.level else ()
            module = ".".join(filter(None, (*start, node.module)))
            yield from (f"{module}.{alias.name}" for alias in node.names)


def test_the_table_names_all_packages_and_has_no_circle() -> None:
    assert {folder.parent.name for folder in PACKAGE.glob("*/__init__.py")} == set(MAY_IMPORT)
    assert {file.stem for file in PACKAGE.glob("*.py")} - {"__init__"} == BELOW_ALL
    # prepare() raises CycleError for packages that import each other.
    TopologicalSorter({package: others - {package} for package, others in MAY_IMPORT.items()}).prepare()


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: str(source.relative_to(PACKAGE)))
def test_imports_stay_within_the_table(source: Path) -> None:
    package = source.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if package == "__init__":  # the public list, above all of them
        return
    allowed = set() if package in BELOW_ALL else MAY_IMPORT[package] | {package}
    ours = [name.split(".") for name in imported(source) if name.split(".")[0] == "kafka_eos_sink"]
    forbidden = [
        ".".join(parts) for parts in ours if len(parts) > 1 and parts[1] in MAY_IMPORT and parts[1] not in allowed
    ]
    assert not forbidden, (
        f"{package}/ may import {sorted(allowed - {package})} and what is below all packages, not {forbidden}: move the code, or see "
        "the table in docs/internals/architecture.md"
    )


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: str(source.relative_to(PACKAGE)))
def test_only_the_transport_touches_sockets(source: Path) -> None:
    found = {name.split(".")[0] for name in imported(source)} & SOCKET_MODULES
    assert not found or str(source.relative_to(PACKAGE)) in SOCKET_OWNERS, (
        f"{found}: only {sorted(SOCKET_OWNERS)} open connections"
    )


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: str(source.relative_to(PACKAGE)))
def test_only_packages_about_spark_import_pyspark(source: Path) -> None:
    if source.relative_to(PACKAGE).parts[0] not in IMPORT_PYSPARK:
        names = {name.split(".")[0] for name in imported(source)}
        assert "pyspark" not in names, f"only {sorted(IMPORT_PYSPARK)} import pyspark"
