"""The benchmark of tables in small: one table of scikit-learn, the presets as they are."""

import importlib.util
from pathlib import Path

PATH = Path(__file__).parents[2] / "benchmarks" / "tables.py"


def test_the_presets_reach_central_training_and_come_close_with_privacy():
    spec = importlib.util.spec_from_file_location("tables_benchmark", PATH)
    assert spec is not None
    assert spec.loader is not None
    tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tables)
    found = tables.run(*tables.quick_table(), seeds=(0,))
    none = found["none"]
    assert none["converged"]
    assert none["objective_gap"] < 1e-3
    assert abs(none["federated"]["auc"] - none["central"]["auc"]) <= 0.002
    (private,) = found["epsilon 3"]["federated"]
    assert private["auc"] > none["central"]["auc"] - 0.06
    assert private["accuracy"] > none["majority"]
