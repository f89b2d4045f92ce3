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
from typing import Any, Literal, get_args

import numpy as np
from scipy.special import erfcx, ndtr, ndtri

from fedpdm.choices.words import RELATIONS, Relation
from fedpdm.errors import ConfigError

__all__ = [
    "Relation",
    "Accountant",
    "gdp_delta",
    "gdp_epsilon",
    "gdp_mu",
    "compose_gdp",
    "effective_multiplier",
    "epsilon_of",
    "noise_multiplier_for",
    "participations_for",
    "sampled_epsilon",
    "sampled_noise_multiplier",
    "paper_sensitivity",
    "paper_sigma",
    "paper_round_epsilon",
    "paper_total_epsilon",
]

Accountant = Literal["pld", "rdp"]
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)
_CLOSE = 1e-12  # relative room that covers the rounding of float64 in a chain of searches


def _within(low: float, high: float, **values: float) -> None:
    for name, value in values.items():
        if not low < value < high:  # also refuses NaN
            raise ConfigError(f"Expected {name}={value} in ({low:g}, {high:g}).")


def _count(**values: int) -> None:
    for name, value in values.items():
        if not (1 <= value < math.inf and value == int(value)):
            raise ConfigError(f"Expected {name}={value} to be a whole number of at least 1.")


def _edge(safe: Callable[[float], bool], good: float, bad: float, tolerance: float = 1e-14) -> float:
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
    _within(0, 1, delta=delta)
    if gdp_delta(0.0, mu) <= delta:
        return 0.0
    if mu == math.inf:
        return math.inf
    good = max(mu * (mu / 2 - float(ndtri(delta))), mu * mu, 1e-12) * (1 + _CLOSE)  # delta <= Phi(a) there
    while gdp_delta(good, mu) > delta:
        good *= 2
    while gdp_delta(good / 2, mu) <= delta and good > 1e-18:
        good /= 2
    return _edge(lambda e: gdp_delta(e, mu) <= delta, good, good / 2)


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
    _within(0, math.inf, epsilon=epsilon)
    _within(0, 1, delta=delta)
    bad = 1.0
    while gdp_delta(epsilon, bad) <= delta:
        bad *= 2
    while gdp_delta(epsilon, bad / 2) > delta:
        bad /= 2
    return _edge(lambda mu: gdp_delta(epsilon, mu) <= delta, bad / 2, bad)


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
    _within(0, math.inf, noise_multiplier=noise_multiplier)
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
    _count(participations=participations)
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
    _count(participations=participations)
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


def sampled_epsilon(
    noise_multiplier: float,
    sampling_probability: float,
    steps: int,
    delta: float,
    relation: Relation,
    accountant: Accountant = "pld",
) -> float:
    r"""Bound the epsilon of `steps` Gaussian releases from above, each on its own Poisson sample of the examples.

    Formal guarantee: $(\epsilon, \delta)$-DP in `relation`, if every example enters every sample independently with
    `sampling_probability`, sums are divided by a public number (not by the sample's size) and samples stay secret.
    Add-remove is dp-accounting's pessimistic PLD, or its RDP bound. For replace-one dp-accounting has no RDP, and its
    PLD takes +C against -C for the worst pair without a proof for compositions. So this function counts a removal and
    an addition instead: $(2e, \delta)$ if $\delta(e) (1 + e^e) \le \delta$. This bound holds for every mechanism and never
    exceeds that of the full batch, but it is not tight. Samples of a fixed size are not covered.

    Parameters
    ----------
    noise_multiplier : float
        z of each release, for add-remove.
    sampling_probability : float
        Probability of an example to enter a sample, in (0, 1].
    steps : int
        Number of releases.
    delta, relation
        Of the guarantee.
    accountant : str
        "pld" or "rdp".

    Returns
    -------
    float
        Epsilon.
    """
    if not 0 < sampling_probability <= 1:
        raise ConfigError(f"Expected sampling probability={sampling_probability} in (0, 1].")
    full = epsilon_of(noise_multiplier, steps, delta, relation)  # sampling never costs more than the full batch
    ledger = _accountant(accountant, noise_multiplier, sampling_probability, steps, delta)
    if relation == "add-remove":
        return min(float(ledger.get_epsilon(delta)), full)

    def safe(e: float) -> bool:
        return ledger.get_delta(e) * (1 + math.exp(e)) <= delta

    e = max(float(ledger.get_epsilon(delta)), 1e-6)  # too small; search upwards, as cut-off tails outweigh delta far up
    while e < min(full / 2, 600):
        if safe(1.1 * e):
            return min(2 * _edge(safe, 1.1 * e, e, 1e-6), full)
        e *= 1.1
    return full


def _accountant(accountant: Accountant, z: float, sampling_probability: float, steps: int, delta: float) -> Any:
    import dp_accounting as dp  # slow to import, and only sampling needs it

    if accountant not in get_args(Accountant):
        raise ConfigError(f"Expected accountant={accountant!r} to be one of {', '.join(get_args(Accountant))}.")
    if accountant == "rdp":  # every set of orders is sound; fractional ones often fail to converge
        ledger = dp.rdp.RdpAccountant([*range(2, 64), 128, 256, 512, 1024])
    else:  # every interval is sound; this one keeps the arrays short if epsilon is in the thousands
        interval = max(1e-4, epsilon_of(z, steps, delta, "add-remove") / 1e5)
        ledger = dp.pld.PLDAccountant(value_discretization_interval=interval)
    return ledger.compose(dp.PoissonSampledDpEvent(sampling_probability, dp.GaussianDpEvent(z)), steps)


def sampled_noise_multiplier(
    epsilon: float,
    delta: float,
    sampling_probability: float,
    steps: int,
    relation: Relation,
    accountant: Accountant = "pld",
) -> float:
    """Return the smallest z, to 0.01 % and rounded up, whose `sampled_epsilon` is at most epsilon. Same guarantee.

    Parameters
    ----------
    epsilon, delta, sampling_probability, steps, relation, accountant
        As in `sampled_epsilon`.

    Returns
    -------
    float
        z.
    """

    def safe(z: float) -> bool:
        return sampled_epsilon(z, sampling_probability, steps, delta, relation, accountant) <= epsilon

    good = noise_multiplier_for(epsilon, delta, steps, relation)  # enough without sampling
    while safe(good / 2):
        good /= 2
    return _edge(safe, good, good / 2, 1e-4)


def paper_sensitivity(rho: float, step_size: float, steps: int, clip: float) -> float:
    r"""Return the sensitivity of Theorem 1 as printed.

    It is $4 \eta G (1 - r^Q)/(1 - r)$ with $r = |1 - \rho\eta|$, or $4 \eta G Q$ for r = 1. It is not a guarantee: its proof
    treats the dual, which is private state, as public. Relation: add-remove, as in the paper's Definition 1.

    Parameters
    ----------
    rho, step_size, clip : float
        Weight of the proximal term, eta, and G.
    steps : int
        Q.

    Returns
    -------
    float
        The sensitivity.
    """
    _within(0, math.inf, rho=rho, step_size=step_size, clip=clip)
    _count(steps=steps)
    rate = abs(1 - rho * step_size)
    series = steps if math.isclose(rate, 1, abs_tol=1e-12) else (1 - rate**steps) / (1 - rate)
    return 4 * step_size * clip * series


def paper_sigma(sensitivity: float, epsilon: float, delta: float) -> float:
    r"""Return $\sigma = s \sqrt{2 \ln(1.25/\delta)}/\epsilon$, Lemma 1 as printed. It is proved for epsilon <= 1 only.

    Parameters
    ----------
    sensitivity, epsilon, delta : float
        Of one round.

    Returns
    -------
    float
        The standard deviation of the noise.
    """
    _within(0, math.inf, sensitivity=sensitivity, epsilon=epsilon)
    _within(0, 1, delta=delta)
    return sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def paper_round_epsilon(
    total_epsilon: float,
    steps: int,
    batch_size: int,
    examples: int,
    participants: int,
    clients: int,
    rounds: int,
    c0: float = 1.0,
) -> float:
    r"""Solve Theorem 2 for the epsilon of one round: $\bar\epsilon / (c_0 q^2 \sqrt{pT/(1-q)})$, $q = Qb/|D|$, $p = K/N$.

    It is not a guarantee: the moments accountant gives q, not its square, and the participations are an expectation.

    Parameters
    ----------
    total_epsilon : float
        The epsilon of all rounds.
    steps, batch_size, examples : int
        Q, b and |D|.
    participants, clients, rounds : int
        K, N and T.
    c0 : float
        The constant that the theorem leaves open.

    Returns
    -------
    float
        The epsilon of one round.
    """
    _count(steps=steps, batch_size=batch_size, examples=examples)
    _count(participants=participants, clients=clients, rounds=rounds)
    _within(0, math.inf, epsilon=total_epsilon, c0=c0)
    if participants > clients:
        raise ConfigError(f"Expected participants={participants} <= clients={clients}.")
    if steps * batch_size >= examples:
        raise ConfigError(
            f"Expected steps={steps} times batch_size={batch_size} < examples={examples} (Theorem 2 needs q < 1): "
            f"take at most {(examples - 1) // batch_size} steps, or smaller batches."
        )
    q = steps * batch_size / examples
    return total_epsilon / (c0 * q**2 * math.sqrt(participants / clients * rounds / (1 - q)))


def paper_total_epsilon(round_epsilon: float, *setting: Any, **named: Any) -> float:
    """Return the total epsilon of Theorem 2 as printed. It is nominal only.

    Parameters
    ----------
    round_epsilon : float
        The epsilon of one round.
    *setting, **named
        The other arguments of `paper_round_epsilon`.

    Returns
    -------
    float
        The epsilon of all rounds.
    """
    return round_epsilon / paper_round_epsilon(1.0, *setting, **named)
