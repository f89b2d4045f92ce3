"""Accuracy against the share of attackers, for every attack and aggregate: docs/hostile-clients.md.

    python benchmarks/hostile.py [--data mnist adult] [--trust none local cohorts compared] [--minutes 60] [--seeds 3]
    python benchmarks/hostile.py --validation [--data mnist adult] [--trust compared]
    python benchmarks/hostile.py --draw

Every cell is one run. Cells that are in docs/results/hostile already are not run again. The other crude attacks end like
`sign-flip`, because a message that is refused leaves no trace; they are run once each, to see that they are refused. Further
seeds are for 10 % attackers at epsilon 1. With `--validation` these cells are run on rows that are held out of training, and
nothing is kept: the way to try settings.
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
    # cohorts of five, drawn anew in every round, so that sums can be compared and members be traced
    "compared": [
        *("privacy.epsilon=1.0", "privacy.trust=cohorts", "cohorts.size=5", "privacy.mode=linearised", "privacy.clip=0.35"),
        *(
            "rounds.participants=100",
            "local.steps=1",
            "compression.values=float32",
            "cohorts.members=new",
            "cohorts.compare=true",
        ),
        *("algorithm.name=fedavg", "algorithm.rho=10.0", "algorithm.server_rule=participants"),
    ],
}
STEPS = {"mnist": 72.0, "adult": 36.0}  # of FedAvg, from the grids of benchmarks/cohorts.py
HELD_OUT = {"mnist": 10_000, "adult": 6_000}
IN_SUMS = ("cohorts", "compared")


TITLES = {
    "none": "no privacy",
    "local": "epsilon 1, local",
    "cohorts": "epsilon 1, ten cohorts",
    "compared": "epsilon 1, twenty cohorts, compared",
}


def settings(data: str, trust: str, attack: str, attackers: int, aggregate: str, seed: int = 0) -> list[str]:
    """The settings of one cell, on top of the preset demo."""
    chosen = [f"algorithm.aggregate={aggregate}", "metrics.diagnose_every=0", "metrics.evaluate_every=30", f"seed={seed}"]
    chosen += [f"local.step_size={STEPS[data]}"] if trust == "compared" else []
    chosen += ["algorithm.trim=0.3"] if aggregate == "trimmed-mean" else []
    attacked = [f"attack.kind={attack}", f"attack.clients={attackers}"] if attackers else []
    return [*DATA[data], *TRUST[trust], *chosen, *attacked]


def cells(trust: str) -> list[tuple[str, float, str]]:
    """Attack, share and aggregate: one aggregate after the other, so that a study that is cut off has whole curves."""
    # nobody but the server sees the limits of a sum, and a member cannot know how near to them the others are
    attacks = [attack for attack in ATTACKS if not (attack == "strongest" and trust in IN_SUMS)]
    found = []
    for aggregate in AGGREGATES if trust != "compared" else ("mean",):
        found += [("none", 0.0, aggregate), *((attack, share, aggregate) for attack in attacks for share in SHARES)]
    return found + [(attack, 0.1, "mean") for attack in ALSO_CRUDE if attack != "missing-noise" or trust == "local"]


def decisive(trust: str) -> list[tuple[str, float, str]]:
    """The cells for further seeds, with privacy: the mean or the best aggregate, none and a tenth."""
    best = {"compared": ("mean",), "cohorts": ("geometric-median",), "local": ("mean", "geometric-median")}.get(trust, ())
    alike = ALSO_CRUDE if trust == "local" else ()  # where single messages are checked, crude attacks end alike
    return [cell for cell in cells(trust) if cell[2] in best and cell[1] in (0.0, 0.1) and cell[0] not in alike]


def main() -> None:
    """Run the cells that are missing, or draw all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", nargs="+", choices=list(DATA), default=list(DATA))
    parser.add_argument("--trust", nargs="+", choices=list(TRUST), default=list(TRUST))
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no cell after so many minutes of CPU time")
    parser.add_argument("--aggregates", nargs="+", choices=AGGREGATES, default=AGGREGATES)
    parser.add_argument("--seeds", type=int, default=1, help="more than one: for 10 %% attackers at epsilon 1")
    parser.add_argument("--validation", action="store_true", help="on rows held out of training, without keeping the results")
    parser.add_argument("--draw", action="store_true")
    options = parser.parse_args()
    if options.draw:
        draw(FOLDER)
        return
    until = 60 * options.minutes
    for data in options.data:
        for trust in options.trust:
            for seed in range(options.seeds):
                wanted = decisive(trust) if seed or options.validation else cells(trust)
                wanted = [cell for cell in wanted if cell[2] in options.aggregates]
                run(data, trust, wanted, seed, until, options.validation)


def kept(path: Path) -> list[dict[str, Any]]:
    """The cells of a file."""
    return json.loads(path.read_text()) if path.exists() else []


def run(data: str, trust: str, wanted: Sequence[tuple[str, float, str]], seed: int, until: float, validation: bool) -> None:
    """Run what is missing in one file."""
    remember_compilations()
    from fedpdm.config import load_config
    from fedpdm.data.prepare import build_federation
    from fedpdm.engines.simulation.build import build_simulation

    out, federation = FOLDER / f"{data}-{trust}.json", None
    rows = [] if validation else kept(out)
    done = {(row["attack"], row["share"], row["aggregate"]) for row in rows if row.get("seed", 0) == seed}
    for attack, share, aggregate in wanted:
        if (attack, share, aggregate) in done or time.process_time() > until:
            continue
        chosen = settings(data, trust, attack, round(100 * share), aggregate, seed)
        config = load_config("demo", [*chosen, f"data.validation={HELD_OUT[data] if validation else 0}"])
        federation = federation or build_federation(config, progress=False)
        start = time.process_time()
        simulation = build_simulation(config, federation)
        found = list(simulation.run())
        row = {"attack": attack, "share": share, "aggregate": aggregate, "accuracy": found[-1]["test_accuracy"], "seed": seed}
        row |= {"refused": sum(one.get("refused", 0) for one in found)}
        row |= {"left_out": left_out_of(simulation)} if trust == "compared" else {}
        rows.append(row | {"cpu_seconds": round(time.process_time() - start, 1)})
        print(data, trust, rows[-1], flush=True)
        if validation:
            continue
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(rows, indent=1) + "\n")


def left_out_of(simulation: Any) -> list[int]:
    """How many attackers, and how many honest members, were left out."""
    from fedpdm.hostile.comparing import left_out

    out = {int(client) for client in left_out(simulation.state.evidence).nonzero()[0]}
    attackers = set(simulation.schedule.attack.clients) if simulation.schedule.attack else set()
    return [len(out & attackers), len(out - attackers)]


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
    lines[2] += " JSON files beside it. One seed unless it says otherwise; see [hostile clients](../../hostile-clients.md)."
    every = {(data, trust): kept(folder / f"{data}-{trust}.json") for data in DATA for trust in TRUST}
    found = {place: [row for row in rows if not row.get("seed", 0)] for place, rows in every.items()}
    summary = at_a_tenth({f"{data}, {TITLES[trust]}": rows for (data, trust), rows in found.items()})
    lines += ["## 10 % attackers / none", "", *summary, ""]
    lines += ["## Epsilon 1: mean loss with 10 % attackers, in points (seeds)", "", *losses(every), ""]
    for data in DATA:
        figure, panels = plt.subplots(len(TRUST), len(ATTACKS), figsize=(9.6, 9.2), sharex=True, sharey=True)
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


def losses(every: dict[tuple[str, str], list[dict[str, Any]]]) -> list[str]:
    """Points lost against the run without attackers of the same seed: the mean over seeds, and the worst."""
    lines = [
        "| data | trust, aggregate | attack | none | 10 % | lost | worst | seeds | attackers / honest left out |",
        "|---" * 9 + "|",
    ]
    for (data, trust), rows in every.items():
        for attack, aggregate in dict.fromkeys(
            (attack, aggregate) for attack, share, aggregate in cells(trust) if share == 0.1
        ):
            own = {
                (row["attack"], row.get("seed", 0)): row
                for row in rows
                if row["aggregate"] == aggregate and row["share"] in (0, 0.1)
            }
            pairs = [(own["none", s], row) for (kind, s), row in own.items() if kind == attack and ("none", s) in own]
            if len(pairs) < 2:
                continue
            clean, hit = ([row["accuracy"] for row in side] for side in zip(*pairs, strict=True))
            lost = [100 * (a - b) for a, b in zip(clean, hit, strict=True)]
            mean = [sum(values) / len(values) for values in (clean, hit, lost)]
            out = "; ".join("{} / {}".format(*row["left_out"]) for _, row in pairs if "left_out" in row)
            figures = f"{mean[0]:.4f} | {mean[1]:.4f} | {mean[2]:.2f} | {max(lost):.2f} | {len(pairs)}"
            lines.append(
                f"| {data} | {TITLES[trust].removeprefix('epsilon 1, ')}, {aggregate} | {attack} | {figures} | {out} |"
            )
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
