"""The notebook as it is stored: it can be read without running it, and shows nothing of the machine that ran it."""

from __future__ import annotations

import getpass
import re
import socket
from pathlib import Path
from typing import Any

import nbformat

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "exactly_once_tour.ipynb"
CELLS: list[Any] = [cell for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"]
OUTPUTS: list[Any] = [output for cell in CELLS for output in cell.outputs]


def test_every_code_cell_has_run_once_and_in_order() -> None:
    assert [cell.execution_count for cell in CELLS] == list(range(1, len(CELLS) + 1))
    assert [cell.source for cell in CELLS if not cell.outputs] == []


def test_no_output_is_an_error_or_standard_error() -> None:
    assert {output.output_type for output in OUTPUTS} <= {"execute_result", "stream"}
    assert {output.name for output in OUTPUTS if output.output_type == "stream"} <= {"stdout"}


def test_nothing_of_the_machine_is_stored() -> None:
    stored = re.sub(r'"image/png": "[^"]*"', "", NOTEBOOK.read_text("utf-8"))
    private = re.compile(r"/(?:home|root|tmp|work|usr|var|Users|private)/|127\.0\.0\.1|localhost")
    assert private.findall(stored) == []
    # A name such as "root" is also a word of the text; paths are searched for above.
    assert [name for name in (socket.gethostname(), getpass.getuser()) if name in stored and name != "root"] == []
