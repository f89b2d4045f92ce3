"""Accuracy against the share of attackers, for every attack and aggregate: docs/hostile-clients.md.

    python benchmarks/hostile.py [--data mnist adult] [--trust none local cohorts] [--minutes 60]
    python benchmarks/hostile.py --draw

Every cell is one run. Cells that are in docs/results/hostile already are not run again. The other crude attacks end like
`sign-flip`, because a message that is refused leaves no trace; they are run once each, to see that they are refused.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedpdm.cache import remember_compilations

FOLDER = Path(__file__).parents[1] / "docs" / "results" / "hostile"
SHARES = (0.03, 0.1, 0.3)
ATTACKS = ("sign-flip", "strongest", "label-flip", "one-class")
ALSO_CRUDE = ("constant", "scaling", "missing-noise")
AGGREGATES = ("mean", "geometric-median", "trimmed-mean", "median")
ORDER = ("none", *ATTACKS, *ALSO_CRUDE)
DATA = {
    "mnist": ["data.basis_size=200"],
    "adult": ["data.name=adult", "data.features=piecewise", "data.basis=none", "data.partition=iid"],
}
TRUST = {
    "none": ["privacy.mechanism=none", "privacy.epsilon=", "privacy.clip=", "compression.values=float32"],
    "local": ["privacy.epsilon=1.0"],
    # ten cohorts of ten, all of them in every round, with one gradient per round (docs/secure-sums.md)
    "cohorts": [
        *("privacy.epsilon=1.0", "privacy.trust=cohorts", "cohorts.size=10", "privacy.mode=linearised", "privacy.clip=0.35"),
        *("rounds.participants=100", "local.steps=1", "local.step_size=18", "algorithm.rho=0.01", "compression.values=float32"),
    ],
}


TITLES = {"none": "no privacy", "local": "epsilon 1, local", "cohorts": "epsilon 1, ten cohorts"}


def settings(data: str, trust: str, attack: str, attackers: int, aggregate: str) -> list[str]:
    """The settings of one cell, on top of the preset demo."""
    chosen = [f"algorithm.aggregate={aggregate}", "metrics.diagnose_every=0", "metrics.evaluate_every=30"]
    chosen += ["algorithm.trim=0.3"] if aggregate == "trimmed-mean" else []
    attacked = [f"attack.kind={attack}", f"attack.clients={attackers}"] if attackers else []
    return [*DATA[data], *TRUST[trust], *chosen, *attacked]


def cells(trust: str) -> list[tuple[str, float, str]]:
    """Attack, share and aggregate: one aggregate after the other, so that a study that is cut off has whole curves."""
    # nobody but the server sees the limits of a sum, and a member cannot know how near to them the others are
    attacks = [attack for attack in ATTACKS if not (attack == "strongest" and trust == "cohorts")]
    found = []
    for aggregate in AGGREGATES:
        found += [("none", 0.0, aggregate), *((attack, share, aggregate) for attack in attacks for share in SHARES)]
    return found + [(attack, 0.1, "mean") for attack in ALSO_CRUDE if attack != "missing-noise" or trust == "local"]


def main() -> None:
    """Run the cells that are missing, or draw all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", nargs="+", choices=list(DATA), default=list(DATA))
    parser.add_argument("--trust", nargs="+", choices=list(TRUST), default=list(TRUST))
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no cell after so many minutes of CPU time")
    parser.add_argument("--aggregates", nargs="+", choices=AGGREGATES, default=AGGREGATES)
    parser.add_argument("--draw", action="store_true")
    options = parser.parse_args()
    if options.draw:
        draw(FOLDER)
        return
    until = 60 * options.minutes
    for data in options.data:
        for trust in options.trust:
            run(data, trust, options.aggregates, until)


def kept(path: Path) -> list[dict[str, Any]]:
    """The cells of a file."""
    return json.loads(path.read_text()) if path.exists() else []


def run(data: str, trust: str, aggregates: Sequence[str], until: float) -> None:
    """Run what is missing in one file."""
    remember_compilations()
    from fedpdm.config import load_config
    from fedpdm.data.prepare import build_federation
    from fedpdm.engines.simulation.build import build_simulation

    out, federation = FOLDER / f"{data}-{trust}.json", None
    rows = kept(out)
    done = {(row["attack"], row["share"], row["aggregate"]) for row in rows}
    for attack, share, aggregate in cells(trust):
        if aggregate not in aggregates or (attack, share, aggregate) in done or time.process_time() > until:
            continue
        config = load_config("demo", settings(data, trust, attack, round(100 * share), aggregate))
        federation = federation or build_federation(config, progress=False)
        start = time.process_time()
        found = list(build_simulation(config, federation).run())
        row = {"attack": attack, "share": share, "aggregate": aggregate, "accuracy": found[-1]["test_accuracy"]}
        refused = sum(one.get("refused", 0) for one in found)
        rows.append(row | {"refused": refused, "cpu_seconds": round(time.process_time() - start, 1)})
        print(data, trust, rows[-1], flush=True)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(rows, indent=1) + "\n")


def draw(folder: Path) -> None:
    """A figure per data set, a row of panels per trust, a curve per aggregate; and all tables as Markdown."""
    from fedpdm.studies.drawing import require_drawing

    require_drawing()
    import matplotlib.pyplot as plt

    lines = [
        "# Accuracy against the share of attackers",
        "",
        "`python benchmarks/hostile.py --draw` makes this page from the",
        "",
    ]
    lines[2] += " JSON files beside it. One seed; see [hostile clients](../../hostile-clients.md)."
    found = {(data, trust): kept(folder / f"{data}-{trust}.json") for data in DATA for trust in TRUST}
    summary = at_a_tenth({f"{data}, {TITLES[trust]}": rows for (data, trust), rows in found.items()})
    lines += ["## 10 % attackers / none", "", *summary, ""]
    for data in DATA:
        figure, panels = plt.subplots(len(TRUST), len(ATTACKS), figsize=(9.6, 7.2), sharex=True, sharey=True)
        for row, trust in zip(panels, TRUST, strict=True):
            rows = found[data, trust]
            lines += [*table(f"{data}, {TITLES[trust]}", rows), ""]
            for panel, attack in zip(row, ATTACKS, strict=True):
                for place, aggregate in enumerate(AGGREGATES):
                    own = curve(rows, attack, aggregate)
                    if len(own) > 1:
                        panel.plot([100 * share for share in own], list(own.values()), f"C{place}o-", ms=3, label=aggregate)
                if not panel.lines:
                    panel.text(15, 0.5, "nobody sees\na member's limits", ha="center", va="center", fontsize=7)
                panel.set_title(f"{attack}, {TITLES[trust]}", fontsize=8)
        for panel in panels[-1]:
            panel.set_xlabel("attackers (%)")
        for panel in panels[:, 0]:
            panel.set_ylabel("test accuracy")
        panels[1][0].legend(fontsize=6)
        figure.tight_layout()
        figure.savefig(folder / f"{data}.png", dpi=110)
    (folder / "tables.md").write_text("\n".join(lines).rstrip() + "\n")


def at_a_tenth(found: dict[str, list[dict[str, Any]]]) -> list[str]:
    """A table of all settings with 10 % attackers, and without any."""
    lines = ["| attack | aggregate | " + " | ".join(found) + " |", "|---|---|" + "---|" * len(found)]
    for attack in ATTACKS:
        for aggregate in AGGREGATES:
            curves = [curve(rows, attack, aggregate) for rows in found.values()]
            shown = [f"{own[0.1]:.3f} / {own[0.0]:.3f}" if 0.1 in own else "" for own in curves]
            lines += [f"| {attack} | {aggregate} | " + " | ".join(shown) + " |"] if any(shown) else []
    return lines


def curve(rows: list[dict[str, Any]], attack: str, aggregate: str) -> dict[float, float]:
    """Accuracy by share of attackers, from the clean run on; empty without one."""
    own = {r["share"]: r["accuracy"] for r in rows if r["attack"] in ("none", attack) and r["aggregate"] == aggregate}
    return {share: own[share] for share in sorted(own)} if 0.0 in own else {}


def table(title: str, rows: list[dict[str, Any]]) -> list[str]:
    """One table as lines of Markdown."""
    shares = [0.0, *SHARES]
    lines = [f"## {title}", "", "| attack | aggregate | " + " | ".join(f"{100 * share:.0f} %" for share in shares) + " |"]
    lines.append("|---|---|" + "---|" * len(shares))
    for attack in dict.fromkeys(row["attack"] for row in sorted(rows, key=lambda row: ORDER.index(row["attack"]))):
        for aggregate in AGGREGATES:
            own = curve(rows, attack, aggregate)
            if attack != "none" and len(own) > 1:
                shown = " | ".join(f"{own[share]:.3f}" if share in own else "" for share in shares)
                lines.append(f"| {attack} | {aggregate} | {shown} |")
    return lines


if __name__ == "__main__":
    main()
