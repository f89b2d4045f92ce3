"""A million messages of honest clients with extreme but valid data, of every algorithm and mode: how many are refused?

python benchmarks/honest.py --messages 1000000 --out docs/results/benchmarks/honest.json
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "hostile"))
from honest_kit import CASES, verdicts

CLIENTS, ROUNDS, EPSILONS = 300, 10, (2.0, 3e3)


def main() -> None:
    """Run all cases, each with much and with little noise, until there are enough messages; one case is compiled once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = json.loads(options.out.read_text())["cases"] if options.out and options.out.exists() else []
    done = {row["case"] for row in rows}
    for case in (case for case in CASES if case not in done):
        began = time.process_time()
        rows.append(one_case(case, -(-options.messages // len(CASES))))
        rows[-1]["cpu_seconds"] = round(time.process_time() - began, 1)
        print(rows[-1], flush=True)
        total = {name: sum(row[name] for row in rows) for name in ("messages", "refused")}
        if options.out:
            options.out.write_text(json.dumps({**total, "cases": rows}, indent=1) + "\n")


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
