"""The jobs as docs/jobs.md, docs/batch.md and docs/internals/benchmarks.md start them: files exist, and parsers take the options."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import subprocess
import sys

import pytest

from documents import ROOT, Block, all_blocks, submitted
from snippets import SUBMITTED


def parse(job: str, arguments: list[str]) -> None:
    importlib.import_module(f"spark_jobs.{job}").arguments(arguments)


@pytest.mark.parametrize("block", SUBMITTED, ids=lambda block: block.name)
def test_submitted_job_takes_its_options(block: Block) -> None:
    jobs = list(filter(None, map(submitted, block.commands())))
    assert jobs
    for job, arguments in jobs:
        parse(job, arguments)


def test_every_job_is_submitted_by_a_page() -> None:
    shown = {found[0] for block in SUBMITTED for found in map(submitted, block.commands()) if found}
    assert shown == {file.stem for file in (ROOT / "spark_jobs").glob("*.py")}


def test_task_of_airflow_submits_a_job() -> None:
    (block,) = (block for block in all_blocks() if block.name == "docs/batch.md#from-airflow")
    calls = (node for node in ast.walk(ast.parse(block.text)) if isinstance(node, ast.Call))
    (call,) = (node for node in calls if isinstance(node.func, ast.Name) and node.func.id == "BashOperator")
    given = {each.arg: ast.literal_eval(each.value) for each in call.keywords}
    rendered = given["bash_command"].replace("{{ ds }}", "2026-11-21").replace("{{ ds_nodash }}", "20261121")
    rendered = rendered.replace("{{ params.correction }}", str(given["params"]["correction"]))
    assert "{" not in rendered
    program, *words = shlex.split(rendered)
    assert program == "spark-submit"
    at = next(index for index, word in enumerate(words) if word.endswith(".py"))
    assert (ROOT / words[at]).is_file()
    assert (ROOT / words[words.index("--properties-file") + 1]).is_file()
    parse("batch_to_kafka", words[at + 1 :])


def test_benchmarks_have_the_options_that_the_page_names() -> None:
    (block,) = (block for block in all_blocks() if block.name == "docs/internals/benchmarks.md#how-to-measure:2")
    for command in block.commands():
        found = re.fullmatch(r"python (-m benchmarks\.\w+)(.*)", command)
        assert found, command
        shown = subprocess.run(
            [sys.executable, *found[1].split(), "--help"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for option in re.findall(r"--[a-z-]+", found[2]):
            assert f" {option} " in shown, option
