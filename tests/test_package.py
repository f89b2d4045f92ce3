"""The wheel: small, without data, and enough to train from. `make package-check` does it in empty environments."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


def test_it_holds_the_package_and_no_data(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names, size = archive.namelist(), sum(entry.file_size for entry in archive.infolist())
    for wanted in ("presets/demo.toml", "paper/panels/fig2a.toml", "report/assets/report.html.j2", "report/assets/charts.js"):
        assert f"fedpdm/{wanted}" in names
    assert all(name.startswith("fedpdm") for name in names)
    assert {Path(name).suffix for name in names if ".dist-info" not in name} <= {".py", ".toml", ".j2", ".css", ".js"}
    assert size < 2_000_000


def test_it_trains_and_reports_away_from_the_source(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    settings = ["data.name=digits", "data.clients=10", "rounds.participants=4", "rounds.total=2"]
    command = [sys.executable, "-m", "fedpdm.cli.main", "run", "demo", "--quiet", "--out", "run"]
    environment = {"PYTHONPATH": str(tmp_path / "installed"), "HOME": str(tmp_path), "PATH": ""}
    where = [sys.executable, "-c", "import fedpdm; print(fedpdm.__file__)"]
    found = subprocess.run(where, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert found.stdout.startswith(str(tmp_path)), found.stderr
    flags = [part for setting in settings for part in ("--set", setting)]
    done = subprocess.run([*command, *flags], capture_output=True, text=True, timeout=300, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert "Differential privacy" in (tmp_path / "run" / "report.html").read_text()
