"""Messages about missing packages: they name all of them, and a command that works from a clone and from a wheel."""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from kafka_eos_sink.cli import demo
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.extras import install_command

ROOT = Path(__file__).parents[2]
EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def packages_of(extra: str) -> Iterator[str]:
    for requirement in EXTRAS[extra]:
        if own := re.fullmatch(r"kafka-eos-sink\[(.+)\]", requirement):
            for other in own[1].split(","):
                yield from packages_of(other)
        else:
            yield re.split(r"[<>=\[]", requirement)[0]


def hide(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    find: Callable[[str], ModuleSpec | None] = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in names else find(name))


@pytest.mark.parametrize("extra", EXTRAS)
def test_install_command_names_the_packages_of_the_extra(extra: str) -> None:
    python, *pip, install = shlex.split(install_command(extra))[:4]
    requirements = shlex.split(install_command(extra))[4:]
    assert (python, pip, install) == (sys.executable, ["-m", "pip"], "install")
    assert {re.split(r"[<>=]", each)[0] for each in requirements} == set(packages_of(extra))
    assert all(">=" in each for each in requirements)


@pytest.mark.parametrize("missing", demo.MODULES)
def test_demo_without_a_package_starts_nothing(
    missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hide(monkeypatch, missing)
    assert main(["demo"]) == 1
    shown = capsys.readouterr()
    assert f"[KAFKA_EOS.DEMO_NOT_INSTALLED] kafka-eos demo needs {missing.replace('_', '-')}, and this" in shown.err
    assert shown.out == ""


def test_demo_looks_for_every_package_of_its_extra() -> None:
    names = {module.replace("_", "-") for module in demo.MODULES}
    assert names == set(packages_of("demo")) - set(packages_of("cli"))
