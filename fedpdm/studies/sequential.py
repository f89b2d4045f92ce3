"""A sequential test with a stated error rate: more seeds until a verdict is clear, in a fixed number of looks.

The looks are at 5, 10, 20, ... seeds up to a cap. The allowed error is spent in proportion to the seeds: the look at n_k seeds
has the level error * (n_k - n_{k-1}) / cap, and a Student t interval of confidence 1 - level. Then, by the union bound, all
intervals contain the true effect with probability at least 1 - error, whatever the looks have in common. A verdict is wrong
only if an interval misses the effect, so no rule of stopping at these looks is wrong more often.

A larger cap that is set later cannot change the levels of looks that were made. Its further looks therefore spend a further
error of 2 %, again in proportion to the seeds, and the two errors add up. This can be done once.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedpdm.errors import ConfigError
from fedpdm.studies.statistics import Interval, half_width, verdict

__all__ = ["LATER_ERROR", "MARGIN", "Rule", "Decision", "decide", "forecast"]

MARGIN = 0.005  # half a point of accuracy
LATER_ERROR = 0.02  # of all looks beyond the first cap together
EQUAL_SEEDS = 40  # accuracies that agree exactly: another value in one seed of ten is then missed with a probability of 1.5 %


class Rule(NamedTuple):
    """When to look, and how often a verdict may be wrong.

    Attributes
    ----------
    first, most
        Seeds at the first look, and the cap. The number of seeds doubles from look to look.
    error
        The probability, for one claim, that any of its intervals up to the cap misses the true effect.
    later
        A larger cap that was set when the results of the first were known; None: there is none.
    """

    first: int = 5
    most: int = 160
    error: float = 0.05
    later: int | None = None

    @property
    def cap(self) -> int:
        """The most seeds of a claim."""
        return self.later or self.most

    @property
    def total_error(self) -> float:
        """The probability, for one claim, that any of its intervals misses the true effect."""
        return self.error + (LATER_ERROR if self.later else 0.0)

    @property
    def looks(self) -> tuple[int, ...]:
        """The numbers of seeds at which verdicts are made."""
        if not 2 <= self.first <= self.most:
            raise ConfigError(
                f"Expected --most-seeds {self.most} to be at least {max(2, self.first)}, the seeds of the first look."
            )
        found = [self.first]
        for cap in (self.most, self.cap):
            while found[-1] < cap:
                found.append(min(2 * found[-1], cap))
        return tuple(found)

    @property
    def levels(self) -> tuple[float, ...]:
        """The share of the error that each look spends; they add up to the total error."""
        looks = self.looks
        steps = [(n, n - before) for before, n in zip((0, *looks), looks, strict=False)]
        return tuple(
            self.error * added / self.most if n <= self.most else LATER_ERROR * added / (self.cap - self.most)
            for n, added in steps
        )


class Decision(NamedTuple):
    """The state of a claim after its last look.

    Attributes
    ----------
    interval, confidence
        Of the effect at that look.
    verdict
        "holds", "does not hold", "no difference" or "undecided".
    seeds
        The seeds of that look.
    """

    interval: Interval
    confidence: float
    verdict: str
    seeds: int


def decide(values: Sequence[float], margin: float | None = MARGIN, rule: Rule = Rule()) -> Decision:
    """Look at the first seeds, then at more, until there is a verdict or no further look is possible.

    Parameters
    ----------
    values : sequence of float
        The effect, one value per seed; at least those of the first look.
    margin : float, optional
        An effect within this distance of zero is no difference; None: there is no such verdict. With a margin, seeds that
        all agree decide nothing before there are 40 of them: a spread of zero says little about a few seeds.
    rule : Rule
        The looks and their levels.

    Returns
    -------
    Decision
        The verdict, with the interval of the last look. Its error rate is exact if the values of the seeds are independent
        and normal; it is an approximation otherwise.

    Examples
    --------
    >>> decide([0.10, 0.12, 0.11, 0.10, 0.12]).verdict, decide([0.001, -0.001] * 10).verdict
    ('holds', 'no difference')
    >>> found = decide([0.03, -0.02, 0.05, 0.0, -0.01])
    >>> found.verdict, found.seeds, round(found.confidence, 4)
    ('undecided', 5, 0.9984)
    """
    decision = None
    for seeds, level in zip(rule.looks, rule.levels, strict=True):
        if seeds > len(values):
            break
        mean, spread = float(np.mean(values[:seeds])), float(np.std(values[:seeds], ddof=1))
        half = half_width(spread, seeds, 1 - level)
        interval = Interval(mean, mean - half, mean + half)
        unsure = margin is not None and spread == 0 and seeds < min(EQUAL_SEEDS, rule.most)
        decision = Decision(interval, 1 - level, "undecided" if unsure else verdict(interval, margin), seeds)
        if decision.verdict != "undecided":
            break
    if decision is None:
        raise ConfigError(f"Expected {len(values)} seeds to be at least {rule.first}, those of the first look.")
    return decision


def forecast(values: Sequence[float], margin: float | None, rule: Rule) -> int:
    """Estimate how many seeds a verdict needs, if mean and spread stay as they are.

    Parameters
    ----------
    values : sequence of float
        The effect, one value per seed.
    margin : float, optional
        As for `decide`.
    rule : Rule
        The looks and their levels.

    Returns
    -------
    int
        The seeds of the look with a verdict; the cap, if there is none.
    """
    mean, spread = float(np.mean(values)), float(np.std(values, ddof=1))
    equal = EQUAL_SEEDS if margin is not None and spread == 0 else 0
    for seeds, level in zip(rule.looks, rule.levels, strict=True):
        half = half_width(spread, seeds, 1 - level)
        found = verdict(Interval(mean, mean - half, mean + half), margin)
        if found != "undecided" and seeds > len(values) and seeds >= min(equal, rule.most):
            return seeds
    return rule.cap
