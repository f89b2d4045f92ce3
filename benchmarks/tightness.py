"""How tight the audit is: its lower bound over the claim, for every mode, relation and kind of attack.

    python benchmarks/tightness.py --runs 20000

writes docs/results/benchmarks/tightness.json and prints the table of docs/audit.md, for the small case of the audit.
"""

import argparse
import json
from typing import Any

import numpy as np
from workloads import RESULTS

from fedpdm.audit import audit
from fedpdm.audit.small import small_config, small_federation
from fedpdm.choices.words import MODES
from fedpdm.runs.folder import atomic_write

EPSILON, CANARIES = 4.0, 400


def measured(mode: str, relation: str, runs: int, seed: int) -> audit.AuditResult:
    """The attack `canary`."""
    config = small_config("sound", "canary", EPSILON, mode)
    config = config.model_copy(update={"privacy": config.privacy.model_copy(update={"relation": relation})})
    return audit.audit_federation(config, small_federation(), "canary", runs, seed)


def in_one_run(mode: str, seed: int) -> audit.AuditResult:
    """The attack `one-run`."""
    config = small_config("sound", "canary", EPSILON, mode)
    return audit.audit_one_run(config, small_federation(CANARIES + 50, CANARIES + 1), CANARIES, seed)


def row(result: audit.AuditResult, mode: str) -> dict[str, Any]:
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
    values = {key: value for key, value in audit.to_json(result).items() if key in wanted}
    plain = {key: value.item() if isinstance(value, np.generic) else value for key, value in values.items()}
    return {"mode": mode, **plain, "runs": result.runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for mode in MODES:
        for relation in ("add-remove", "replace-one"):
            keep(rows, row(measured(mode, relation, options.runs, options.seed), mode))
        if mode in ("linearised", "contractive", "certified"):
            keep(rows, row(in_one_run(mode, options.seed), mode))


def keep(rows: list[dict[str, Any]], found: dict[str, Any]) -> None:
    """Print a row, and write all that were found so far."""
    rows.append(found)
    print(markdown(found), flush=True)
    atomic_write(RESULTS / "tightness.json", (json.dumps(rows, indent=2) + "\n").encode())


def markdown(row: dict[str, Any]) -> str:
    claim, gdp, shift = row["claimed_epsilon"], row["gdp_lower_bound"], row["measured_shift"]
    return (
        f"| {row['mode']} | {row['attack']} | {row['relation']} | {row['lower_bound'] / claim:.2f} | {gdp / claim:.2f} | "
        f"{shift / row['theory_shift']:.2f} |"
    )


if __name__ == "__main__":
    main()
