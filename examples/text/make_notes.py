"""Write made-up short reviews of stays, with the hotel of each: `python make_notes.py notes.csv`."""

import csv
import sys
from pathlib import Path

import numpy as np

GOOD = ("clean", "quiet", "friendly", "lovely", "bright", "perfect", "kind", "fresh")
BAD = ("dirty", "loud", "rude", "awful", "dark", "broken", "cold", "stale")
THINGS = ("room", "bed", "breakfast", "staff", "view", "bath", "street", "price")
HOTELS, EACH = 5, 300


def review(good: bool, rng: np.random.Generator) -> str:
    """Write three short sentences; one of them may disagree with the others."""
    parts = []
    for _ in range(3):
        words = GOOD if (rng.random() < 0.85) == good else BAD
        parts.append(f"the {rng.choice(THINGS)} was {rng.choice(words)}")
    return ", ".join(parts)


def main(path: Path) -> None:
    """Write the table."""
    rng = np.random.default_rng(0)
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["hotel", "review", "again"])
        for hotel in range(HOTELS):
            for number in range(EACH):
                rows.writerow([f"hotel {hotel}", review(number % 2 == 0, rng), "yes" if number % 2 == 0 else "no"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
