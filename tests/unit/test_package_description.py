"""The package as hatchling builds it: what an index shows of it, and the documents in it."""

from __future__ import annotations

import re
import tomllib
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
SOURCE = PROJECT["urls"]["Source"]


@pytest.fixture(scope="module")
def description() -> str:
    text: str = ProjectMetadata(str(ROOT), PluginManager()).core.readme
    return text


def test_links_of_the_description_are_absolute_and_lead_to_files(description: str) -> None:
    targets = [*re.findall(r"\]\(([^)\s]+)\)", description), *re.findall(r' (?:src|srcset)="([^"]+)"', description)]
    assert len(targets) > 20
    assert any(target.endswith(".svg") for target in targets)
    assert all(re.match(r"https?://", target) for target in targets), targets
    files = [target.removeprefix(f"{SOURCE}/").partition("#")[0] for target in targets if target.startswith(SOURCE)]
    assert files
    assert all((ROOT / file).exists() for file in files), files


def test_only_links_differ_between_readme_and_description(description: str) -> None:
    assert re.sub(rf'(\]\(|src="|srcset="){SOURCE}/', r"\1", description) == (ROOT / "README.md").read_text("utf-8")


def test_wheel_holds_error_codes_and_hashes_and_no_document(tmp_path: Path) -> None:
    wheel = next(WheelBuilder(str(ROOT), PluginManager()).build(directory=str(tmp_path), versions=["standard"]))
    names = zipfile.ZipFile(wheel).namelist()
    assert "kafka_eos_sink/errors.toml" in names
    assert {"kafka_eos_sink/embedded/kafka.sha256", "kafka_eos_sink/embedded/kafka-source.sha256"} <= set(names)
    assert [name for name in names if "docs/" in name or name.endswith(".md")] == []
