"""A million messages of honest clients with extreme but valid data: how many are refused?

    python benchmarks/honest.py --messages 1000000 --out docs/results/benchmarks/honest.json

Every algorithm in every mode, with every kind of coordinates and values, and in cohorts. Settings that the program refuses or
does not check are listed with the reason.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "hostile"))
from honest_kit import CASES, prepared, verdicts

from fedpdm.errors import ConfigError

CLIENTS, ROUNDS, EPSILONS = 300, 10, (2.0, 3e3)


def main() -> None:
    """Run all cases, each with much and with little noise, until there are enough messages; one case is compiled once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = json.loads(options.out.read_text())["cases"] if options.out and options.out.exists() else []
    done, without = {row["case"] for row in rows}, reasons_without_a_check()
    checked = [case for case in CASES if case not in without]
    for case in (case for case in checked if case not in done):
        began = time.process_time()
        rows.append(one_case(case, -(-options.messages // len(checked))))
        rows[-1]["cpu_seconds"] = round(time.process_time() - began, 1)
        print(rows[-1], flush=True)
        total = {name: sum(row[name] for row in rows) for name in ("messages", "refused")}
        if options.out:
            options.out.write_text(json.dumps({**total, "cases": rows, "without": without}, indent=1) + "\n")


def reasons_without_a_check() -> dict[str, str]:
    """Why there is nothing to check in some cases: the program refuses their settings, or no limit is known."""
    found = {}
    for case in CASES:
        try:
            prepared(case)
        except ConfigError as error:
            found[case] = str(error)
    return found


def one_case(case: str, messages: int) -> dict[str, Any]:
    """How many of so many messages are refused, and how close the others come to the limits."""
    epsilons = EPSILONS[:1] if "cohorts" in case or "no noise" in case else EPSILONS
    count = refused = seed = 0
    far, little = 0.0, 0.0
    while count < messages:
        found = verdicts(case, clients=CLIENTS, rounds=ROUNDS, seed=seed, epsilon=epsilons[seed % len(epsilons)])
        accepted = np.asarray(found.accepted)
        count, refused, seed = count + accepted.size, refused + int((~accepted).sum()), seed + 1
        far = max(far, float(np.max(np.asarray(found.distance / found.most))))
        little = max(little, float(np.max(np.asarray(found.least / np.maximum(found.distance, 1e-30)))))
    return {"case": case, "messages": count, "refused": refused, "farthest": round(far, 4), "least_noise": round(little, 4)}


if __name__ == "__main__":
    main()
