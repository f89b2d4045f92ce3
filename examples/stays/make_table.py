"""Invent lengths of stay in whole days at six hospitals: `python make_table.py stays.csv`."""

import csv
import sys
from pathlib import Path

import numpy as np

ROWS = 3000

rng = np.random.default_rng(0)
hospital = rng.choice(["north", "south", "east", "west", "hill", "port"], ROWS, p=[0.3, 0.25, 0.15, 0.12, 0.1, 0.08])
age = np.clip(rng.normal(np.where(hospital == "hill", 75, 60), 15, ROWS), 18, 99).round()
ward = rng.choice(["surgery", "medicine", "maternity"], ROWS, p=[0.4, 0.45, 0.15])
urgent = rng.random(ROWS) < 0.4
mean = np.exp(0.7 + 0.012 * (age - 50) + 0.35 * (ward == "surgery") - 0.3 * (ward == "maternity") + 0.45 * urgent)
days = np.minimum(rng.poisson(mean * rng.gamma(5, 0.2, ROWS)), 90)

with Path(sys.argv[1]).open("w", newline="", encoding="utf-8") as file:
    writer = csv.writer(file)
    writer.writerow(["hospital", "age", "ward", "urgent", "days"])
    writer.writerows(zip(hospital, age.astype(int), ward, np.where(urgent, "yes", "no"), days, strict=True))
