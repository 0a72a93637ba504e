"""The notebook runs from its first cell to its last, the README's program from its first line; both count what they claim."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat

from dead_writes import POINTS
from documents import ROOT, all_blocks

NOTEBOOKS = ROOT / "notebooks"
PATIENCE_S = 280
"""Twice of it is less than a test may take."""


def run(script: Path, program: str) -> str:
    """Run a program as a user would paste it; returns its standard output."""
    script.write_text(program, "utf-8")
    ran = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=script.parent,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3_000:]
    return ran.stdout


def test_readme_program_writes_each_row_once(tmp_path: Path) -> None:
    blocks = {block.name: block.text for block in all_blocks()}
    out = run(tmp_path / "quick_start.py", blocks["README.md#60-seconds"])
    assert out.strip() == blocks["README.md#60-seconds:2"].strip()


COUNTED = """
import dataclasses, json
print("STREAM " + json.dumps([stream.samples[topic][-1][1] for topic in stream.samples]))
print("FOUND " + json.dumps([[dataclasses.asdict(each) for each in found] for found in (stage.counts, kills)]))
"""


def text_of(notebook: nbformat.NotebookNode) -> str:
    """What its cells have printed or shown as text."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    data = [output.get("data", {}) for output in outputs]
    shown = [output.get("text", "") for output in outputs] + [each.get("text/plain", "") for each in data]
    return "\n".join([*shown, *(each.get("text/html", "") for each in data)])


def test_tour_runs_and_its_claims_hold(tmp_path: Path) -> None:
    shutil.copytree(NOTEBOOKS, tmp_path, dirs_exist_ok=True)
    copy = tmp_path / "exactly_once_tour.ipynb"
    notebook = nbformat.read(copy, as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell(COUNTED))
    nbformat.write(notebook, copy)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        os.devnull,
        f"--rootdir={tmp_path}",
    ]
    nbmake = ["--nbmake", f"--nbmake-timeout={PATIENCE_S}", "--overwrite", str(copy)]
    ran = subprocess.run([*command, *nbmake], capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False)
    assert ran.returncode == 0, ran.stdout[-5_000:]
    shown = text_of(nbformat.read(copy, as_version=4))
    (line,) = (line for line in shown.splitlines() if line.startswith("FOUND "))
    # Each of the nine files is one batch of 1,000 rows; the tour itself compares them with what was sent.
    assert "STREAM [9000]" in shown
    assert "decided" in shown
    counts, kills = json.loads(line.removeprefix("FOUND "))

    assert len({each["failure"] for each in counts}) == 5
    for each in counts:
        if each["sink"] == "kafka-eos":
            assert (each["visible"], each["duplicates"], each["missing"]) == (each["sent"], 0, 0)
        else:
            assert each["duplicates"] > 0, f"nothing to compare with: {each}"
    assert [(each["doubled"], each["lost"]) for each in kills if each["sink"] == "kafka-eos"] == [(0, 0)] * len(POINTS)
    assert {each["step"] for each in kills if each["sink"] == "kafka-eos"} == set(POINTS)
    doubled = [each["doubled"] for each in kills if each["sink"] != "kafka-eos"]
    assert doubled == sorted(doubled)
    assert doubled[-1] > 0
    for claim in (
        "attempt aborted",
        "finished by the next run",
        "finished by kafka-eos recover",
        "transactions copied",
    ):
        assert claim in shown, f"the history does not show it: {claim}"
