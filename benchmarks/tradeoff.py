"""Accuracy against bytes at a certified epsilon of 1 on MNIST: what thin links cost under the sound mechanism.

    python benchmarks/tradeoff.py [--parts pixels scattering downlinks]

Every way of sending is tuned alike, by rho and the number of local steps, on a validation split; the best one then runs on
all training data with fresh seeds. Bytes are those of the encoded messages. A second table compares the two downlinks on the
paper's settings without noise. Writes tables and pictures to results/ and docs/links.md.
"""

import argparse
import csv
import statistics
from pathlib import Path
from typing import Any, NamedTuple

from workloads import RESULTS

from fedpdm.compression.links import Links, support_radius
from fedpdm.config import Config, load_config
from fedpdm.runs.sweep import Result, run_sweep

COMMON = [
    *("rounds.sampling=cycle", "rounds.all_first=false", "local.batch_size=0"),
    *("privacy.mechanism=sound", "privacy.epsilon=1.0", "privacy.clip=0.5"),
    *("algorithm.server_rule=dual-memory", "metrics.diagnose_every=1000", "metrics.evaluate_every=1000", "metrics.tail=0.25"),
]
SEEDS = 3  # the same for all tables of the page
FEATURES = {
    "pixels": ["data.scaling=blurred"],
    "scattering": ["data.features=scattering", "data.scattering_centre=strokes"],
}
# local steps and rho; the step size is just below the largest that contracts
TUNED = {"pixels": [(20, 0.005), (40, 0.003)], "scattering": [(10, 0.005)]}


class Way(NamedTuple):
    name: str
    rounds: int
    kind: str
    uplink: float
    values: str
    downlink_kind: str = "difference"
    features: str = "pixels"
    gamma: float = 0.0  # of the L1 penalty
    directions: int = 0  # of a public basis of made-up strokes; 0: no basis


WAYS = [
    Way("dense, float32", 30, "shared-randk", 1.0, "float32", "model"),
    Way("dense, auto", 30, "shared-randk", 1.0, "auto"),
    Way("dense, auto", 10, "shared-randk", 1.0, "auto"),
    Way("shared rand-k 49 %, auto", 23, "shared-randk", 0.49, "auto"),
    Way("shared rand-k 39 %, auto", 30, "shared-randk", 0.39, "auto"),
    Way("shared rand-k 10 %, auto", 30, "shared-randk", 0.1, "auto"),
    Way("shared rand-k 10 %, auto", 60, "shared-randk", 0.1, "auto"),
    Way("public top-k 10 %, auto", 30, "public-topk", 0.1, "auto"),
    Way("noisy top-k 10 %, auto", 30, "noisy-topk", 0.1, "auto"),
    Way("rand-k 10 %, auto", 30, "randk", 0.1, "auto"),
]
SCATTERED = [
    way._replace(features="scattering")
    for way in (
        Way("dense, float32", 30, "shared-randk", 1.0, "float32", "model"),
        Way("dense, auto", 30, "shared-randk", 1.0, "auto"),
        Way("dense, auto, L1 5e-4", 30, "shared-randk", 1.0, "auto", gamma=5e-4),
        Way("dense, auto, L1 2e-3", 30, "shared-randk", 1.0, "auto", gamma=2e-3),
        Way("shared rand-k 5 %, auto", 30, "shared-randk", 0.05, "auto"),
        Way("noisy top-k 5 %, auto", 30, "noisy-topk", 0.05, "auto"),
        Way("public basis of 191, auto", 30, "shared-randk", 1.0, "auto", directions=191),  # as many as the rule gives
        Way("public basis of 191, auto", 10, "shared-randk", 1.0, "auto", directions=191),
    )
]


def settings(way: Way, tuned: tuple[int, float], seed: int, validation: bool) -> Config:
    radius = support_radius(way.kind, way.uplink, 1.0) if Links(way.kind, way.uplink).has_support else 1.0
    steps, rho = tuned
    basis = ["data.features=scattering", "data.basis=strokes", f"data.basis_size={way.directions}"]
    chosen = [
        *COMMON,
        *(basis if way.directions else FEATURES[way.features]),
        f"problem.gamma={way.gamma}",
        *(f"compression.{name}={getattr(way, name)}" for name in ("kind", "uplink", "values", "downlink_kind")),
        f"rounds.total={way.rounds}",
        f"local.steps={steps}",
        f"local.step_size={round(0.99 * 2 / (rho + radius**2 / 2), 3)}",
        f"algorithm.rho={rho}",
        f"seed={seed}",
        f"data.validation={10_000 if validation else 0}",
    ]
    return load_config("plain", chosen)


def study(way: Way, seeds: int, store: Path) -> dict[str, Any]:
    grid = TUNED[way.features]
    tuning = run_sweep([settings(way, tuned, 1000, True) for tuned in grid], store, say)
    tried = {
        (tuned, which): result.get(which, 0.0)
        for tuned, result in zip(grid, tuning, strict=True)
        for which in ("last", "averaged")
    }
    tuned, which = max(tried, key=lambda choice: tried[choice])
    results = run_sweep([settings(way, tuned, seed, False) for seed in range(seeds)], store, say)
    accuracies = [result[which] for result in results]
    return {
        "features": way.features,
        "way": way.name,
        "rounds": way.rounds,
        "accuracy": round(statistics.mean(accuracies), 4),
        "deviation": round(statistics.stdev(accuracies), 4) if seeds > 1 else 0.0,
        "uplink_bytes": round(statistics.mean(r["uplink_bytes"][-1] for r in results)),
        "downlink_bytes": round(statistics.mean(r["downlink_bytes"][-1] for r in results)),
        "nonzero": round(statistics.mean(r["nonzero_fraction"] for r in results), 4),
        "model": which,
        "steps": tuned[0],
        "rho": tuned[1],
    }


def downlink_study(share: float, kind: str, seeds: int, store: Path) -> dict[str, Any]:
    """The paper's settings without noise, 40 rounds: mean accuracy of the last ten, and bytes down."""
    links = [f"compression.downlink={share}", f"compression.downlink_kind={kind}"]
    common = ["rounds.total=40", "metrics.diagnose_every=40", *links]
    results = run_sweep([load_config("paper-mnist", [*common, f"seed={seed}"]) for seed in range(seeds)], store, say)
    accuracies = [statistics.mean(result["accuracy"][-10:]) for result in results]
    return {
        "share": share,
        "kind": kind,
        "accuracy": statistics.mean(accuracies),
        "deviation": statistics.stdev(accuracies) if seeds > 1 else 0.0,
        "megabytes": statistics.mean(result["downlink_bytes"][-1] for result in results) / 1e6,
    }


def downlink_table(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "",
        "## The two downlinks",
        "",
        "The paper's settings on MNIST without noise, 40 rounds, mean accuracy of the last ten. `model` (Algorithm 2) sends",
        "the largest coordinates of x0 and the clients take the rest for zero; `difference` sends the largest changes, and to",
        "a client that missed rounds all changes since then, so every client works with the same copy. Zeros of the model,",
        "and coordinates that did not move, are never sent.",
        "",
        "| share | kind | test accuracy | downlink MB |",
        "|---|---|---|---|",
    ]
    for r in rows:
        accuracy = f"{float(r['accuracy']):.4f} ± {float(r['deviation']):.4f}"
        lines.append(f"| {r['share']} | {r['kind']} | {accuracy} | {float(r['megabytes']):.2f} |")
    return lines


def say(done: int, total: int, config: Config, result: Result) -> None:
    c = config.compression
    what = f"{c.kind} {c.uplink} {c.values} steps {config.local.steps} of {config.local.step_size}"
    print(
        f"{done}/{total} {what} seed {config.seed}: {result.get('last', 'diverged')} {result.get('averaged', '')}", flush=True
    )


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    for axis, links in zip(figure.subplots(1, 2), (("uplink_bytes",), ("uplink_bytes", "downlink_bytes")), strict=True):
        for row in rows:
            size = sum(row[link] for link in links) / 1e6
            axis.errorbar(size, row["accuracy"], row["deviation"], marker="o", capsize=3)
            axis.annotate(
                f"{row['way']}, T = {row['rounds']}",
                (size, row["accuracy"]),
                fontsize=7,
                xytext=(4, 4),
                textcoords="offset points",
            )
        names = " and ".join(link.removesuffix("_bytes") for link in links)
        axis.set(xscale="log", xlabel=f"megabytes in all, {names}", ylabel="test accuracy")
    figure.suptitle("MNIST, certified epsilon 1 (add/remove, delta = 1e-5), rounds of 30 clients")
    figure.savefig(path, dpi=120)


TITLES = {
    "pixels": "From pixels (`data.scaling=blurred`)",
    "scattering": "From scattering (`data.features=scattering`, `data.scattering_centre=strokes`): 39,700 weights",
}


def table(rows: list[dict[str, Any]]) -> list[str]:
    dense = rows[0]
    lines = [
        "",
        f"## {TITLES[dense['features']]}",
        "",
        "| way | T | test accuracy | to dense | uplink MB | share of dense | downlink MB | non-zero | Q | rho | model |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        columns = [
            r["way"],
            r["rounds"],
            f"{float(r['accuracy']):.4f} ± {float(r['deviation']):.4f}",
            f"{100 * (float(r['accuracy']) - float(dense['accuracy'])):+.2f} points",
            f"{float(r['uplink_bytes']) / 1e6:.2f}",
            f"{float(r['uplink_bytes']) / float(dense['uplink_bytes']):.3f}",
            f"{float(r['downlink_bytes']) / 1e6:.2f}",
            f"{float(r['nonzero']):.1%}" if r["nonzero"] else "",
            r["steps"],
            r["rho"],
            r["model"],
        ]
        lines.append("| " + " | ".join(map(str, columns)) + " |")
    return lines


def write_page(folder: Path, path: Path) -> None:
    """The page from the tables in `folder`, whichever run they come from."""
    lines = [
        "# Accuracy against bytes",
        "",
        "MNIST, four labels per client, sound mechanism, epsilon 1 (add/remove, delta = 1e-5), T rounds of 30 of 100 clients.",
        "Every way is tuned alike on a validation split (Q, rho, and the last or the averaged model); mean and deviation over",
        f"{SEEDS} seeds. Bytes are as encoded, headers and indices included. Written by `python benchmarks/tradeoff.py`.",
    ]
    for features in FEATURES:
        lines += table(read_rows(folder / f"tradeoff-{features}.csv"))
        lines += ["", f"![Accuracy against bytes, {features}](results/benchmarks/tradeoff-{features}.png)"]
    path.write_text("\n".join(lines + downlink_table(read_rows(folder / "tradeoff-downlinks.csv"))) + "\n")


def read_rows(path: Path) -> list[dict[str, Any]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write_rows(rows: list[dict[str, Any]], path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=[*FEATURES, "downlinks"], default=[*FEATURES, "downlinks"])
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    store = arguments.out / "tradeoff-cells.jsonl"
    for features, ways in (("pixels", WAYS), ("scattering", SCATTERED)):
        if features in arguments.parts:
            rows = [study(way, SEEDS, store) for way in ways]
            write_rows(rows, arguments.out / f"tradeoff-{features}.csv")
            draw(rows, arguments.out / f"tradeoff-{features}.png")
    if "downlinks" in arguments.parts:
        downlinks = [
            downlink_study(share, kind, SEEDS, store) for share in (1.0, 0.5, 0.25, 0.1) for kind in ("model", "difference")
        ]
        write_rows(downlinks, arguments.out / "tradeoff-downlinks.csv")
    write_page(arguments.out, Path(__file__).parent.parent / "docs" / "links.md")
    print(f"Wrote {arguments.out}/tradeoff-*.csv and *.png, and docs/links.md.")


if __name__ == "__main__":
    main()
