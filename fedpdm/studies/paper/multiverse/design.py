"""The readings that are run, fixed in design.csv before any of them was run.

The rule: our reading is first. Each factor's column has every level equally often. Columns are added one by one, each as the
shuffle, of many, whose levels are closest to independent of the earlier columns. So main effects can be told apart.

The rows are in random order, since every column is a shuffle. So the first N rows are a smaller design of the same kind, chosen
before anything was run: its levels are nearly equally often, and `importance` corrects for what is left of their imbalance.
"""

import csv
import io
import random
from collections import Counter
from collections.abc import Sequence
from importlib import resources

from fedpdm.studies.paper.multiverse.factors import FACTORS, Factor, Reading, our_reading

__all__ = ["SEED", "SIZE", "imbalance", "make_design", "read_design", "design_text"]

SEED, SIZE, SHUFFLES = 1, 200, 200


def make_design(size: int = SIZE, seed: int = SEED, factors: Sequence[Factor] = FACTORS) -> list[Reading]:
    """Make a design by the rule above.

    Parameters
    ----------
    size, seed : int
        The number of readings, and the seed of the shuffles. Python's own generator gives the same ones everywhere.
    factors : sequence of Factor
        The factors.

    Returns
    -------
    list of Reading
        The readings; ours is first.
    """
    source, columns = random.Random(seed), []
    for factor in factors:
        names = [level.name for level in factor.levels]
        column = [names[i % len(names)] for i in range(size)]
        tries = []
        for _ in range(SHUFFLES):
            source.shuffle(column)
            tries.append(list(column))
        columns.append(min(tries, key=lambda one: sum(imbalance(one, other) for other in columns)))
    rows = [dict(zip((factor.name for factor in factors), row, strict=True)) for row in zip(*columns, strict=True)]
    ours = our_reading()
    return [{factor.name: ours[factor.name] for factor in factors}, *rows[1:]]


def imbalance(one: Sequence[str], other: Sequence[str]) -> float:
    """Measure how far two columns are from independent: chi-square over the number of rows; 0 if all pairs are equally often.

    Parameters
    ----------
    one, other : sequence of str
        The levels of two factors.

    Returns
    -------
    float
        The distance.

    Examples
    --------
    >>> imbalance("aabb", "xyxy"), imbalance("aabb", "xxyy")
    (0.0, 1.0)
    """
    size, pairs = len(one), Counter(zip(one, other, strict=True))
    first, second = Counter(one), Counter(other)
    total = 0.0
    for a in first:
        for b in second:
            expected = first[a] * second[b] / size
            total += (pairs[a, b] - expected) ** 2 / expected
    return total / size


def design_text(design: Sequence[Reading]) -> str:
    """Write a design as CSV.

    Parameters
    ----------
    design : sequence of Reading
        The readings.

    Returns
    -------
    str
        One line per reading, with a number first.
    """
    file = io.StringIO()
    writer = csv.DictWriter(file, ["reading", *design[0]], lineterminator="\n")
    writer.writeheader()
    writer.writerows({"reading": str(number)} | reading for number, reading in enumerate(design))
    return file.getvalue()


def read_design() -> list[Reading]:
    """Read the design that was fixed.

    Returns
    -------
    list of Reading
        The readings of design.csv.
    """
    text = (resources.files("fedpdm.studies.paper.multiverse") / "design.csv").read_text(encoding="utf-8")
    return [{key: value for key, value in row.items() if key != "reading"} for row in csv.DictReader(io.StringIO(text))]
