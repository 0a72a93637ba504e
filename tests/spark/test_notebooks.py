"""The notebooks run from their first cell to their last, and count what they claim."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
PATIENCE_S = 300


def code_of(notebook: Path) -> str:
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


def test_the_steps_of_exactly_once(tmp_path: Path) -> None:
    script = tmp_path / "exactly_once.py"
    told = "import json as _json\nprint('COUNTS ' + _json.dumps(counts))\n"
    script.write_text(code_of(NOTEBOOKS / "exactly_once.ipynb") + "\n" + told, "utf-8")
    ran = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=PATIENCE_S, cwd=tmp_path, check=False
    )
    assert ran.returncode == 0, ran.stderr[-3_000:]
    (line,) = (line for line in ran.stdout.splitlines() if line.startswith("COUNTS "))
    counts = json.loads(line.removeprefix("COUNTS "))
    assert [each["sent"] for each in counts] == [20_000, 20_000, 10_000]
    for each in counts:
        assert (each["visible"], each["duplicates"], each["missing"]) == (each["sent"], 0, 0)
    failed = counts[1]
    assert failed["in the log, aborted ones included"] > failed["sent"], "the failed attempt had sent nothing"
    assert "nightly-orders" in ran.stdout
