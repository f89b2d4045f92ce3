"""How tight the audit is: its lower bound over the claim, for every mode, relation and kind of attack.

    python benchmarks/tightness.py --runs 20000

writes docs/results/benchmarks/tightness.json and prints the table of docs/audit.md, for the small case of the audit.
"""

import argparse
import json
import time
from typing import Any

import numpy as np
from workloads import RESULTS, commit

from fedpdm.audit import audit
from fedpdm.audit.small import small_config, small_federation
from fedpdm.audit.verdict import AuditResult, to_json
from fedpdm.choices.words import MODES
from fedpdm.runs.folder import atomic_write

EPSILON, CANARIES, ONE_RUN_SEEDS = 4.0, 400, 5
OUT = RESULTS / "tightness.json"


def measured(mode: str, relation: str, runs: int, seed: int) -> AuditResult:
    """The attack `canary`."""
    config = small_config("sound", "canary", EPSILON, mode)
    config = config.model_copy(update={"privacy": config.privacy.model_copy(update={"relation": relation})})
    return audit.audit_federation(config, small_federation(), "canary", runs, seed)


def in_one_run(mode: str, seed: int) -> AuditResult:
    """The attack `one-run`."""
    config = small_config("sound", "canary", EPSILON, mode)
    return audit.audit_one_run(config, small_federation(CANARIES + 50, CANARIES + 1), CANARIES, seed)


def row(result: AuditResult, mode: str) -> dict[str, Any]:
    wanted = (
        "attack",
        "relation",
        "claimed_epsilon",
        "lower_bound",
        "gdp_lower_bound",
        "measured_shift",
        "theory_shift",
        "breached",
    )
    values = {key: value for key, value in to_json(result).items() if key in wanted}
    plain = {key: value.item() if isinstance(value, np.generic) else value for key, value in values.items()}
    return {"mode": mode, **plain, "runs": result.runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    command = f"python benchmarks/tightness.py --runs {options.runs} --seed {options.seed}"
    result: dict[str, Any] = {"command": command, "cpu_seconds": 0, "rows": []}
    if OUT.exists() and (old := json.loads(OUT.read_text()))["command"] == command:
        result = old  # rows that are there are not measured again
    for mode in MODES:
        for relation in ("add-remove", "replace-one"):
            keep(result, (mode, "canary", relation, options.seed), options.runs)
        if mode in ("linearised", "contractive", "certified"):
            for seed in range(options.seed, options.seed + ONE_RUN_SEEDS):
                keep(result, (mode, "one-run", "add-remove", seed), options.runs)


def keep(result: dict[str, Any], cell: tuple[str, str, str, int], runs: int) -> None:
    """Measure a row unless it is there, print it, and write all that were found so far."""
    mode, attack, relation, seed = cell
    found = next((row for row in result["rows"] if (row["mode"], row["attack"], row["relation"], row["seed"]) == cell), None)
    if found is None:
        began = time.process_time()
        made = measured(mode, relation, runs, seed) if attack == "canary" else in_one_run(mode, seed)
        found = row(made, mode) | {"seed": seed, "commit": commit()}
        result["rows"].append(found)
        result["cpu_seconds"] = round(result["cpu_seconds"] + time.process_time() - began)
        atomic_write(OUT, (json.dumps(result, indent=2) + "\n").encode())
    print(markdown(found), flush=True)


def markdown(row: dict[str, Any]) -> str:
    claim, gdp, shift = row["claimed_epsilon"], row["gdp_lower_bound"], row["measured_shift"]
    about = f"| {row['mode']} | {row['attack']} | {row['relation']} | {row['seed']} "
    return f"{about}| {row['lower_bound'] / claim:.2f} | {gdp / claim:.2f} | {shift / row['theory_shift']:.2f} |"


if __name__ == "__main__":
    main()
