"""The wheel: small, without data, and enough to train from. `make package-check` does it in empty environments."""

import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import fedpdm
from fedpdm.cache import cache_dir

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


def test_it_holds_the_package_and_no_data(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        beside_code = sum(entry.file_size for entry in archive.infolist() if not entry.filename.endswith(".py"))
    for wanted in (
        "presets/demo.toml",
        "studies/paper/panels/fig2a.toml",
        "report/assets/report.html.j2",
        "report/assets/charts.js",
        "py.typed",
    ):
        assert f"fedpdm/{wanted}" in names
    assert all(name.startswith("fedpdm") for name in names)
    found = {Path(name).suffix for name in names if ".dist-info" not in name}
    assert found <= {".py", ".typed", ".toml", ".j2", ".css", ".js", ".csv"}
    assert [name for name in names if name.endswith(".csv")] == ["fedpdm/studies/paper/multiverse/design.csv"]
    assert beside_code < 200_000


def test_it_trains_and_reports_away_from_the_source(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    settings = ["data.name=digits", "data.clients=10", "rounds.participants=4", "rounds.total=2"]
    command = [sys.executable, "-m", "fedpdm.cli.main", "run", "demo", "--quiet", "--out", "run"]
    environment = {
        "PYTHONPATH": str(tmp_path / "installed"),
        "FEDPDM_CACHE": str(cache_dir()),
        "HOME": str(tmp_path),
        "PATH": "",
    }
    where = [sys.executable, "-c", "import fedpdm; print(fedpdm.__file__)"]
    found = subprocess.run(where, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert found.stdout.startswith(str(tmp_path)), found.stderr
    flags = [part for setting in settings for part in ("--set", setting)]
    done = subprocess.run([*command, *flags], capture_output=True, text=True, timeout=900, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert "Differential privacy" in (tmp_path / "run" / "report.html").read_text()


@pytest.fixture(scope="module")
def minimal(tmp_path_factory):
    """Links to the packages that `pip install fedpdm` would install, and to no others; and to fedpdm itself."""
    folder = tmp_path_factory.mktemp("minimal")
    (folder / "fedpdm").symlink_to(ROOT / "fedpdm")
    left = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    done = set()
    while left:
        wanted = Requirement(left.pop())
        if wanted.name in done or not (wanted.marker is None or wanted.marker.evaluate({"extra": ""})):
            continue
        done.add(wanted.name)
        found = distribution(wanted.name)
        left += found.requires or []
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            if not (folder / top).exists():
                (folder / top).symlink_to(str(found.locate_file(top)))
    return folder


def run_minimal(minimal, folder, *arguments):
    code = "import sys; sys.path.append(sys.argv.pop(1)); from fedpdm.cli.main import main; main()"
    environment = {"FEDPDM_CACHE": str(cache_dir()), "HOME": str(folder), "PATH": ""}
    command = [sys.executable, "-S", "-c", code, str(minimal), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=folder, env=environment)


def test_without_extras_it_trains_and_reports(minimal, tmp_path):
    settings = ["data.clients=10", "rounds.participants=2", "rounds.total=1", "data.features=raw", "local.step_size=0.1"]
    flags = [part for setting in settings for part in ("--set", setting)]
    done = run_minimal(minimal, tmp_path, "run", "demo", "--quiet", "--out", "run", *flags)
    assert done.returncode == 0, done.stderr
    assert "Differential privacy" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["data", "info", "digits"], "sklearn"),
        (["run", "--data", "rows.csv", "--label", "y"], "tables"),
        (["compare", "demo"], "figures"),
        (["compare", "demo", "--on", "tcp://127.0.0.1:1"], "cluster"),
        (["flower", "status", "."], "flower"),
    ],
)
def test_an_absent_package_costs_one_line_that_names_its_extra(minimal, tmp_path, arguments, extra):
    (tmp_path / "rows.csv").write_text("x,y\n1,a\n2,b\n")
    done = run_minimal(minimal, tmp_path, *arguments)
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert f"pip install 'fedpdm[{extra}]'" in line


def test_a_star_import_takes_what_there_is(minimal, tmp_path):
    code = (
        "import sys; sys.path.append(sys.argv.pop(1)); from fedpdm import *; print(train.__name__, 'FedPDMClassifier' in dir())"
    )
    environment = {"HOME": str(tmp_path), "PATH": ""}
    done = subprocess.run([sys.executable, "-S", "-c", code, str(minimal)], capture_output=True, text=True, env=environment)
    assert (done.stdout, done.stderr) == ("train False\n", "")


def test_the_root_gives_every_name_that_it_lists():
    for name in fedpdm.__all__:
        assert getattr(fedpdm, name) is not None
    assert {"fedavg", "fedprox", "scaffold", "feddyn", "fedpdm"} <= set(fedpdm.__all__)


def test_the_versions_of_the_tools_agree():
    """The oldest Python is named four times; one change must not forget the others."""
    text = (ROOT / "pyproject.toml").read_text()
    project = tomllib.loads(text)
    oldest = project["project"]["requires-python"].removeprefix(">=")
    assert project["tool"]["basedpyright"]["pythonVersion"] == oldest
    assert project["tool"]["ruff"]["target-version"] == "py" + oldest.replace(".", "")
    assert f"Programming Language :: Python :: {oldest}" in text
    assert f"fedpdm needs Python {oldest}" in (ROOT / "scripts" / "make_environment.sh").read_text()
