"""Make hospital.csv: invented patients of six hospitals, and whether they came back within a month."""

import csv
import sys
from pathlib import Path

import numpy as np

SITES = {"Aarau": 420, "Bern": 610, "Chur": 260, "Davos": 180, "Esch": 350, "Fribourg": 380}
COLUMNS = ("hospital", "patient", "age", "sex", "blood_pressure", "ward", "days", "smoker", "readmitted")
WARDS = ("heart", "lung", "surgery", "other")


def make_rows(seed: int = 0) -> list[list[str]]:
    """Rows in a fixed random order; every hospital has its own mix of ages and wards, and gaps of its own."""
    rng = np.random.default_rng(seed)
    rows = []
    for place, (site, count) in enumerate(SITES.items()):
        wards = rng.dirichlet(np.full(len(WARDS), 2.0))
        for _ in range(count):
            age = int(np.clip(rng.normal(52 + 4 * place, 17), 18, 99))
            pressure = rng.normal(112 + 0.4 * age, 14)
            ward, days, smoker = rng.choice(len(WARDS), p=wards), int(rng.gamma(2.0, 3.0)) + 1, rng.random() < 0.27
            score = 0.06 * (age - 60) + 0.035 * (pressure - 135) + (1.2, 0.9, -0.6, -0.9)[ward] + 1.3 * smoker - 0.07 * days
            ill = rng.random() < 1 / (1 + np.exp(-score))
            measured = "" if rng.random() < 0.03 * (1 + place % 3) else f"{pressure:.0f}"
            person = [f"p{rng.integers(10**6):06d}", str(age), rng.choice(["f", "m"]), measured, WARDS[ward], str(days)]
            rows.append([site, *person, "yes" if smoker else "no", "yes" if ill else "no"])
    return [rows[index] for index in rng.permutation(len(rows))]


if __name__ == "__main__":
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "hospital.csv")
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([COLUMNS, *make_rows()])
    print(f"{path}: {sum(SITES.values())} patients of {len(SITES)} hospitals")
