"""The programs of `make bench` run and write their figures, which get no verdict here: that would need a quiet machine."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_the_time_of_a_round_is_measured_and_written(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    speed, workloads = pytest.importorskip("speed"), pytest.importorskip("workloads")
    tiny = workloads.Workload(2, 9, 320, 50, 0.04, 10.0, 0.05, 1e-5, 5)
    monkeypatch.setitem(workloads.WORKLOADS, "tiny", tiny)
    names = ["Numba reference, FedPDM", "fedpdm: fedpdm, noise", "XLA alone"]
    options = ["--workload", "tiny", "--repeats", "3", "--anyway", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["speed.py", *options, "--only", *names])
    monkeypatch.setenv(speed.SWITCH, "1")
    speed.main()
    found = json.loads((tmp_path / "speed.json").read_text())
    rows = found["results"]["tiny"]
    assert len(rows) == 3
    assert all(row["ms_per_round"] > 0 and len(row["all"]) == 3 for row in rows.values())
    assert found["whole_batches"]["tiny"]["fedpdm_ms"] > 0
    assert (tmp_path / "speed.png").stat().st_size > 1000


@pytest.mark.parametrize("rule", ["participants", "dual-memory"])
def test_a_federation_that_is_drawn_on_demand_is_measured(tmp_path: Path, rule: str) -> None:
    point = {"clients": 5000, "participants": 4, "classes": 2, "features": 5, "rows": 20, "steps": 2, "rule": rule, "calls": 2}
    command = [sys.executable, str(BENCHMARKS / "scale.py"), "--point", json.dumps(point | {"chunk": 3, "uplink": 0.5})]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["ms_per_round"] > 0
    assert found["peak_gb"] > 0
