"""From accuracies of all readings to answers: how often a claim holds, which factor decides, and the best reading."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedpdm.studies.paper.effects import BASELINES
from fedpdm.studies.paper.multiverse.cells import PANELS
from fedpdm.studies.paper.multiverse.factors import TESTED, Reading, our_reading
from fedpdm.studies.sequential import MARGIN
from fedpdm.studies.statistics import Interval

__all__ = [
    "HEADLINES",
    "Headline",
    "Repeat",
    "Specification",
    "best_specification",
    "chance_limit",
    "changes",
    "gap",
    "importance",
    "level_means",
]
__all__ += ["BEST", "BEST_TITLE", "claims_held", "nearest_that_moves", "share_held", "tells_factors_apart"]

BEST = "best-reading"  # of the entry in readings.json beside those of the claims
BEST_TITLE = "The reading under which the claims hold best"
DRAWS, AT_ONCE = 10_000, 500  # shuffles
ERROR = 0.05  # the chance that a factor of any claim is named although none decides
# Mean accuracy over the seeds, by panel and curve
Accuracies = Mapping[tuple[str, str], float]


class Specification(NamedTuple):
    """A reading with the model that is tested, and its accuracies."""

    number: int  # of the reading in the design
    levels: Reading  # "tested" included
    accuracies: Accuracies
    moves: Mapping[str, float]  # by panel: the largest distance of two accuracies on one curve


class Repeat(NamedTuple):
    """A specification with other seeds than those by which it was chosen."""

    specification: Specification
    seeds: int
    gaps: Mapping[str, Interval]  # by panel: FedPDM's accuracy minus that of the baseline with the best mean


class Headline(NamedTuple):
    """A headline claim; it holds where its value is above 0."""

    id: str
    text: str
    value: Callable[[Accuracies], float]


def gap(accuracies: Accuracies, panel: str) -> float:
    """Compute FedPDM's accuracy minus that of the best baseline.

    Parameters
    ----------
    accuracies : mapping
        Mean accuracy by panel and curve.
    panel : str
        Name of the panel.

    Returns
    -------
    float
        The difference.
    """
    return accuracies[panel, "FedPDM"] - max(accuracies[panel, label] for label in BASELINES)


def _robustness(accuracies: Accuracies, without: str, with_noise: str) -> float:
    loss = {label: accuracies[without, label] - accuracies[with_noise, label] for label in ("FedPDM", *BASELINES)}
    return float(np.mean([loss[label] for label in BASELINES])) - loss["FedPDM"]


def _headlines() -> tuple[Headline, ...]:
    found = []
    for panel in PANELS:
        text = f"{panel.title}: FedPDM is first"
        found.append(Headline(f"{panel.name}-first", text, lambda own, name=panel.name: gap(own, name)))
    for panel in PANELS:
        text = f"{panel.title}: FedPDM is first, or within half a point of the first"
        found.append(Headline(f"{panel.name}-near", text, lambda own, name=panel.name: gap(own, name) + MARGIN))
    for without, with_noise, data in (("fig7a", "fig7b", "Adult"), ("fig7c", "fig7d", "MNIST")):
        text = f"{data}: FedPDM loses least by DP"
        pair = (without, with_noise)
        found.append(Headline(f"{data.lower()}-robust", text, lambda own, pair=pair: _robustness(own, *pair)))
    return tuple(found)


HEADLINES = _headlines()


def share_held(headline: Headline, specifications: Sequence[Specification]) -> float:
    """Compute the share of specifications in which a claim holds.

    Parameters
    ----------
    headline : Headline
        The claim.
    specifications : sequence of Specification
        The specifications.

    Returns
    -------
    float
        Between 0 and 1.
    """
    return float(np.mean([headline.value(one.accuracies) > 0 for one in specifications]))


def importance(headline: Headline, specifications: Sequence[Specification]) -> dict[str, float]:
    """Compute how much of the variance of a claim's value each factor explains: its drop in R^2 when it is left out.

    Parameters
    ----------
    headline : Headline
        The claim.
    specifications : sequence of Specification
        The specifications.

    Returns
    -------
    dict of str to float
        By factor; main effects only, so the rest of the variance is interactions and noise.
    """
    values = np.array([headline.value(one.accuracies) for one in specifications])
    values -= values.mean()
    total = float(values @ values)
    parts = _parts(specifications)
    return {name: float(np.sum((values @ own) ** 2)) / total if total else 0.0 for name, own in parts.items()}


def chance_limit(headline: Headline, specifications: Sequence[Specification], draws: int = DRAWS) -> float:
    """Compute what the most important factor explains by chance.

    Values are shuffled between the readings, and between the models that are tested in a reading, so no factor has an effect.
    In all but a small share of the shuffles no factor explains more. That share is `ERROR` over the number of claims, so that
    all claims together have this error.

    Parameters
    ----------
    headline : Headline
        The claim.
    specifications : sequence of Specification
        The specifications, those of a reading side by side.
    draws : int
        Number of shuffles.

    Returns
    -------
    float
        A share of the variance.
    """
    values = np.array([headline.value(one.accuracies) for one in specifications])
    values -= values.mean()
    total = float(values @ values)
    if total == 0:
        return 0.0
    random, parts = np.random.default_rng(0), _parts(specifications).values()
    by_reading = values.reshape(-1, len(TESTED))
    largest = []
    while len(largest) < draws:
        shuffled = np.array([random.permuted(random.permutation(by_reading), axis=1).ravel() for _ in range(AT_ONCE)])
        largest.extend(np.max([np.sum((shuffled @ own) ** 2, axis=1) for own in parts], axis=0) / total)
    return float(np.quantile(largest, 1 - ERROR / len(HEADLINES)))


def tells_factors_apart(specifications: Sequence[Specification]) -> bool:
    """Say whether there are enough readings for `importance`: at least twice as many as its fit has numbers.

    Parameters
    ----------
    specifications : sequence of Specification
        The specifications.

    Returns
    -------
    bool
        False: a fit of all factors would pass through nearly every reading, and no factor would seem to matter.
    """
    levels = specifications[0].levels
    numbers = 1 + sum(len({one.levels[name] for one in specifications}) - 1 for name in levels)
    return len({one.number for one in specifications}) >= 2 * numbers


def _parts(specifications: Sequence[Specification]) -> dict[str, np.ndarray]:
    """For every factor, orthonormal columns that span what its levels add to those of the others."""
    columns: dict[str, np.ndarray] = {}
    for name in specifications[0].levels:
        levels = [one.levels[name] for one in specifications]
        others = sorted(set(levels))[1:]
        columns[name] = np.array([[level == other for other in others] for level in levels], float)
    parts = {}
    for name, own in columns.items():
        rest = np.hstack([np.ones((len(own), 1)), *(other for key, other in columns.items() if key != name)])
        added = own - rest @ np.linalg.lstsq(rest, own, rcond=None)[0]
        left, sizes, _ = np.linalg.svd(added, full_matrices=False)
        parts[name] = left[:, sizes > 1e-9]
    return parts


def level_means(headline: Headline, specifications: Sequence[Specification], factor: str) -> dict[str, float]:
    """Average a claim's value over the specifications of each level of a factor.

    Parameters
    ----------
    headline : Headline
        The claim.
    specifications : sequence of Specification
        The specifications.
    factor : str
        Name of the factor.

    Returns
    -------
    dict of str to float
        By level.
    """
    levels = dict.fromkeys(one.levels[factor] for one in specifications)
    return {
        level: float(np.mean([headline.value(o.accuracies) for o in specifications if o.levels[factor] == level]))
        for level in levels
    }


def best_specification(specifications: Sequence[Specification]) -> Specification:
    """Find the specification in which most claims hold; among equals, that with the largest sum of FedPDM's gaps.

    Parameters
    ----------
    specifications : sequence of Specification
        The specifications.

    Returns
    -------
    Specification
        The best one.
    """

    def merit(one: Specification) -> tuple[int, float]:
        return claims_held(one), sum(gap(one.accuracies, panel.name) for panel in PANELS)

    return max(specifications, key=merit)


def claims_held(one: Specification) -> int:
    """Count the headline claims that hold in a specification.

    Parameters
    ----------
    one : Specification
        The specification.

    Returns
    -------
    int
        How many.
    """
    return sum(headline.value(one.accuracies) > 0 for headline in HEADLINES)


def changes(one: Specification) -> dict[str, str]:
    """List where a specification differs from our reading.

    Parameters
    ----------
    one : Specification
        The specification.

    Returns
    -------
    dict of str to str
        The levels that differ, by factor.
    """
    ours = our_reading()
    return {name: level for name, level in one.levels.items() if ours.get(name, level) != level}


def nearest_that_moves(specifications: Sequence[Specification], panel: str) -> Specification | None:
    """Find the reading nearest to ours in which a curve of a panel moves by more than the margin.

    Parameters
    ----------
    specifications : sequence of Specification
        The specifications.
    panel : str
        Name of the panel.

    Returns
    -------
    Specification or None
        That with the fewest changes; among equals, the one that moves most. None: nothing moves.
    """
    moving = [one for one in specifications if one.moves[panel] > MARGIN]
    return min(moving, key=lambda one: (len(changes(one)), -one.moves[panel]), default=None)
