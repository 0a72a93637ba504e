"""What `make test` prints at the end of a run that failed."""

from __future__ import annotations

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "run-tests"


@pytest.fixture
def run_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script, with a folder of its own for the lanes' logs."""
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    loader = SourceFileLoader("run_tests", str(SCRIPT))
    spec = spec_from_loader("run_tests", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "LOGS", tmp_path / "build" / "tests")
    (tmp_path / "build" / "tests").mkdir(parents=True)
    return module


def write_lane(run_tests: Any, lane: str, failures: int, broker_logs: int) -> None:
    names = "".join(f"FAILED tests/{lane}/test_x.py::test_{number} - AssertionError\n" for number in range(failures))
    (run_tests.LOGS / f"{lane}.log").write_text(f"{names}{failures} failed, 5 passed in 3.21s\n")
    for number in range(broker_logs):
        log = run_tests.LOGS / lane / f"node-{number}-server.log"
        log.parent.mkdir(exist_ok=True)
        log.write_text("")


@pytest.mark.parametrize(("failures", "broker_logs"), [(1, 1), (40, 9)])
@pytest.mark.parametrize("lanes", [1, 4])
def test_last_30_lines_name_failed_tests_and_broker_logs(
    run_tests: Any, capsys: pytest.CaptureFixture[str], lanes: int, failures: int, broker_logs: int
) -> None:
    broken = list(run_tests.LANES)[:lanes]
    for lane in run_tests.LANES:
        write_lane(run_tests, lane, failures if lane in broken else 0, broker_logs if lane in broken else 0)
    assert run_tests.report({lane: int(lane in broken) for lane in run_tests.LANES}, 60.0) == 1
    last = capsys.readouterr().out.splitlines()[-30:]
    for lane in broken:
        assert f"FAILED tests/{lane}/test_x.py::test_0  (output: build/tests/{lane}.log)" in last
        assert f"  broker log: build/tests/{lane}/node-0-server.log" in last
    assert last[-1] == f"{5 * len(run_tests.LANES)} passed, {lanes * failures} failed"


def test_lane_that_ended_early_is_named(run_tests: Any, capsys: pytest.CaptureFixture[str]) -> None:
    (run_tests.LOGS / "broker.log").write_text("Killed\n")
    for lane in ("spark", "faults", "pure"):
        write_lane(run_tests, lane, 0, 0)
    assert run_tests.report({"spark": 0, "broker": 137, "faults": 0, "pure": 0}, 60.0) == 1
    assert "FAILED lane broker ended early  (output: build/tests/broker.log)" in capsys.readouterr().out
