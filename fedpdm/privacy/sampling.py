"""The privacy cost of Gaussian releases on random samples of the examples, by dp-accounting.

Conventions are those of `fedpdm.privacy.accounting`.
"""

import math
from typing import Any, Literal, get_args

from fedpdm.choices.words import Relation
from fedpdm.errors import ConfigError
from fedpdm.privacy.accounting import epsilon_of, noise_multiplier_for, safe_edge

__all__ = ["Accountant", "sampled_epsilon", "sampled_noise_multiplier"]

Accountant = Literal["pld", "rdp"]


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
            return min(2 * safe_edge(safe, 1.1 * e, e, 1e-6), full)
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
    return safe_edge(safe, good, good / 2, 1e-4)
