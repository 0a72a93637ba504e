"""The package as hatchling builds it: what an index shows of it, and the documents in it."""

from __future__ import annotations

import importlib.util
import re
import subprocess
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


def test_code_anchors_and_absolute_links_stay() -> None:
    spec = importlib.util.spec_from_file_location("package_description", ROOT / "tools" / "package_description.py")
    assert spec is not None
    assert spec.loader is not None
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    kept = "[a](#b) [c](https://d.example/e) [f](mailto:g@h.example)\n```python\ni[j](k)\n```\n"
    given = f'[l](m.md#n) ![o](p/q.svg)\n{kept}[r](s)\n<source srcset="u/v.svg"><img src="w.svg">\n'
    made = f"[l](https://t.example/m.md#n) ![o](https://t.example/p/q.svg)\n{kept}[r](https://t.example/s)\n"
    made += '<source srcset="https://t.example/u/v.svg"><img src="https://t.example/w.svg">\n'
    assert hook.absolute_links(given, "https://t.example/") == made


def test_wheel_holds_error_codes_and_hashes_and_no_document(tmp_path: Path) -> None:
    wheel = next(WheelBuilder(str(ROOT), PluginManager()).build(directory=str(tmp_path), versions=["standard"]))
    names = zipfile.ZipFile(wheel).namelist()
    assert "kafka_eos_sink/errors.toml" in names
    assert {"kafka_eos_sink/embedded/kafka.sha256", "kafka_eos_sink/embedded/kafka-source.sha256"} <= set(names)
    assert [name for name in names if "docs/" in name or name.endswith(".md")] == []


def test_all_urls_begin_with_the_address_of_the_repository() -> None:
    assert {"Source", "Documentation", "Changelog"} <= set(PROJECT["urls"])
    for url in PROJECT["urls"].values():
        assert url.startswith(SOURCE)
        assert (ROOT / url.removeprefix(SOURCE).lstrip("/")).exists()
    rules = (ROOT / "conf" / "alert-rules.yml").read_text("utf-8")
    assert all(found == SOURCE for found in re.findall(r"runbook_url: (https://.*?)/docs/", rules))


def test_classifiers_name_the_tested_pythons() -> None:
    (tested,) = re.findall(r"^\| Python \| .*? \| (.*?) \|$", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE)
    named = [each.removeprefix("Programming Language :: Python :: ") for each in PROJECT["classifiers"]]
    assert [each for each in named if re.fullmatch(r"3\.\d+", each)] == tested.split(", ")


@pytest.mark.parametrize(("path", "ignored"), [("uv.lock", True), ("requirements/uv.lock", False)])
def test_lock_that_uv_sync_writes_is_ignored_by_git(path: str, ignored: bool) -> None:
    checked = subprocess.run(["git", "check-ignore", "--quiet", "--no-index", path], cwd=ROOT, check=False)
    assert checked.returncode == (0 if ignored else 1)
