"""The notebooks run from their first cell to their last, the README's program from its first line; both count what they claim."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
NOTEBOOKS = REPOSITORY / "notebooks"
PATIENCE_S = 300


def code_of(notebook: Path) -> str:
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


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
    blocks = re.findall(
        r"^```python\n(.*?)^```", (REPOSITORY / "README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    (program,) = (block for block in blocks if "EmbeddedKafka" in block)
    out = run(tmp_path / "quick_start.py", program)
    assert out.splitlines() == ["after the first write: 1000", "after the second write: 1000"]


def test_the_steps_of_exactly_once(tmp_path: Path) -> None:
    told = "import json as _json\nprint('COUNTS ' + _json.dumps(counts))\n"
    out = run(tmp_path / "exactly_once.py", code_of(NOTEBOOKS / "exactly_once.ipynb") + "\n" + told)
    (line,) = (line for line in out.splitlines() if line.startswith("COUNTS "))
    counts = json.loads(line.removeprefix("COUNTS "))
    assert [each["sent"] for each in counts] == [20_000, 20_000, 10_000]
    for each in counts:
        assert (each["visible"], each["duplicates"], each["missing"]) == (each["sent"], 0, 0)
    failed = counts[1]
    assert failed["in the log, aborted ones included"] > failed["sent"], "the failed attempt had sent nothing"
    assert "nightly-orders" in out
