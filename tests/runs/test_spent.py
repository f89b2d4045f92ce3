"""`fedpdm privacy spent`: an epsilon stands beside its unit, and beside what the schema cost before."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedpdm.cli.main import app
from fedpdm.config import load_config
from fedpdm.data.schema import Category, Cost, Number, Schema, to_toml
from fedpdm.runs.spent import read_accounts
from fedpdm.studies.compare import compare, table_lines
from fedpdm.training import train


def settings_for(folder: Path, **more: object) -> list[str]:
    """Settings of a small private table whose schema has these parts too."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    cells = zip(range(200), rng.integers(20, 90, 200), rng.choice(list("fm"), 200), rng.choice(list("ab"), 200), strict=True)
    rows = [f"p{row // 2},{age},{sex},{site},{'yes' if age > 50 else 'no'}" for row, age, sex, site in cells]
    (folder / "t.csv").write_text("\n".join(["patient,age,sex,site,ill", *rows]))
    columns = {"age": Number(low=0, high=120), "sex": Category(levels=["f", "m"])}
    schema = Schema.model_validate({"label": "ill", "classes": ["no", "yes"], "client": "site", "columns": columns, **more})
    (folder / "s.toml").write_text(to_toml(schema))
    names = {"data.name": folder / "t.csv", "data.schema_file": folder / "s.toml"}
    settings = [f"{key}={json.dumps(str(path))}" for key, path in names.items()]
    persons = ["privacy.clients_per_unit=2"] if "unit_column" in more else []
    return [*settings, *persons, "data.partition=column", "privacy.epsilon=3.0", "rounds.total=2"]


def test_the_figure_names_the_unit_of_the_run(tmp_path, capsys):
    train(load_config("private-table", settings_for(tmp_path / "own", unit_column="patient")), tmp_path / "run", report=False)
    app(["privacy", "spent", str(tmp_path / "run")], standalone_mode=False)
    assert "add-remove of all rows of one patient at up to 2 clients)" in capsys.readouterr().out
    (tmp_path / "run" / "summary.json").rename(tmp_path / "kept.json")  # as in a run that has not ended
    (tmp_path / "run" / "SHA256SUMS").unlink(missing_ok=True)
    assert read_accounts(tmp_path / "run")[1][0]["unit"] == "all rows of one patient"


def test_the_cost_of_a_private_schema_is_told_beside_the_ledger(tmp_path, capsys):
    settings = settings_for(tmp_path / "own", cost=Cost(epsilon=1.0, delta=1e-6))
    finished = train(load_config("private-table", settings), tmp_path / "run")
    app(["privacy", "spent", str(tmp_path / "run")], standalone_mode=False)
    found = capsys.readouterr().out
    assert "add-remove of one example of one client)" in found
    assert "The schema cost epsilon = 1 before that: 3 in all." in found
    assert finished.summary["epsilon"] == pytest.approx(3.0, rel=1e-6)
    assert "3 of 3" in (tmp_path / "run" / "report.html").read_text(), "the schema's part counts on both sides"


def test_a_comparison_names_the_unit_too(tmp_path):
    settings = settings_for(tmp_path / "own", unit_column="patient")
    found = compare("private-table", ["fedpdm"], 1, tmp_path / "compared", settings, show_progress=False)
    assert table_lines(found.rows)[-1].endswith("(add-remove of all rows of one patient)")
