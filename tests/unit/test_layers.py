"""The imports of every module, read from its source: they point downward, and the heavy ones stay where they belong."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "kafka_eos_sink"
LAYERS = ("protocol", "client", "producer", "commit", "sink", "cli")
SOURCES = sorted(PACKAGE.rglob("*.py"))

SOCKET_MODULES = {"socket", "ssl", "selectors", "select", "asyncio"}
SOCKET_OWNERS = {"client/transport.py", "cli/free_ports.py"}


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


def test_imports_are_found_however_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "kafka_eos_sink" / "client" / "x.py"
    source.parent.mkdir(parents=True)
    source.write_text(
        textwrap.dedent("""
            import a.b
            from ..sink import writer
            from .node import Node
            def f():
                from kafka_eos_sink.cli import main
        """)
    )
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    assert set(imported(source)) == {
        "a.b",
        "kafka_eos_sink.sink.writer",
        "kafka_eos_sink.client.node.Node",
        "kafka_eos_sink.cli.main",
    }


def test_all_packages_are_layers() -> None:
    assert {folder.parent.name for folder in PACKAGE.glob("*/__init__.py")} == set(LAYERS)


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: str(source.relative_to(PACKAGE)))
def test_imports_never_point_upward(source: Path) -> None:
    layer = source.relative_to(PACKAGE).parts[0]
    if layer not in LAYERS:  # errors.py is below all of them; __init__.py is the public list above them
        allowed: tuple[str, ...] = LAYERS if layer == "__init__.py" else ()
    else:
        allowed = LAYERS[: LAYERS.index(layer) + 1]
    ours = [name.split(".") for name in imported(source) if name.split(".")[0] == "kafka_eos_sink"]
    upward = [".".join(parts) for parts in ours if len(parts) > 1 and parts[1] in LAYERS and parts[1] not in allowed]
    assert upward == []


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: str(source.relative_to(PACKAGE)))
def test_only_the_transport_touches_sockets(source: Path) -> None:
    found = {name.split(".")[0] for name in imported(source)} & SOCKET_MODULES
    assert not found or str(source.relative_to(PACKAGE)) in SOCKET_OWNERS


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: str(source.relative_to(PACKAGE)))
def test_nothing_below_the_sink_imports_pyspark(source: Path) -> None:
    below_the_sink = LAYERS[: LAYERS.index("sink")]
    if source.relative_to(PACKAGE).parts[0] in (*below_the_sink, "errors.py"):
        assert "pyspark" not in {name.split(".")[0] for name in imported(source)}
