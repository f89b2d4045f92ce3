"""The figure of docs/tables.md, and its table, from the results of benchmarks/tables.py."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["draw"]

PAGE = Path(__file__).parents[1] / "docs" / "tables.md"
MARK = "<!-- results -->"
LARGE = 10_000
EPSILONS = ("epsilon 3", "epsilon 1")


def mean(scores: list[dict[str, float]], key: str) -> float:
    """Over seeds; not a number where there is no run."""
    return float(np.mean([score[key] for score in scores])) if scores else float("nan")


def line(r: dict[str, Any]) -> list[str]:
    """A table's row of the page."""
    none, one, three = r["none"], r["epsilon 1"], r["epsilon 3"]
    cells = [f"{r['table']}", f"{none['rows']:,}", f"{none['clients']}", f"{none['features']}", f"{none['objective_gap']:.0e}"]
    cells += [f"{none['central']['auc']:.3f} / {none['federated']['auc']:.3f}"]
    for part in (three, one):
        own = f"{mean(part['federated'], 'auc'):.3f} / {mean(part['cohort'], 'auc'):.3f}"
        cells += [f"{own} ({mean(part['central'], 'auc'):.3f})"]
    cells += [f"{none['majority']:.3f}", f"{none['central']['accuracy']:.3f}"]
    cells += [f"{mean(part['federated'], 'accuracy'):.3f} / {mean(part['cohort'], 'accuracy'):.3f}" for part in (three, one)]
    return [*cells, f"{three['signal']:.0f} / {one['signal']:.0f}"]


def gap(r: dict[str, Any], epsilon: str, trust: str = "federated") -> float:
    """How far FedPDM's AUC is below that of central training without noise."""
    return r["none"]["central"]["auc"] - mean(r[epsilon][trust], "auc")


def table_of(results: list[dict[str, Any]]) -> str:
    """The page's table and the sentences around it."""
    large = [r for r in results if r["none"]["rows"] >= LARGE]
    small = [r for r in results if r["none"]["rows"] < LARGE]
    head = ["table", "rows", "clients", "features", "objective gap", "AUC, no noise: central / FedPDM"]
    head += [f"AUC, {e}: local / one cohort (central private)" for e in EPSILONS] + ["majority", "accuracy: central"]
    head += ["epsilon 3", "epsilon 1", "signal 3 / 1"]
    lines = [head, ["---"] * len(head), *(line(r) for r in results)]
    worst = max(abs(r["none"]["central"]["auc"] - r["none"]["federated"]["auc"]) for r in results)
    steepest = max(r["none"]["objective_gap"] for r in results)
    ways = itertools.product((large, small), ("federated", "cohort"))
    gaps = [[float(np.mean([gap(r, e, way) for r in some])) for e in EPSILONS] for some, way in ways]
    of_large, shared_large, of_small, shared_small = gaps
    said = (
        f"Without noise the objective is within {100 * max(steepest, 0):.2g} % of central training's on every table, and the "
        f"AUC within {worst:.4f}. The mean gap in AUC to central training without noise, on the {len(large)} tables with "
        f"{LARGE:,} rows or more, is **{of_large[0]:.3f} at epsilon 3** and {of_large[1]:.3f} at epsilon 1; on the "
        f"{len(small)} smaller ones {of_small[0]:.3f} and {of_small[1]:.3f}. With one cohort of all clients the gaps are "
        f"{shared_large[0]:.3f} and {shared_large[1]:.3f}, and {shared_small[0]:.3f} and {shared_small[1]:.3f}."
    )
    rows = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
    return f"{said}\n\n![AUC by table](results/benchmarks/tables.png)\n\n{rows}"


def figure(results: list[dict[str, Any]], path: Path) -> None:
    """AUC of every table: central and federated, with and without noise."""
    import matplotlib.pyplot as plt

    names = [f"{r['table']} ({r['none']['rows']:,})" for r in results]
    series = {
        "central, no noise": ([r["none"]["central"]["auc"] for r in results], "k", "|"),
        "FedPDM, epsilon 3": ([mean(r["epsilon 3"]["federated"], "auc") for r in results], "#0072b2", "o"),
        "FedPDM, epsilon 1": ([mean(r["epsilon 1"]["federated"], "auc") for r in results], "#56b4e9", "o"),
        "FedPDM in one cohort, epsilon 1": ([mean(r["epsilon 1"]["cohort"], "auc") for r in results], "#009e73", "+"),
        "central private (diffprivlib), epsilon 1": ([mean(r["epsilon 1"]["central"], "auc") for r in results], "#d55e00", "x"),
    }
    fig, axes = plt.subplots(figsize=(7, 0.34 * len(names) + 1.2), layout="constrained")
    for label, (values, colour, marker) in series.items():
        axes.scatter(values, range(len(names)), c=colour, marker=marker, s=60 if marker == "|" else 26, label=label)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("AUC on test rows")
    axes.grid(axis="x", alpha=0.3)
    fig.legend(loc="outside lower center", ncols=2, fontsize=8)
    fig.savefig(path, dpi=130)


def draw(results: Path) -> None:
    """Write the figure beside the results, and the table into the page, in the place of the one before."""
    found = [json.loads(text) for text in results.read_text().splitlines()]
    found.sort(key=lambda r: -r["none"]["rows"])
    figure(found, results.with_suffix(".png"))
    before, _, rest = PAGE.read_text().partition(MARK)
    after = rest[rest.index("\n## ") :] if "\n## " in rest else "\n"
    PAGE.write_text(f"{before}{MARK}\n\n{table_of(found)}\n{after}")
