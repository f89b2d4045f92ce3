"""Where the primal-dual part helps: accuracy and objective against heterogeneity, participation and the proximal weight.

MNIST without noise, softmax and a small L1 penalty. At every point each algorithm has six settings, of which the best on a
validation split is then run with fresh seeds on all training data; the third panel shows every weight, nothing chosen.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedpdm.choices import ALGORITHMS
from fedpdm.config import Config, load_config
from fedpdm.runs.sweep import OnResult, Result, run_sweep
from fedpdm.studies.drawing import require_drawing, save
from fedpdm.studies.paper.verdicts import first_or_within, write_study
from fedpdm.studies.progress import CellProgress

__all__ = ["Point", "POINTS", "WEIGHTS", "run_heterogeneity"]

COMMON = (
    "problem.gamma=0.0001",
    "rounds.total=50",
    "rounds.all_first=false",
    "local.steps=20",
    "metrics.evaluate_every=1000",
    "metrics.diagnose_every=1000",
)
VALIDATION, TUNING_SEED = 10_000, 1000
RULES = ("participants", "cached", "dual-memory")
STEPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3)


class Point(NamedTuple):
    """One point of the study, and the settings that make it."""

    axis: str  # "heterogeneity" or "participation"
    label: str
    settings: tuple[str, ...]
    quick: bool = False


def _labels(count: int) -> str:
    return f"data.labels_per_client={count}"


POINTS = (
    Point("heterogeneity", "1 label", (_labels(1), "rounds.participants=30"), quick=True),
    Point("heterogeneity", "2 labels", (_labels(2), "rounds.participants=30")),
    Point("heterogeneity", "4 labels", (_labels(4), "rounds.participants=30")),
    Point("heterogeneity", "10 labels", (_labels(10), "rounds.participants=30")),
    Point(
        "heterogeneity",
        "Dirichlet 0.1",
        ("data.partition=dirichlet", "data.dirichlet_alpha=0.1", "rounds.participants=30"),
    ),
    Point("participation", "5", (_labels(2), "rounds.participants=5")),
    Point("participation", "10", (_labels(2), "rounds.participants=10")),
    Point("participation", "30", (_labels(2), "rounds.participants=30")),
    Point("participation", "100", (_labels(2), "rounds.participants=100")),
)
WEIGHTS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
WEIGHT_AT = (_labels(2), "rounds.participants=30", "local.step_size=0.1")
# Six settings each. FedPDM spends three of its on the server rule, the others theirs on finer steps or weights.
GRID: dict[str, list[tuple[str, ...]]] = {
    "fedavg": [(f"local.step_size={s}",) for s in STEPS],
    "scaffold": [(f"local.step_size={s}",) for s in STEPS],
    "fedprox": [(f"local.step_size={s}", f"algorithm.mu={w}") for s in (0.05, 0.1, 0.2) for w in (0.03, 0.1)],
    "feddyn": [(f"local.step_size={s}", f"algorithm.alpha={w}") for s in (0.05, 0.1, 0.2) for w in (0.03, 0.1)],
    "fedpdm": [
        (f"local.step_size={s}", f"algorithm.rho={w}", f"algorithm.server_rule={rule}")
        for s, w in ((0.1, 0.03), (0.1, 0.1))
        for rule in RULES
    ],
    "feddr": [(f"local.step_size={s}", f"algorithm.rho={w}") for s in (0.05, 0.1, 0.2) for w in (0.03, 0.1)],
    "afedpd": [(f"local.step_size={s}", f"algorithm.rho={w}") for s in (0.05, 0.1, 0.2) for w in (0.03, 0.1)],
}


def _config(settings: Sequence[str], algorithm: str, seed: int, tuning: bool, quick: bool) -> Config:
    own = [f"algorithm.name={algorithm}", f"seed={seed}", f"data.validation={VALIDATION if tuning else 0}"]
    return load_config("plain", [*COMMON, *settings, *own, *(["rounds.total=5"] if quick else [])])


def _measured(results: Sequence[Result]) -> dict[str, Any]:
    """Means over the seeds; a run that diverged counts as accuracy 0 and has no objective."""
    accuracies = [r.get("last", 0.0) for r in results]
    objectives = [r.get("objective", float("inf")) for r in results]
    return {
        "accuracy": round(float(np.mean(accuracies)), 5),
        "objective": round(float(np.mean(objectives)), 5),
        "accuracies": accuracies,
        "objectives": objectives,
    }


def _tuned(points: Sequence[Point], seeds: int, store: Path, quick: bool, say: OnResult) -> Iterator[dict[str, Any]]:
    for point in points:
        for algorithm, grid in GRID.items():
            tuning = [_config([*point.settings, *own], algorithm, TUNING_SEED, True, quick) for own in grid]
            found = run_sweep(tuning, store, say)
            best = max(range(len(grid)), key=lambda i: found[i].get("last", 0.0))
            configs = [_config([*point.settings, *grid[best]], algorithm, seed, False, quick) for seed in range(seeds)]
            chosen = " ".join(setting.partition(".")[2] for setting in grid[best])
            start = {
                "panel": point.axis,
                "x": point.label,
                "algorithm": algorithm,
                "curve": ALGORITHMS[algorithm].title,
                "settings": chosen,
            }
            yield start | _measured(run_sweep(configs, store, say))


def _weights(seeds: int, store: Path, quick: bool, say: OnResult) -> Iterator[dict[str, Any]]:
    curves = [("fedpdm", f"FedPDM, {rule}", "rho", (f"algorithm.server_rule={rule}",)) for rule in RULES]
    curves += [(name, ALGORITHMS[name].title, weight, ()) for name, weight in (("feddyn", "alpha"), ("fedprox", "mu"))]
    for algorithm, curve, key, settings in curves:
        for weight in WEIGHTS[:2] if quick else WEIGHTS:
            own = [*WEIGHT_AT, *settings, f"algorithm.{key}={weight}"]
            configs = [_config(own, algorithm, seed, False, quick) for seed in range(seeds)]
            start = {"panel": "weight", "x": weight, "algorithm": algorithm, "curve": curve, "settings": f"{key}={weight}"}
            yield start | _measured(run_sweep(configs, store, say))
    for algorithm in ("fedavg", "scaffold"):
        configs = [_config(WEIGHT_AT, algorithm, seed, False, quick) for seed in range(seeds)]
        start = {"panel": "weight", "x": None, "algorithm": algorithm, "curve": ALGORITHMS[algorithm].title, "settings": ""}
        yield start | _measured(run_sweep(configs, store, say))


def _planned(points: Sequence[Point], seeds: int, quick: bool) -> list[Config]:
    """The runs of the study. Which settings are measured is not known yet; all take as long."""
    planned = []
    for point in points:
        for algorithm, grid in GRID.items():
            own = [*point.settings, *grid[0]]
            planned += [_config(own, algorithm, TUNING_SEED, True, quick)] * len(grid)
            planned += [_config(own, algorithm, 0, False, quick)] * seeds
    curves = 5 * (2 if quick else len(WEIGHTS)) + 2
    return planned + [_config(WEIGHT_AT, "fedavg", 0, False, quick)] * (curves * seeds)


def run_heterogeneity(folder: Path, seeds: int, quick: bool = False, show_progress: bool = True) -> list[dict[str, Any]]:
    """Run the study of heterogeneous clients; write heterogeneity.csv, .png, .svg, .json and .md.

    Parameters
    ----------
    folder : Path
        Folder for the results; it is created.
    seeds : int
        Number of seeds, from 0.
    quick : bool
        A small version that shows that everything works.
    show_progress : bool
        Show progress on stderr.

    Returns
    -------
    list of dict
        The verdicts.
    """
    require_drawing()
    folder.mkdir(parents=True, exist_ok=True)
    points = [point for point in POINTS if point.quick or not quick]
    with CellProgress(_planned(points, seeds, quick), show_progress) as progress:

        def say(done: int, total: int, config: Config, result: Result) -> None:
            progress.step(config, f"{config.algorithm.name} seed {config.seed}")

        store = folder / "heterogeneity-cells.jsonl"
        rows = [*_tuned(points, seeds, store, quick, say), *_weights(seeds, store, quick, say)]
    verdicts = _verdicts(rows)
    _draw(rows, folder / "heterogeneity")
    write_study("heterogeneity", "Where the primal-dual part helps", _text(seeds, quick), folder, rows, verdicts)
    return verdicts


def _verdicts(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    result = []
    for panel, x in dict.fromkeys((row["panel"], row["x"]) for row in rows if row["panel"] != "weight"):
        own = {row["algorithm"]: row for row in rows if (row["panel"], row["x"]) == (panel, x)}
        where = f"{panel} {x}"
        for column, sign in (("accuracies", 1.0), ("objectives", -1.0)):
            word = "accuracy" if sign > 0 else "objective"
            values = {name: row[column] for name, row in own.items()}
            result.append(first_or_within(f"{panel}-{x}-{word}".replace(" ", "-").lower(), f"{where}, {word}", values, sign))
    return result


def _draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    from matplotlib.figure import Figure

    panels = tuple(dict.fromkeys(row["panel"] for row in rows))
    figure = Figure(figsize=(4.6 * len(panels), 7), layout="constrained")
    axes = figure.subplots(2, len(panels), squeeze=False)
    for j, panel in enumerate(panels):
        for i, (column, label) in enumerate((("accuracies", "test accuracy"), ("objectives", "objective on training data"))):
            axis = axes[i][j]
            _draw_panel(axis, [row for row in rows if row["panel"] == panel], column)
            titles = {"weight": "proximal weight (rho, mu, alpha)", "participation": "clients per round"}
            axis.set(xlabel=titles.get(panel, "how clients differ"), ylabel=label)
            axis.grid(alpha=0.3)
        axes[0][j].legend(fontsize="x-small")
    save(figure, path)


def _draw_panel(axis: Any, rows: Sequence[dict[str, Any]], column: str) -> None:
    for color, curve in enumerate(dict.fromkeys(row["curve"] for row in rows)):
        own = [row for row in rows if row["curve"] == curve]
        means = [float(np.mean(row[column])) for row in own]
        if own[0]["x"] is None:
            axis.axhline(means[0], color=f"C{color}", linestyle=":", label=curve)
            continue
        spread = [[m - min(row[column]) for m, row in zip(means, own, strict=True)]]
        spread += [[max(row[column]) - m for m, row in zip(means, own, strict=True)]]
        if np.isfinite(spread).all():
            x = [row["x"] for row in own]
            axis.errorbar(x, means, spread, fmt="o", markersize=4, capsize=3, color=f"C{color}", label=curve)
            ordered = [i for i, value in enumerate(x) if not str(value).startswith("Dirichlet")]  # no further step of the rest
            axis.plot([x[i] for i in ordered], [means[i] for i in ordered], color=f"C{color}")
    if rows[0]["panel"] == "weight":
        axis.set_xscale("log")
    if column == "objectives":
        axis.set_yscale("log")


def _text(seeds: int, quick: bool) -> str:
    text = (
        f"MNIST, 100 clients, {5 if quick else 50} rounds of 20 local steps with batches of 10, softmax, L1 with gamma = "
        f"0.0001, no noise; {seeds} seeds. At every point of the first two panels each algorithm has six settings (FedPDM: "
        "three server rules times two weights; FedProx, FedDyn, FedDR and A-FedPD: three step sizes times two weights; FedAvg "
        "and SCAFFOLD: six step sizes), of which the best on a validation split of 10,000 training examples is run again on "
        "all training data; `heterogeneity.csv` has the choice. The third panel has two labels per client, step size 0.1, and "
        "shows every weight. Bars go from the smallest to the largest seed. The objective is that of the training data with "
        "the penalty; "
        "less is better."
    )
    return f"{text} QUICK: five rounds, few points: it measures nothing." if quick else text
