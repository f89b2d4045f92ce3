"""How often the sequential test of the paper's claims is wrong on the effects that the study measured.

    python benchmarks/claims_error.py [--draws 1000]

Student's interval assumes normal effects; those on Adult jump between a few values. So every claim about accuracies with at
least 80 kept seeds is taken, its effects are moved to a mean of zero (no side is right) and to just beyond the margin ("no
difference" is wrong), and seeds are drawn from them with replacement until the test decides or reaches its cap. A resample
cannot hold a jump that no kept seed has. Results are in docs/results/benchmarks/claims_error.json.
"""

import argparse
import itertools
import json
from pathlib import Path

import numpy as np
from workloads import RESULTS

from fedpdm.config import digest
from fedpdm.runs.sweep import stored_results
from fedpdm.studies.paper.claims import CLAIMS, points_of_claim
from fedpdm.studies.paper.effects import FirstSeeds, Table
from fedpdm.studies.paper.figures import Scale, cells, chosen_figures, chosen_panels
from fedpdm.studies.sequential import Rule, decide

LEAST_SEEDS, CAP = 80, 1280
RULE = Rule(later=CAP)
STORE = RESULTS.parent / "paper" / "cells.jsonl"


def kept(store: Path) -> Table:
    """The kept results of every point, one per seed from 0."""
    known = stored_results(store)
    settings = {key: config for panel in chosen_panels(chosen_figures("all"), Scale()) for key, config in cells(panel).items()}
    table = {}
    for key, config in settings.items():
        digests = (digest(config.model_copy(update={"seed": seed})) for seed in range(CAP))
        table[key] = [known[name] for name in itertools.takewhile(known.__contains__, digests)]
    return table


def wrong(effects: np.ndarray, margin: float, draws: int, random: np.random.Generator) -> dict[str, float]:
    """The shares of wrong verdicts at both edges, and of those at mean zero that come after the first cap."""
    centred = effects - np.mean(effects)
    sides = [decide(random.choice(centred, RULE.cap), None, RULE) for _ in range(draws)]
    edges = [decide(random.choice(centred, RULE.cap) + 1.0001 * margin, margin, RULE) for _ in range(draws)]
    return {
        "no_effect": float(np.mean([one.verdict != "undecided" for one in sides])),
        "no_effect_after_first_cap": float(np.mean([one.verdict != "undecided" and one.seeds > RULE.most for one in sides])),
        "at_margin": float(np.mean([one.verdict in ("no difference", "does not hold") for one in edges])),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--draws", type=int, default=1000)
    draws, table, random = parser.parse_args().draws, kept(STORE), np.random.default_rng(0)
    rows = []
    for claim in (claim for claim in CLAIMS if claim.margin is not None):
        if any(not table.get(key) for panel in claim.panels for key in table if key[0] == panel) or claim.id.startswith("P1"):
            continue
        seeds = min(len(table[key]) for key in points_of_claim(claim, table))
        effects = np.array(claim.effect(FirstSeeds(table, seeds)))
        if seeds >= LEAST_SEEDS and np.ptp(effects) > 0:
            rows.append({"claim": claim.id, "seeds": seeds, **wrong(effects, claim.margin, draws, random)})
            print(rows[-1], flush=True)
    means = {key: float(np.mean([row[key] for row in rows])) for key in ("no_effect", "at_margin")}
    summary = {"allowed": RULE.total_error, "draws": draws, "mean": means, "claims": rows}
    (RESULTS / "claims_error.json").write_text(json.dumps(summary, indent=2) + "\n")


if __name__ == "__main__":
    main()
