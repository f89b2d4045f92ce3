r"""The privacy cost of a sequence of Gaussian releases, and the noise that a budget needs.

Conventions. A release is $x + N(0, \sigma^2 I)$. Its *sensitivity* s bounds $\|x(D) - x(D')\|$ when D' is D with
one example **added or removed**; its *noise multiplier* is $z = \sigma/s$. Under **replace-one** (D' is D with one
example exchanged) the distance is up to 2s, so the same release counts with z/2.

Formal guarantee of the full-batch functions: R releases with noise multiplier z, each of which may depend on the
outputs before, are $\mu$-GDP with $\mu = \sqrt R/z$ (twice that for replace-one), hence $(\epsilon, \delta)$-DP
exactly from $\delta = \Phi(\mu/2 - \epsilon/\mu) - e^\epsilon \Phi(-\mu/2 - \epsilon/\mu)$ on (Dong, Roth, Su
2022). Assumptions: s bounds the distance, the noise is Gaussian and fresh, and no other value computed from the data
leaves. A search returns the safe end of its last interval, so the returned value keeps within the budget.

References
----------
Dong, Roth, Su: "Gaussian differential privacy", Journal of the Royal Statistical Society B, 2022.
"""

import math
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import erfcx, ndtr, ndtri

from fedpdm.choices.words import RELATIONS, Relation
from fedpdm.errors import ConfigError

__all__ = [
    "Relation",
    "gdp_delta",
    "gdp_epsilon",
    "gdp_mu",
    "compose_gdp",
    "effective_multiplier",
    "epsilon_of",
    "noise_multiplier_for",
    "participations_for",
]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)
_CLOSE = 1e-12  # relative room that covers the rounding of float64 in a chain of searches


def check_within(low: float, high: float, **values: float) -> None:
    for name, value in values.items():
        if not low < value < high:  # also refuses NaN
            raise ConfigError(f"Expected {name}={value} in ({low:g}, {high:g}).")


def check_count(**values: int) -> None:
    for name, value in values.items():
        if not (1 <= value < math.inf and value == int(value)):
            raise ConfigError(f"Expected {name}={value} to be a whole number of at least 1.")


def safe_edge(safe: Callable[[float], bool], good: float, bad: float, tolerance: float = 1e-14) -> float:
    """Bisect between a point that is `safe` and one that is not; return the safe end."""
    while abs(good - bad) > tolerance * abs(good):
        middle = (good + bad) / 2
        good, bad = (middle, bad) if safe(middle) else (good, middle)
    return good


def gdp_delta(epsilon: float, mu: float) -> float:
    r"""Return the smallest delta for which $\mu$-GDP implies $(\epsilon, \delta)$-DP.

    With $a = \mu/2 - \epsilon/\mu$, $b = a - \mu$ and the Mills ratio $M(x) = \Phi(-x)/\phi(x)$, the identity
    $e^\epsilon \phi(b) = \phi(a)$ turns $\Phi(a) - e^\epsilon\Phi(b)$ into $\phi(a) (M(-a) - M(-b))$, where no
    large numbers cancel; for a small $\mu$ the difference is the integral of $-M'(x) = 1 - x M(x)$.

    Parameters
    ----------
    epsilon, mu : float
        Both at least 0; mu may be infinite.

    Returns
    -------
    float
        Delta.
    """
    if not (0 <= epsilon < math.inf and mu >= 0):
        raise ConfigError(f"Expected epsilon={epsilon} in [0, inf) and mu={mu} in [0, inf].")
    if mu in (0, math.inf):
        return float(mu > 0)
    near = epsilon / mu - mu / 2  # -a
    if near > 39:  # below the smallest float64
        return 0.0
    density = math.exp(-near * near / 2) / math.sqrt(2 * math.pi)
    if mu < 0.5:
        x = near + mu * (1 + _NODES) / 2
        return density * mu / 2 * float(_WEIGHTS @ (1 - x * _mills(x)))
    if near > 0:
        return density * float(_mills(near) - _mills(near + mu))
    return float(ndtr(-near)) - density * float(_mills(near + mu))


def _mills(x: Any) -> Any:
    return math.sqrt(math.pi / 2) * erfcx(x / math.sqrt(2))


@lru_cache(maxsize=4096)  # most clients of a run have spent the same
def gdp_epsilon(mu: float, delta: float) -> float:
    """Return the smallest epsilon for which mu-GDP implies (epsilon, delta)-DP, rounded up.

    Parameters
    ----------
    mu, delta : float
        mu at least 0, delta between 0 and 1.

    Returns
    -------
    float
        Epsilon; infinite for an infinite mu.
    """
    check_within(0, 1, delta=delta)
    if gdp_delta(0.0, mu) <= delta:
        return 0.0
    if mu == math.inf:
        return math.inf
    good = max(mu * (mu / 2 - float(ndtri(delta))), mu * mu, 1e-12) * (1 + _CLOSE)  # delta <= Phi(a) there
    while gdp_delta(good, mu) > delta:
        good *= 2
    while gdp_delta(good / 2, mu) <= delta and good > 1e-18:
        good /= 2
    return safe_edge(lambda e: gdp_delta(e, mu) <= delta, good, good / 2)


@lru_cache(maxsize=1024)
def gdp_mu(epsilon: float, delta: float) -> float:
    """Return the largest mu for which mu-GDP implies (epsilon, delta)-DP, rounded down.

    Parameters
    ----------
    epsilon, delta : float
        epsilon above 0, delta between 0 and 1.

    Returns
    -------
    float
        mu.
    """
    check_within(0, math.inf, epsilon=epsilon)
    check_within(0, 1, delta=delta)
    bad = 1.0
    while gdp_delta(epsilon, bad) <= delta:
        bad *= 2
    while gdp_delta(epsilon, bad / 2) > delta:
        bad /= 2
    return safe_edge(lambda mu: gdp_delta(epsilon, mu) <= delta, bad / 2, bad)


def compose_gdp(multipliers: Iterable[float]) -> float:
    r"""Return the $\mu = \sqrt{\sum_i 1/z_i^2}$ of Gaussian releases with noise multipliers z_i.

    Formal guarantee: the sequence is $\mu$-GDP, in the relation that the z_i are for. It holds adaptively: a release and its
    z_i may depend on earlier outputs as long as the sum stays below a bound that was fixed before.

    Parameters
    ----------
    multipliers : iterable of float
        The z_i.

    Returns
    -------
    float
        mu.

    References
    ----------
    Smith, Thakurta: "Fully adaptive composition for Gaussian differential privacy", 2022.
    """
    return math.hypot(*(1 / effective_multiplier(z, "add-remove") for z in multipliers))


def effective_multiplier(noise_multiplier: float, relation: Relation) -> float:
    """Return the noise over the sensitivity in a relation: z for add-remove, z/2 for replace-one.

    Parameters
    ----------
    noise_multiplier : float
        z, the noise over the add-remove sensitivity.
    relation : str
        "add-remove" or "replace-one".

    Returns
    -------
    float
        The multiplier in this relation.
    """
    check_within(0, math.inf, noise_multiplier=noise_multiplier)
    if relation not in RELATIONS:
        raise ConfigError(f"Expected relation={relation!r} to be one of {', '.join(RELATIONS)}.")
    return noise_multiplier / 2 if relation == "replace-one" else noise_multiplier


def epsilon_of(noise_multiplier: float, participations: int, delta: float, relation: Relation) -> float:
    """Return the exact epsilon of full-batch releases, rounded up. Guarantee: see the head of the module.

    Parameters
    ----------
    noise_multiplier : float
        z of each release, for add-remove.
    participations : int
        Number of releases.
    delta, relation
        Of the guarantee.

    Returns
    -------
    float
        Epsilon.

    Examples
    --------
    >>> round(epsilon_of(24.68, 60, 1e-4, "add-remove"), 2), round(epsilon_of(24.68, 60, 1e-4, "replace-one"), 2)
    (1.0, 2.21)
    """
    check_count(participations=participations)
    return gdp_epsilon(math.sqrt(participations) / effective_multiplier(noise_multiplier, relation), delta)


def noise_multiplier_for(epsilon: float, delta: float, participations: int, relation: Relation) -> float:
    """Return the smallest z (rounded up) that keeps full-batch releases within (epsilon, delta).

    The result z has epsilon_of(z, participations, delta, relation) <= epsilon. Guarantee: see the head of the module.

    Parameters
    ----------
    epsilon, delta, relation
        Of the guarantee.
    participations : int
        Number of releases.

    Returns
    -------
    float
        z.
    """
    check_count(participations=participations)
    z = math.sqrt(participations) / gdp_mu(epsilon, delta) / effective_multiplier(1.0, relation)
    room = _CLOSE
    while epsilon_of(z * (1 + room), participations, delta, relation) > epsilon:
        room *= 2
    return z * (1 + room)


def participations_for(epsilon: float, delta: float, noise_multiplier: float, relation: Relation) -> int:
    """Return the most full-batch releases that stay within (epsilon, delta).

    Parameters
    ----------
    epsilon, delta, relation
        Of the guarantee.
    noise_multiplier : float
        z of each release, for add-remove.

    Returns
    -------
    int
        The number of releases; 0 if even one is too many.
    """
    most = math.floor((gdp_mu(epsilon, delta) * effective_multiplier(noise_multiplier, relation)) ** 2)
    while most and epsilon_of(noise_multiplier, most, delta, relation) > epsilon:
        most -= 1
    return most
