"""Accuracy at a certified epsilon: the sound mechanism on MNIST and Adult, add/remove, delta = 1e-5, 30 of 100 clients.

    python benchmarks/utility.py [--data mnist adult] [--algorithms fedpdm ...] [--seeds 5] [--epsilons 0.2 1 3 none]

`fedpdm.studies.paper.certified` has the grids and the rules. Finished runs are kept in
docs/results/paper/certified-cells.jsonl and not run again.
"""

import argparse
import json
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from workloads import RESULTS

from fedpdm.choices import ALGORITHMS
from fedpdm.config import Config
from fedpdm.runs.sweep import Result
from fedpdm.studies.drawing import write_csv
from fedpdm.studies.paper.certified import EPSILONS, GRID, RULED, STORE, TEXT, draw, study, verdicts
from fedpdm.studies.paper.verdicts import verdict_lines

TARGETS = {
    ("mnist", "raw"): {"3": 0.89, "1": 0.87, "0.2": 0.78},
    ("mnist", "scattering"): {"3": 0.965, "1": 0.95, "0.2": 0.88},
    ("mnist", "basis"): {"3": 0.973, "1": 0.962, "0.2": 0.915},
    ("mnist", RULED): {"3": 0.973, "1": 0.962, "0.2": 0.915},
    ("adult", "raw"): {"1": 0.83, "0.2": 0.79},
    ("adult", "piecewise"): {"1": 0.84, "0.2": 0.80},
}
Rows = Sequence[dict[str, Any]]


def say(done: int, total: int, config: Config, result: Result) -> None:
    name = f"{config.data.name} {config.data.features} {config.algorithm.name} epsilon {config.privacy.epsilon}"
    print(f"{done}/{total} {name} seed {config.seed}: {result.get('last', 'diverged')}", flush=True)


def table(rows: Rows, seeds: int) -> Iterable[str]:
    yield "# Accuracy at a certified epsilon"
    yield ""
    yield from textwrap.wrap(TEXT, 125)
    yield from (
        "",
        f"Mean and standard deviation over {seeds} seeds, for several public maps of one example (`data.features`,",
        "`data.scaling`; the knots of `piecewise` were chosen on a validation split after a first look at test accuracy).",
        "Written by `python benchmarks/utility.py`; the chosen settings are in `docs/results/benchmarks/utility.csv`.",
        "",
        f"`{RULED}` is the preset `private-mapped` instead: all clients in every round, one linearised step, and settings that",
        "follow from public sizes and the budget ([the rule](features.md#how-many-directions)). Nothing is tuned but the",
        "choice between last and averaged model. With one step and all clients, all algorithms take the same gradient step.",
        "",
        "![Accuracy against epsilon](results/benchmarks/utility.png)",
        "",
    )
    for data, features in sorted({(row["data"], row["features"]) for row in rows}):
        here = [row for row in rows if (row["data"], row["features"]) == (data, features)]
        algorithms = [name for name in ALGORITHMS if any(row["algorithm"] == name for row in here)]
        yield from (
            f"## {data}, {features} features",
            "",
            "| epsilon | goal | " + " | ".join(ALGORITHMS[a].title for a in algorithms) + " |",
        )
        yield "|---|---|" + "---|" * len(algorithms)
        for epsilon in EPSILONS:
            cells = {row["algorithm"]: row for row in here if str(row["epsilon"]) == epsilon}
            if cells:
                texts = [_text(cells[a]) if a in cells else "" for a in algorithms]
                yield f"| {epsilon} | {TARGETS.get((data, features), {}).get(epsilon, '')} | " + " | ".join(texts) + " |"
        yield ""
    yield from ("## Is FedPDM first?", "", *verdict_lines(verdicts(rows)))


def _text(row: dict[str, Any]) -> str:
    return f"{row['accuracy']:.4f} ± {row['deviation']:.4f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["mnist", "adult", "digits"], choices=["mnist", "adult", "digits"])
    parser.add_argument("--features", nargs="+", default=["raw", "scattering", "basis", RULED, "piecewise"])
    parser.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS), choices=list(ALGORITHMS))
    parser.add_argument("--epsilons", nargs="+", default=list(EPSILONS), choices=EPSILONS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    docs = Path(__file__).parent.parent / "docs"
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows = [
        study(data, features, algorithm, epsilon, arguments.seeds, docs / "results" / "paper" / STORE, say)
        for data, features in GRID
        if data in arguments.data and features in arguments.features
        for algorithm in arguments.algorithms
        for epsilon in arguments.epsilons
        if features != RULED or epsilon in TARGETS["mnist", RULED]
    ]
    path = arguments.out / "utility.jsonl"
    earlier = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    rows += [row for row in earlier if not any(_same(row, new) for new in rows)]
    rows.sort(key=lambda r: (r["data"], r["features"], list(ALGORITHMS).index(r["algorithm"]), EPSILONS.index(r["epsilon"])))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_csv([{key: value for key, value in row.items() if key != "accuracies"} for row in rows], path.with_suffix(".csv"))
    draw(rows, arguments.out / "utility")
    text = "\n".join(table(rows, arguments.seeds)) + "\n"
    (docs / "utility.md").write_text(text)
    print(f"Wrote {path}, utility.csv and utility.png beside it, and docs/utility.md.")


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(str(one[key]) == str(other[key]) for key in ("data", "features", "algorithm", "epsilon"))


if __name__ == "__main__":
    main()
